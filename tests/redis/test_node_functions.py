"""Every answer of the node functions, on real servers: each branch has a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers import FLAVOURS, Server

from leasekeeper.lease import Request
from leasekeeper.redlock import functions, requests
from leasekeeper.redlock.registry import PLAUSIBLE

EPOCH = "1-abc"
LOCK, OTHER = "shop/orders", "shop/stock"
TTL, CAP, MAX_TTL = 1_000_000, 100_000, 3_000_000
FLOOR = 1000


class OpenNode:
    """A server that was opened by hand, and whose time the test counts."""

    def __init__(self, server: Server) -> None:
        self.server = server
        with server.client() as client:
            client.flushall()
            for name in (functions.ADMIN, functions.VOTE):
                client.function_load(functions.library(name), replace=True)
        self.admin("enter", "life", CAP, "run", "0")
        self.admin("register", "life", "nonce")
        self.admin("become", "life", "0", 1)
        self.admin("birth", "life", 1, FLOOR, 0)
        self.admin("open", "life", EPOCH, "members", MAX_TTL, 1)

    def admin(self, function: str, *args: str | int) -> list[str]:
        return self.server.fcall(f"lk1_{function}", *args)

    def vote(self, function: str, *args: str | int, lock: str = LOCK) -> list[str]:
        """Without the incarnation and the vector that end every answer."""
        with self.server.client() as client:
            answer: list[str] = client.fcall(f"lk1_{function}", 1, f"lk:lock:{lock}", *args)
        assert answer[-2:] == ["1", "0:1"]
        return answer[:-2]

    def grant(self, id: str = "x/1", guess: int = 0, lock: str = LOCK) -> list[str]:
        return self.vote("grant", EPOCH, id, TTL, guess, lock=lock)

    def request(
        self, sequence: int, kind: str, target: str = "", seconds: int = 0, lock: str = LOCK
    ) -> list[str]:
        function, *args = requests.call(lock, Request(sequence, kind, target, seconds))
        return self.server.fcall(function, *args)

    def let_time_pass(self, microseconds: int) -> None:
        for _ in range(microseconds // CAP):
            assert self.admin("tick", "nonce", CAP)[0] == "OK"

    def lead(self, id: str, token: int, lock: str = LOCK) -> None:
        assert self.grant(id, lock=lock)[0] == "GRANTED"
        assert self.vote("commit", EPOCH, id, token, TTL, lock=lock) == ["OK"]


@pytest.fixture(scope="module", params=FLAVOURS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(request.param) as running:
        yield running


@pytest.fixture
def node(server: Server) -> OpenNode:
    return OpenNode(server)


def test_a_free_lock_is_granted_and_the_token_voted_for_by_commit(node: OpenNode) -> None:
    assert node.grant() == ["GRANTED", str(FLOOR)]
    assert node.vote("commit", EPOCH, "x/1", FLOOR + 1, TTL) == ["OK"]
    assert node.vote("commit", EPOCH, "x/1", FLOOR + 1, TTL) == ["HIGH", str(FLOOR + 1)]


def test_a_good_guess_is_a_vote(node: OpenNode) -> None:
    assert node.grant(guess=FLOOR + 1) == ["COMMITTED", str(FLOOR + 1)]
    assert node.vote("renew", EPOCH, "x/1", FLOOR + 1, TTL) == ["OK", ""]


def test_a_guess_that_is_not_above_f_is_none(node: OpenNode) -> None:
    assert node.grant(guess=FLOOR) == ["GRANTED", str(FLOOR)]


def test_numbers_are_compared_as_numbers(node: OpenNode) -> None:
    """Known bug 7: as strings, "9999" is above "10000"."""
    node.lead("x/1", 9999)
    assert node.vote("release", EPOCH, "x/1", "1") == ["OK", ""]
    assert node.grant("y/1", guess=10_000) == ["COMMITTED", "10000"]


def test_somebody_elses_entry_is_named_with_the_time_it_has_left(node: OpenNode) -> None:
    node.grant("x/1")
    assert node.grant("y/1") == ["HELD", "x/1", str(TTL + 2 * CAP), str(FLOOR), ""]
    node.let_time_pass(5 * CAP)
    assert node.grant("y/1")[2] == str(TTL - 3 * CAP)


def test_an_entry_ends_by_ticks_two_caps_after_its_time(node: OpenNode) -> None:
    node.lead("x/1", FLOOR + 1)
    node.let_time_pass(TTL + CAP)
    assert node.grant("y/1")[0] == "HELD"
    node.let_time_pass(CAP)
    assert node.grant("y/1") == ["GRANTED", str(FLOOR + 1)]


def test_a_newer_attempt_replaces_the_own_older_one_and_not_the_other_way_round(
    node: OpenNode,
) -> None:
    node.grant("x/2")
    assert node.grant("x/1")[0] == "HELD"
    assert node.grant("x/2")[0] == "HELD"
    assert node.grant("x/10")[0] == "GRANTED"
    assert node.grant("xx/11")[0] == "HELD", "another candidate"


def test_late_messages_of_an_older_attempt_change_nothing(node: OpenNode) -> None:
    """Known bug 23: a late SET overtook its own release on another connection."""
    node.lead("x/2", FLOOR + 1)
    assert node.grant("x/1")[0] == "HELD"
    assert node.vote("commit", EPOCH, "x/1", FLOOR + 2, TTL) == ["NOTMINE", "x/2"]
    assert node.vote("release", EPOCH, "x/1", "0") == ["GONE"]
    assert node.vote("renew", EPOCH, "x/2", FLOOR + 1, TTL) == ["OK", ""]


def test_commit_by_anybody_but_the_owner_is_refused(node: OpenNode) -> None:
    assert node.vote("commit", EPOCH, "x/1", FLOOR + 1, TTL) == ["NOTMINE", ""]
    node.grant("x/1")
    assert node.vote("commit", EPOCH, "y/1", FLOOR + 1, TTL) == ["NOTMINE", "x/1"]
    node.let_time_pass(TTL + 2 * CAP)
    assert node.vote("commit", EPOCH, "x/1", FLOOR + 1, TTL) == ["NOTMINE", ""], "too late"


def test_renewal_is_refused_where_a_later_token_was_voted_for(node: OpenNode) -> None:
    """Known bug 4."""
    node.lead("x/1", FLOOR + 1)
    assert node.vote("renew", EPOCH, "x/1", FLOOR + 1, TTL) == ["OK", ""]
    node.vote("release", EPOCH, "x/1", "1")
    assert node.vote("renew", EPOCH, "x/1", FLOOR + 1, TTL) == ["MISSING"]
    node.lead("y/1", FLOOR + 2)
    assert node.vote("renew", EPOCH, "x/1", FLOOR + 1, TTL) == ["HIGH", str(FLOOR + 2)]
    assert node.vote("renew", EPOCH, "z/1", FLOOR + 3, TTL) == ["NOTMINE", "y/1"]


def test_adopt_repairs_only_where_nobody_is_and_nobody_later_was(node: OpenNode) -> None:
    assert node.vote("adopt", EPOCH, "x/1", FLOOR + 1, TTL) == ["OK"]
    assert node.vote("adopt", EPOCH, "y/1", FLOOR + 2, TTL) == ["NOTMINE", "x/1"]
    node.vote("release", EPOCH, "x/1", "1")
    assert node.vote("adopt", EPOCH, "y/1", FLOOR, TTL) == ["HIGH", str(FLOOR + 1)]


def test_release_by_anybody_but_the_owner_changes_nothing(node: OpenNode) -> None:
    assert node.vote("release", EPOCH, "x/1", "1") == ["GONE"]
    node.grant("x/1")
    assert node.vote("release", EPOCH, "y/1", "1") == ["GONE"]
    assert node.grant("y/1")[0] == "HELD"


def test_a_pause_lets_nobody_in_and_reaches_the_holder_until_it_is_lifted(node: OpenNode) -> None:
    node.lead("x/1", FLOOR + 1)
    assert node.request(7, "pause")[0] == "OK"
    assert node.vote("renew", EPOCH, "x/1", FLOOR + 1, TTL)[1].startswith("7 pause ")
    node.vote("release", EPOCH, "x/1", "1")
    assert node.grant("y/1") == ["PAUSED", str(FLOOR + 1)]
    assert node.request(8, "resume")[0] == "OK"
    assert node.grant("y/1") == ["GRANTED", str(FLOOR + 1)]


def test_whoever_was_asked_to_step_down_is_kept_out_for_its_time_and_nobody_else_is(
    node: OpenNode,
) -> None:
    node.lead("pod/uid/nonce/3", FLOOR + 1)
    assert node.request(1, "step-down", "pod/uid/nonce/3", 2)[0] == "OK"
    node.vote("release", EPOCH, "pod/uid/nonce/3", "1")
    for barred in ("pod/uid/nonce/4", "pod/uid/restarted/1"):
        assert node.grant(barred) == ["PAUSED", str(FLOOR + 1)]
    for other in ("pod/other/nonce/4", "pod-2/uid/nonce/1", "x/1"):
        assert node.grant(other)[0] == "GRANTED"
        node.vote("release", EPOCH, other, "0")
    node.let_time_pass(2_000_000 - CAP)
    assert node.grant("pod/uid/nonce/5")[0] == "PAUSED"
    assert node.request(1, "step-down", "pod/uid/nonce/3", 2)[0] == "OK", "again: moves no end"
    node.let_time_pass(CAP)
    assert node.grant("pod/uid/nonce/6")[0] == "GRANTED"


def test_a_late_request_undoes_no_later_one(node: OpenNode) -> None:
    assert node.request(7, "resume")[0] == "OK"
    assert node.request(6, "pause")[:2] == ["LOW", "7"]
    assert node.request(7, "pause")[:2] == ["LOW", "7"], "another one with the same number"
    assert node.grant("y/1")[0] == "GRANTED"


def test_a_request_for_a_lock_that_is_new_here_keeps_the_floor(node: OpenNode) -> None:
    """A node that recovers takes what `dump` says for F; without one it would begin at 0."""
    assert node.request(1, "pause", lock=OTHER)[0] == "OK"
    assert node.admin("dump", "0")[6:8] == [OTHER, str(FLOOR)]


def test_a_tenants_absurd_request_does_not_keep_the_operator_out(node: OpenNode) -> None:
    for rubbish in ("rubbish", f"{2**52} pause", "7 step-down", " ", "7 step-down x y z"):
        with node.server.client() as client:
            client.hset(f"lk:lock:{LOCK}", "request", rubbish)  # its own key: its user may
        node.grant("pod/uid/nonce/1")
        assert node.request(8, "resume")[0] == "OK"
    assert node.grant("pod/uid/nonce/1")[0] in ("GRANTED", "HELD")


def test_a_closed_node_takes_no_request(node: OpenNode) -> None:
    node.admin("close")
    assert node.request(1, "pause")[0] == "CLOSED"


@pytest.mark.parametrize("ttl", [MAX_TTL + 1, 0, -1])
def test_a_time_that_the_node_may_not_keep_is_refused_and_not_capped(
    node: OpenNode, ttl: int
) -> None:
    assert node.vote("grant", EPOCH, "x/1", ttl, 0) == ["TTL", str(MAX_TTL)]
    assert node.grant("y/1")[0] == "GRANTED"


@pytest.mark.parametrize("function", ["grant", "commit", "renew", "adopt", "release", "observe"])
def test_another_epoch_and_a_closed_node_do_not_vote(node: OpenNode, function: str) -> None:
    """Known bug 6."""
    arguments = {"grant": ("x/1", TTL, 0), "release": ("x/1", "1"), "observe": ()}
    rest = arguments.get(function, ("x/1", FLOOR + 1, TTL))
    assert node.vote(function, "1-other", *rest) == ["EPOCH", EPOCH, "members"]
    node.admin("close")
    assert node.vote(function, EPOCH, *rest) == ["CLOSED"]


def test_a_forgotten_lock_goes_on_above_its_last_token_and_deposes_nobody_else(
    node: OpenNode,
) -> None:
    """Known bug 26, and its cure's own: the floor rises above the tokens of the other locks."""
    node.lead("x/1", FLOOR + 1)
    node.lead("y/1", FLOOR + 500, lock=OTHER)
    assert node.admin("forget", OTHER, 2**50)[0] == "HELD", "never while it is held"
    node.vote("release", EPOCH, "y/1", "1", lock=OTHER)
    assert node.admin("forget", OTHER, 2**50)[0] == "OK"
    assert node.grant("z/1", lock=OTHER) == ["GRANTED", str(FLOOR + 500)]
    assert node.vote("renew", EPOCH, "x/1", FLOOR + 1, TTL) == ["OK", ""]


def test_a_tenants_absurd_counter_does_not_become_the_floor_of_all(node: OpenNode) -> None:
    """The last token that a node counts: above it no lock that is new here could be won."""
    absurd = 2**52 - 1
    with node.server.client() as client:
        client.hset(f"lk:lock:{OTHER}", "fence", str(absurd))  # its own key: its user may
    assert node.admin("forget", OTHER, FLOOR + PLAUSIBLE)[0] == "OK"
    assert node.grant("z/1", lock=OTHER) == ["GRANTED", str(FLOOR)]


@pytest.mark.parametrize("nonsense", ["abc", "", "nan", "-5", "9" * 500_000])
def test_a_tenants_nonsense_for_a_counter_keeps_no_node_from_learning(
    node: OpenNode, nonsense: str
) -> None:
    """A change of membership ends with it on nodes that have tenants: between the raise and the
    join nobody votes, for any lock.
    """
    with node.server.client() as client:
        client.hset(f"lk:lock:{OTHER}", "fence", nonsense)  # its own key: its user may
    page = node.admin("dump", "0")
    assert max(map(len, page)) < 100, "and it makes no answer long"
    assert node.admin("learn", "life", 0, "", OTHER, 7 * FLOOR, LOCK, 8 * FLOOR)[0] == "OK"
    assert node.grant("y/1") == ["GRANTED", str(8 * FLOOR)]
    if nonsense[:1] != "9":
        assert node.grant("z/1", lock=OTHER) == ["GRANTED", str(7 * FLOOR)]


def test_a_birth_raises_what_is_known_of_every_lock(node: OpenNode) -> None:
    """After a total loss a survivor's counter may be old."""
    node.lead("x/1", FLOOR + 1)
    node.vote("release", EPOCH, "x/1", "1")
    assert node.admin("birth", "life", 2, 10 * FLOOR, 0)[0] == "OK"
    assert node.grant("y/1") == ["GRANTED", str(10 * FLOOR)]


def test_large_tokens_are_printed_exactly(node: OpenNode) -> None:
    token = 2**52 - 1
    assert node.grant(guess=token) == ["COMMITTED", str(token)]
    assert node.vote("observe", EPOCH)[3] == str(token)
