"""Each lock has an ACL user of its own on the nodes of its ensemble. Here they are kept in step.

Three places must agree: the Secrets that were published to the locks' namespaces (the source), the
Secret ENSEMBLE-users (what a node reads when it opens), and the open nodes themselves, which are
told at once. A user is taken away only when the API server says that its lock does not exist, is on
another ensemble, or is in a namespace that this one does not serve: a Secret that is missing for
any other reason must not cut off a running election.

A lock that left is *departing*: until so many nodes have cut off its user that the rest is no
quorum, and the longest lease has ended since, it may still have a leader here. For so long
ENSEMBLE-users names it, and no other ensemble is given it (lock.py). The names are kept in the
Secret and the time in memory, so an operator that starts anew waits anew.

When that time is over, its key goes from the nodes' memory (`lk1_forget`), and its F into their
floor: a lock of the same name goes on above it. A node that is not open then keeps the key.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from leasekeeper.redlock import users
from leasekeeper.redlock.registry import Record, largest_plausible
from leasekeeper_operator import names
from leasekeeper_operator.api import LOCK, SECRET, Api, Object
from leasekeeper_operator.apply import Applier, digest
from leasekeeper_operator.manifests.ensemble import parse_departing, parse_users, users_secret
from leasekeeper_operator.manifests.lock import password_of, published_by, published_for
from leasekeeper_operator.model import Ensemble, Key, Place, ensemble_for
from leasekeeper_operator.nodes import OPEN, NodeError, Nodes, Sight

log = logging.getLogger(__name__)

REREAD_SECONDS = 60.0  # should an event of a Secret be missed
RECHECK_SECONDS = 10.0
"""An agent that begins again with an old copy of its file (the kubelet renews it about once a
minute) sets the users of that copy, one too many or too few; this is how long it can last."""


@dataclass(slots=True)
class _Departing:
    cut_off_on: set[str] = field(default_factory=set)
    """Nodes that were seen without its user."""
    since: float | None = None
    """When the rest of the nodes was no quorum any more."""


@dataclass(slots=True)
class _State:
    wanted: dict[str, str] = field(default_factory=dict)
    departing: dict[str, _Departing] = field(default_factory=dict)
    locks: set[str] = field(default_factory=set)
    """All that ask for this ensemble, also in vain, and those that did at the reading before."""
    generation: int = 0
    """Of the ensemble when `wanted` was made: who is allowed may have changed."""
    read_at: float | None = None
    """When `wanted` was last made from the API server's objects; none: it must be made anew."""
    told: dict[str, tuple[str, float]] = field(default_factory=dict)
    """By node: what it was last brought to, and when."""


class LockUsers:
    """Of all ensembles."""

    def __init__(
        self,
        api: Api,
        applier: Applier,
        default: Place,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._default = default
        self._applier = applier
        self._now = now
        self._states: dict[Key, _State] = {}
        self._reading = asyncio.Lock()

    def invalidate(self, ensemble: Key) -> None:
        """A lock of this ensemble came, went or changed."""
        if state := self._states.get(ensemble):
            state.read_at = None

    def drop(self, ensemble: Key) -> None:
        self._states.pop(ensemble, None)

    def locks(self, ensemble: Key) -> list[tuple[str, str]]:
        """Namespace and name of the locks of an ensemble, as last read."""
        state = self._states.get(ensemble, _State())
        return [_split(lock) for lock in state.locks]

    async def ever_published(self, ensemble: Ensemble) -> bool:
        """Whether any lock was given to candidates, as far as the API server remembers: also an
        ensemble that was deleted and made again has its locks' Secrets still.
        """
        return bool(await self._api.find(SECRET, labels=published_for(ensemble)))

    async def sync(
        self,
        ensemble: Ensemble,
        nodes: Nodes,
        sights: Mapping[str, Sight],
        record: Record | None = None,
    ) -> None:
        """`record`: of the births; without it nothing is forgotten."""
        state = self._states.setdefault(ensemble.key, _State())
        old = state.read_at is None or self._now() - state.read_at > REREAD_SECONDS
        departed = self._departed(ensemble, state)
        if record is not None:
            # Before it is taken from the file: an operator that dies in between does it again.
            # Should the lock have been made anew a moment ago, it loses nothing: the floor has F.
            largest = largest_plausible(record, int(time.time() * 1000))
            for lock in departed:
                await self._forget(ensemble, nodes, sights, lock, largest)
        if old or state.generation != ensemble.generation or departed:
            # Set before reading: what is invalidated while we read is read again.
            state.read_at, state.generation = self._now(), ensemble.generation
            try:
                # One at a time: each holds all locks of the cluster in memory for a moment.
                async with self._reading:
                    await self._read(ensemble, state)
            except BaseException:
                state.read_at = None
                raise
        # Also those that are open and do not count: nobody shall be let in there who left.
        opened = [sight for sight in sights.values() if sight.view and sight.view.open]
        await asyncio.gather(*(self._tell(ensemble, state, nodes, sight) for sight in opened))
        self._time_departures(ensemble, state)

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

    async def _read(self, ensemble: Ensemble, state: _State) -> None:
        published = await self._api.find(SECRET, labels=published_for(ensemble))
        # After the Secrets: a lock is older than its Secret.
        objects = {_full_name(obj): obj for obj in await self._api.find(LOCK)}
        name = names.users_secret(ensemble.name)
        current = await self._api.get(SECRET, ensemble.namespace, name) or {}
        known = parse_users(current)
        wanted = {}
        for secret in published:
            full_name, password = _entrusted(ensemble, secret, objects, self._default)
            if password:
                wanted[full_name] = users.digest(password)
        for lock, password_digest in known.items():
            if lock not in wanted and _belongs(ensemble, objects.get(lock), self._default):
                wanted[lock] = password_digest
        left = {*known, *state.wanted, *parse_departing(current), *state.departing}
        gone = self._departed(ensemble, state)
        departing = {
            lock: state.departing.get(lock) or _Departing() for lock in left - wanted.keys() - gone
        }
        await self._applier.bring(users_secret(ensemble, wanted, departing))
        asking = {
            lock
            for lock, obj in objects.items()
            if ensemble_for(obj, self._default) == (ensemble.namespace, ensemble.name)
        }
        state.locks = asking | {*wanted, *state.wanted}
        state.wanted, state.departing = wanted, departing

    def _departed(self, ensemble: Ensemble, state: _State) -> set[str]:
        """The departing locks that can have no leader here any more."""
        # The quarantine is the longest lease and what clocks may differ by.
        longest = max(ensemble.longest_lease, ensemble.restart_delay)
        return {
            lock
            for lock, departing in state.departing.items()
            if departing.since is not None and self._now() - departing.since >= longest
        }

    def _time_departures(self, ensemble: Ensemble, state: _State) -> None:
        membership = ensemble.membership
        enough = len(membership.nodes) - membership.quorum + 1
        for departing in state.departing.values():
            if departing.since is None and len(departing.cut_off_on) >= enough:
                departing.since = self._now()

    async def _tell(self, ensemble: Ensemble, state: _State, nodes: Nodes, sight: Sight) -> None:
        assert sight.view is not None, "an open node has a view"
        wanted = dict(state.wanted)
        target = digest([sight.view.life, sight.view.incarnation, wanted, sorted(state.departing)])
        done, when = state.told.get(sight.id, ("", 0.0))
        if done == target and self._now() - when < RECHECK_SECONDS:
            return
        try:
            await self._bring(ensemble, state, nodes, sight.id, wanted)
        except NodeError as error:
            # The node will be Unreachable or Closed at the next look; the others go on.
            log.warning(
                'users-not-told ensemble=%s node=%s error="%s"', ensemble.key, sight.id, error
            )
        else:
            state.told[sight.id] = (target, self._now())

    async def _bring(
        self,
        ensemble: Ensemble,
        state: _State,
        nodes: Nodes,
        node: str,
        wanted: Mapping[str, str],
    ) -> None:
        present = await nodes.users(node)
        for lock, known in wanted.items():
            if present.get(lock) != known:
                await nodes.set_user(node, lock, known)
                log.info("user-set ensemble=%s node=%s lock=%s", ensemble.key, node, lock)
        for lock in present.keys() - wanted.keys():
            found = await self._api.get(LOCK, *_split(lock))
            if lock in state.departing or not _belongs(ensemble, found, self._default):
                await nodes.delete_user(node, lock)
                log.info("user-deleted ensemble=%s node=%s lock=%s", ensemble.key, node, lock)
        for lock, departing in state.departing.items():
            departing.cut_off_on.add(node)
            if lock in present:  # until now it could vote for it: an old file, maybe
                departing.since = None


def _belongs(ensemble: Ensemble, lock: Object | None, default: Place) -> bool:
    """Whether this ensemble is the one where that lock's candidates vote."""
    return (
        lock is not None
        and ensemble.allows(lock["metadata"]["namespace"])
        and ensemble_for(lock, default) == (ensemble.namespace, ensemble.name)
    )


def _entrusted(
    ensemble: Ensemble, secret: Object, locks: Mapping[str, Object], default: Place
) -> tuple[str, str]:
    """The lock of a published Secret, and its password; no password: it is not to be let in.

    Who may write Secrets can write one that looks like ours. All that can be said without reading
    what is in it comes first."""
    metadata = secret["metadata"]
    namespace, lock = metadata["namespace"], metadata["labels"][names.LABEL_LOCK]
    full_name = f"{namespace}/{lock}"
    if not ensemble.allows(namespace) or not _trustworthy(secret, lock):
        return full_name, ""
    found = locks.get(full_name)
    # A lock whose default ensemble became another one stays where it was published; one that was
    # deleted and made again elsewhere does not own its predecessor's Secret.
    own = found is not None and published_by(secret, lock) == found["metadata"]["uid"]
    if not own and not _belongs(ensemble, found, default):
        return full_name, ""
    return full_name, password_of(secret)


def _trustworthy(secret: Object, lock: str) -> bool:
    """A name that no lock can have would spoil the file for everybody."""
    return (
        names.valid_lock_name(lock)
        and secret["metadata"]["name"] == names.lock_objects(lock)
        and published_by(secret, lock) != ""
    )


def _full_name(lock: Object) -> str:
    return f"{lock['metadata']['namespace']}/{lock['metadata']['name']}"


def _split(lock: str) -> tuple[str, str]:
    namespace, _, name = lock.partition("/")
    return namespace, name
