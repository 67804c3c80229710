"""Brings the nodes of a LockEnsemble into being, lets them be born, and says how they are.

    objects ──▶ look at the nodes ──▶ birth (births.py) ──▶ users ──▶ roll (rolling.py) ──▶ status
       └ when the spec or one of them changed

Every step can be repeated, and a crash between any two of them is only a later look.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from leasekeeper_operator.api import ENSEMBLE, Api, ApiError, Object
from leasekeeper_operator.apply import Applier, only_ours
from leasekeeper_operator.births import Births, record_of
from leasekeeper_operator.board import Board
from leasekeeper_operator.ensemble_state import Rest, State
from leasekeeper_operator.events import node_happenings, tell
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
from leasekeeper_operator.passwords import PasswordKeeper
from leasekeeper_operator.queue import Queue
from leasekeeper_operator.roller import Roller
from leasekeeper_operator.rolling import REFUSED, UPDATED
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
CROWD_SECONDS = 1.0
"""Between two looks that are taken because of locks. One alone does not wait for it; those that
come together are told to the nodes, and written to a Secret, in one step."""
CROWD = 250
"""For so many locks that wait, it is as long again; LOOK_SECONDS bound it. Looks that find a few
new ones each would take a fifth of a start with a thousand (benchmarks/README.md)."""
REREAD_SECONDS = 60.0
"""How long the nodes alone are looked at, while the watch tells of no change of LockEnsembles."""
RESYNC_SECONDS = 300.0  # for what no watch reports: budget and policy edited by hand


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
        self.users = LockUsers(api, applier, settings.default_place, self._soon, now=now)
        self._births = Births(api, self.users, now)
        self._roller = Roller(api)
        self._tls = NodeTls(api, applier)
        self._keeper = PasswordKeeper(api, applier)
        self.board = Board()
        self._states: dict[Key, State] = {}
        self._versions: dict[Key, str] = {}
        """Of each LockEnsemble, the last one that the watch showed: also before the first look."""

    def objects_changed(self, key: Key, obj: Object | None = None) -> None:
        """One of the objects that belong to this ensemble may not be what it was. `obj`: as it is;
        none: gone."""
        if state := self._states.get(key):
            state.shown.append(obj)
        self._queue.add_unless(key, lambda: obj is not None and self._applier.as_left(obj))

    def locks_changed(self, key: Key) -> None:
        """Nothing that is known of its locks is to be trusted."""
        self.users.invalidate(key)
        self._queue.add(key)

    def newest(self, key: Key) -> Object | None:
        """As it was a look ago; whoever wants its locks to see a change of the spec sooner is told
        by the look that sees it."""
        state = self._states.get(key)
        if state is None or state.newest is None:
            return None
        obj, when = state.newest
        return obj if self._now() - when <= 2 * LOOK_SECONDS else None

    def _soon(self, key: Key) -> None:
        """At once, but for a crowd of locks not for each of them."""
        state = self._states.get(key)
        looked = state.looked if state is not None else None
        pause = CROWD_SECONDS * (1 + self._queue.depth / CROWD)
        wait = 0.0 if looked is None else looked + pause - self._now()
        self._queue.add(key, max(0.0, wait))

    def shown(self, key: Key, version: str) -> None:
        """By the watch, of the LockEnsemble; empty: it is gone."""
        self._versions[key] = version
        self._queue.add_unless(key, lambda: version != "" and self._left(key) == version)

    def _left(self, key: Key) -> str:
        state = self._states.get(key)
        return state.left if state is not None else ""

    async def reconcile(self, key: Key) -> float | None:
        if (state := self._states.get(key)) and await self._rests(state):
            return LOOK_SECONDS
        obj = await self._api.get(ENSEMBLE, key.namespace, key.name)
        if obj is None or obj["metadata"].get("deletionTimestamp"):
            await self._drop(key)
            return await self.users.tend(key)
        ensemble = Ensemble.parse(obj)
        state = self._states.setdefault(key, State())
        state.looked, state.left, state.rest = self._now(), "", None
        await self._bring_objects(ensemble, state)
        nodes = await self._nodes(ensemble, state)
        seen = sights = await nodes.look()
        obj = await self._births.bring(ensemble, obj, nodes, sights)
        sights = without_ghosts(record_of(obj), sights)
        await self.users.sync(ensemble, nodes, sights, record_of(obj))
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
            for lock in self.users.locks(key):
                self._queue.add(lock_key(*lock))
        again = self._next_look(state, sights)
        quiet = all(sight.state == OPEN for sight in (*seen.values(), *sights.values()))
        if quiet and again == LOOK_SECONDS and state.settled and state.roll and state.roll.done:
            assert state.newest is not None, "the status was written"
            state.rest = Rest(ensemble, state.newest[0], seen, self._now())
        return again

    async def _rests(self, state: State) -> bool:
        """A look at the nodes alone: nobody has written to anything that belongs to the ensemble,
        and the watch has shown that it would tell. Whether there is nothing more to do."""
        rest, nodes, now = state.rest, state.nodes, self._now()
        if rest is None or nodes is None or not state.left:
            return False
        if state.left != self._versions.get(rest.ensemble.key):
            return False
        shown = any(obj is None or not self._applier.as_left(obj) for obj in state.shown)
        known = state.credentials
        rotating = known is None or state.aligned != known or len(known.valid) > 1
        if shown or rotating or self.users.leaving(rest.ensemble.key):
            return False
        if now - rest.since > REREAD_SECONDS:
            return False
        state.shown.clear()
        sights = await nodes.look()
        if any(sight is not rest.sights.get(id) for id, sight in sights.items()):
            return False
        state.looked, state.newest = now, (rest.obj, now)
        await self.users.sync(rest.ensemble, nodes, sights)
        await self.board.pass_on(rest.ensemble.key, nodes, sights)
        return True

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

    def _next_look(self, state: State, sights: Mapping[str, Sight]) -> float:
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
        if key in self._states:
            for lock in self.users.locks(key):  # whose statuses say so
                self._queue.add(lock_key(*lock))
        self.users.drop(key)
        self._births.drop(key)
        self.board.drop(key)
        self._versions.pop(key, None)
        state = self._states.pop(key, None)
        if state is not None and state.nodes is not None:
            await state.nodes.close()

    async def _bring_objects(self, ensemble: Ensemble, state: State) -> None:
        now = self._now()
        if not all(obj is not None and self._applier.as_left(obj) for obj in state.shown):
            state.settled = None
            self.users.check(ensemble.key)
        state.shown.clear()
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

    async def _bring_tls(self, ensemble: Ensemble, state: State) -> str:
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

    async def _rotate(self, ensemble: Ensemble, state: State, nodes: Nodes) -> None:
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

    async def _nodes(self, ensemble: Ensemble, state: State) -> Nodes:
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
        self, ensemble: Ensemble, state: State, obj: Object, sights: Mapping[str, Sight]
    ) -> None:
        """While a node does not vote, its pod is looked at as well: it may say why, and nobody else
        would."""
        everybody = all(sight.state == OPEN for sight in sights.values())
        if state.roll is None or not state.roll.done or not everybody:
            outlook = self.board.outlook(ensemble.key)
            assert outlook is not None, "seen before"
            state.roll = await self._roller.step(ensemble, obj, sights, outlook)

    async def _write_status(
        self, ensemble: Ensemble, state: State, obj: Object, sights: Mapping[str, Sight]
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
        after = obj
        if changed(old, new):
            after = await self._api.patch_status(obj, new)
            await tell(self._api, obj, node_happenings(old.get("nodes", []), new["nodes"]))
        state.newest = (after, self._now())
        if only_ours(obj, after, new):
            state.left = after["metadata"]["resourceVersion"]
