"""The client of the leader-only Service finds what is wrong with its answers."""

from __future__ import annotations

from tests.cluster.asker import Answer, regressions


def answers(*said: tuple[int, str]) -> list[Answer]:
    return [Answer(at, at + 0.001, token, who, "") for at, (token, who) in enumerate(said)]


def test_a_hand_over_with_refusals_between_is_right() -> None:
    assert regressions(answers((1, "a"), (1, "a"), (0, ""), (2, "b"), (0, ""), (2, "b"))) == []


def test_a_token_that_goes_down_is_found() -> None:
    (found,) = regressions(answers((1, "a"), (2, "b"), (1, "a"), (2, "b")))
    assert "holder='a'" in found


def test_two_pods_with_one_token_are_found() -> None:
    assert len(regressions(answers((1, "a"), (1, "b")))) == 1
