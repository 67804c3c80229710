"""Each fault that the demo offers, done to a real world, and what must follow from it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from leasekeeper.demo.engine import Demo, Event, Feed
from leasekeeper.demo.faults import KINDS
from leasekeeper.demo.processes import guarded_home
from leasekeeper.demo.world import world
from leasekeeper.redlock import users
from leasekeeper.redlock.blocking import Connection

LEASE = 2.0
PATIENCE = 60.0


class Watched:
    """A demo in this process, and all that it told."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.demo: Demo

    async def until(self, true: Callable[[], Any], what: str) -> Any:
        async with asyncio.timeout(PATIENCE):
            while not (found := true()):
                await asyncio.sleep(0.02)
        assert found, what
        return found

    async def leader_other_than(self, before: str = "") -> str:
        def other() -> str:
            leader = self.demo.leader
            return leader if leader != before and leader in self.demo.readings else ""

        found: str = await self.until(other, f"a leader other than {before!r}")
        return found

    async def cause(self, name: str, target: str = "") -> None:
        """Done, and told; what is refused is a mistake of the test."""
        count = len(self.events)
        assert await self.demo.faults.cause(name, target) == ""
        assert [e for e in self.events[count:] if e["event"] in ("fault", "repair")]

    def states(self) -> list[str]:
        return [look.state for look in self.demo.looks]


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    here, feed, stop = Watched(), Feed(), asyncio.Event()
    with guarded_home() as home:
        async with world(home, nodes=5, candidates=3, lease=LEASE, on_vote=feed.add) as running:
            here.demo = Demo(running, feed, seed=1, chaos=False, tell=here.events.append)
            run = asyncio.ensure_future(here.demo.run(None, stop))
            await here.until(lambda: here.states() == ["open"] * 5, "all nodes open")
            yield here
            # Or the journal proves nothing.
            await here.until(lambda: here.demo.journal.entries, "work of an app in the journal")
            stop.set()
            await run
    assert here.demo.wrong == []
    assert [e["sentence"] for e in here.events if e["event"] == "ended"] == []


async def test_faults_of_candidates(watched: Watched) -> None:
    """One world for all of them, because a world takes its time to start."""
    demo = watched.demo
    first = await watched.leader_other_than()
    # On a busy machine the lock may have passed on meanwhile: then the next one is asked.
    while await demo.faults.cause("step-down", first):
        first = await watched.leader_other_than()
    await watched.leader_other_than(first)

    await watched.cause("cut")  # the leader, if nobody is named
    (second,) = (c.name for c in demo.world.candidates if c.name in demo.world.cuts)
    third = await watched.leader_other_than(second)
    await watched.cause("heal", second)

    await watched.cause("freeze", third)
    nobody = await watched.until(lambda: told(watched.events, "nobody", third), "nobody leads")
    last = max(t.last_ended for t in demo.files.tenures if t.holder == third)
    # From the last yes on. `last` is by the deadline; the wall clock may say no a second before it.
    assert last - demo.began - 1.001 <= nobody["since"] <= last - demo.began + 0.001
    assert f"nobody has led since {nobody['since']:.1f} s" in nobody["sentence"]
    assert nobody["since"] < nobody["at"]
    fourth = await watched.leader_other_than(third)
    await watched.cause("thaw")  # everybody, if nobody is named
    assert not any(candidate.frozen for candidate in demo.world.candidates)

    await watched.cause("kill", fourth)
    assert await demo.faults.cause("kill", fourth) != "", "who is dead cannot be killed"
    await watched.leader_other_than(fourth)
    await watched.until(
        lambda: all(c.sidecar.running and c.app.running for c in demo.world.candidates),
        "the replacement of the killed one",
    )
    tokens = [event["token"] for event in watched.events if event["event"] == "leads"]
    assert tokens == sorted(set(tokens))
    assert len(tokens) >= 5
    assert {vote.asked for _, vote in demo.feed.votes} >= {"grant", "renew"}


def told(events: list[Event], event: str, before: str) -> Event | None:
    found = [e for e in events if e["event"] == event and e["before"] == before]
    return found[-1] if found else None


async def test_nodes_are_asked_by_a_key_and_by_the_view_at_the_same_time(watched: Watched) -> None:
    """Two threads on one connection would read each other's answers."""
    await watched.leader_other_than()
    looks = watched.demo.faults.looks

    def ask() -> None:
        for _ in range(100):
            assert [look.node for look in looks.all()] == ["1", "2", "3", "4", "5"]

    await asyncio.gather(*(asyncio.to_thread(ask) for _ in range(4)))


async def test_faults_of_nodes(watched: Watched) -> None:
    demo = watched.demo
    await watched.leader_other_than()
    token = demo.files.tenures[-1].token

    # A step of the wall clock reaches the server, and changes nothing.
    node = demo.world.nodes[1]
    await watched.cause("clock", node.name)
    password = demo.world.passwords[users.AGENT]
    connection = Connection(str(node.socket), users.AGENT, password, timeout=5)
    assert int(connection.call("TIME")[0]) - time.time() > 3500
    connection.close()

    # One node without its memory. That the holder goes on is held by tests/redis/test_store.py
    # (test_a_restarted_node_is_repaired_by_the_holder): here a busy machine may starve its lease.
    await watched.cause("kill-node", "3")
    await watched.until(lambda: watched.states()[2] == "quarantine", "the node in quarantine")
    await watched.until(lambda: watched.states()[2] == "open", "the node open again")
    told = [e["sentence"] for e in watched.events if e["event"] == "node"]
    assert told[0].startswith("node 3 restarted empty: it will not vote for 2.1 s, because")
    assert told[1].startswith("node 3 votes again")

    # All of them: the next token is larger than whatever was given before.
    await watched.cause("kill-all-nodes")
    await watched.until(lambda: not demo.leader, "the deadline of who led")
    await watched.leader_other_than()
    assert demo.files.tenures[-1].token > token


async def test_what_cannot_be_done_is_said(watched: Watched) -> None:
    faults = watched.demo.faults
    leader = await watched.leader_other_than()
    other = next(c.name for c in watched.demo.world.candidates if c.name != leader)
    assert "does not lead" in await faults.cause("step-down", other)
    assert "there is no node '9'" in await faults.cause("kill-node", "9")
    assert "there is no candidate 'x'" in await faults.cause("kill", "x")
    assert "there is no 'fly'" in await faults.cause("fly")
    assert faults.count == 0


def test_every_kind_has_a_key_of_its_own() -> None:
    assert len({kind.key for kind in KINDS}) == len(KINDS)
