"""The store in virtual time, over links that answer when and what the test wants."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence

from virtual_time import VirtualClock, run

from leasekeeper.clock import Deadline
from leasekeeper.lease import (
    Candidate,
    Grant,
    Held,
    Lost,
    Released,
    Request,
    Timings,
    Unavailable,
    Unknown,
)
from leasekeeper.redlock.gate import gate_order
from leasekeeper.redlock.membership import Membership, Node
from leasekeeper.redlock.store import RedlockStore
from leasekeeper.redlock.transport import Answer, Failure, Link, OnAnswer, OnPush
from leasekeeper.redlock.waiting import COURTESY

TIMINGS = Timings(lease_duration=15, renew_deadline=10, retry_period=2)
MEMBERSHIP = Membership(
    nodes=tuple(Node(str(i), "host", 6379) for i in range(5)), max_ttl=30, quarantine=31
)

Says = Callable[[tuple[str, ...]], Answer | None]


class ScriptedLink:
    """Answers after `delay` seconds with what `says` returns; none: never."""

    def __init__(self, says: Says, delay: float) -> None:
        self.says = says
        self.delay = delay
        self.log: list[tuple[float, str, str]] = []

    def call(self, command: tuple[str, ...], on_answer: OnAnswer) -> None:
        loop = asyncio.get_running_loop()
        self.log.append((loop.time(), command[1], command[5]))
        answer = self.says(command)
        if answer is not None:
            loop.call_later(self.delay, on_answer, answer)

    def calls(self, function: str) -> list[str]:
        """The ids that were named in calls of this function."""
        return [id for _, name, id in self.log if name == function]

    async def up(self) -> None: ...
    async def close(self) -> None: ...


def yes(command: tuple[str, ...]) -> Answer:
    """A node that agrees to everything."""
    said = {"lk1_grant": [b"GRANTED", b"7"]}.get(command[1], [b"OK"])
    return [*said, b"1", b""]


class Bench:
    def __init__(self, says: Says = yes, delay: float = 0.001) -> None:
        self.clock = VirtualClock()
        self.links = {str(i): ScriptedLink(says, delay) for i in range(5)}
        self.push: OnPush

        def links(nodes: Sequence[Node], _: str, on_push: OnPush) -> Mapping[str, Link]:
            self.push = on_push
            for node in nodes:
                self.links.setdefault(node.id, ScriptedLink(says, delay))
            return {node.id: self.links[node.id] for node in nodes}

        self.store = RedlockStore(
            membership=MEMBERSHIP,
            lock="shop/orders",
            candidate=Candidate("me", "uid", "nonce"),
            timings=TIMINGS,
            clock=self.clock,
            links=links,
        )

    async def won(self) -> Grant:
        outcome = await self.store.acquire()
        assert isinstance(outcome, Grant), outcome
        return outcome


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


# -- the queue

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
