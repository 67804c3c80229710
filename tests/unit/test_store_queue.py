"""The store in virtual time: wake-ups, the queue, and how long silent nodes are waited for."""

from __future__ import annotations

import asyncio

from scripted_links import MEMBERSHIP, TIMINGS, Bench, yes
from virtual_time import run

from leasekeeper.lease import (
    Grant,
    Held,
    Unavailable,
)
from leasekeeper.redlock.gate import gate_order
from leasekeeper.redlock.transport import Answer
from leasekeeper.redlock.waiting import COURTESY

PATIENCE = 0.006
GATE, *REST = gate_order("shop/orders", [node.id for node in MEMBERSHIP.nodes])


def committed(command: tuple[str, ...]) -> Answer:
    if command[1] == "lk1_grant":
        return [b"COMMITTED", command[7].encode(), b"1", b""]
    return yes(command)


def held(_: tuple[str, ...]) -> Answer:
    return [b"HELD", b"other/uid/n/3", b"5000000", b"41", b"", b"1", b""]


def test_the_grant_follows_the_release_from_node_to_node() -> None:
    async def scenario() -> None:
        bench = Bench(committed, delay=0.0005)
        loop = asyncio.get_running_loop()
        bench.push(GATE, b"41 0")
        loop.call_later(0.001, bench.push, REST[0], b"41 0")
        loop.call_later(0.0015, bench.push, REST[1], b"41 0")
        grant = await bench.won()
        assert grant.token == 42
        asked = {node: link.log[0][0] for node, link in bench.links.items() if link.log}
        assert (asked[GATE], asked[REST[0]], asked[REST[1]]) == (0, 0.001, 0.0015)
        assert grant.deadline.start.boot == 1000.0, "from before the first of these bytes"
        for link in bench.links.values():
            assert link.calls("lk1_grant") == [grant.id], "one grant a node, on all of them"

    run(scenario())


def test_nodes_that_stay_silent_are_asked_after_a_moment() -> None:
    async def scenario() -> None:
        bench = Bench(committed, delay=0.0005)
        bench.push(GATE, b"41 0")
        await bench.won()
        assert asyncio.get_running_loop().time() < PATIENCE

    run(scenario())


def test_a_failed_attempt_is_given_back_only_where_something_of_it_may_be() -> None:
    async def scenario() -> None:
        bench = Bench()
        for node in "012":
            bench.links[node].says = held
        bench.links["3"].says = lambda _: None
        assert isinstance(await bench.store.acquire(), Held | Unavailable)
        given_back = {n for n, link in bench.links.items() if link.calls("lk1_release")}
        assert given_back == {"3", "4"}

    run(scenario())


def test_whoever_gave_the_lock_back_joins_the_end_and_asks_nobody() -> None:
    def says(command: tuple[str, ...]) -> Answer:
        if command[1] == "lk1_release":
            return [b"OK", b"next/uid/n", b"1", b""]
        return yes(command)

    async def scenario() -> None:
        bench = Bench(says)
        grant = await bench.won()
        await bench.store.release(grant)
        for link in bench.links.values():
            link.log.clear()
        assert await bench.store.acquire() == Held(by="next/uid/n", free_in=COURTESY)
        for link in bench.links.values():
            assert [name for _, name, _ in link.log] == ["lk1_wait"]
        assert isinstance(await bench.store.acquire(), Grant), "the next look is a real one"

    run(scenario())


def test_one_slow_renewal_does_not_make_later_hand_overs_wait_for_silent_nodes() -> None:
    async def scenario() -> None:
        bench = Bench()
        grant = await bench.won()
        for link in bench.links.values():
            link.delay = 0.9 * TIMINGS.retry_period
        assert isinstance(await bench.store.renew(grant), Grant)
        assert bench.store._waiting.patience <= TIMINGS.retry_period / 4

    run(scenario())
