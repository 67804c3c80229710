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

from leasekeeper.clock import SystemClock
from leasekeeper.lease import Candidate
from leasekeeper.zookeeper.line import Line
from leasekeeper.zookeeper.session import Refused, Session, Unanswered


class Server:
    """Runs requests in the order in which they are sent, and answers when it is told to."""

    id = 7

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
    return Line(session, "/l/shop", candidate, SystemClock(), period=1.0, token_floor=0)


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
