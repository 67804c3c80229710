"""Which votes decide what. Pure functions: every branch of consequence, without a network."""

from __future__ import annotations

import pytest

from leasekeeper.redlock import quorum as q
from leasekeeper.redlock.transport import Failure


def reply(status: str, *fields: str, incarnation: int = 1, vector: str = "") -> q.Reply:
    answer = [p.encode() for p in (status, *fields, str(incarnation), vector)]
    parsed = q.parse(answer)
    assert isinstance(parsed, q.Reply), parsed
    return parsed


def votes(*replies: q.Reply | Failure, nodes: int = 5) -> q.Votes:
    cast = q.Votes(quorum=nodes // 2 + 1, outstanding=nodes)
    for number, said in enumerate(replies):
        cast.add(str(number), said)
    return cast


DEAD = Failure("connection refused")
GRANTED, COMMITTED = reply("GRANTED", "7"), reply("COMMITTED", "8")
HELD = reply("HELD", "other/1", "3000000", "7", "")


class TestGrant:
    def test_a_quorum_of_committed_wins_in_one_round(self) -> None:
        assert q.judge_grant(votes(COMMITTED, COMMITTED, COMMITTED), guess=8) == q.Won(8)

    def test_a_quorum_without_a_vote_for_the_guess_needs_a_second_round(self) -> None:
        mixed = votes(COMMITTED, reply("GRANTED", "11"), COMMITTED)
        assert q.judge_grant(mixed, guess=8) == q.Elevate(12)

    def test_without_a_guess_the_token_is_above_every_f(self) -> None:
        assert q.judge_grant(votes(GRANTED, GRANTED, GRANTED), guess=0) == q.Elevate(8)

    def test_the_token_is_above_a_guess_that_some_nodes_voted_for(self) -> None:
        low = reply("GRANTED", "8")
        assert q.judge_grant(votes(COMMITTED, low, low), guess=8) == q.Elevate(9)

    def test_two_of_five_are_not_enough(self) -> None:
        assert q.judge_grant(votes(COMMITTED, COMMITTED), guess=8) is None

    def test_failure_is_decided_as_soon_as_it_is_certain(self) -> None:
        """Known bug 14: an even split left the call pending for ever."""
        assert q.judge_grant(votes(HELD, HELD, HELD), guess=0) == q.Failed()

    def test_one_nodes_error_does_not_hide_the_quorums_answer(self) -> None:
        """Known bug 15."""
        assert q.judge_grant(votes(DEAD, GRANTED, DEAD, GRANTED, GRANTED), guess=0) == q.Elevate(8)

    def test_the_quorum_is_that_of_the_configured_nodes(self) -> None:
        """Known bug 6: two of two that answered are not a majority of five."""
        assert q.judge_grant(votes(GRANTED, GRANTED, DEAD, DEAD, DEAD), guess=0) == q.Failed()


class TestWhoCounts:
    def test_a_vote_of_a_replaced_server_does_not_count(self) -> None:
        stale = reply("COMMITTED", "8", incarnation=1)
        knows = reply("COMMITTED", "8", vector="0:2")
        assert q.judge_grant(votes(stale, knows, COMMITTED), guess=8) is None
        fresh = reply("COMMITTED", "8", incarnation=2)
        assert q.judge_grant(votes(fresh, knows, COMMITTED), guess=8) == q.Won(8), "control"

    def test_also_when_the_news_comes_after_the_vote(self) -> None:
        stale = reply("OK", incarnation=1)
        knows = reply("OK", vector="0:2")
        assert q.judge_commit(votes(stale, reply("OK"), knows), token=8) is None

    @pytest.mark.parametrize("status", ["CLOSED", "EPOCH", "TTL", "dead"])
    def test_no_answer_is_not_a_no(self, status: str) -> None:
        """A rolling restart must not depose a healthy leader."""
        said: dict[str, q.Reply | Failure] = {
            "CLOSED": reply("CLOSED"),
            "EPOCH": reply("EPOCH", "2-abc", "…"),
            "TTL": reply("TTL", "1000"),
            "dead": DEAD,
        }
        assert q.judge_renewal(votes(*[said[status]] * 5), 5) == q.Undecided()


class TestRenewal:
    def test_a_quorum_keeps_it(self) -> None:
        said = votes(reply("OK", ""), DEAD, reply("OK", "7 pause"), DEAD, reply("OK", ""))
        assert q.judge_renewal(said, 5) == q.Kept(("7 pause",))

    def test_lost_only_when_no_quorum_can_be_left(self) -> None:
        no = reply("NOTMINE", "other/1")
        assert q.judge_renewal(votes(no, no), 5) is None
        assert isinstance(q.judge_renewal(votes(no, no, no), 5), q.Deposed)

    def test_a_later_token_is_a_no(self) -> None:
        """Known bug 4: only F proves that no tenure came in between."""
        high = reply("HIGH", "9")
        assert isinstance(q.judge_renewal(votes(high, high, high), 5), q.Deposed)

    def test_a_minority_that_answers_decides_nothing(self) -> None:
        said = votes(reply("OK", ""), reply("OK", ""), DEAD, DEAD, DEAD)
        assert q.judge_renewal(said, 5) == q.Undecided()


class TestRelease:
    def test_already_gone_is_an_outcome_of_its_own(self) -> None:
        """Known bug 24."""
        gone = reply("GONE")
        assert q.judge_release(votes(gone, gone, gone)) == q.Freed(False, None)
        assert q.judge_release(votes(gone, reply("OK", ""), gone)) == q.Freed(True, None)
        assert q.judge_release(votes(gone, reply("OK"), DEAD, DEAD, DEAD)) is None

    def test_one_node_that_called_somebody_is_enough_to_name_the_successor(self) -> None:
        said = votes(reply("GONE"), reply("OK", ""), reply("OK", "other"))
        assert q.judge_release(said) == q.Freed(True, "other")


class TestStanding:
    def test_the_lock_is_free_when_a_quorum_of_nodes_is(self) -> None:
        def held(left: int) -> q.Reply:
            return reply("HELD", "other/1", str(left), "7", "")

        said = votes(held(3_000_000), held(1_000_000), held(2_000_000), GRANTED, DEAD)
        assert q.standing(said, 5) == q.Standing("other/1", 2.0)

    def test_a_split_vote_is_nobodys(self) -> None:
        third = reply("HELD", "third/1", "3000000", "7", "")
        assert q.standing(votes(HELD, HELD, third, third, GRANTED), 5) is None


@pytest.mark.parametrize(
    "answer",
    [
        [],
        [b"GRANTED"],
        [b"GRANTED", b"x", b"1", b""],
        [b"GRANTED", b"-1", b"1", b""],
        [b"HELD", b"owner", b"1", b""],
        [b"NEVER HEARD", b"1", b""],
        [b"OK", b"one", b""],
        [b"OK", b"1", b"vector"],
        [b"OK", b"a", b"b", b"1", b""],
        [b"GRANTED", b"9" * 5000, b"1", b""],
        [b"HELD", b"other/1", b"9" * 1000, b"7", b"", b"1", b""],
        [b"OK", 1, None],
    ],
)
def test_nonsense_is_no_answer(answer: list[bytes]) -> None:
    assert isinstance(q.parse(answer), Failure)
