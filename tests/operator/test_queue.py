"""The queue of keys: once, one at a time, and again after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from leasekeeper_operator import queue as queue_module
from leasekeeper_operator.api import ApiError
from leasekeeper_operator.model import Key, ensemble_key, lock_key
from leasekeeper_operator.queue import LONGEST_BACK_OFF, Queue, Reconcile, back_off

A, B = lock_key("shop", "a"), lock_key("shop", "b")
E = ensemble_key("store", "main")


@asynccontextmanager
async def running(queue: Queue, reconcile: Reconcile, workers: int = 2) -> AsyncIterator[None]:
    tasks = queue.start(reconcile, workers)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.001)


async def test_a_key_that_waits_is_there_once() -> None:
    queue, seen = Queue(), list[Key]()

    async def reconcile(key: Key) -> None:
        seen.append(key)

    for _ in range(5):
        queue.add(A)
    queue.add(B)
    async with running(queue, reconcile):
        await until(lambda: queue.idle)
    assert sorted(seen) == [A, B]


async def test_a_key_is_worked_on_by_one_worker_and_once_more_if_it_changed_meanwhile() -> None:
    queue, going, most, count = Queue(), 0, 0, 0

    async def reconcile(key: Key) -> None:
        nonlocal going, most, count
        count, going = count + 1, going + 1
        most = max(most, going)
        if count == 1:
            for _ in range(3):
                queue.add(A)
        await asyncio.sleep(0.01)
        going -= 1

    queue.add(A)
    async with running(queue, reconcile, workers=4):
        await until(lambda: queue.idle)
    assert (most, count) == (1, 2)


async def test_a_key_that_hangs_does_not_hold_up_others() -> None:
    queue, seen = Queue(), list[Key]()

    async def reconcile(key: Key) -> None:
        if key == A:
            await asyncio.Event().wait()
        seen.append(key)

    queue.add(A)
    queue.add(B)
    async with running(queue, reconcile):
        await until(lambda: seen == [B])


async def test_a_failure_is_tried_again_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queue_module, "FIRST_BACK_OFF", 0.001)
    queue, seen = Queue(), list[Key]()

    async def reconcile(key: Key) -> None:
        seen.append(key)
        if seen.count(A) < 3 and key == A:
            raise ApiError(500, "not today")

    queue.add(A)
    queue.add(B)
    async with running(queue, reconcile):
        await until(lambda: seen.count(A) == 3)
    assert seen.count(B) == 1
    assert "reconcile-failed kind=DistributedLock key=shop/a failures=2" in caplog.text
    assert "not today" in caplog.text


async def test_a_key_comes_back_when_it_asked_to_and_earlier_if_something_happened() -> None:
    queue, seen = Queue(), list[Key]()

    async def reconcile(key: Key) -> float:
        seen.append(key)
        return 0.005 if key == A else 3600.0

    queue.add(A)
    queue.add(B)
    async with running(queue, reconcile):
        await until(lambda: seen.count(A) >= 3)
        assert seen.count(B) == 1
        queue.add(B)
        await until(lambda: seen.count(B) == 2)


async def test_an_event_of_our_own_work_is_no_reason_to_look_again() -> None:
    """It may come before the answer to the write, while the key is still worked on. The control is
    an event of somebody else's work, at the same two moments."""
    queue, seen, written = Queue(), list[Key](), set[str]()

    async def reconcile(key: Key) -> None:
        seen.append(key)
        if seen == [A]:
            queue.add_unless(A, lambda: "ours" in written)
        if seen == [A, A]:
            queue.add_unless(A, lambda: "theirs" in written)
        written.add("ours")

    queue.add(A)
    async with running(queue, reconcile):
        await until(lambda: queue.idle)
        queue.add_unless(A, lambda: "ours" in written)
        await asyncio.sleep(0.01)
        assert seen == [A]
        queue.add_unless(A, lambda: "theirs" in written)
        await until(lambda: len(seen) == 3 and queue.idle)


@pytest.mark.parametrize(("stuck", "free"), [(E, A), (A, E)])
async def test_no_kind_waits_for_the_other(stuck: Key, free: Key) -> None:
    """A thousand locks, or nodes that do not answer."""
    queue, seen = Queue(), list[Key]()

    async def reconcile(key: Key) -> None:
        seen.append(key)
        if key.kind == stuck.kind:
            await asyncio.Event().wait()

    for number in range(10):
        queue.add(stuck._replace(name=str(number)))
    queue.add(free)
    async with running(queue, reconcile):
        await until(lambda: free in seen)
        assert queue.depth == 10 - 2


def test_pauses_double_up_to_a_limit() -> None:
    pauses = [back_off(failures) for failures in (1, 3, 5, 50)]
    assert pauses == sorted(pauses)
    assert 0.3 < pauses[0] <= 0.5
    assert pauses[-1] <= LONGEST_BACK_OFF
