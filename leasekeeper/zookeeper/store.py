"""The ZooKeeper store: a queue of ephemeral sequential nodes, of which the first is the holder.

    /leasekeeper/NAMESPACE/NAME/NONCE-ATTEMPT-0000000042      the data: the candidate's id

Whoever waits watches its predecessor only, so a release wakes one. Nodes keep their order, and none
can come before one that is there: who is first once, stays first while its node lives. Whoever has
waited and wins writes to its node, which its watcher hears: that one looks while there is time, and
knows then that it is next, so the release that it hears later needs no further question. The token
is the zxid of the node's creation, which ZooKeeper never gives twice.

A node lives as long as its session, and the session as long as its leader hears of it often enough.
That is ZooKeeper's lease, and here is what makes ours lie inside it:

- A renewal is a *write*. Reads and pings are answered by the server that one is connected to, and
  that may be cut off from the leader. The answer to a write proves that the leader had the session.
- The leader hears from the other servers, twice a tick, whose clients were heard; a write that is
  passed on is no such word. So what it knows when it answers may be as old as our last request that
  was answered a tick before (`Line._heard`). A lease counts from before the write was sent, but no
  later than that the session, which may end so long after that request, outlasts it; and so that
  nothing is cut off while all goes well, the session is asked to last a period and a tick longer
  than the lease.
- The leader's clock is its kernel's, which nobody sets (Java's `nanoTime`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from kazoo.exceptions import KazooException, NoNodeError
from kazoo.protocol.states import EventType

from leasekeeper.clock import Clock, Deadline, Instant
from leasekeeper.lease import (
    Acquired,
    AlreadyGone,
    Candidate,
    ConfigurationError,
    Grant,
    Held,
    Lost,
    Observation,
    Released,
    ReleaseOutcome,
    Renewed,
    Timings,
    Unavailable,
    Unknown,
)
from leasekeeper.redlock.tls import Tls
from leasekeeper.zookeeper.line import Line, Place, in_order
from leasekeeper.zookeeper.session import Login, Refused, Session, Unanswered, parted

T = TypeVar("T")

NAME = "zookeeper"
ROOT = "/leasekeeper"

LOOKS_MISSED = 4
"""So many periods after its last look a waiter is taken for gone, and its node is removed: kazoo
keeps the session alive, and a node with nobody behind it would become first and block everybody."""

IN_A_HURRY, AT_LEISURE = 1.5, 0.5
"""Periods. Who is woken because its predecessor has gone waits for no new write if its last is this
young. Woken by a predecessor that has won or renewed, it has the time to write again, so that its
proof is young when it is needed; but not at every word, or each would go down the whole line."""


class ZooKeeperStore:
    """A `LeaseStore` for one lock and one candidate, over one session."""

    def __init__(
        self,
        *,
        hosts: str,
        lock: str,
        candidate: Candidate,
        timings: Timings,
        clock: Clock,
        root: str = ROOT,
        tick: float = 2.0,
        token_floor: int = 0,
        login: Login | None = None,
        tls: Tls | None = None,
    ) -> None:
        """`tick`: the servers' tickTime, in seconds. `token_floor` is added to every token: the
        last one of the store that the lock comes from. It must be the same for all candidates.
        """
        if not root.startswith("/") or root.endswith("/"):
            raise ConfigurationError(f"{root!r} is not a path of ZooKeeper: as in {ROOT!r}")
        self._lock = lock
        self._candidate = candidate
        self._timings = timings
        self._clock = clock
        self._needed = timings.ttl + timings.retry_period + tick
        servers, above = parted(hosts)
        self._session = Session(
            hosts=servers,
            timeout=self._needed,
            clock=clock,
            on_change=self._on_change,
            login=login,
            tls=tls,
        )
        self._line = Line(
            self._session,
            f"{above}{root}/{lock}",
            candidate,
            clock,
            timings=timings,
            tick=tick,
            token_floor=token_floor,
        )
        self._held: Grant | None = None  # the last lease that was not given back
        self._largest = 0
        self._listing: asyncio.Future[Any] | None = None
        self._freed = asyncio.Event()
        self._hurry = False  # woken because our predecessor has gone
        self._absence: asyncio.TimerHandle | None = None
        self._errands: set[asyncio.Task[Any]] = set()

    async def ready(self) -> None:
        await self._session.up()

    # -- acquire ---------------------------------------------------------------------------------

    async def acquire(self) -> Acquired:
        self._disarm()
        # Until what age our last write is proof enough, in periods.
        suffices = 0.0 if not self._freed.is_set() else IN_A_HURRY if self._hurry else AT_LEISURE
        self._freed.clear()
        self._hurry = False
        try:
            async with asyncio.timeout(self._timings.renew_deadline):
                if (draining := self._last_tenure()) is not None:
                    return draining
                await self._line.prepare()
                return await self._stand_in_line(suffices * self._timings.retry_period)
        except NoNodeError:
            self._line.place, self._line.prepared = None, 0
            return Unavailable({NAME: "our place in the line was deleted"}, retry_in=0.0)
        except (Unanswered, Refused) as wrong:
            return Unavailable({NAME: str(wrong)})
        except TimeoutError:
            self._session.drop()
            return Unavailable({NAME: f"no answer within {self._timings.renew_deadline:g} s"})
        except asyncio.CancelledError:
            if self._held is None:
                self._sweep()
            raise
        finally:
            self._arm()

    def _last_tenure(self) -> Held | None:
        """A lease that ran out here still stands in ZooKeeper, because our session lives. Its node
        goes when that of a candidate that died would go (`_arm`): not before, because the app may
        need that time to stop.
        """
        if self._held is None:
            return None
        return Held(by=self._candidate.id, free_in=max(0.0, self._drain()))

    def _drain(self) -> float:
        assert self._held is not None
        return Deadline(self._held.deadline.start, self._timings.ttl).left(self._clock.now())

    async def _stand_in_line(self, suffices: float) -> Acquired:
        place = self._line.place
        if place is None:
            place, line = await self._line.join()
        elif self._since(place.began) < suffices:
            if place.first:
                return self._won(place, waited=True)
            listing, self._listing = self._listing, None
            line = in_order(await (listing or self._line.listing()))
        else:
            line = await self._line.refresh(place)
        if place.node not in line:
            self._line.place = None
            return Unavailable({NAME: "the session ended, and with it our place"}, retry_in=0.0)
        if (rank := line.index(place.node)) == 0:
            return self._won(place, waited=len(line) > 1)
        place.behind = self._line.path(line[0]) if rank == 1 else ""
        return await self._wait_behind(line[rank - 1], line[0])

    def _won(self, place: Place, *, waited: bool) -> Acquired:
        if place.token <= self._largest:
            self._sweep()
            return Unavailable(
                {
                    NAME: f"the token went back from {self._largest} to {place.token}: ZooKeeper"
                    " was made anew or restored; stop all candidates of the lock, and give each"
                    " the same tokenFloor above all tokens before"
                }
            )
        if too_short := self._too_short():
            self._sweep()
            return Unavailable({NAME: too_short})
        grant = Grant.counted_from(
            place.began, self._timings, lock=self._lock, id=place.id, token=place.token
        )
        if grant.deadline.passed(self._clock.now()):
            return Unavailable({NAME: "the answers came too late"}, retry_in=self._line.gains_in())
        self._held = grant
        self._largest = place.token
        if waited:
            # For whoever watches our node. No lease counts from it: its answer is not waited for.
            told = self._session.send("set", self._line.path(place.node), place.id.encode())
            told.add_done_callback(_seen)
        return grant

    def _too_short(self) -> str:
        """Why no lease fits inside the session; empty: it does. The server may say so of a session
        that is connected again, too: what is missing was cut off by `Line.answered` then.
        """
        if self._session.granted >= self._needed * 0.999:
            return ""
        return (
            f"ZooKeeper grants sessions of {self._session.granted:g} s, and this lock needs"
            f" {self._needed:g} (lease, lock delay, retry period, a tick): raise the servers'"
            " maxSessionTimeout, or shorten leaseDurationSeconds"
        )

    async def _wait_behind(self, predecessor: str, first: str) -> Acquired:
        watch = self._session.send("exists", self._line.path(predecessor), watch=self._on_watch)
        look = self._session.send("get", self._line.path(first))
        outcomes: tuple[Any, Any] = await asyncio.gather(watch, look, return_exceptions=True)
        there, holder = outcomes
        if there is None or isinstance(holder, NoNodeError):
            self._freed.set()
            return Unavailable({NAME: "somebody before us has just gone"}, retry_in=0.0)
        for failure in (there, holder):
            if isinstance(failure, BaseException):
                raise failure
        data, stat = holder
        self._largest = max(self._largest, self._line.token(stat))
        by = data.decode(errors="replace").rpartition("/")[0]
        # The look after a period keeps the leader's knowledge of us fresh: see `counted_from`.
        return Held(by=by, free_in=self._timings.retry_period)

    # -- renew, release --------------------------------------------------------------------------

    async def renew(self, grant: Grant) -> Renewed:
        left = grant.deadline.left(self._clock.now())
        await asyncio.sleep(min(self._line.gains_in(), max(0.0, left)))
        sent = self._clock.now()
        left = grant.deadline.left(sent)
        if left <= 0:
            return Lost("the deadline had passed before the renewal began")
        place = self._line.place
        if place is None or self._held is None or self._held.id != grant.id:
            return Lost("it belongs to another session, which ends by itself")
        try:
            async with asyncio.timeout(min(left, self._timings.retry_period)):
                path = self._line.path(place.node)
                stat = await self._session.send("set", path, grant.id.encode())
        except NoNodeError:
            return self._lost("the node of the lease is gone: the session ended, or it was deleted")
        except (Unanswered, Refused) as wrong:
            return Unknown({NAME: str(wrong)})
        except TimeoutError:
            self._session.drop()
            return Unknown({NAME: "no answer; looking for another server"})
        began = self._line.answered(sent)
        if stat.ephemeralOwner != self._session.id:
            return self._lost("the node of the lease belongs to another session")
        renewed = Grant.counted_from(
            began, self._timings, lock=self._lock, id=grant.id, token=grant.token
        )
        now = self._clock.now()
        if grant.deadline.passed(now) or renewed.deadline.passed(now):
            late = "the deadline passed while the answer was on its way"
            return Lost(self._too_short() or late)
        self._held = renewed
        self._arm()
        return renewed

    def _lost(self, why: str) -> Lost:
        self._held = self._line.place = None
        return Lost(why)

    async def release(self, grant: Grant) -> ReleaseOutcome:
        place = self._line.place
        if place is None or self._held is None or self._held.id != grant.id:
            return AlreadyGone()
        self._held = self._line.place = None
        self._disarm()
        deletion = self._session.send("delete", self._line.path(place.node))
        return await asyncio.shield(self._run_errand(self._released(deletion)))

    async def _released(self, deletion: asyncio.Future[Any]) -> ReleaseOutcome:
        try:
            async with asyncio.timeout(self._timings.retry_period):
                await deletion
        except NoNodeError:
            return AlreadyGone()
        except (Unanswered, Refused, TimeoutError) as wrong:
            self._line.prepared = (
                0  # the next attempt looks for it; a session that ends takes it along
            )
            self._sweep()
            return Unknown({NAME: str(wrong) or "no answer"})
        return Released()

    # -- waiting ---------------------------------------------------------------------------------

    async def freed(self) -> None:
        await self._freed.wait()

    def _on_watch(self, event: Any) -> None:
        place = self._line.place
        self._hurry = event.type == EventType.DELETED
        if place and self._hurry and event.path == place.behind:
            place.first = True
        elif place and self._hurry:
            # Asked here already: the answer is on its way while whoever waits wakes up.
            self._listing = self._line.listing()
            self._listing.add_done_callback(_seen)
        self._freed.set()

    def _on_change(self) -> None:
        """Of the connection: whatever was watched may have happened unseen."""
        self._freed.set()

    def _arm(self) -> None:
        """Our node goes if nobody comes for it: a waiter's after LOOKS_MISSED periods, a holder's
        when its lease and the lock delay are over. kazoo would keep the session alive for ever.
        """
        self._disarm()
        waiting = LOOKS_MISSED * self._timings.retry_period
        seconds = waiting if self._held is None else self._drain()
        self._absence = asyncio.get_running_loop().call_later(max(0.0, seconds), self._sweep)

    def _disarm(self) -> None:
        if self._absence is not None:
            self._absence.cancel()
            self._absence = None

    def _sweep(self) -> None:
        self._held = self._line.place = None
        self._run_errand(self._leave())

    async def _leave(self) -> None:
        """Removes whatever of ours stands in the line, until it could be done."""
        while self._line.place is None and self._session.id:
            try:
                async with asyncio.timeout(self._timings.retry_period):
                    await self._line.remove_own()
                    return
            except (Unanswered, Refused, TimeoutError, KazooException):
                await asyncio.sleep(self._timings.retry_period / 4)

    async def observe(self) -> Observation:
        try:
            async with asyncio.timeout(self._timings.retry_period):
                line = in_order(await self._line.listing())
                if not line:
                    return Observation(None, 0, 0.0, {NAME: "nobody holds it or waits for it"})
                data, stat = await self._session.send("get", self._line.path(line[0]))
        except NoNodeError:
            return Observation(None, 0, 0.0, {NAME: "nobody ever stood for it"})
        except (Unanswered, Refused, TimeoutError) as wrong:
            return Observation(None, 0, 0.0, {NAME: str(wrong) or "no answer"})
        holder, token = data.decode(errors="replace"), self._line.token(stat)
        said = f"holder {holder}, token {token}, {len(line) - 1} wait"
        return Observation(holder, token, self._session.granted, {NAME: said})

    async def close(self) -> None:
        """The end of a session ends its nodes. A lease that was not given back is to run out, and
        not to pass on now: its end may not have been told to the app.
        """
        self._disarm()
        running = self._held is not None and self._drain() > 0
        self._line.place = None
        for errand in self._errands:
            errand.cancel()
        await self._session.close(self._timings.retry_period, end_session=not running)

    # -- shared ----------------------------------------------------------------------------------

    def _since(self, instant: Instant) -> float:
        return self._clock.now().elapsed_since(instant)

    def _run_errand(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """What must be finished although its caller may be cancelled."""
        errand = asyncio.get_running_loop().create_task(work)
        self._errands.add(errand)
        errand.add_done_callback(self._errands.discard)
        return errand


def _seen(answer: asyncio.Future[Any]) -> None:
    """An answer that nobody may come for is no error that was missed."""
    if not answer.cancelled():
        answer.exception()
