"""Our place in the line of ZooKeeper, when an answer is lost and when two things go on at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import (
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoNodeError,
    QuotaExceededError,
    SessionMovedError,
)

from leasekeeper.clock import Instant, SystemClock
from leasekeeper.lease import Candidate, Timings
from leasekeeper.zookeeper.line import Line, counted_from
from leasekeeper.zookeeper.session import Refused, Session, Unanswered


class Server:
    """Runs requests in the order in which they are sent, and answers when it is told to."""

    id = 7
    granted = 60.0

    def __init__(self) -> None:
        self.opened = SystemClock().now()
        self.nodes: list[str] = []
        self._made = 0
        self._answers: list[tuple[asyncio.Future[Any], Any]] = []

    def send(self, method: str, path: str, *_: Any, **__: Any) -> asyncio.Future[Any]:
        answer = asyncio.get_running_loop().create_future()
        run: Callable[[str], Any] = getattr(self, f"_{method}")
        self._answers.append((answer, run(path)))
        return answer

    def answer(self) -> None:
        """All at once, as after a pause of this process."""
        answers, self._answers = self._answers, []
        for future, result in answers:
            if not future.done():
                future.set_result(result)

    def lose(self) -> None:
        answers, self._answers = self._answers, []
        for future, _ in answers:
            future.set_exception(Unanswered("the connection was lost"))

    def _ensure_path(self, path: str) -> None:
        pass

    def _create(self, path: str) -> tuple[str, Any]:
        self._made += 1
        self.nodes.append(f"{path.rpartition('/')[2]}{self._made:010d}")
        return f"{path}{self._made:010d}", SimpleNamespace(czxid=self._made)

    def _get_children(self, path: str) -> list[str]:
        return list(self.nodes)

    def _delete(self, path: str) -> None:
        self.nodes.remove(path.rpartition("/")[2])

    async def done(self, *tasks: asyncio.Future[Any]) -> None:
        async with asyncio.timeout(10):
            while not all(task.done() for task in tasks):
                self.answer()
                await asyncio.sleep(0)


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
async def line(server: Server) -> Line:
    candidate = Candidate("a", "uid", "nonce")
    session: Any = server
    clock = SystemClock()
    return Line(session, "/l/shop", candidate, clock, timings=Timings(), tick=2.0, token_floor=0)


async def test_what_clears_up_beside_a_join_leaves_the_new_node_alone(
    server: Server, line: Line
) -> None:
    """A node that its own candidate deletes is a lease that the next in line has, too."""
    joining = asyncio.ensure_future(line.join())
    await asyncio.sleep(0)  # sent, and not answered
    clearing = asyncio.ensure_future(line.remove_own())
    await asyncio.sleep(0)
    await server.done(joining, clearing)
    place, _ = joining.result()
    assert server.nodes == [place.node]


async def test_a_node_whose_answer_was_lost_does_not_stand_before_the_next(
    server: Server, line: Line
) -> None:
    preparing = asyncio.ensure_future(line.prepare())
    await server.done(preparing)
    joining = asyncio.ensure_future(line.join())
    await asyncio.sleep(0)
    server.lose()
    with pytest.raises(Unanswered):
        await joining
    assert len(server.nodes) == 1
    preparing = asyncio.ensure_future(line.prepare())
    await server.done(preparing)
    joining = asyncio.ensure_future(line.join())
    await server.done(joining)
    place, in_line = joining.result()
    assert in_line == [place.node]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (NoNodeError(), NoNodeError),
        (ConnectionLoss(), Unanswered),
        (SessionMovedError(), Refused),
        (QuotaExceededError(), Refused),
        (InvalidACLError(), Refused),
    ],
)
async def test_no_error_of_zookeeper_ends_the_loop(
    wrong: KazooException, told: type[Exception]
) -> None:
    """One that the store does not know would: a holder would end though its lease is as it was."""
    session = Session(hosts="x", timeout=1.0, clock=SystemClock(), on_change=lambda: None)
    assert type(session._in_words(wrong)) is told


# -- when a lease counts -------------------------------------------------------------------------

TICK, WAY = 2.0, 0.01


class Time(SystemClock):
    """It passes when a write is answered, and when somebody waits."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def now(self) -> Instant:
        return Instant(self.seconds, self.seconds)


class Writes:
    """Of a candidate that was connected just now, to a server that grants what is asked for."""

    def __init__(self, period: float = 2.0, missing: float = 0.0) -> None:
        self.clock = Time()
        timings = Timings(lease_duration=15, renew_deadline=10, retry_period=period)
        granted = timings.ttl + period + TICK - missing
        session: Any = SimpleNamespace(id=7, granted=granted, opened=self.clock.now())
        self.session = session
        candidate = Candidate("a", "uid", "nonce")
        self.line = Line(
            session, "/l", candidate, self.clock, timings=timings, tick=TICK, token_floor=0
        )

    def one(self, after: float) -> float:
        """How much of its lease is cut off."""
        self.clock.seconds += after
        sent = self.clock.now()
        self.clock.seconds += WAY
        return sent.elapsed_since(self.line.answered(sent))


def test_a_lease_counts_no_later_than_the_session_outlasts_it() -> None:
    assert counted_from(Instant(10, 10), Instant(9.7, 9.7), 0.5) == Instant(10, 10)
    assert counted_from(Instant(20, 20), Instant(12, 12), 0.5) == Instant(12.5, 12.5)


@pytest.mark.parametrize("period", [0.3, 0.5, 1.0, 2.0, 5.0])
def test_while_all_goes_well_nothing_is_cut_off(period: float) -> None:
    """But for the drift of clocks over what the session is longer than the lease."""
    writes = Writes(period)
    cut = [writes.one(after=period - WAY) for _ in range(30)]
    assert max(cut) <= WAY + 0.01 * (period + TICK)


@pytest.mark.parametrize("before", [0, 5])
def test_after_a_pause_a_second_write_gains_nothing_before_the_leader_heard_of_the_first(
    before: int,
) -> None:
    """It counted in full once, because there was a request just before it."""
    writes = Writes()
    for _ in range(before):
        writes.one(after=2.0)
    first = writes.one(after=7.0)
    assert first > 2
    second = writes.one(after=0.01)
    assert second == pytest.approx(first + 0.01 + WAY)
    assert writes.line.gains_in() == pytest.approx(TICK - 0.01 - WAY)
    assert writes.one(after=writes.line.gains_in()) == 0


def test_a_new_connection_counts_at_once_and_what_was_sent_before_it_no_more() -> None:
    """A request on it is heard of by its own server; one on an earlier connection may never be."""
    writes = Writes()
    writes.one(after=0.1)
    writes.one(after=0.1)
    writes.session.opened = Instant(writes.clock.seconds - 0.15, writes.clock.seconds - 0.15)
    assert writes.one(after=2.5) == 0
    writes.session.opened = writes.clock.now()
    assert writes.one(after=7.0) == pytest.approx(7.0 - 4.0 * 0.99)


def test_no_write_waits_that_does_not_follow_another_at_once() -> None:
    writes = Writes()
    writes.one(after=30.0)
    writes.clock.seconds += 0.51  # a quarter of the period
    assert writes.line.gains_in() == 0


def test_a_shorter_session_makes_a_shorter_lease() -> None:
    """The server's maxSessionTimeout was lowered, and the connection made anew."""
    writes = Writes(missing=6.0)
    assert writes.one(after=0.0) == pytest.approx(2.0 * 1.01)
