"""Each lock has an ACL user of its own on the nodes of its ensemble. Here they are kept in step.

Three places must agree: the Secrets that were published to the locks' namespaces (the source), the
Secret ENSEMBLE-users (what a node reads when it opens), and the open nodes themselves, which are
told at once. A user is taken away only when the API server says that its lock does not exist, is on
another ensemble, or is in a namespace that this one does not serve: a Secret that is missing for
any other reason must not cut off a running election.

A lock that left is *departing*: until so many nodes have cut off its user for good (departing.py)
that the rest is no quorum, and the longest lease has ended since, it may still have a leader here.
For so long ENSEMBLE-users names it, and no other ensemble is given it (lock.py). The names are kept
in the Secret and the time in memory, so an operator that starts anew waits anew.

When that time is over, its key goes from the nodes' memory (`lk1_forget`), and its F into their
floor: a lock of the same name goes on above it. A node that is not open then keeps the key.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from leasekeeper.redlock.registry import Record, largest_plausible
from leasekeeper.redlock.users_file import Digests
from leasekeeper_operator import names
from leasekeeper_operator.api import SECRET, Api, Object
from leasekeeper_operator.apply import Applier, digest
from leasekeeper_operator.departing import Departing, Departures
from leasekeeper_operator.ended import EndedEnsembles
from leasekeeper_operator.link import NodeError
from leasekeeper_operator.lock_index import (
    REREAD_SECONDS,
    Given,
    Locks,
    UserFiles,
    full_name,
    given,
    lock_of,
    split,
)
from leasekeeper_operator.manifests.ensemble import (
    edition_in,
    known_locks,
    parse_departing,
    parse_users,
    users_secret,
)
from leasekeeper_operator.manifests.lock import published_for
from leasekeeper_operator.model import Ensemble, Key, Place, ensemble_for, ensemble_key
from leasekeeper_operator.nodes import OPEN, NewUser, Nodes, Sight
from leasekeeper_operator.teaching import Teacher
from leasekeeper_operator.users_state import UsersState

log = logging.getLogger(__name__)

RECHECK_SECONDS = 10.0
"""An agent that begins again with an old copy of its file (the kubelet renews it about once a
minute) sets the users of that copy, one too many or too few; this is how long it can last. Also how
soon we hear that agents have read what they shall have read."""


class LockUsers:
    """Of all ensembles."""

    def __init__(
        self,
        api: Api,
        applier: Applier,
        default: Place,
        look: Callable[[Key], None] = lambda _: None,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look`: told of each ensemble whose locks are not what they were."""
        self._api = api
        self._default = default
        self._look = look
        self._applier = applier
        self._now = now
        self._states: dict[Key, UsersState] = {}
        self._all = Locks(api, default, now)
        home, _ = default
        self._files = UserFiles(api, home)
        self._ended = EndedEnsembles(api, home, now)

    def invalidate(self, ensemble: Key) -> None:
        """Nothing that is known of this ensemble's locks is to be trusted."""
        self._all.invalidate()
        if state := self._states.get(ensemble):
            state.read_at = None

    def seen(self, lock: Object) -> None:
        if self._all.seen(lock):
            name, place = full_name(lock), ensemble_for(lock, self._default)
            self._soil(*self._naming(name), ensemble_key(*place))

    def gone(self, lock: str) -> None:
        self._all.gone(lock)
        self._soil(*self._naming(lock))

    def published(self, ensemble: Ensemble, secret: Object) -> None:
        lock, state = lock_of(secret), self._states.get(ensemble.key)
        # Without a state, the first look reads them all.
        if state is None or state.given.put(lock, given(ensemble, lock, secret)):
            self._soil(ensemble.key)

    def withdrawn(self, lock: str) -> None:
        states = self._states.items()
        self._soil(*[key for key, state in states if state.given.put(lock, None)])

    def _naming(self, lock: str) -> list[Key]:
        return [key for key, state in self._states.items() if lock in state.naming]

    def _soil(self, *ensembles: Key) -> None:
        for key in ensembles:
            if state := self._states.get(key):
                state.dirty = True
            self._look(key)

    async def elsewhere(self, lock: str, ensemble: Key) -> Key | None:
        files = await self._files.read()
        named = [(key, locks) for key, locks in files.items() if lock in locks]
        # What we wrote since, or are writing.
        named += [(key, state.naming) for key, state in self._states.items()]
        named += self._ended.items()
        return next((key for key, locks in named if key != ensemble and lock in locks), None)

    def leaving(self, ensemble: Key) -> bool:
        """Whether a lock that left is waited for."""
        return bool(self._states.get(ensemble, UsersState()).departing)

    def check(self, ensemble: Key) -> None:
        """Somebody else wrote to what belongs to this ensemble, and ENSEMBLE-users does."""
        if state := self._states.get(ensemble):
            state.dirty = True

    def drop(self, ensemble: Key) -> None:
        """It is gone."""
        if state := self._states.pop(ensemble, None):
            self._ended.add(ensemble, state.naming, state.longest)

    async def tend(self, ensemble: Key) -> float | None:
        """Of one that is gone: in how many seconds to look again, for the locks that it had."""
        return await self._ended.tend(ensemble)

    def locks(self, ensemble: Key) -> list[tuple[str, str]]:
        """Namespace and name of the locks of an ensemble, as last read."""
        state = self._states.get(ensemble, UsersState())
        return [split(lock) for lock in state.locks]

    def told(self, ensemble: Key, lock: str, digests: frozenset[str]) -> bool:
        """Whether every node is open and takes these passwords of that lock, and no others."""
        known = self._states.get(ensemble, UsersState()).knows.values()
        return bool(known) and all(node.get(lock) == digests for node in known)

    async def ever_published(self, ensemble: Ensemble) -> bool:
        """Whether any lock was given to candidates, as far as the API server remembers: also an
        ensemble that was deleted and made again has its locks' Secrets still, or ENSEMBLE-users
        names them.
        """
        name = names.users_secret(ensemble.name)
        secret = await self._api.get(SECRET, ensemble.namespace, name)
        if self._ended.locks(ensemble.key) or known_locks(secret or {}):
            return True
        return bool(await self._api.find(SECRET, labels=published_for(ensemble)))

    async def sync(
        self,
        ensemble: Ensemble,
        nodes: Nodes,
        sights: Mapping[str, Sight],
        record: Record | None = None,
    ) -> None:
        """`record`: of the births; without it nothing is forgotten."""
        state = self._states.setdefault(ensemble.key, UsersState())
        state.longest = ensemble.longest_memory
        departed = state.departing.over(ensemble.longest_memory, self._now())
        if record is not None:
            # Before it is taken from the file: an operator that dies in between does it again.
            # Should the lock have been made anew a moment ago, it loses nothing: the floor has F.
            largest = largest_plausible(record, int(time.time() * 1000))
            for lock in departed:
                await self._forget(ensemble, nodes, sights, lock, largest)
        teacher = Teacher(ensemble, nodes, sights, record.floor if record is not None else 0)
        await self._follow(ensemble, state, departed, teacher)
        # Also those that are open and do not count: nobody shall be let in there who left.
        opened = [sight for sight in sights.values() if sight.view and sight.view.open]
        votes = {sight.id for sight in opened}
        state.knows = {id: state.knows.get(id, {}) if id in votes else {} for id in sights}
        state.turn = ""
        await asyncio.gather(*(self._tell(ensemble, state, nodes, sight) for sight in opened))
        state.departing.time(ensemble.membership, self._now())

    async def _forget(
        self,
        ensemble: Ensemble,
        nodes: Nodes,
        sights: Mapping[str, Sight],
        lock: str,
        largest: int,
    ) -> None:
        for sight in sights.values():
            if sight.state != OPEN:
                continue
            try:
                await nodes.forget(sight.id, lock, largest)
            except NodeError as error:
                log.warning('not-forgotten lock=%s node=%s error="%s"', lock, sight.id, error)
            else:
                log.info("forgotten ensemble=%s node=%s lock=%s", ensemble.key, sight.id, lock)

    async def _follow(
        self, ensemble: Ensemble, state: UsersState, departed: set[str], teacher: Teacher
    ) -> None:
        now = self._now()
        anew = (
            state.read_at is None
            or now - state.read_at > REREAD_SECONDS
            or state.generation != ensemble.generation
        )
        if not (anew or state.dirty or departed):
            return
        # Set before reading: what is invalidated while we read is read again.
        state.dirty = False
        if anew:
            state.read_at, state.generation = now, ensemble.generation
        try:
            if anew:
                await state.given.read(lambda: self._load(ensemble))
                await self._all.read()  # after the Secrets: a lock is older than its Secret
            await self._decide(ensemble, state, departed, teacher)
        except BaseException:
            state.read_at = None
            raise

    async def _load(self, ensemble: Ensemble) -> dict[str, Given]:
        published = await self._api.find(SECRET, labels=published_for(ensemble))
        found = {(lock := lock_of(secret)): given(ensemble, lock, secret) for secret in published}
        return {lock: known for lock, known in found.items() if known is not None}

    async def _decide(
        self, ensemble: Ensemble, state: UsersState, departed: set[str], teacher: Teacher
    ) -> None:
        """Who is let in, and who leaves; written to ENSEMBLE-users before any node is told."""
        name = names.users_secret(ensemble.name)
        current = await self._api.get(SECRET, ensemble.namespace, name)
        known = parse_users(current or {})
        named = {*known, *parse_departing(current or {}), *state.wanted, *state.departing}
        named |= self._ended.locks(ensemble.key)
        wanted = self._wanted(ensemble, state, known)
        if leaving := named - wanted.keys() - state.departing.keys():
            # Nobody is cut off by hearsay.
            for lock in leaving:
                await self._look_again(ensemble, state, lock)
            wanted = self._wanted(ensemble, state, known)
        new = wanted.keys() - named
        # For `elsewhere`, and before anything is waited for: a lock that leaves while nodes are
        # taught is named here all the same, until the next look.
        state.naming |= new
        if not await teacher.teach(
            {lock: g.above for lock, g in state.given.items() if lock in new}
        ):
            state.dirty = True  # at the next look, maybe
            wanted = {lock: digests for lock, digests in wanted.items() if lock in named}
        state.edition = max(state.edition, edition_in(current or {}))
        if known != wanted or not edition_in(current or {}):
            state.edition = max(state.edition + 1, int(time.time() * 1000))
        departing = Departures(
            {
                lock: state.departing.get(lock) or Departing(state.edition)
                for lock in named - wanted.keys() - departed
            }
        )
        state.naming |= {*wanted, *departing}
        file = users_secret(ensemble, wanted, departing, edition=state.edition)
        await self._applier.bring(file, current)
        state.naming = {*wanted, *departing}
        self._ended.made_again(ensemble.key)
        state.locks = self._all.on(ensemble) | {*wanted, *state.wanted}
        state.wanted, state.departing = wanted, departing
        lines = sorted((lock, sorted(digests)) for lock, digests in wanted.items())
        state.target = digest([lines, sorted(departing)])

    def _wanted(
        self, ensemble: Ensemble, state: UsersState, known: Digests
    ) -> dict[str, frozenset[str]]:
        wanted = {}
        for lock, secret in state.given.items():
            asking = self._all.get(lock)
            if asking is None or not ensemble.allows(asking.namespace):
                continue  # whoever published it may have known an older spec of the ensemble
            # A lock whose default ensemble became another one stays where it was published; one
            # that was deleted and made again elsewhere does not own its predecessor's Secret.
            if secret.uid == asking.uid or asking.belongs(ensemble):
                wanted[lock] = secret.digests
        for lock, digests in known.items():
            asking = self._all.get(lock)
            if lock not in wanted and asking is not None and asking.belongs(ensemble):
                wanted[lock] = digests
        return wanted

    async def _look_again(self, ensemble: Ensemble, state: UsersState, lock: str) -> None:
        await self._all.look_again(lock)
        namespace, name = split(lock)
        secret = await self._api.get(SECRET, namespace, names.lock_objects(name))
        state.given.put(lock, given(ensemble, lock, secret))

    async def _tell(
        self, ensemble: Ensemble, state: UsersState, nodes: Nodes, sight: Sight
    ) -> None:
        assert sight.view is not None, "an open node has a view"
        wanted = state.wanted
        target = (sight.view.life, sight.view.incarnation, state.target)
        done, when = state.told.get(sight.id, (None, 0.0))
        if done == target and self._now() - when < RECHECK_SECONDS:
            return
        try:
            complete = await self._bring(ensemble, state, nodes, sight.id)
        except NodeError as error:
            # The node will be Unreachable or Closed at the next look; the others go on.
            state.knows[sight.id] = {}  # it may be another memory than the one that was told
            log.warning(
                'users-not-told ensemble=%s node=%s error="%s"', ensemble.key, sight.id, error
            )
        else:
            if complete:
                state.told[sight.id] = (target, self._now())
                state.knows[sight.id] = wanted

    async def _bring(self, ensemble: Ensemble, state: UsersState, nodes: Nodes, node: str) -> bool:
        """Whether the node knows all now: old passwords are taken away on one node at a time."""
        present, wanted, complete = await nodes.users(node), state.wanted, True
        if present == wanted and not state.departing:
            return True
        new: dict[str, NewUser] = {}
        for lock, digests in wanted.items():
            known = present.get(lock, frozenset())
            if known == digests:
                continue
            if known > digests:
                state.turn = state.turn or node
                if state.turn != node:
                    complete = False
                    continue
                # Cuts the connections, too: also of somebody who came in by the old one. All of
                # its own have been able to read the new one for long, and come back with it.
            new[lock] = NewUser(digests, known > digests)
        if new:
            await nodes.set_users(node, new)
            log.info("users-set ensemble=%s node=%s locks=%s", ensemble.key, node, ",".join(new))
        for lock in present.keys() - wanted.keys():
            if await self._all.look_again(lock):
                state.dirty = True  # and never `|=`: others may have said so meanwhile
            asking = self._all.get(lock)
            if lock in state.departing or asking is None or not asking.belongs(ensemble):
                await nodes.delete_user(node, lock)
                log.info("user-deleted ensemble=%s node=%s lock=%s", ensemble.key, node, lock)
        state.departing.cut_off(node, present, nodes.edition(node))
        return complete
