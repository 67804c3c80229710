"""An elector with a scripted store, in virtual time: what the tests of the elector stand on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

from virtual_time import VirtualClock, run

from leasekeeper.clock import Deadline
from leasekeeper.elector import Drain, Elector
from leasekeeper.lease import (
    Acquired,
    Grant,
    Observation,
    Released,
    ReleaseOutcome,
    Renewed,
    Timings,
    Unavailable,
    Unknown,
)
from leasekeeper.tenure import State

TIMINGS = Timings(lease_duration=15, renew_deadline=10, retry_period=2)
FIRST_RENEWAL = TIMINGS.retry_period / 4
NO_QUORUM = Unknown({"0": "connection refused"})
NO_LEASE = Unavailable({"0": "connection refused"})


class ScriptedStore:
    """A store that says what the test wants, and remembers what it was asked."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.log: list[tuple[float, str]] = []
        self.tokens = 0
        self.on_acquire: Callable[[], Awaitable[Acquired]] = self.grant
        self.on_renew: Callable[[Grant], Awaitable[Renewed]] = self.extend
        self.released = asyncio.Event()
        self.free = asyncio.Event()
        self.news = asyncio.Event()

    def note(self, what: str) -> None:
        self.news.set()
        self.log.append((round(asyncio.get_running_loop().time(), 3), what))

    def times(self, what: str) -> list[float]:
        return [time for time, entry in self.log if entry == what]

    def lease(self, token: int) -> Grant:
        now = self.clock.now()
        return Grant(
            lock="shop/orders",
            id=f"me/{token}",
            token=token,
            deadline=Deadline(now, TIMINGS.renew_deadline),
            lease_end=Deadline(now, TIMINGS.lease_end),
        )

    async def grant(self) -> Acquired:
        self.tokens += 1
        return self.lease(self.tokens)

    async def extend(self, grant: Grant) -> Grant:
        return replace(self.lease(grant.token), id=grant.id)

    async def ready(self) -> None:
        self.note("ready")

    async def acquire(self) -> Acquired:
        self.note("acquire")
        return await self.on_acquire()

    async def renew(self, grant: Grant) -> Renewed:
        self.note("renew")
        return await self.on_renew(grant)

    async def release(self, grant: Grant) -> ReleaseOutcome:
        self.note("release")
        await asyncio.sleep(0.001)
        self.note("released")
        self.released.set()
        return Released()

    async def freed(self) -> None:
        await self.free.wait()
        self.free.clear()

    async def observe(self) -> Observation:
        self.note("observe")
        return Observation("somebody/u/n/1", 7, 1.0, {})

    async def close(self) -> None: ...


class Listener:
    def __init__(self, store: ScriptedStore) -> None:
        self.store = store
        self.last: Grant | None = None
        self.reasons: list[str] = []

    def leading(self, grant: Grant) -> None:
        self.store.note("leading")
        self.last = grant

    def not_leading(self, why: str) -> None:
        self.store.note("not leading")
        self.reasons.append(why)

    def standing_by(self, holder: str | None) -> None:
        self.store.note(f"standing by: {holder}")

    def renewal(self, outcome: Renewed) -> None: ...


class Bench:
    """An elector with a scripted store, running."""

    def __init__(
        self, resume: bool = False, drain: Drain | None = None, lock_delay: float = 0.0
    ) -> None:
        self.clock = VirtualClock()
        self.store = ScriptedStore(self.clock)
        self.listener = Listener(self.store)
        self.elector = Elector(
            store=self.store,
            timings=replace(TIMINGS, lock_delay=lock_delay),
            clock=self.clock,
            audience=self.listener,
            resume=replace(self.store.lease(41), id="before the crash") if resume else None,
            drain=drain,
        )

    def start(self) -> asyncio.Task[None]:
        self.task = asyncio.create_task(self.elector.run())
        return self.task

    def state(self) -> str:
        return self.elector.state.value

    async def until(self, what: str, count: int = 1) -> None:
        while len(self.store.times(what)) < count:
            self.store.news.clear()
            await self.store.news.wait()

    async def stop(self) -> None:
        self.elector.stop()
        await self.task
        assert self.elector.state is State.STOPPED


def in_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def runs() -> None:
        run(test())

    runs.__name__, runs.__doc__ = test.__name__, test.__doc__
    return runs


def say(outcome: Any) -> Callable[..., Awaitable[Any]]:
    async def said(*_: Any) -> Any:
        return outcome

    return said
