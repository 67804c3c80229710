"""Ensembles that are gone, and whose locks may still have a leader: pods of nodes may not have
ended yet, and whoever led there leads on until its deadline. For so long none of these locks is
given to another ensemble.

ENSEMBLE-users names them. It belongs to nobody, so the garbage collector leaves it when the
ensemble goes; the operator deletes it when no pod of the ensemble has been there for the longest
lease, which it notes in it. An operator that starts anew waits anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from leasekeeper_operator import names
from leasekeeper_operator.api import POD, SECRET, Api, Object
from leasekeeper_operator.lock_index import believed
from leasekeeper_operator.manifests.ensemble import longest_lease_in
from leasekeeper_operator.model import Key

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0


@dataclass(slots=True)
class _Ended:
    locks: set[str] = field(default_factory=set)
    longest: float = 0.0
    """Seconds for which a lease may last after the last node has ended."""
    since: float | None = None
    """When no pod of it was there any more; none: there are some, or nobody has looked."""


class EndedEnsembles:
    def __init__(self, api: Api, home: str, now: Callable[[], float]) -> None:
        """`home`: the operator's own namespace."""
        self._api = api
        self._home = home
        self._now = now
        self._known: dict[Key, _Ended] = {}

    def add(self, ensemble: Key, locks: Iterable[str], longest: float) -> None:
        """As it was known while it was there."""
        if not (locks := {*locks}):
            return
        ended = self._known.setdefault(ensemble, _Ended())
        ended.locks |= locks
        ended.longest = max(ended.longest, longest)

    def items(self) -> Iterator[tuple[Key, set[str]]]:
        return ((key, ended.locks) for key, ended in self._known.items())

    def locks(self, ensemble: Key) -> set[str]:
        ended = self._known.get(ensemble)
        return ended.locks if ended is not None else set()

    def made_again(self, ensemble: Key) -> None:
        """Its new Secret names what has to be waited for."""
        self._known.pop(ensemble, None)

    async def tend(self, ensemble: Key) -> float | None:
        """In how many seconds to look again; none: nobody leads there any more."""
        namespace, name = ensemble.namespace, ensemble.name
        secret = await self._api.get(SECRET, namespace, names.users_secret(name))
        if secret is not None and not _of(secret, name):
            secret = None
        if secret is not None:
            self.add(ensemble, believed(secret, self._home), longest_lease_in(secret))
        if ended := self._known.get(ensemble):
            if await self._api.find(POD, namespace, f"{names.LABEL_ENSEMBLE}={name}"):
                ended.since = None
                return LOOK_SECONDS
            if ended.since is None:
                ended.since = self._now()
            if (left := ended.since + ended.longest - self._now()) > 0:
                return left
        if secret is not None:
            await self._api.delete(secret)
            log.info("ensemble-ended ensemble=%s", ensemble)
        self._known.pop(ensemble, None)
        return None


def _of(secret: Object, ensemble: str) -> bool:
    """Whether it bears our labels: an app may have a Secret of that name."""
    labels = secret["metadata"].get("labels") or {}
    return names.MANAGED.items() <= labels.items() and labels.get(names.LABEL_ENSEMBLE) == ensemble
