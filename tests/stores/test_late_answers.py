"""From when a deadline counts, and what an answer is worth that comes after it, on real servers.

Not Redlock (the simulation has it) and not the Lease (`tests/unit/test_kubernetes_store_time.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from backends import PATIENT, Backend
from candidates import Lock

from leasekeeper.clock import Instant, SystemClock
from leasekeeper.lease import Grant

STORES = ("postgresql", "mysql", "sqlite", "zookeeper", "redis")
FROZEN = 0.1  # seconds: what no store takes for the end of its connection
UNHURRIED = replace(PATIENT, retry_period=2.0)
"""An answer that was held up is in time also on a machine that is busy with other tests."""


Ask = Callable[[], Coroutine[Any, Any, Any]]


class Sleeper(SystemClock):
    """Of a process that was paused: so much time has passed, and none of its timers has fired."""

    slept = 0.0

    def now(self) -> Instant:
        real = super().now()
        return Instant(real.boot + self.slept, real.raw + self.slept)


async def answered_late(lock: Lock, request: Ask, healing: Callable[[], None]) -> Any:
    """The outcome of a request whose answer cannot have come before `healing` was called."""

    def heal() -> None:
        healing()
        lock.backend.heal()
        healed.set()

    healed = asyncio.Event()
    lock.backend.freeze()
    await asyncio.sleep(0.05)  # what was under way has come through
    asyncio.get_running_loop().call_later(FROZEN, heal)
    outcome = await request()
    await healed.wait()
    return outcome


@pytest.fixture(params=STORES, scope="module")
def backend(request: pytest.FixtureRequest, backends: Callable[[str], Backend]) -> Backend:
    return backends(request.param)


async def prepared(lock: Lock, clock: SystemClock, asked: str) -> Ask:
    """A connected candidate's next request, which gets a lease if nothing goes wrong."""
    store = lock.candidate("a", clock, UNHURRIED)
    async with asyncio.timeout(30):
        await store.ready()
        while not isinstance(grant := await store.acquire(), Grant):
            await asyncio.sleep(0.02)
    if asked == "renew":
        return partial(store.renew, grant)
    await store.release(grant)
    await asyncio.sleep(UNHURRIED.retry_period)  # whoever gave it back lets others try first
    return store.acquire


@pytest.mark.parametrize("asked", ["acquire", "renew"])
async def test_a_deadline_counts_from_before_the_request_and_not_from_its_answer(
    lock: Lock, asked: str
) -> None:
    """Known bug 2."""
    clock = SystemClock()
    request = await prepared(lock, clock, asked)
    healed: list[Instant] = []
    grant = await answered_late(lock, request, lambda: healed.append(clock.now()))
    assert isinstance(grant, Grant), grant
    assert healed[0].elapsed_since(grant.deadline.start) > 0
    assert healed[0].elapsed_since(grant.lease_end.start) > 0


@pytest.mark.parametrize("asked", ["acquire", "renew"])
async def test_an_answer_after_its_deadline_is_no_lease(lock: Lock, asked: str) -> None:
    """Known bug 1. As after a pause in which the answer came: it is read before any timer fires."""
    clock = Sleeper()
    request = await prepared(lock, clock, asked)

    def pause() -> None:
        clock.slept += UNHURRIED.renew_deadline

    outcome = await answered_late(lock, request, pause)
    assert not isinstance(outcome, Grant), outcome
