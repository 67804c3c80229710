"""What the status of a lock says, and what its spec asks of the holder and of what leads to him."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime

from leasekeeper_operator import leadership, wishes
from leasekeeper_operator.api import Api, Object
from leasekeeper_operator.apply import Applier, only_ours
from leasekeeper_operator.board import Ensembles
from leasekeeper_operator.events import Happening, tell
from leasekeeper_operator.labelling import Labelling
from leasekeeper_operator.model import Ensemble, Key, Lock, Place, ensemble_key
from leasekeeper_operator.routing import Routing
from leasekeeper_operator.status import (
    QUORUM_AVAILABLE,
    READY,
    Condition,
    changed,
    merge_conditions,
    quorum_condition,
    timestamp,
)

log = logging.getLogger(__name__)

NOT_ALLOWED = "EnsembleNotAllowed"


class LockStatus:
    """Of all locks."""

    def __init__(self, api: Api, applier: Applier, ensembles: Ensembles) -> None:
        self._api = api
        self._ensembles = ensembles
        self._routing = Routing(api, applier)
        self._labelling = Labelling(api)

    async def write(
        self,
        lock: Lock,
        obj: Object,
        place: Place,
        found: Object | None,
        ready: Condition,
        more: Object,
    ) -> str:
        """`found`: the LockEnsemble; `more`: what else is to be said. Returns the version whose
        event tells nothing that is not known here; empty: there is none."""
        old = obj.get("status", {})
        conditions = [ready]
        new: Object = {"observedGeneration": lock.generation, "ensemble": "/".join(place), **more}
        happened: list[Happening] = []
        if found is not None:
            total = Ensemble.parse(found).nodes
            opened = found.get("status", {}).get("openNodes", 0)
            quorum = quorum_condition(opened, total)
            if ready.holds and not quorum.holds:
                ready = Condition(READY, False, quorum.reason, quorum.message)
            may = ready.reason != NOT_ALLOWED  # ask anything of nodes that are not for it
            held, leads, happened = await self._leadership(lock, obj, ensemble_key(*place), may)
            problem, routed = await self._route(lock, obj, place)
            degraded = leadership.degraded_condition(problem, opened, total)
            conditions = [ready, quorum, degraded]
            if held is not None:
                conditions.append(held)
            new |= {"nodes": f"{opened}/{total}", "quorum": total // 2 + 1, **leads, **routed}
        else:
            conditions += _unknown(old, ready)
            new |= {"nodes": None}
        if lock.service is not None:
            new["service"] = lock.service["name"]
        elif "service" in old:
            new["service"] = None
        new["conditions"] = merge_conditions(
            old.get("conditions", []), conditions, lock.generation, datetime.now(UTC)
        )
        after = obj
        if changed(old, new):
            after = await self._api.patch_status(obj, new)
            await tell(self._api, obj, happened)
        return str(after["metadata"]["resourceVersion"]) if only_ours(obj, after, new) else ""

    async def _route(self, lock: Lock, obj: Object, place: Place) -> tuple[tuple[str, str], Object]:
        """Service and label: what is not as the spec says, and what the status says of it."""
        old, outlook = obj.get("status", {}), self._ensembles.board.outlook(ensemble_key(*place))
        problem = await self._routing.bring(lock, outlook, old.get("service") or "")
        last = old.get("labelledPod") or ""
        pod, wrong = await self._labelling.bring(lock, outlook, last)
        return problem if problem[0] else wrong, {"labelledPod": pod or None} if pod != last else {}

    async def _leadership(
        self, lock: Lock, obj: Object, ensemble: Key, may_ask: bool
    ) -> tuple[Condition | None, Object, list[Happening]]:
        """Who holds it, and what is asked of the holder: the condition (none: this operator has not
        looked yet, and leaves what the last one said), what else the status says, and what
        happened."""
        old, now = obj.get("status", {}), datetime.now(UTC)
        outlook = self._ensembles.board.outlook(ensemble)
        if outlook is None:
            return None, {}, []
        held = leadership.held_condition(lock.full_name, outlook, lock.paused)
        holder = outlook.holders.get(lock.full_name)
        if old.get("token", 0) > (holder.token if holder else 0):
            self._ensembles.look(ensemble)  # a sidecar says that it won, and we have not seen it
        past = old.get("transitions", [])
        passed = leadership.transitions(past, holder, now)
        before = {c["type"]: c["status"] for c in old.get("conditions", [])}.get("Held", "")
        happened = leadership.happenings(past, passed, before, held)
        new: Object = {"transitions": passed} if passed else {}
        if not may_ask:
            self._ensembles.board.gone(lock.full_name)
            return held, new, happened
        by, standing = wishes.asked_by(obj), outlook.asked.get(lock.full_name)
        asked, now_ms = old.get("request"), int(time.time() * 1000)
        record = wishes.recorded(lock, asked, holder, by, now_ms, timestamp(now), standing)
        if record is not None and record != asked:
            # In the status first: a node that is told of it by a dying operator is told the same by
            # the next one.
            await self._api.patch_status(obj, {"request": record})
            log.info("asked lock=%s kind=%s by=%s", lock.key, record["kind"], record["by"])
            happened.append(wishes.happening(record))
        if self._ensembles.board.ask(ensemble, lock.full_name, wishes.request_of(record)):
            self._ensembles.look(ensemble)
        return held, new, happened


def _unknown(old: Object, ready: Condition) -> list[Condition]:
    """What an earlier status said of an ensemble that is gone."""
    said = {condition["type"] for condition in old.get("conditions", [])}
    types = (QUORUM_AVAILABLE, leadership.HELD, leadership.DEGRADED)
    return [Condition(t, None, ready.reason, ready.message) for t in types if t in said]
