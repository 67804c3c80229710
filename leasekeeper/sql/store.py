"""The SQL store: acquire, renew and release as one statement each.

Safety rests on these, each in one place:

- taking a lock is one statement that looks at the row and changes it, and raises its token;
- the deadline counts from *before* the statement is sent, and is checked again after its answer;
- every attempt has an id of its own, so that a late statement of an older one changes nothing;
- a row is taken as expired only if the database's clock says what ours expects (`memory.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

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
from leasekeeper.sql.database import Claim, Database, DatabaseError, Look
from leasekeeper.sql.memory import Memory

T = TypeVar("T")

LOOKS_A_PERIOD = 4
"""How often somebody who waits looks at the row, where the database calls nobody."""

LOOK_LATEST = 1.25
"""Times the usual pause: by then everybody who waits has looked once. So long does whoever gave the
lock back leave it to them, or it would take it again each time before anybody else looked."""

STRAGGLER = 0.1
"""Seconds. A statement whose connection was dropped may still be run, after what came on the next
connection: a busy server was seen to do it. So an attempt that left nothing is given back once more
this much later, or the row would keep everybody else out for a whole lease."""


class SqlStore:
    """A `LeaseStore` for one lock and one candidate, over one connection."""

    def __init__(
        self,
        *,
        database: Database,
        lock: str,
        candidate: Candidate,
        timings: Timings,
        clock: Clock,
        name: str = "database",
    ) -> None:
        if not lock:  # the row without a name carries the schema's version
            raise ConfigurationError("a lock needs a name, as in NAMESPACE/NAME")
        self._database = database
        self._lock = lock
        self._candidate = candidate
        self._timings = timings
        self._clock = clock
        self._name = name
        self._memory = Memory(
            drift=timings.drift, tolerance=timings.time_to_stop / 2, ttl=timings.ttl
        )
        self._attempt = 0
        # The last own attempt without an answer: its statement may be run at any time, and its id
        # never becomes a lease. So it is remembered to the end.
        self._unanswered = ""
        self._courtesy: Deadline | None = None
        self._open = False
        self._turn = asyncio.Lock()  # one statement at a time: a connection has no more
        self._freed = asyncio.Event()
        self._errands: set[asyncio.Task[Any]] = set()

    async def ready(self) -> None:
        while True:
            try:
                await self._ask(lambda: self._database.look(self._lock), self._period)
            except DatabaseError:
                await asyncio.sleep(self._period / 4)
            else:
                return

    @property
    def _period(self) -> float:
        return self._timings.retry_period

    @property
    def _look_every(self) -> float:
        return self._period / LOOKS_A_PERIOD

    # -- acquire ---------------------------------------------------------------------------------

    async def acquire(self) -> Acquired:
        began = self._clock.now()
        if self._courtesy is not None and not self._courtesy.passed(began):
            return Held(by="", free_in=self._courtesy.left(began))
        self._attempt += 1
        attempt = f"{self._candidate.id}/{self._attempt}"
        self._freed.clear()
        unanswered = True
        try:
            outcome = await self._try(attempt, began)
            unanswered = False
            return outcome
        except DatabaseError as wrong:
            return Unavailable({self._name: str(wrong)})
        finally:
            # Also when the caller was cancelled: the statement may have been run, or may yet be.
            if unanswered:
                self._unanswered = attempt
                self._run_errand(self._give_back(attempt))

    async def _try(self, attempt: str, began: Instant) -> Acquired:
        if self._memory.lease_left(began) > 0:
            # A lease that was seen still runs, unless it was given back unheard. Only a look may
            # tell: the statement would insert a row that somebody deleted under that lease.
            look = await self._look(self._timings.renew_deadline)
            if not isinstance(look, Look):
                return look
            if look.held or not look.exists:
                return self._held(look)
            began = self._clock.now()
        earliest, latest = self._memory.bounds(began)
        claim = Claim(
            self._lock,
            attempt,
            self._timings.ttl,
            seen=self._memory.token,
            mine=self._unanswered,
            earliest=earliest,
            latest=latest,
        )
        look = await self._ask(lambda: self._database.take(claim), self._timings.renew_deadline)
        answered = self._clock.now()
        wrong = self._memory.saw(look, began, answered)
        if not look.done:
            return Unavailable({self._name: wrong}) if wrong else self._held(look)
        grant = Grant.counted_from(
            began, self._timings, lock=self._lock, id=attempt, token=look.token
        )
        if grant.deadline.passed(answered):
            self._run_errand(self._give_back(attempt))
            return Unavailable({self._name: "the answer came too late: the deadline had passed"})
        return grant

    def _held(self, look: Look) -> Acquired:
        if look.held:
            # One that is none of ours has no number of an attempt: `migration`, somebody's SETNX.
            return Held(by=look.holder.rpartition("/")[0] or look.holder, free_in=look.left)
        if self._memory.doubt:
            return Unavailable({self._name: self._memory.doubt})
        # Free by now, or another took it and the statement's snapshot does not show it yet.
        return Unavailable(
            {self._name: "several try at once"}, retry_in=random.uniform(0, self._period / 8)
        )

    async def _look(self, budget: float) -> Look | Unavailable:
        sent = self._clock.now()
        look = await self._ask(lambda: self._database.look(self._lock), budget)
        wrong = self._memory.saw(look, sent, self._clock.now())
        return Unavailable({self._name: wrong}) if wrong else look

    # -- renew, release --------------------------------------------------------------------------

    async def renew(self, grant: Grant) -> Renewed:
        began = self._clock.now()
        left = grant.deadline.left(began)
        if left <= 0:
            return Lost("the deadline had passed before the renewal began")
        ttl = self._timings.ttl
        try:
            look = await self._ask(
                lambda: self._database.extend(self._lock, grant.id, grant.token, ttl),
                min(left, self._period),
            )
        except DatabaseError as wrong:
            return Unknown({self._name: str(wrong)})
        answered = self._clock.now()
        wrong_row = self._memory.saw(look, began, answered)
        if not look.done:
            return self._not_extended(grant, look, wrong_row)
        if grant.deadline.passed(answered):
            return Lost("the deadline passed while the answer was on its way")
        return Grant.counted_from(
            began, self._timings, lock=self._lock, id=grant.id, token=grant.token
        )

    def _not_extended(self, grant: Grant, look: Look, wrong: str) -> Renewed:
        if wrong:
            return Lost(wrong)
        if not look.exists:
            return Lost("the lock's record is gone: deleted, or the server lost its memory")
        if (look.holder, look.token) == (grant.id, grant.token):
            return Unknown({self._name: "it is ours, and was not extended"})
        return Lost(f"it belongs to {look.holder or 'nobody'}, with token {look.token}")

    async def release(self, grant: Grant) -> ReleaseOutcome:
        work = self._run_errand(self._release(grant))
        return await asyncio.shield(work)

    async def _release(self, grant: Grant) -> ReleaseOutcome:
        try:
            ours = await self._ask(
                lambda: self._database.give_back(self._lock, grant.id), self._period
            )
        except DatabaseError as wrong:
            return Unknown({self._name: str(wrong)})
        self._memory.given_back(grant.token)
        if not self._database.notifies:
            self._courtesy = Deadline(self._clock.now(), LOOK_LATEST * self._look_every)
        return Released() if ours else AlreadyGone()

    async def _give_back(self, attempt: str) -> None:
        """Of an attempt that did not become a lease."""
        for pause in (0.0, STRAGGLER):
            await asyncio.sleep(pause)
            try:
                give_back = partial(self._database.give_back, self._lock, attempt)
                if await self._ask(give_back, self._period):
                    return
            except DatabaseError:
                return  # the next attempt may take it over; else it runs out

    # -- waiting ---------------------------------------------------------------------------------

    async def freed(self) -> None:
        if self._database.notifies:
            await self._freed.wait()
            return
        while True:
            # Not in step with the others who wait.
            await asyncio.sleep(self._look_every * random.uniform(2 - LOOK_LATEST, LOOK_LATEST))
            try:
                look = await self._look(self._period)
            except DatabaseError:
                continue
            if not isinstance(look, Look) or not look.held:
                return

    def _on_freed(self, token: int | None) -> None:
        self._memory.given_back(token)
        self._freed.set()

    async def observe(self) -> Observation:
        try:
            look = await self._ask(lambda: self._database.look(self._lock), self._period)
        except DatabaseError as wrong:
            return Observation(None, 0, 0.0, {self._name: str(wrong)})
        holder = look.holder if look.held else None
        said = f"holder {holder or 'none'}, token {look.token}, {max(look.left, 0):.1f} s left"
        return Observation(holder, look.token, max(look.left, 0.0), {self._name: said})

    async def close(self) -> None:
        if self._errands:
            await asyncio.wait(self._errands, timeout=self._period)
        for errand in self._errands:
            errand.cancel()
        self._open = False
        await self._database.close()

    # -- the connection --------------------------------------------------------------------------

    async def _ask(self, statement: Callable[[], Coroutine[Any, Any, T]], budget: float) -> T:
        """Runs one statement, on a new connection if there is none. Within the budget, or a
        DatabaseError; the connection is dropped then, because its next answer would be this one's.
        """
        try:
            async with asyncio.timeout(budget), self._turn:
                try:
                    if not self._open:
                        await self._database.open(self._lock, self._on_freed)
                        self._open = True
                    return await statement()
                except BaseException:
                    self._open = False
                    self._database.drop()
                    raise
        except TimeoutError:
            raise DatabaseError(f"no answer within {budget:.3g} s") from None

    def _run_errand(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """What must be finished although its caller may be cancelled."""
        errand = asyncio.get_running_loop().create_task(work)
        self._errands.add(errand)
        errand.add_done_callback(self._errands.discard)
        return errand
