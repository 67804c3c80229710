"""Our place in the line of a lock's nodes, and what a write to it proves. See `store.py`."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass
from typing import Any

from kazoo.exceptions import NoNodeError

from leasekeeper.clock import Clock, Instant
from leasekeeper.lease import Candidate, Timings
from leasekeeper.zookeeper.session import Session


def counted_from(sent: Instant, known: Instant, spare: float) -> Instant:
    """From when a lease counts whose write was sent at `sent`, if the leader heard of us at `known`
    or later, and keeps our session for the lease and `spare` seconds from then on.
    """
    excess = sent.elapsed_since(known) - spare
    if excess <= 0:
        return sent
    return Instant(sent.boot - excess, sent.raw - excess)


def in_order(children: list[str]) -> list[str]:
    """By the number that ZooKeeper gave to each; names without one are not ours."""
    return sorted((c for c in children if c[-10:].isdigit()), key=lambda child: child[-10:])


@dataclass(slots=True)
class Place:
    """Ours in the line, and what our last write to it proved."""

    node: str
    id: str
    token: int
    began: Instant
    """From when a lease would count that was won by that write."""
    behind: str = ""
    """Whom we watch, if that is the holder: when it is gone, we are first, and need ask nobody."""
    first: bool = False


class Line:
    """The nodes of one lock, as one candidate uses them. Requests that are sent at once are run in
    this order.
    """

    def __init__(
        self,
        session: Session,
        parent: str,
        candidate: Candidate,
        clock: Clock,
        *,
        timings: Timings,
        tick: float,
        token_floor: int,
    ) -> None:
        self._session = session
        self._parent = parent
        self._candidate = candidate
        self._clock = clock
        self._timings = timings
        self._tick = tick
        self._floor = token_floor
        self._attempt = 0
        self._writes: deque[tuple[Instant, Instant]] = deque()  # sent, answered; at most one heard
        self._cut = False  # the last one: its lease counts from before it was sent
        self.prepared = 0
        """The session in which the parent was made sure of."""
        self.place: Place | None = None
        self._joining = ""  # how the node begins that is being made, and is no place yet

    async def prepare(self) -> None:
        """Once a session: the parent is there, and nothing of ours from before is in the line."""
        if self.prepared and self.prepared == self._session.id:
            return
        if self._session.id != self.prepared:
            self.place = None
        await self._session.send("ensure_path", self._parent)
        session = self._session.id  # known for certain once it has answered
        await self.remove_own()
        self.prepared = session

    async def join(self) -> tuple[Place, list[str]]:
        self._attempt += 1
        id_ = f"{self._candidate.id}/{self._attempt}"
        sent = self._clock.now()
        self._joining = f"{self._candidate.nonce}-{self._attempt}-"
        options = {"ephemeral": True, "sequence": True, "include_data": True}
        try:
            path = self.path(self._joining)
            write = self._session.send("create", path, id_.encode(), **options)
            line = await self._line_after(write)
            path, stat = write.result()
            token, began = self.token(stat), self.answered(sent)
            self.place = place = Place(path.rpartition("/")[2], id_, token, began)
        except BaseException:
            # It may have been made, and would stand before our next one for as long as we live.
            self.prepared = 0
            raise
        finally:
            self._joining = ""
        return place, line

    async def refresh(self, place: Place) -> list[str]:
        sent = self._clock.now()
        write = self._session.send("set", self.path(place.node), place.id.encode())
        line = await self._line_after(write)
        place.began = self.answered(sent)
        return line if write.result().ephemeralOwner == self._session.id else []

    async def _line_after(self, write: asyncio.Future[Any]) -> list[str]:
        """Who stands in line, once what was written before is answered as well."""
        _, children = await asyncio.gather(write, self.listing())
        return in_order(children)

    def listing(self) -> asyncio.Future[Any]:
        """Who stands in line: the answer is for `in_order`."""
        return self._session.send("get_children", self._parent)

    def token(self, stat: Any) -> int:
        return int(stat.czxid) + self._floor

    async def remove_own(self) -> None:
        """All but our place, and but what is about to be it: this may run beside a `join`, which
        hears of its node later than a listing shows it.
        """
        prefix = f"{self._candidate.nonce}-"
        try:
            children = await self.listing()
        except NoNodeError:
            return
        for child in children:
            if child.startswith(prefix) and not self._wanted(child):
                with contextlib.suppress(NoNodeError):
                    await self._session.send("delete", self.path(child))

    def _wanted(self, child: str) -> bool:
        if self.place is not None:
            return child == self.place.node
        return bool(self._joining) and child.startswith(self._joining)

    def path(self, node: str) -> str:
        return f"{self._parent}/{node}"

    # -- what the leader knows of us -------------------------------------------------------------

    def answered(self, sent: Instant) -> Instant:
        """A write that was sent at `sent` was answered: from when a lease would count."""
        known = self._heard(sent)
        self._writes.append((sent, self._clock.now()))
        spare = self._session.granted - self._timings.ttl
        began = counted_from(sent, known, spare - self._timings.drift.rate * abs(spare))
        self._cut = began != sent
        return began

    def _heard(self, by: Instant) -> Instant:
        """When the last request was sent of which the leader had heard for certain before a write
        that was sent at `by`. A server passes writes on, but tells the leader whose clients it has
        heard only when it is pinged, which is twice a tick, and not to the millisecond: a request
        counts that was answered a whole tick before. Both go over one connection, so the leader had
        taken the answer to that ping in when it got the write. Whoever connects is asked after at
        the leader itself, so this counts at once; and what was sent on an earlier connection may
        never have been told.
        """
        while len(self._writes) > 1 and by.elapsed_since(self._writes[1][1]) >= self._tick:
            self._writes.popleft()
        opened = self._session.opened
        if not self._writes or by.elapsed_since(self._writes[0][1]) < self._tick:
            return opened
        heard = self._writes[0][0]
        return opened if by.elapsed_since(opened) < by.elapsed_since(heard) else heard

    def gains_in(self) -> float:
        """After a pause: how soon another write could gain more than the last one, of which the
        leader need not have heard either. Until then each would count from the same instant.
        """
        if not self._cut:
            return 0.0
        now = self._clock.now()
        _, last = self._writes[-1]
        if now.elapsed_since(last) > self._timings.retry_period / 4:
            return 0.0  # not one right after the other: less was cut off than a period
        waits = [self._tick - now.elapsed_since(answered) for _, answered in self._writes]
        return min((wait for wait in waits if wait > 0), default=0.0)
