"""What the two reconcilers tell each other: who holds which lock, and what is asked of holders.

Nothing here outlives the operator: holders are seen anew, and requests stand in locks' statuses."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from leasekeeper.lease import Request
from leasekeeper.redlock import requests
from leasekeeper_operator.api import Object
from leasekeeper_operator.holders import Outlook
from leasekeeper_operator.link import NodeError
from leasekeeper_operator.model import Ensemble, Key
from leasekeeper_operator.nodes import OPEN, Nodes, Sight

log = logging.getLogger(__name__)


class Users(Protocol):
    """What the locks' reconciler tells those who let candidates in, and asks them. It reads each
    lock and its Secret anyway, so nobody has to read all of them for one that changed."""

    def seen(self, lock: Object) -> None:
        """A DistributedLock, as it is now."""

    def gone(self, lock: str) -> None:
        """There is no such DistributedLock now."""

    def published(self, ensemble: Ensemble, secret: Object) -> None:
        """A lock's Secret, as it is now."""

    def withdrawn(self, lock: str) -> None:
        """The lock has no Secret now."""

    async def elsewhere(self, lock: str, ensemble: Key) -> Key | None:
        """Another ensemble that may have a leader of this lock."""

    def told(self, ensemble: Key, lock: str, digests: frozenset[str]) -> bool:
        """Whether every node is open and takes these passwords of that lock, and no others."""


class Ensembles(Protocol):
    """What the locks' reconciler knows of the other one."""

    board: Board

    @property
    def users(self) -> Users: ...

    def newest(self, key: Key) -> Object | None:
        """The LockEnsemble as its own reconciler left it a moment ago; none: it has to be read."""

    def look(self, key: Key) -> None:
        """A lock of this ensemble may have another holder now, or have left it."""


class Board:
    def __init__(self) -> None:
        self._outlooks: dict[Key, Outlook] = {}
        self._requests: dict[Key, dict[str, Request]] = {}

    def outlook(self, ensemble: Key) -> Outlook | None:
        """None: this operator has not looked yet."""
        return self._outlooks.get(ensemble)

    def see(self, ensemble: Key, outlook: Outlook) -> set[str]:
        """The locks of which something else is known now."""
        before = self._outlooks.get(ensemble)
        self._outlooks[ensemble] = outlook
        return outlook.changed(before)

    def ask(self, ensemble: Key, lock: str, request: Request | None) -> bool:
        """Whether that is new."""
        asked = self._requests.setdefault(ensemble, {})
        if asked.get(lock) == request:
            return False
        if request is None:
            del asked[lock]
        else:
            asked[lock] = request
        return True

    def drop(self, ensemble: Key) -> None:
        self._outlooks.pop(ensemble, None)
        self._requests.pop(ensemble, None)

    def gone(self, lock: str) -> None:
        """Nobody asks anything of it any more."""
        for asked in self._requests.values():
            asked.pop(lock, None)

    async def pass_on(self, ensemble: Key, nodes: Nodes, sights: Mapping[str, Sight]) -> None:
        """To every open node that does not know of it: also one that lost its memory since."""
        outlook = self._outlooks[ensemble]
        for lock, request in self._requests.get(ensemble, {}).items():
            holder = outlook.holders.get(lock)
            if request.kind == requests.STEP_DOWN and (
                holder is None or holder.id != request.target
            ):
                continue  # that tenure is over
            for sight in sights.values():
                if sight.state == OPEN and _lacks(sight, lock, request):
                    await self._tell(ensemble, nodes, sight.id, lock, request)

    async def _tell(
        self, ensemble: Key, nodes: Nodes, node: str, lock: str, request: Request
    ) -> None:
        try:
            await nodes.request(node, lock, request)
        except NodeError as error:
            log.warning('request-not-told lock=%s node=%s error="%s"', lock, node, error)
        else:
            log.info("request-told lock=%s node=%s kind=%s", lock, node, request.kind)


def _lacks(sight: Sight, lock: str, request: Request) -> bool:
    entry = (sight.entries or {}).get(lock)
    known = requests.parse(entry.request) if entry is not None else None
    if known is None:
        return request.kind != requests.RESUME  # nothing to take back there
    return known.sequence < request.sequence
