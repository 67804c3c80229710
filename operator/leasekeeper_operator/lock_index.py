"""What is known of locks and their Secrets, so that a change of one is no reading of all.

Read as a whole when an ensemble is looked at for the first time, and again every few minutes; in
between, whoever works on a lock says what he saw of it. All of it comes from the API server and not
from watches: of one lock, nothing older is ever said after something newer.

It may still be behind, and nothing is taken away on its word: `LockUsers` asks the API server again
for each lock that seems to have left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from leasekeeper_operator import names
from leasekeeper_operator.api import ENSEMBLE, LOCK, SECRET, Api, Object
from leasekeeper_operator.manifests.ensemble import known_locks
from leasekeeper_operator.manifests.lock import digests_in, ensemble_of, published_by
from leasekeeper_operator.model import Ensemble, Key, Place, ensemble_for, ensemble_key

V = TypeVar("V")

REREAD_SECONDS = 300.0
"""Should an event be missed: one of a lock leads to its reconciler, which tells us. A reading of a
thousand locks takes a tenth of a second of processor time."""
FILES_SECONDS = 1.0
"""How old the users' Secrets of all ensembles may be when they decide on a new lock. What this
operator writes to them counts at once, so only somebody else's writing can be that late."""


class Followed(Generic[V]):
    """By a lock's full name: read as a whole, and followed one by one since."""

    def __init__(self) -> None:
        self._known: dict[str, V] = {}
        self._meanwhile: dict[str, V | None] | None = None

    def get(self, lock: str) -> V | None:
        return self._known.get(lock)

    def items(self) -> Iterator[tuple[str, V]]:
        return iter(self._known.items())

    def put(self, lock: str, value: V | None) -> bool:
        """As it was just seen; none: it is gone. Whether that is new."""
        if self._meanwhile is not None:
            self._meanwhile[lock] = value
        return _put(self._known, lock, value)

    async def read(self, load: Callable[[], Awaitable[dict[str, V]]]) -> None:
        """What is said during the reading is newer than what the reading finds."""
        self._meanwhile = {}
        try:
            known = await load()
            for lock, value in self._meanwhile.items():
                _put(known, lock, value)
            self._known = known
        finally:
            self._meanwhile = None


def _put(known: dict[str, V], lock: str, value: V | None) -> bool:
    before = known.pop(lock, None)
    if value is not None:
        known[lock] = value
    return before != value


@dataclass(frozen=True, slots=True)
class Asking:
    """A DistributedLock, as far as it matters to ensembles."""

    uid: str
    namespace: str
    place: Place
    """Of the ensemble that it asks for."""

    def belongs(self, ensemble: Ensemble) -> bool:
        """Whether this ensemble is the one where its candidates vote."""
        place = (ensemble.namespace, ensemble.name)
        return ensemble.allows(self.namespace) and self.place == place


@dataclass(frozen=True, slots=True)
class Given:
    """What a published Secret says of its lock."""

    uid: str
    """Of the DistributedLock that it belongs to."""
    digests: frozenset[str]
    """Of the passwords that nodes take for it."""
    above: int = 0
    """What its tokens begin above: the time of its publication, in milliseconds. A lock of that
    name may have been on a younger ensemble, whose tokens began later than this one's."""


def given(ensemble: Ensemble, lock: str, secret: Object | None) -> Given | None:
    """None: this is no Secret of that lock for this ensemble, or it is not to be let in.

    Who may write Secrets can write one that looks like ours. All that can be said without reading
    what is in it comes first."""
    namespace, name = split(lock)
    if secret is None or not ensemble.allows(namespace) or not _trustworthy(secret, name):
        return None
    if ensemble_of(secret) != (ensemble.namespace, ensemble.name):
        return None
    digests = digests_in(secret)
    if not digests:
        return None
    return Given(published_by(secret, name), digests, _published_ms(secret))


def _published_ms(secret: Object) -> int:
    """By the API server, which says it in seconds: the end of that second."""
    try:
        made = datetime.fromisoformat(secret["metadata"].get("creationTimestamp", ""))
    except ValueError:
        return 0
    return 1000 * (int(made.timestamp()) + 1)


def lock_of(secret: Object) -> str:
    """By its label."""
    metadata = secret["metadata"]
    return f"{metadata['namespace']}/{metadata['labels'][names.LABEL_LOCK]}"


def _trustworthy(secret: Object, lock: str) -> bool:
    """A name that no lock can have would spoil the file for everybody."""
    return (
        names.valid_lock_name(lock)
        and secret["metadata"]["name"] == names.lock_objects(lock)
        and published_by(secret, lock) != ""
    )


class Locks:
    """All DistributedLocks."""

    def __init__(self, api: Api, default: Place, now: Callable[[], float]) -> None:
        self._api = api
        self._default = default
        self._now = now
        self._known: Followed[Asking] = Followed()
        self._read_at: float | None = None
        self._reading = asyncio.Lock()

    def get(self, lock: str) -> Asking | None:
        return self._known.get(lock)

    def on(self, ensemble: Ensemble) -> set[str]:
        """Those that ask for it, also in vain."""
        place = (ensemble.namespace, ensemble.name)
        return {lock for lock, asking in self._known.items() if asking.place == place}

    def seen(self, lock: Object) -> bool:
        """Whether it says something new."""
        return self._known.put(full_name(lock), self._asking(lock))

    def gone(self, lock: str) -> bool:
        return self._known.put(lock, None)

    def invalidate(self) -> None:
        self._read_at = None

    async def read(self) -> None:
        """Once for all ensembles that need it at about the same time."""
        async with self._reading:
            now = self._now()
            if self._read_at is not None and now - self._read_at < REREAD_SECONDS / 2:
                return
            self._read_at = now
            try:
                await self._known.read(self._load)
            except BaseException:
                self._read_at = None
                raise

    async def _load(self) -> dict[str, Asking]:
        return {full_name(obj): self._asking(obj) for obj in await self._api.find(LOCK)}

    async def look_again(self, lock: str) -> bool:
        """Whether it is not what was known."""
        found = await self._api.get(LOCK, *split(lock))
        return self._known.put(lock, None if found is None else self._asking(found))

    def _asking(self, lock: Object) -> Asking:
        metadata = lock["metadata"]
        place = ensemble_for(lock, self._default)
        return Asking(metadata["uid"], metadata["namespace"], place)


def believed(secret: Object, home: str) -> set[str]:
    """The locks that the ENSEMBLE-users of an ensemble that is gone names. With the ensemble went
    the word on which namespaces it served, and who may write Secrets may write one that names all
    locks there are: so it counts for its own namespace only, but for one in ours, where nobody else
    writes."""
    namespace, locks = secret["metadata"]["namespace"], known_locks(secret)
    return {lock for lock in locks if namespace in (home, split(lock)[0])}


class UserFiles:
    """The Secrets ENSEMBLE-users of all ensembles: which locks they name."""

    def __init__(self, api: Api, home: str) -> None:
        """`home`: the operator's own namespace."""
        self._api = api
        self._home = home
        self._known: dict[Key, set[str]] = {}
        self._read_at: float | None = None
        self._reading = asyncio.Lock()

    async def read(self) -> Mapping[Key, set[str]]:
        async with self._reading:
            now = time.monotonic()
            if self._read_at is None or now - self._read_at > FILES_SECONDS:
                self._known = await self._load()
                self._read_at = now
            return self._known

    async def _load(self) -> dict[Key, set[str]]:
        ensembles = [place_of(found) for found in await self._api.find(ENSEMBLE)]
        secrets = {
            place_of(found): found
            for found in await self._api.find(SECRET, labels=names.OF_ENSEMBLES)
        }
        known = {}
        for namespace, name in ensembles:
            place = (namespace, names.users_secret(name))
            # One that is not among them may have lost its labels by somebody's hand.
            secret = secrets.get(place) or await self._api.get(SECRET, *place)
            if secret is not None:
                known[ensemble_key(namespace, name)] = known_locks(secret)
        for (namespace, name), secret in secrets.items():
            ensemble = secret["metadata"]["labels"][names.LABEL_ENSEMBLE]
            if name == names.users_secret(ensemble) and (namespace, ensemble) not in ensembles:
                known[ensemble_key(namespace, ensemble)] = believed(secret, self._home)
        return known


def place_of(obj: Object) -> Place:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]


def full_name(lock: Object) -> str:
    return "/".join(place_of(lock))


def split(lock: str) -> Place:
    namespace, _, name = lock.partition("/")
    return namespace, name
