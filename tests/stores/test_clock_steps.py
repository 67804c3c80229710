"""The wall clock of a *server* is set while somebody leads. Clocks of candidates: the conformance
suite. Of Redlock's nodes: tests/redis/test_agent_time.py; its time is counted in ticks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from backends import TIMINGS, Backend
from candidates import Lock

from leasekeeper.clock import Deadline, SystemClock
from leasekeeper.lease import Grant, Held, LeaseStore, Timings, Unavailable

CLOCK = SystemClock()
BY_THE_WALL_CLOCK = ("postgresql", "mysql", "redis")
HOUR = 3600
CALM = Timings(lease_duration=4.0, renew_deadline=3.0, retry_period=0.4)  # for many renewals


@pytest.fixture(params=(*BY_THE_WALL_CLOCK, "zookeeper"), scope="module")
def backend(request: pytest.FixtureRequest, backends: Callable[[str], Backend]) -> Any:
    return backends(request.param)


@pytest.fixture
async def lock(backend: Any, tmp_path: Path) -> AsyncIterator[Lock]:
    assert backend.server.wall.can_be_stepped
    made = Lock(backend, tmp_path)
    yield made
    backend.server.wall.set(0)
    await made.close()


async def won(store: LeaseStore) -> Grant:
    async with asyncio.timeout(30):
        await store.ready()
        while not isinstance(outcome := await store.acquire(), Grant):
            await asyncio.sleep(0.02)
    return outcome


@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_a_waiter_does_not_believe_a_clock_that_was_set(
    lock: Lock, backend: Any, step: int
) -> None:
    first, second = lock.candidate("a"), lock.candidate("b")
    grant = await won(first)
    await second.ready()
    assert isinstance(await second.acquire(), Held)
    backend.server.wall.set(step)
    while not grant.deadline.passed(CLOCK.now()):
        assert isinstance(await second.acquire(), Held | Unavailable)
        await asyncio.sleep(0.05)


async def test_a_holder_keeps_its_lease_through_a_step(lock: Lock, backend: Any) -> None:
    first = lock.candidate("a")
    grant = await won(first)
    backend.server.wall.set(HOUR)
    outcome = await first.renew(grant)
    if backend.settings(lock.name)["store"] == "redis":
        assert not isinstance(outcome, Grant)  # its key ended by that clock, and that is Lost
    else:
        assert isinstance(outcome, Grant)
        assert outcome.token == grant.token


async def test_after_a_step_back_the_lock_goes_on(lock: Lock, backend: Any) -> None:
    """What was written by the old clock would block it for an hour; its holder writes it anew."""
    first, second = lock.candidate("a"), lock.candidate("b")
    grant = await won(first)
    backend.server.wall.set(-HOUR)
    kept = await first.renew(grant)
    assert isinstance(kept, Grant)
    await first.close()
    assert (await won(second)).token > grant.token


@pytest.mark.parametrize("backend", BY_THE_WALL_CLOCK, indirect=True)
async def test_a_look_between_a_step_back_and_the_renewal_keeps_nobody_out(
    lock: Lock, backend: Any
) -> None:
    """The row says an hour then. Once it was written anew, its holder's death frees it: also when
    the step is so long ago that expiries are believed again.
    """
    first, second = (lock.candidate(name, timings=CALM) for name in "ab")
    grant = await won(first)
    await second.ready()
    assert isinstance(await second.acquire(), Held)
    backend.server.wall.set(-HOUR)
    assert isinstance(await second.acquire(), Held | Unavailable)
    believed_again = Deadline(CLOCK.now(), 1.1 * CALM.ttl)
    while not believed_again.passed(CLOCK.now()):
        kept = await first.renew(grant)
        assert isinstance(kept, Grant), kept
        grant = kept
        assert isinstance(await second.acquire(), Held | Unavailable)
        await asyncio.sleep(0.1)
    assert (await won(second)).token > grant.token


@pytest.mark.parametrize("backend", BY_THE_WALL_CLOCK, indirect=True)
async def test_control_who_has_just_come_believes_the_clock(lock: Lock, backend: Any) -> None:
    """What is not detected: a step that nobody saw, because nobody looked before it."""
    grant = await won(lock.candidate("a"))
    backend.server.wall.set(HOUR)
    taken = await won(lock.candidate("new"))
    assert not grant.deadline.passed(CLOCK.now())
    assert taken.token > grant.token  # and a resource that checks tokens refuses the old one
    assert TIMINGS.lease_duration < HOUR
