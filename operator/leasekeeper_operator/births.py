"""Lets the nodes of an ensemble be born, and mends a total loss: the record first, then the nodes.

A node that opened without a record could be born a second time, with tokens that were handed out
before. What to write is `decide_birth`'s (leasekeeper/redlock/registry.py); here it is done.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from leasekeeper.redlock.registry import (
    FRESH,
    NodeView,
    Record,
    birth_arguments,
    decide_birth,
)
from leasekeeper_operator.api import Api, Object
from leasekeeper_operator.events import Happening, tell
from leasekeeper_operator.link import NodeError
from leasekeeper_operator.lock_users import LockUsers
from leasekeeper_operator.model import Ensemble, Key
from leasekeeper_operator.nodes import Nodes, Sight

log = logging.getLogger(__name__)

BIRTH_PATIENCE_SECONDS = 30.0
"""How long all nodes are waited for before a quorum of them is born alone. The rest then recovers
from it, which takes a quarantine; so it should be longer than a usual pull of the images."""


def record_of(obj: Object) -> Record | None:
    """Of a LockEnsemble."""
    saved = obj.get("status", {}).get("registry")
    return Record.from_json(saved) if saved else None


class Births:
    """Of all ensembles."""

    def __init__(self, api: Api, users: LockUsers, now: Callable[[], float]) -> None:
        self._api = api
        self._users = users
        self._now = now
        self._no_quorum_since: dict[Key, float] = {}

    def drop(self, ensemble: Key) -> None:
        self._no_quorum_since.pop(ensemble, None)

    async def bring(
        self, ensemble: Ensemble, obj: Object, nodes: Nodes, sights: Mapping[str, Sight]
    ) -> Object:
        """The LockEnsemble as it is afterwards."""
        record = record_of(obj)
        if record is None and not await self._users.ever_published(ensemble):
            record = FRESH  # the first birth: there is nobody who could hold a lease from before
        new = await self._decide(ensemble, record, nodes, sights)
        if new is not None:
            status = {**obj.get("status", {}), "registry": new.to_json()}
            obj = await self._api.replace_status({**obj, "status": status})
            log.warning(
                "born ensemble=%s generation=%d floor=%d nodes=%s",
                *(ensemble.key, new.generation, new.floor, ",".join(sorted(new.lives))),
            )
            await tell(self._api, obj, [_happening(new)])
            record = new
        if record is not None:
            await asyncio.gather(
                *(
                    self._bear(ensemble, record, nodes, sight.id)
                    for sight in sights.values()
                    if sight.view is not None and _unborn(record, sight.id, sight.view)
                )
            )
        return obj

    async def _decide(
        self,
        ensemble: Ensemble,
        record: Record | None,
        nodes: Nodes,
        sights: Mapping[str, Sight],
    ) -> Record | None:
        membership, now = ensemble.membership, self._now()
        views = {id: sight.view for id, sight in sights.items() if sight.view is not None}
        if sum(view.open for view in views.values()) >= membership.quorum:
            self._no_quorum_since.pop(ensemble.key, None)
            waited = False
        else:
            since = self._no_quorum_since.setdefault(ensemble.key, now)
            waited = now - since > BIRTH_PATIENCE_SECONDS
        wall_ms = int(time.time() * 1000)
        new = decide_birth(record, views, membership, wall_ms, waited=waited)
        if new is None or record is None or record is FRESH:
            return new
        # A total loss: what the survivors remember is asked for only now, because it is long.
        for id, view in views.items():
            if view.open and id in new.lives:
                views[id] = replace(view, highest=await nodes.highest(id))
        return decide_birth(record, views, membership, wall_ms, waited=waited)

    async def _bear(self, ensemble: Ensemble, record: Record, nodes: Nodes, node: str) -> None:
        try:
            await nodes.birth(node, birth_arguments(record, ensemble.membership, node))
        except NodeError as error:
            log.warning('birth-not-told ensemble=%s node=%s error="%s"', ensemble.key, node, error)


def _unborn(record: Record, node: str, view: NodeView) -> bool:
    """The record lists this very memory, and it has not been told yet."""
    return record.lives.get(node) == view.life and view.birth < record.generation


def _happening(record: Record) -> Happening:
    if record.generation == 1:
        return Happening("Born", f"the nodes may open; tokens begin above {record.floor}")
    text = f"fewer than a quorum of nodes remembered: tokens go on above {record.floor}"
    return Happening("MemoryLost", text, warning=True)
