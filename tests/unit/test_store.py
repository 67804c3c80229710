"""The store in virtual time: deadlines, votes, loss and doubt."""

from __future__ import annotations

import asyncio
import contextlib

from scripted_links import TIMINGS, Bench, yes
from virtual_time import run

from leasekeeper.lease import (
    Grant,
    Lost,
    Released,
    Request,
    Unavailable,
    Unknown,
)
from leasekeeper.redlock.transport import Answer, Failure


def test_the_deadline_counts_from_before_the_first_byte() -> None:
    """Known bug 2: the clock was read after the quorum."""

    async def scenario() -> None:
        bench = Bench(delay=3.0)
        before = bench.clock.now()
        grant = await bench.won()
        assert asyncio.get_running_loop().time() == 6.0, "two rounds of three seconds"
        assert grant.deadline.start == grant.lease_end.start == before
        assert grant.deadline.left(bench.clock.now()) == TIMINGS.renew_deadline - 6.0
        began = bench.clock.now()
        renewed = await bench.store.renew(grant)
        assert isinstance(renewed, Unknown), "a round of 3 s does not end within a period of 2 s"
        for link in bench.links.values():
            link.delay = 1.0
        began = bench.clock.now()
        renewed = await bench.store.renew(grant)
        assert isinstance(renewed, Grant)
        assert renewed.deadline.start == began

    run(scenario())


def test_votes_that_come_after_the_deadline_are_no_lease_and_are_given_back() -> None:
    """Known bugs 1 and 22."""

    async def scenario() -> None:
        bench = Bench(delay=6.0)  # two rounds: 12 s, and the deadline is 10
        assert isinstance(await bench.store.acquire(), Unavailable)
        assert asyncio.get_running_loop().time() <= TIMINGS.renew_deadline
        for link in bench.links.values():
            assert link.calls("lk1_release") == ["me/uid/nonce/1"]

    run(scenario())


def test_a_pause_between_the_last_vote_and_its_count_is_noticed() -> None:
    """Known bugs 1 and 11: the grant of a queue was used without a look at the own lease."""

    async def scenario() -> None:
        bench = Bench()

        def stand_still() -> None:
            bench.clock.boot_offset += TIMINGS.renew_deadline

        def slow_commit(command: tuple[str, ...]) -> Answer:
            if command[1] == "lk1_commit":  # while the answers are on their way
                asyncio.get_running_loop().call_later(0.0005, stand_still)
            return yes(command)

        bench.links["0"].says = slow_commit
        outcome = await bench.store.acquire()
        assert isinstance(outcome, Unavailable)
        assert "too late" in outcome.causes["candidate"]
        assert bench.links["0"].calls("lk1_release") == ["me/uid/nonce/1"]

    run(scenario())


def test_a_renewal_that_was_paused_past_the_old_deadline_is_lost() -> None:
    """Known bug 3: a renewal is held to the same rule as an acquire."""

    async def scenario() -> None:
        bench = Bench()
        grant = await bench.won()

        def paused(command: tuple[str, ...]) -> Answer:
            bench.clock.raw_offset += TIMINGS.renew_deadline
            return yes(command)

        bench.links["0"].says = paused
        assert isinstance(await bench.store.renew(grant), Lost)

    run(scenario())


def test_the_wall_clock_has_no_say() -> None:
    """Known bug 8."""

    async def scenario() -> None:
        bench = Bench()
        grant = await bench.won()
        for step in (-1e9, 1e9, 16.0):
            bench.clock.wall_offset += step
            assert not grant.deadline.passed(bench.clock.now())
            assert isinstance(await bench.store.renew(grant), Grant)

    run(scenario())


def test_held_is_a_deadline_and_ends_by_itself() -> None:
    """Known bugs 5 and 10: a boolean that nobody clears, a counter that outlives the lease."""

    async def scenario() -> None:
        bench = Bench()
        grant = await bench.won()
        await asyncio.sleep(TIMINGS.renew_deadline - 0.01)
        assert not grant.deadline.passed(bench.clock.now())
        await asyncio.sleep(0.01)
        assert grant.deadline.passed(bench.clock.now())
        again = await bench.won()
        assert again.id != grant.id, "a new attempt, not one more of the old lease"

    run(scenario())


def test_a_release_without_an_answer_can_be_said_again() -> None:
    """Known bug 18: the token was cleared before the release was answered."""

    async def scenario() -> None:
        bench = Bench()
        grant = await bench.won()
        for link in bench.links.values():
            link.says = lambda _: None
        assert isinstance(await bench.store.release(grant), Unknown)
        for link in bench.links.values():
            link.says = yes
        assert await bench.store.release(grant) == Released()

    run(scenario())


def test_a_node_without_the_entry_is_repaired_and_not_counted() -> None:
    """Known bug 4: lost keys were made anew and counted."""

    async def scenario() -> None:
        bench = Bench()
        grant = await bench.won()

        def missing(command: tuple[str, ...]) -> Answer:
            return [b"MISSING", b"1", b""] if command[1] == "lk1_renew" else yes(command)

        bench.links["0"].says = bench.links["1"].says = missing
        assert isinstance(await bench.store.renew(grant), Grant)
        await asyncio.sleep(0.1)
        assert bench.links["0"].calls("lk1_adopt") == [grant.id]
        bench.links["2"].says = missing
        assert isinstance(await bench.store.renew(grant), Lost), "two of five are no quorum"
        assert bench.links["2"].calls("lk1_adopt") == [], "nothing is repaired after a loss"

    run(scenario())


def test_a_wake_up_with_its_token_makes_one_round_enough() -> None:
    async def scenario() -> None:
        def committed(command: tuple[str, ...]) -> Answer:
            return [b"COMMITTED", command[7].encode(), b"1", b""]

        bench = Bench(committed, delay=1.0)
        for node in bench.links:
            bench.push(node, b"41 0")
        grant = await bench.won()
        assert grant.token == 42
        assert asyncio.get_running_loop().time() == 1.0

    run(scenario())


def test_a_failure_is_decided_as_soon_as_it_is_certain() -> None:
    """Known bugs 14 and 16: nobody waits for the two that hang."""

    async def scenario() -> None:
        bench = Bench()
        for number in "012":
            bench.links[number].says = lambda _: Failure("connection refused")
        for number in "34":
            bench.links[number].says = lambda _: None
        assert isinstance(await bench.store.acquire(), Unavailable)
        assert asyncio.get_running_loop().time() < 0.01

    run(scenario())


def test_a_request_without_a_number_is_no_request_and_no_end() -> None:
    """The field is in the key of the tenant's own lock, and it may write there what it likes."""
    nonsense = ["x stop", "-1 stop", "² stop", "9" * 5000 + " stop", " ", "", "7"]
    wishes = iter([*nonsense, "2 yield please 60 1", "1 yield"] * 5)

    def says(command: tuple[str, ...]) -> Answer:
        if command[1] == "lk1_renew":
            return [b"OK", next(wishes).encode(), b"1", b""]
        return yes(command)

    async def scenario() -> None:
        bench = Bench(says)
        grant = await bench.won()
        seen = set()
        for _ in range(9):
            renewed = await bench.store.renew(grant)
            assert isinstance(renewed, Grant), renewed
            seen.add(renewed.request)
        assert Request(2, "yield", "please", 60) in seen
        assert seen <= {None, Request(2, "yield", "please", 60), Request(1, "yield", "")}

    run(scenario())


def test_an_empty_answer_to_a_renewal_is_one_node_less_and_nothing_else() -> None:
    async def scenario() -> None:
        bench = Bench()
        heard: list[tuple[str, bool]] = []
        bench.store.on_renewal = lambda node, good, _: heard.append((node, good))
        grant = await bench.won()
        bench.links["0"].says = lambda _: []
        assert isinstance(await bench.store.renew(grant), Grant)
        assert ("0", False) in heard

    run(scenario())


def test_an_attempt_that_is_broken_off_does_not_end_the_time_to_stop_of_the_last_tenure() -> None:
    """The deadline passed, and the app is stopping. The next attempt took over our own entries:
    giving those back would let another one win before the end of the lease.
    """

    async def broken_off(bench: Bench) -> None:
        attempt = asyncio.create_task(bench.store.acquire())
        await asyncio.sleep(0.0001)
        attempt.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await attempt

    def given_back(bench: Bench) -> int:
        return sum(len(link.calls("lk1_release")) for link in bench.links.values())

    async def scenario() -> None:
        bench = Bench()
        await bench.won()
        await asyncio.sleep(TIMINGS.renew_deadline + 0.1)
        await broken_off(bench)
        assert given_back(bench) == 0
        await asyncio.sleep(TIMINGS.ttl)
        await broken_off(bench)
        before = given_back(bench)
        assert before > 0, "later there is nothing to protect any more"
        grant = await bench.won()
        await bench.store.release(grant)
        await broken_off(bench)
        assert given_back(bench) == before + 10, "nor after a release"

    run(scenario())
