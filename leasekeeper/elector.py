"""The candidate's state machine, over any store.

                 granted                    cannot tell
    STANDBY ───────────────▶ LEADING ◀──────────────────────▶ UNSURE
       ▲                        │            renewed             │
       └────────────────────────┴────────────────────────────────┘
              lost, deadline passed, asked to step down

A tenure ends in exactly one of these ways, and always in this order: the audience is told, then the
lease is given back or left to run out, then the candidate stands by again (or stops):

    1. the store says that the lease is not ours (Lost): at once; it runs out;
    2. the deadline passes without a good renewal: at the deadline, not before; it runs out;
    3. somebody asks through the store (step-down, pause): given back after the app's time to stop;
    4. `withdraw()`, because this process should not lead now: as by request;
    5. `stop()`: given back when `drain` says that the app has stopped, and at once without one. If
       it has not stopped when the lease ends, a lock delay runs its time;
    6. an exception: a bug, or the audience cannot say that it leads. It runs out, and the exception
       is raised again: a candidate that is healthy and out of the race for ever is worse than one
       that dies.

What each outcome means for it is decided in `tenure.py`; here it is carried out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from leasekeeper.clock import Clock, Deadline, Instant
from leasekeeper.lease import (
    Acquired,
    Grant,
    Held,
    LeaseStore,
    Renewed,
    Timings,
    Unknown,
)
from leasekeeper.tenure import (
    SHORTEST_WAIT,
    Continue,
    End,
    State,
    after_renewal,
    next_attempt_in,
)

T = TypeVar("T")
Drain = Callable[[], Awaitable[None]]


class Audience(Protocol):
    """Who is told of the election. Called in the loop: each call must be quick and must not raise.

    The order is part of the protocol: `leading` comes only after the store granted; `not_leading`
    comes before the first byte of the release, so that everybody here has stopped before anyone
    else can win.
    """

    def leading(self, grant: Grant) -> None:
        """The lease is ours until `grant.deadline`: when it was won or resumed, and after each
        renewal.
        """

    def not_leading(self, why: str) -> None:
        """It is over; `why` is a sentence for people."""

    def standing_by(self, holder: str | None) -> None:
        """Somebody else holds it (the candidate's id), or nobody can be named."""

    def renewal(self, outcome: Renewed) -> None:
        """One renewal was tried, with this outcome. For counting; `leading` follows a good one."""


class Elector:
    """Runs one candidate until it is stopped."""

    def __init__(
        self,
        *,
        store: LeaseStore,
        timings: Timings,
        clock: Clock,
        audience: Audience,
        resume: Grant | None = None,
        drain: Drain | None = None,
    ) -> None:
        """`drain` returns when what was done as leader has stopped. A stop waits for it before the
        lease is given back, but not beyond the lease's end.
        """
        self._store = store
        self._timings = timings
        self._clock = clock
        self._audience = audience
        self._resume = resume
        self._drain = drain
        self._stop = asyncio.Event()
        self._withdrawn: str | None = None  # why it stays out of the race
        self._wait: asyncio.Timeout | None = None  # what `stop` and `withdraw` cut short
        self.state = State.STANDBY
        self.grant: Grant | None = None
        self.last_turn = clock.now()
        self._promised = timings.retry_period

    def stop(self) -> None:
        """Ends the race: a lease is given back, and `run` returns."""
        self._stop.set()
        self._cut_short()

    def withdraw(self, why: str) -> None:
        """Out of the race until `rejoin`. A lease is given back after the app's time to stop."""
        already, self._withdrawn = self._withdrawn is not None, why
        if not already:  # said again and again, it would cut short every look at who leads
            self._cut_short()

    def rejoin(self) -> None:
        if self._withdrawn is not None:
            self._withdrawn = None
            self._cut_short()

    def _cut_short(self) -> None:
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(asyncio.get_running_loop().time())

    def overdue(self, now: Instant) -> float:
        """By how many seconds the loop is behind its promise to turn; 0 or less: it is alive."""
        return now.elapsed_since(self.last_turn) - self._promised

    async def run(self) -> None:
        try:
            stay_out = 0.0
            await self._until(self._store.ready(), self._timings.retry_period)
            if self._resume is not None:
                # Nobody is told anything until a quorum has agreed: what was said before the crash
                # carries its own end.
                stay_out = await self._lead(Continue(self._resume, State.UNSURE, 0.0))
            while not self._stop.is_set():
                grant = await self._stand_by(stay_out)
                if grant is not None:
                    # Soon after the win, because a node that could not be reached just then has no
                    # entry: until a renewal repairs it, the lease hangs on fewer nodes.
                    soon = self._timings.retry_period / 4
                    stay_out = await self._lead(Continue(grant, State.LEADING, soon))
        finally:
            self.state = State.STOPPED

    # -- standby ---------------------------------------------------------------------------------

    async def _stand_by(self, stay_out: float) -> Grant | None:
        """Tries until the lock is ours; none: stopped."""
        self.state = State.STANDBY
        await self._stay_out(stay_out)
        while not self._stop.is_set():
            self._turn(self._timings.renew_deadline)
            if self._withdrawn is not None:
                await self._look_on()
                continue
            outcome = await self._until(self._store.acquire())
            if outcome is None:
                continue
            if isinstance(outcome, Grant):
                return outcome
            self._audience.standing_by(outcome.by if isinstance(outcome, Held) else None)
            await self._wait_for_a_chance(outcome)
        return None

    async def _stay_out(self, seconds: float) -> None:
        end = Deadline(self._clock.now(), seconds)
        # A look takes two periods at most.
        while end.left(self._clock.now()) > 2 * self._timings.retry_period:
            if self._stop.is_set():
                return
            self._turn(self._timings.renew_deadline)
            await self._look_on()
        left = end.left(self._clock.now())
        self._turn(left)
        await self._sleep(left)

    async def _wait_for_a_chance(self, outcome: Acquired) -> None:
        assert not isinstance(outcome, Grant)
        pause = next_attempt_in(outcome, self._timings)
        self._turn(pause)
        if isinstance(outcome, Held):
            await self._until(self._store.freed(), pause)
        else:
            await self._sleep(pause)

    async def _look_on(self) -> None:
        """Out of the race, but not blind: the app wants to know who leads."""
        period = self._timings.retry_period
        seen = await self._until(self._store.observe(), period)
        if seen is not None:
            self._audience.standing_by(seen.holder)
        self._turn(period)
        await self._until(self._stop.wait(), period)

    # -- leading ---------------------------------------------------------------------------------

    async def _lead(self, first: Continue) -> float:
        """One tenure, from the grant to the release. Returns how long to stay out of the race."""
        try:
            ended = await self._keep_renewing(first)
            return ended.stay_out
        except asyncio.CancelledError:
            ended = End("cancelled", release_after=0.0)
            raise
        except BaseException as wrong:
            # Named, because it need not be a bug: a full volume ends a tenure like this, too.
            ended = End(f"ended by an error: {wrong!r}")
            raise
        finally:
            await self._end(first.grant, ended)

    async def _keep_renewing(self, step: Continue) -> End:
        if (ended := self._told_to_end()) is not None:
            return ended  # in the same turn in which the grant came
        while True:
            if step.state is State.LEADING:
                self.grant = step.grant
                self._audience.leading(step.grant)
            self.state = step.state
            self._turn(step.renew_in)
            await self._until(self._stop.wait(), step.renew_in)
            if (ended := self._told_to_end()) is not None:
                return ended
            if step.doubt and step.grant.deadline.left(self._clock.now()) <= SHORTEST_WAIT:
                return End(f"deadline passed: {step.doubt}")
            outcome = await self._renew(step.grant)
            if (ended := self._told_to_end()) is not None:
                return ended
            self._audience.renewal(outcome)
            decision = after_renewal(step.grant, outcome, self._clock.now(), self._timings)
            if isinstance(decision, End):
                return decision
            step = decision

    def _told_to_end(self) -> End | None:
        if self._stop.is_set():
            return End("stopped", release_after=0.0)
        if self._withdrawn is not None:
            return End(f"withdrew: {self._withdrawn}", release_after=self._timings.time_to_stop)
        return None

    async def _renew(self, grant: Grant) -> Renewed:
        left = grant.deadline.left(self._clock.now())
        self._turn(left)
        # The store keeps to the deadline by itself; the time limit is for a store that does not.
        outcome = await self._until(self._store.renew(grant), max(left, 0))
        return outcome or Unknown({"store": "no answer before the deadline"})

    async def _end(self, grant: Grant, ended: End) -> None:
        """Everybody here stops first; then the others may start.

        An audience that could not say so raises, and then nothing is given back: the lease runs out
        by itself, later than what was said last.
        """
        latest, self.grant = self.grant or grant, None
        self.state = State.STANDBY
        self._audience.not_leading(ended.why)
        if ended.release_after is None:
            return
        self._turn(ended.release_after + self._timings.retry_period)
        await self._sleep(ended.release_after)
        if not await self._drained(latest) and self._timings.lock_delay > 0:
            return  # the delay is for work in flight, and giving the lease back would end it
        release = asyncio.ensure_future(self._store.release(grant))
        try:
            await asyncio.shield(release)
        except asyncio.CancelledError:
            await release  # bounded by the store; keys left behind would cost others a whole lease
            raise

    async def _drained(self, latest: Grant) -> bool:
        """Waits, if this is a stop, until the app has stopped. False: it has not, and the lease is
        over.
        """
        if not self._stop.is_set() or self._drain is None:
            return True
        left = latest.lease_end.left(self._clock.now())
        self._turn(left + self._timings.retry_period)
        try:
            async with asyncio.timeout(left) as limit:
                await self._drain()
        except TimeoutError:
            if not limit.expired():
                raise  # its own: that is no word that the app has stopped
            return False
        return True

    # -- shared ----------------------------------------------------------------------------------

    def _turn(self, promised: float) -> None:
        """The loop is alive, and promises to be back here within `promised` seconds."""
        self.last_turn = self._clock.now()
        self._promised = promised

    async def _sleep(self, seconds: float) -> None:
        if seconds <= 0 or self._stop.is_set():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()

    async def _until(self, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T | None:
        """The result of `work`; none if the time was up, or `stop` or `withdraw` came. It is
        cancelled then.

        In this task and not in one of its own: a wake-up should reach the nodes within one turn of
        the loop.
        """
        if self._stop.is_set():
            work.close()
            return None
        try:
            async with asyncio.timeout(seconds) as wait:
                self._wait = wait
                return await work
        except TimeoutError:
            if not wait.expired():
                raise
            return None
        finally:
            self._wait = None
