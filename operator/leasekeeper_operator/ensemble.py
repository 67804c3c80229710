"""Brings the nodes of a LockEnsemble into being, lets them be born, and says how they are.

    objects ──▶ look at the nodes ──▶ birth: record first, then the nodes ──▶ users ──▶ status
       └ when the spec or one of them changed     └ compare-and-swap by resourceVersion

Every step can be repeated, and a crash between any two of them is only a later look.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from leasekeeper.redlock.registry import (
    FRESH,
    NodeView,
    Record,
    birth_arguments,
    decide_birth,
)
from leasekeeper_operator import names
from leasekeeper_operator.api import ENSEMBLE, SECRET, Api, Object
from leasekeeper_operator.apply import Applier, stamped
from leasekeeper_operator.lock_users import LockUsers
from leasekeeper_operator.manifests.common import text_of
from leasekeeper_operator.manifests.ensemble import credentials_secret, ensemble_objects
from leasekeeper_operator.model import Ensemble, Key, lock_key
from leasekeeper_operator.nodes import (
    OPEN,
    NodeError,
    Nodes,
    Passwords,
    Resolve,
    Sight,
    by_name,
    without_ghosts,
)
from leasekeeper_operator.queue import Queue
from leasekeeper_operator.settings import Settings
from leasekeeper_operator.status import (
    changed,
    ensemble_conditions,
    merge_conditions,
    node_statuses,
)

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0  # the status follows the nodes within this
LOOK_SECONDS_UNTIL_OPEN = 1.0  # somebody is waiting for a birth or the end of a quarantine
WAIT_SECONDS = 120.0
"""After so long without a change nobody is waiting any more, and the slow look will do. Longer than
the pull of an image, and than the quarantine of the default ensemble."""
RESYNC_SECONDS = 300.0  # for what no watch reports: budget and policy edited by hand
BIRTH_PATIENCE_SECONDS = 30.0
"""How long all nodes are waited for before a quorum of them is born alone. The rest then recovers
from it, which takes a quarantine; so it should be longer than a usual pull of the images."""


@dataclass(slots=True)
class _State:
    """What is only remembered to do less; a new operator begins without it."""

    settled: tuple[int, float] | None = None
    """Generation and time at which all objects were last brought to the spec."""
    passwords: Passwords | None = None
    nodes: Nodes | None = None
    no_quorum_since: float | None = None
    generation: int = 0
    """Of the spec that the locks were last told of."""
    opened: tuple[str, ...] | None = None
    """The nodes that were open at the last look."""
    seen: tuple[list[Object], float] | None = None
    """What the last look saw, and when that was new."""


class EnsembleReconciler:
    def __init__(
        self,
        api: Api,
        applier: Applier,
        settings: Settings,
        queue: Queue,
        *,
        resolve: Resolve = by_name,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._applier = applier
        self._settings = settings
        self._queue = queue
        self._resolve = resolve
        self._now = now
        self._users = LockUsers(api, applier, settings.default_place, now=now)
        self._states: dict[Key, _State] = {}

    def objects_changed(self, key: Key) -> None:
        """One of the objects that belong to this ensemble is not what it was."""
        if state := self._states.get(key):
            state.settled = None
        self._queue.add(key)

    def locks_changed(self, key: Key) -> None:
        """A lock of this ensemble came, went or changed."""
        self._users.invalidate(key)
        self._queue.add(key)

    async def reconcile(self, key: Key) -> float | None:
        obj = await self._api.get(ENSEMBLE, key.namespace, key.name)
        if obj is None or obj["metadata"].get("deletionTimestamp"):
            await self._drop(key)
            return None
        ensemble = Ensemble.parse(obj)
        state = self._states.setdefault(key, _State())
        await self._bring_objects(ensemble, state)
        nodes = await self._nodes(ensemble, state)
        sights = await nodes.look()
        obj = await self._birth(ensemble, state, obj, nodes, sights)
        sights = without_ghosts(_record(obj), sights)
        await self._users.sync(ensemble, nodes, sights)
        await self._write_status(ensemble, obj, sights)
        if state.generation != ensemble.generation:
            # Which locks it serves may have changed.
            state.generation = ensemble.generation
            state.opened = None
        opened = tuple(sorted(id for id, sight in sights.items() if sight.state == OPEN))
        if opened != state.opened:
            log.info("nodes-open ensemble=%s open=%s", key, ",".join(opened) or "none")
            state.opened = opened
            for lock in self._users.locks(key):
                self._queue.add(lock_key(*lock))
        return self._next_look(state, sights)

    def _next_look(self, state: _State, sights: Mapping[str, Sight]) -> float:
        now, statuses = self._now(), node_statuses(sights)
        if state.seen is None or state.seen[0] != statuses:
            state.seen = (statuses, now)
        waiting = any(sight.state != OPEN for sight in sights.values())
        fresh = now - state.seen[1] < WAIT_SECONDS
        return LOOK_SECONDS_UNTIL_OPEN if waiting and fresh else LOOK_SECONDS

    async def close(self) -> None:
        for key in list(self._states):
            await self._drop(key)

    async def _drop(self, key: Key) -> None:
        self._users.drop(key)
        state = self._states.pop(key, None)
        if state is not None and state.nodes is not None:
            await state.nodes.close()

    async def _bring_objects(self, ensemble: Ensemble, state: _State) -> None:
        now = self._now()
        if state.settled is not None:
            generation, when = state.settled
            if generation == ensemble.generation and now - when < RESYNC_SECONDS:
                return
        # Set before the work: an event that comes meanwhile takes it away again.
        state.settled = (ensemble.generation, now)
        try:
            state.passwords = await self._passwords(ensemble)
            for obj in ensemble_objects(
                ensemble,
                state.passwords,
                operator_namespace=self._settings.namespace,
                agent_image=self._settings.sidecar_image,
                pull_policy=self._settings.sidecar_pull_policy,
            ):
                await self._applier.bring(obj)
        except BaseException:
            state.settled = None
            raise

    async def _passwords(self, ensemble: Ensemble) -> Passwords:
        """Made once. Servers that run know the old ones, so they are never made anew while there is
        anything left of them."""
        name = names.credentials_secret(ensemble.name)
        secret = await self._api.get(SECRET, ensemble.namespace, name)
        known = {user: text_of(secret or {}, user) for user in ("agent", "peer", "operator")}
        complete = Passwords(**{user: kept or _password() for user, kept in known.items()})
        desired = credentials_secret(ensemble, complete)
        if secret is None:
            # Created and not applied: of two operators, one makes the passwords. The other one's
            # conflict is tried again.
            await self._api.create(stamped(desired))
            log.info("passwords-made ensemble=%s", ensemble.key)
        else:
            await self._applier.bring(desired)
        return complete

    async def _nodes(self, ensemble: Ensemble, state: _State) -> Nodes:
        assert state.passwords is not None, "the objects were brought before"
        wanted = (ensemble.membership, state.passwords)
        if state.nodes is not None and (state.nodes.membership, state.nodes.passwords) != wanted:
            await state.nodes.close()
            state.nodes = None
        if state.nodes is None:
            state.nodes = Nodes(*wanted, resolve=self._resolve)
        return state.nodes

    async def _birth(
        self,
        ensemble: Ensemble,
        state: _State,
        obj: Object,
        nodes: Nodes,
        sights: Mapping[str, Sight],
    ) -> Object:
        """The record first, and only then the nodes: a node that opened without a record could be
        born a second time, with tokens that were handed out before."""
        saved = obj.get("status", {}).get("registry")
        record = Record.from_json(saved) if saved else None
        if record is None and not await self._users.ever_published(ensemble):
            record = FRESH  # the first birth: there is nobody who could hold a lease from before
        new = await self._decide(ensemble, state, record, nodes, sights)
        if new is not None:
            status = {**obj.get("status", {}), "registry": new.to_json()}
            obj = await self._api.replace_status({**obj, "status": status})
            log.warning(
                "born ensemble=%s generation=%d floor=%d nodes=%s",
                *(ensemble.key, new.generation, new.floor, ",".join(sorted(new.lives))),
            )
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
        state: _State,
        record: Record | None,
        nodes: Nodes,
        sights: Mapping[str, Sight],
    ) -> Record | None:
        membership, now = ensemble.membership, self._now()
        views = {id: sight.view for id, sight in sights.items() if sight.view is not None}
        if sum(view.open for view in views.values()) >= membership.quorum:
            state.no_quorum_since = None
        elif state.no_quorum_since is None:
            state.no_quorum_since = now
        since = state.no_quorum_since
        waited = since is not None and now - since > BIRTH_PATIENCE_SECONDS
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

    async def _write_status(
        self, ensemble: Ensemble, obj: Object, sights: Mapping[str, Sight]
    ) -> None:
        old = obj.get("status", {})
        conditions = ensemble_conditions(ensemble.membership, _record(obj), sights)
        new = {
            "observedGeneration": ensemble.generation,
            "openNodes": sum(sight.state == OPEN for sight in sights.values()),
            "nodes": node_statuses(sights),
            "conditions": merge_conditions(
                old.get("conditions", []), conditions, ensemble.generation, datetime.now(UTC)
            ),
        }
        if changed(old, new):
            await self._api.patch_status(obj, new)


def _record(obj: Object) -> Record | None:
    saved = obj.get("status", {}).get("registry")
    return Record.from_json(saved) if saved else None


def _unborn(record: Record, node: str, view: NodeView) -> bool:
    """The record lists this very memory, and it has not been told yet."""
    return record.lives.get(node) == view.life and view.birth < record.generation


def _password() -> str:
    return secrets.token_urlsafe(24)
