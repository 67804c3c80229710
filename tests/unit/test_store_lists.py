"""The store in virtual time: it follows its nodes to a newer list."""

from __future__ import annotations

import asyncio

from scripted_links import MEMBERSHIP, TIMINGS, Bench, yes
from virtual_time import run

from leasekeeper.clock import Deadline
from leasekeeper.lease import (
    Grant,
    Unavailable,
    Unknown,
)
from leasekeeper.redlock.following import Following
from leasekeeper.redlock.membership import Membership, Node
from leasekeeper.redlock.transport import Answer, Failure

NEWER = Membership(
    number=2,
    nodes=tuple(Node(str(id), "host", 7000 + id) for id in (2, 3, 4, 8, 9)),
    max_ttl=15,
    quarantine=16,
)


def raised_to_newer(command: tuple[str, ...]) -> Answer:
    """All nodes of the old list were raised; those of the newer one agree to everything in it."""
    epoch, members, _ = NEWER.to_arguments()
    if command[4] != epoch:
        return [b"EPOCH", epoch.encode(), members.encode(), b"1", b""]
    return yes(command)


def test_it_follows_its_nodes_to_a_newer_list_between_two_attempts() -> None:
    async def scenario() -> None:
        bench = Bench(raised_to_newer)
        assert isinstance(await bench.store.acquire(), Unavailable)
        assert set(bench.links) == {"0", "1", "2", "3", "4"}
        grant = await bench.won()
        assert bench.store.membership == NEWER
        asked = {id for id, link in bench.links.items() if grant.id in link.calls("lk1_grant")}
        assert asked == {"2", "3", "4", "8", "9"}
        assert isinstance(await bench.store.renew(grant), Grant)

    run(scenario())


def test_it_follows_also_when_two_nodes_are_down_and_the_first_answer_decides_each_round() -> None:
    """Seen on real servers: the second and the third word came after the decision, and nobody
    listened any more; the candidate stayed with the old list for ever.
    """

    async def scenario() -> None:
        bench = Bench(raised_to_newer)
        for id in ("0", "1"):
            bench.links[id].says = lambda _: Failure("down")
            bench.links[id].delay = 0.0
        for number, id in enumerate(("2", "3", "4"), start=1):
            bench.links[id].delay = number * 0.001
        assert isinstance(await bench.store.acquire(), Unavailable)
        await asyncio.sleep(0.1)
        await bench.won()
        assert bench.store.membership == NEWER

    run(scenario())


def test_a_lease_that_was_kept_over_a_restart_is_renewed_by_the_newer_list() -> None:
    """A sidecar that was killed after it had followed is started with the older list."""

    async def scenario() -> None:
        bench = Bench(raised_to_newer)
        now = bench.clock.now()
        kept = Grant("shop/orders", "me/1", 7, Deadline(now, 8.0), Deadline(now, 9.0))
        assert isinstance(await bench.store.renew(kept), Unknown)
        renewed = await bench.store.renew(kept)
        assert isinstance(renewed, Grant)
        assert (renewed.id, renewed.token) == (kept.id, kept.token)

    run(scenario())


def test_two_nodes_of_five_cannot_lead_it_away() -> None:
    async def scenario() -> None:
        bench = Bench()
        for id in ("0", "1"):
            bench.links[id].says = raised_to_newer
        for _ in range(3):
            grant = await bench.won()
            await bench.store.release(grant)
        assert bench.store.membership == MEMBERSHIP

    run(scenario())


def test_whoever_only_looks_on_follows_to_a_newer_list_although_a_node_hangs() -> None:
    """A candidate that withdrew never tries: it stayed with the old list, and knew of no holder."""

    async def scenario() -> None:
        bench = Bench(raised_to_newer)
        bench.links["4"].says = lambda _: None
        async with asyncio.timeout(TIMINGS.retry_period):  # as long as the elector lets it look
            await bench.store.observe()
        await bench.store.observe()
        assert bench.store.membership == NEWER
        assert len(bench.links["9"].calls("lk1_observe")) == 1

    run(scenario())


def test_a_look_in_the_middle_of_an_attempt_does_not_change_its_list() -> None:
    """The sidecar looks when it likes; the attempt gives back where it asked."""

    async def scenario() -> None:
        bench = Bench(raised_to_newer)
        await bench.store.observe()
        for link in bench.links.values():
            link.delay = 1.0
        bench.store._following, heard = Following(MEMBERSHIP), bench.store._following
        attempt = asyncio.ensure_future(bench.store.acquire())
        await asyncio.sleep(0.5)
        bench.store._following = heard  # a quorum's word, which came while the attempt was on
        await bench.store.observe()
        assert bench.store.membership == MEMBERSHIP
        assert isinstance(await attempt, Unavailable)
        assert bench.links["0"].calls("lk1_release") == bench.links["0"].calls("lk1_grant")
        await bench.store.observe()
        assert bench.store.membership == NEWER

    run(scenario())


def test_a_call_of_a_node_that_is_no_longer_in_the_list_breaks_nothing() -> None:
    """A holder gives the lock back at a node that was not raised, and is taken out."""

    async def scenario() -> None:
        bench = Bench(raised_to_newer)
        assert isinstance(await bench.store.acquire(), Unavailable)
        bench.push("0", b"41 0")
        grant = await bench.won()
        assert bench.store.membership == NEWER
        assert bench.links["0"].calls("lk1_grant") != [grant.id]

    run(scenario())
