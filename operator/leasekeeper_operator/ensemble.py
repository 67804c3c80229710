"""Brings the nodes of a LockEnsemble into being, lets them be born, and says how they are.

    objects ──▶ look at the nodes ──▶ birth (births.py) ──▶ users ──▶ roll (rolling.py) ──▶ status
       └ when the spec or one of them changed

Every step can be repeated, and a crash between any two of them is only a later look.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from leasekeeper_operator import names
from leasekeeper_operator.api import ENSEMBLE, POD, STATEFUL_SET, Api, ApiError, Object
from leasekeeper_operator.apply import Applier
from leasekeeper_operator.births import Births, record_of
from leasekeeper_operator.board import Board
from leasekeeper_operator.events import Happening, node_happenings, tell
from leasekeeper_operator.holders import Outlook
from leasekeeper_operator.lock_users import LockUsers
from leasekeeper_operator.manifests.ensemble import ensemble_objects
from leasekeeper_operator.model import Ensemble, Key, lock_key
from leasekeeper_operator.nodes import (
    OPEN,
    Nodes,
    Resolve,
    Sight,
    by_name,
    without_ghosts,
)
from leasekeeper_operator.passwords import Credentials, PasswordKeeper
from leasekeeper_operator.queue import Queue
from leasekeeper_operator.rolling import REFUSED, UPDATED, Roll, decide, node_pod
from leasekeeper_operator.settings import Settings
from leasekeeper_operator.status import (
    Condition,
    changed,
    ensemble_conditions,
    merge_conditions,
    node_statuses,
)
from leasekeeper_operator.tls import NodeTls

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0  # the status follows the nodes within this
LOOK_SECONDS_UNTIL_OPEN = 1.0  # somebody is waiting for a birth or the end of a quarantine
WAIT_SECONDS = 120.0
"""After so long without a change nobody is waiting any more, and the slow look will do. Longer than
the pull of an image, and than the quarantine of the default ensemble."""
RESYNC_SECONDS = 300.0  # for what no watch reports: budget and policy edited by hand


@dataclass(slots=True)
class _State:
    """What is only remembered to do less; a new operator begins without it."""

    settled: tuple[int, float] | None = None
    """Generation and time at which all objects were last brought to the spec."""
    credentials: Credentials | None = None
    aligned: Credentials | None = None
    """Those that the nodes were last brought to."""
    trusted: str = ""
    """The CAs of the nodes' certificates; empty: no TLS."""
    nodes: Nodes | None = None
    problem: str = ""
    """What the API server said of an object that it refused; the others were brought."""
    roll: Roll | None = None
    """The last decision; none or not done: pods are looked at again."""
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
        self._births = Births(api, self._users, now)
        self._tls = NodeTls(api, applier)
        self._keeper = PasswordKeeper(api, applier)
        self.board = Board()
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
        obj = await self._births.bring(ensemble, obj, nodes, sights)
        sights = without_ghosts(record_of(obj), sights)
        await self._users.sync(ensemble, nodes, sights, record_of(obj))
        await self._hand_on(ensemble, nodes, sights)
        await self._rotate(ensemble, state, nodes)
        await self._roll(ensemble, state, obj, sights)
        await self._write_status(ensemble, state, obj, sights)
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

    def look(self, key: Key) -> None:
        """Somebody has reason to think that a lock has another holder now."""
        self._queue.add(key)

    async def _hand_on(self, ensemble: Ensemble, nodes: Nodes, sights: Mapping[str, Sight]) -> None:
        """Holders to the locks' reconciler, and requests to the nodes."""
        outlook = Outlook.of(sights, ensemble.membership.quorum)
        for lock in self.board.see(ensemble.key, outlook):
            namespace, _, name = lock.partition("/")
            self._queue.add(lock_key(namespace, name))
        await self.board.pass_on(ensemble.key, nodes, sights)

    def _next_look(self, state: _State, sights: Mapping[str, Sight]) -> float:
        now, statuses = self._now(), node_statuses(sights)
        if state.seen is None or state.seen[0] != statuses:
            state.seen = (statuses, now)
        rolling = state.settled is None or (state.roll is not None and not state.roll.done)
        waiting = rolling or any(sight.state != OPEN for sight in sights.values())
        fresh = now - state.seen[1] < WAIT_SECONDS
        return LOOK_SECONDS_UNTIL_OPEN if waiting and fresh else LOOK_SECONDS

    def nodes_open(self) -> dict[Key, tuple[int, int]]:
        """Of each ensemble: open at the last look, and declared."""
        return {
            key: (len(state.opened), len(state.nodes.membership.nodes))
            for key, state in self._states.items()
            if state.opened is not None and state.nodes is not None
        }

    async def close(self) -> None:
        for key in list(self._states):
            await self._drop(key)

    async def _drop(self, key: Key) -> None:
        self._users.drop(key)
        self._births.drop(key)
        self.board.drop(key)
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
        state.settled, state.roll = (ensemble.generation, now), None
        try:
            state.credentials = await self._keeper.bring(ensemble, state.credentials)
            wrong = await self._bring_tls(ensemble, state)
            wanted = ensemble_objects(
                ensemble,
                *state.credentials.valid,
                operator_namespace=self._settings.namespace,
                agent_image=self._settings.sidecar_image,
                pull_policy=self._settings.sidecar_pull_policy,
            )
            refusals = [wrong, *[await self._bring_object(obj) for obj in wanted]]
        except BaseException:
            state.settled = None
            raise
        if problem := next(filter(None, refusals), ""):
            state.settled = None  # what is refused today may be allowed tomorrow: by a quota, say
            if problem != state.problem:
                log.warning('object-refused ensemble=%s error="%s"', ensemble.key, problem)
        state.problem = problem

    async def _bring_tls(self, ensemble: Ensemble, state: _State) -> str:
        """What is wrong with the certificates that are offered."""
        if ensemble.tls is None:
            return ""
        trusted, wrong = await self._tls.bring(ensemble)
        if trusted != state.trusted:
            state.trusted = trusted
            state.opened = None  # so that the locks are told
        return wrong

    async def _bring_object(self, obj: Object) -> str:
        """What the API server objects to. A change that it refuses must not keep the operator from
        births, users and the status: the election goes on with what is there."""
        try:
            await self._applier.bring(obj)
        except ApiError as error:
            if error.status not in (400, 403, 422, 500):  # 500: of a field of another type
                raise
            return f"{obj['kind']} {obj['metadata']['name']}: {error}"
        return ""

    async def _rotate(self, ensemble: Ensemble, state: _State, nodes: Nodes) -> None:
        """One step of a change of passwords; once for each operator, a look at what nodes know."""
        known = state.credentials
        assert known is not None, "the objects were brought before"
        rotating = len(known.valid) > 1 or ensemble.password_generation > known.generation
        if not rotating and state.aligned == known:
            return
        new, complete = await self._keeper.rotate(ensemble, known, nodes)
        state.aligned = known if complete else None
        if new != known:
            state.credentials, state.settled = new, None  # servers' configuration follows

    async def _nodes(self, ensemble: Ensemble, state: _State) -> Nodes:
        assert state.credentials is not None, "the objects were brought before"
        wanted = (ensemble.membership, state.credentials.current, state.trusted)
        known = state.nodes
        if known is not None and (known.membership, known.passwords, known.trusted) != wanted:
            await known.close()
            known = None
        if known is None:
            membership, passwords, trusted = wanted
            known = Nodes(membership, passwords, trusted=trusted, resolve=self._resolve)
        state.nodes = known
        return known

    async def _roll(
        self, ensemble: Ensemble, state: _State, obj: Object, sights: Mapping[str, Sight]
    ) -> None:
        """One step of a rolling change, if there is one to take (rolling.py). While a node does not
        vote, its pod is looked at as well: it may say why, and nobody else would."""
        everybody = all(sight.state == OPEN for sight in sights.values())
        if state.roll is not None and state.roll.done and everybody:
            return
        labels = f"{names.LABEL_ENSEMBLE}={ensemble.name},{names.LABEL_NODE}"
        sets = _by_node(await self._api.find(STATEFUL_SET, ensemble.namespace, labels))
        pods = _by_node(await self._api.find(POD, ensemble.namespace, labels))
        outlook = self.board.outlook(ensemble.key)
        assert outlook is not None, "seen before"
        state.roll = decide(
            [
                node_pod(sight, sets.get(id), pods.get(id), outlook.needing(id))
                for id, sight in sights.items()
            ]
        )
        for node in state.roll.delete:
            assert node.pod is not None, "only what is there is outdated"
            await self._api.delete(node.pod)
            log.info("node-replaced ensemble=%s node=%s memory=none", ensemble.key, node.node)
        if (target := state.roll.evict) is None:
            return
        assert target.pod is not None, "only what is there is outdated"
        try:
            await self._api.evict(target.pod)
        except ApiError as error:
            if error.status != 429:
                raise
            log.info('eviction-refused node=%s/%s error="%s"', ensemble.key, target.node, error)
            state.roll = state.roll.refused(str(error))
            return
        log.info("node-replaced ensemble=%s node=%s", ensemble.key, target.node)
        happening = Happening("NodeReplaced", f"node {target.node}: its pod has an older template")
        await tell(self._api, obj, [happening])

    async def _write_status(
        self, ensemble: Ensemble, state: _State, obj: Object, sights: Mapping[str, Sight]
    ) -> None:
        assert state.roll is not None, "decided before"
        old = obj.get("status", {})
        conditions = ensemble_conditions(ensemble.membership, record_of(obj), sights)
        rolled = state.roll.condition
        if state.problem:
            text = f"it cannot be carried out, correct the spec: {state.problem}"
            rolled = Condition(UPDATED, False, REFUSED, text[:2000])
        conditions.append(rolled)
        new: Object = {
            "updatedNodes": state.roll.updated,
            "observedGeneration": ensemble.generation,
            "openNodes": sum(sight.state == OPEN for sight in sights.values()),
            "nodes": node_statuses(sights),
            "conditions": merge_conditions(
                old.get("conditions", []), conditions, ensemble.generation, datetime.now(UTC)
            ),
        }
        if changed(old, new):
            await self._api.patch_status(obj, new)
            await tell(self._api, obj, node_happenings(old.get("nodes", []), new["nodes"]))


def _by_node(objects: list[Object]) -> dict[str, Object]:
    return {obj["metadata"]["labels"][names.LABEL_NODE]: obj for obj in objects}
