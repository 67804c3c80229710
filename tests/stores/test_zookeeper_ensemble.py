"""ZooKeeper as an ensemble: its leader is killed, and followers stand still or stand alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from candidates import Lock
from kazoo.client import KazooClient
from servers import wait_until
from zookeepers import Stores, Three, won

from leasekeeper.clock import SystemClock
from leasekeeper.lease import Grant, Held, Lost, Timings, Unknown

CLOCK = SystemClock()
LONG = Timings(lease_duration=9.0, renew_deadline=8.0, retry_period=0.5)
LONGEST = Timings(lease_duration=18.0, renew_deadline=17.0, retry_period=0.5)
"""For an election among ZooKeeper's servers on a busy machine; they grant no more than 20 s."""


@pytest.fixture
async def store() -> AsyncIterator[Stores]:
    stores = Stores()
    yield stores
    for made in stores.made:
        await made.close()


@pytest.fixture(scope="module")
def three() -> Iterator[Three]:
    with ExitStack() as stack:
        yield Three(stack)


async def test_the_answers_of_a_server_without_its_leader_renew_nothing(
    store: Stores, three: Three
) -> None:
    """Reads and pings are answered by the server that one is connected to, on its own."""
    follower = three.follower
    candidate = store(follower.port, "shop/follower", timings=LONG)
    grant = await won(candidate)
    others = [s for s in three.servers if s is not follower]
    reader = KazooClient(f"127.0.0.1:{follower.port}")
    await asyncio.to_thread(reader.start)
    for server in others:
        server.pause()
    try:
        there = await asyncio.to_thread(reader.get_children, "/leasekeeper/shop/follower")
        assert there  # the control: had a read counted, it would have renewed
        assert isinstance(await candidate.renew(grant), Unknown)
    finally:
        for server in others:
            server.resume()
        reader.handler.spawn(reader.stop)
    wait_until(lambda: three.leader, "a leader")


async def test_a_killed_leader_costs_no_tenure_and_repeats_no_token(
    store: Stores, three: Three
) -> None:
    first = store(0, "shop/ensemble", hosts=three.hosts, timings=LONGEST)
    second = store(0, "shop/ensemble", hosts=three.hosts, timings=LONGEST)
    grant = kept = await won(first)
    await second.ready()
    assert isinstance(await second.acquire(), Held)
    killed = three.leader
    killed.kill()
    while not kept.deadline.passed(CLOCK.now()):
        outcome = await first.renew(kept)
        assert not isinstance(outcome, Lost), outcome
        if isinstance(outcome, Grant):
            kept = outcome
            if three.leader is not killed and kept.deadline.start.boot > grant.deadline.start.boot:
                break
        await asyncio.sleep(0.05)
    assert kept.deadline.start.boot > grant.deadline.start.boot, "no other leader renewed it"
    assert kept.token == grant.token
    assert not isinstance(await second.acquire(), Grant)
    await first.release(kept)
    assert (await won(second)).token > grant.token
    killed.start()


@pytest.fixture(scope="module")
def slow() -> Iterator[Three]:
    """With the tick that ZooKeeper has by default."""
    with ExitStack() as stack:
        yield Three(stack, tick=2.0)


def test_a_renewal_after_a_pause_counts_no_longer_than_the_leader_has_heard_of_us(
    slow: Three, tmp_path: Path
) -> None:
    """The leader hears of a follower's clients with its next ping, and a write that the follower
    passes on is no such word. Two renewals close together, the first after a pause, and then the
    follower stands still: the leader knows nothing newer than what was before the pause.
    """
    follower = slow.follower
    backend: Any = slow
    lock = Lock(backend, tmp_path)
    try:
        lock.settings = slow.settings(lock.name, follower)
        first = lock.process("first", timings=LONG)
        first.wait_for("leading", more_than=8)  # renewed for longer than two ticks
        lock.settings = slow.settings(lock.name, *(s for s in slow.servers if s is not follower))
        second = lock.process("second", timings=LONG)
        second.wait_for("standby")
        first.pause()
        time.sleep(6.5)
        renewed = len(first.events("leading"))
        first.resume()
        first.wait_for("leading", more_than=renewed + 1)
        follower.pause()
        second.wait_for("leading")
        first.wait_for("not-leading")
        assert first.until < second.events("leading")[0]["at"]
    finally:
        follower.resume()
        lock.end_processes()
