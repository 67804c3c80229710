"""Answers of peers that are not what they should be: a problem to be told, and a later try."""

from __future__ import annotations

import pytest

from leasekeeper.redlock import peers
from leasekeeper.redlock.blocking import Broken
from leasekeeper.redlock.life import Life
from leasekeeper.redlock.membership import Membership, Node
from leasekeeper.redlock.peers import Peers

MEMBERSHIP = Membership(
    nodes=tuple(Node(str(i), "host", 7000 + i) for i in range(3)), max_ttl=10, quarantine=11
)
STATE = [
    "NODE",
    "life-1",
    "1",
    "1",
    "1",
    "1-x",
    "7",
    "9",
    "2",
    "1",
    "1",
    "run",
    "1",
    "{}",
    "5",
    "1:5",
]
PAGE = ["OPEN", "0", "life-1", "x", "7", "x", "shop/orders", "9", "5", "1:5"]
LIFE = Life("mine", 0.0, number=4)


class Peer:
    """Stands for every connection; node 2 is not there."""

    def __init__(self, address: tuple[str, int], *_: object, **__: object) -> None:
        if address[1] == 7002:
            raise Broken("not there")

    reply: object

    def fcall(self, function: str, *args: str) -> object:
        return Peer.reply

    def close(self) -> None: ...


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch) -> Peers:
    monkeypatch.setattr(peers, "Connection", Peer)
    monkeypatch.setattr(peers, "RETRY", 0.0)
    return Peers(MEMBERSHIP.nodes[1:], lambda: "password")


@pytest.mark.parametrize(
    "reply",
    [
        ["NODE"],
        ["ELSE", *STATE[1:]],
        [*STATE[:6], "seven", *STATE[7:]],
        [*STATE[:6], "7" * 5000, *STATE[7:]],
        [*STATE[:-1], "1:x"],
        [*STATE[:-1], None],
        [],
        None,
        5,
        "OK",
    ],
)
def test_a_state_that_cannot_be_read_is_a_problem_and_asked_for_again(
    asking: Peers, reply: object
) -> None:
    Peer.reply = reply
    assert asking.views() == {}
    assert "cannot be read" in asking.problems["1"]
    Peer.reply = STATE
    assert asking.views().keys() == {"1"}
    assert "1" not in asking.problems


@pytest.mark.parametrize("reply", [["OK"], ["OK", "x", "life"], ["LOW"], ["LOW", ""], ["OK", "1"]])
def test_an_announcement_with_a_strange_answer_was_not_accepted(
    asking: Peers, reply: list[str]
) -> None:
    Peer.reply = reply
    assert asking.announce(LIFE, "0", "1", lambda: 1.0) == LIFE
    assert "cannot be read" in asking.problems["1"]
    Peer.reply = ["OK", "9" * 400, "life"]
    assert asking.announce(LIFE, "0", "1", lambda: 1.0) == LIFE, "no number of seconds"
    Peer.reply = ["OK", "1000000", "life"]
    assert asking.announce(LIFE, "0", "1", lambda: 1.0).announced.keys() == {"1"}


@pytest.mark.parametrize(
    "page", [["OPEN"], PAGE[:5], [*PAGE[:4], "x", *PAGE[5:]], [*PAGE[:7], *PAGE[8:]]]
)
def test_of_a_page_that_cannot_be_read_nothing_is_learnt(asking: Peers, page: list[str]) -> None:
    Peer.reply = page
    assert asking.learn({"1": "life-1"}, "x") is None
    assert "cannot be read" in asking.problems["1"]
    Peer.reply = PAGE
    learnt = asking.learn({"1": "life-1"}, "x")
    assert learnt is not None
    assert learnt.fences == {"shop/orders": 9}
