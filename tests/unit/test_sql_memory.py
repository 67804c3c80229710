"""What a candidate notices of a database that went back in time, and what it cannot."""

from __future__ import annotations

import pytest

from leasekeeper.clock import Drift, Instant
from leasekeeper.sql.database import EVER, Look, as_token
from leasekeeper.sql.memory import Memory, Reading, jump

DRIFT = Drift()
DAY = 1_700_000_000.0  # what the database's clock says at our second 0


def at(seconds: float) -> Instant:
    return Instant(seconds, seconds)


def memory() -> Memory:
    return Memory(drift=DRIFT, tolerance=1.0, ttl=10.0)


def row(now: float, token: int = 7, holder: str = "a/1", left: float = 5.0) -> Look:
    return Look(DAY + now, holder, token, left, exists=True)


@pytest.mark.parametrize(
    ("clock", "expected"),
    [(100.0, 0), (100.9, 0), (99.1, 0), (103.0, 1), (97.0, -1), (-3600.0, -1), (7200.0, 1)],
)
def test_a_clock_that_was_set_is_told_from_one_that_ran(clock: float, expected: int) -> None:
    last = Reading(at(0.0), at(0.1), DAY)
    this = Reading(at(100.0), at(100.1), DAY + clock)
    found = jump(last, this, Drift(rate=0.001), tolerance=1.0)
    assert (found > 0) - (found < 0) == expected


def test_a_slow_answer_is_no_jump() -> None:
    """The clock was read somewhere between sending and answer: 30 s on the way prove nothing."""
    last = Reading(at(0.0), at(0.1), DAY)
    for clock in (1.0, 15.0, 31.0):
        assert jump(last, Reading(at(1.0), at(31.0), DAY + clock), DRIFT, 1.0) == 0


@pytest.mark.parametrize("set_by", [3600.0, -3600.0])
def test_after_a_jump_no_expiry_is_believed_for_a_whole_lease(set_by: float) -> None:
    seen = memory()
    assert not seen.saw(row(0), at(0), at(0.1))
    assert not seen.saw(row(5 + set_by, left=-1), at(5), at(5.1))
    assert "clock went" in seen.doubt
    assert seen.bounds(at(6)) == (EVER, -EVER)
    assert seen.bounds(at(15)) == (EVER, -EVER)
    earliest, latest = seen.bounds(at(15.3))
    assert earliest < DAY + 15.3 + set_by < latest
    assert not seen.doubt


@pytest.mark.parametrize("step", [0.9, -0.9])
def test_steps_that_are_too_small_each_are_noticed_together(step: float) -> None:
    """Four looks a period: what went unnoticed each time would end a lease in a few seconds."""
    seen = memory()
    for look in range(4):
        now = look * 0.5
        seen.saw(row(now + look * step), at(now), at(now + 0.01))
    assert "clock went" in seen.doubt
    assert seen.bounds(at(2)) == (EVER, -EVER)


def test_in_the_time_of_a_lease_no_more_than_the_time_to_stop_goes_unnoticed() -> None:
    """The worst that a clock can do, a step just before and just after each older reading."""
    seen, off, unnoticed = memory(), 0.0, [0.0]
    for look in range(200):
        now = look * 0.25
        for more in (0.9, 0.5, 0.1):
            tried = memory()
            for name in ("_last", "_older"):
                setattr(tried, name, getattr(seen, name))
            tried.saw(row(now + off + more), at(now), at(now))
            if not tried.doubt:
                off += more
                break
        seen.saw(row(now + off), at(now), at(now))
        assert not seen.doubt
        unnoticed.append(off)
    lease = round(10.0 / 0.25)
    worst = max(b - a for a, b in zip(unnoticed, unnoticed[lease:], strict=False))
    assert 0 < worst <= 2.0 + 2 * 10.0 * DRIFT.rate


def test_the_statement_itself_is_held_to_the_clock_that_is_expected() -> None:
    seen = memory()
    assert seen.bounds(at(0)) == (-EVER, EVER)  # nothing was seen: nothing is detected
    seen.saw(row(0), at(0), at(0.1))
    earliest, latest = seen.bounds(at(5))
    assert DAY + 3 < earliest < DAY + 5 < latest < DAY + 7


def test_a_token_that_went_back_is_refused_until_it_is_mended() -> None:
    seen = memory()
    assert not seen.saw(row(0, token=17), at(0), at(0.1))
    why = seen.saw(row(1, token=12), at(1), at(1.1))
    assert "went back from 17 to 12" in why
    assert "17 or more" in why
    assert seen.token == 17
    assert not seen.saw(row(2, token=17), at(2), at(2.1))


def test_a_row_that_is_gone_under_a_lease_is_waited_for() -> None:
    seen = memory()
    seen.saw(row(0, left=5.0), at(0), at(0.1))
    assert "the lock's record is gone, but a/1" in seen.saw(Look(DAY + 1), at(1), at(1.1))
    assert not seen.saw(Look(DAY + 5.2), at(5.2), at(5.3))


def test_a_row_in_which_a_lease_that_runs_has_ended_is_an_older_one() -> None:
    """A replica without the last renewals: the same holder and token, with an earlier end."""
    seen = memory()
    seen.saw(row(0, left=5.0), at(0), at(0))
    assert not seen.saw(row(2, left=1.0), at(2), at(2))  # earlier, and still held
    assert "the end of the lease of a/1 went back" in seen.saw(row(3, left=-0.1), at(3), at(3))
    assert seen.lease_left(at(3)) == 2.0
    assert not seen.saw(row(4.1, left=-1.2), at(4.1), at(4.1))  # within the tolerance of 1 s
    other = memory()
    other.saw(row(0, left=5.0), at(0), at(0))
    assert not other.saw(row(3, token=8, left=-0.1), at(3), at(3))  # another tenure, and its end
    assert other.lease_left(at(3)) == 0


@pytest.mark.parametrize("seen_before", [True, False])
def test_a_clock_that_was_set_back_does_not_lengthen_a_lease(seen_before: bool) -> None:
    """What its holder wrote by the old clock is no word on when the lease ends once it has written
    it anew; who came after the step cannot even know of it.
    """
    back, seen = -600.0, memory()
    if seen_before:
        seen.saw(row(0, left=9.0), at(0), at(0))
    seen.saw(row(0.5 + back, left=608.5), at(0.5), at(0.5))
    assert 0 < seen.lease_left(at(0.5)) <= 10.0
    for now in (1.0, 3.0, 50.0):  # renewed
        assert not seen.saw(row(now + back, left=10.0), at(now), at(now))
    # And then the holder is killed: its last renewal counts, and nothing else.
    assert not seen.saw(row(59.9 + back, left=0.1), at(59.9), at(59.9))
    assert not seen.saw(row(60.1 + back, left=-0.1), at(60.1), at(60.1))
    assert seen.lease_left(at(60.1)) == 0
    earliest, latest = seen.bounds(at(60.1))
    assert earliest < DAY + 60.1 + back < latest


def test_a_release_that_was_heard_ends_the_wait_and_an_old_one_does_not() -> None:
    seen = memory()
    seen.saw(row(0, token=7), at(0), at(0.1))
    seen.given_back(6)
    seen.given_back(None)
    assert seen.lease_left(at(1)) > 0
    seen.given_back(7)
    assert seen.lease_left(at(1)) == 0


def test_a_release_that_somebody_made_up_keeps_nobody_out() -> None:
    """Whoever may connect may notify: a token that was heard of is no token that was seen."""
    seen = memory()
    seen.saw(row(0, token=7), at(0), at(0.1))
    seen.given_back(10**18)
    assert not seen.saw(row(1, token=8), at(1), at(1.1))
    assert seen.token == 8


@pytest.mark.parametrize(
    ("text", "token"),
    [
        *(("7", 7), ("9" * 19, 10**19 - 1)),
        *((text, None) for text in ("9" * 20, "9" * 5000, "", "-1", "\u0663", "7 ")),
    ],
)
def test_a_notification_is_a_token_or_nothing(text: str, token: int | None) -> None:
    assert as_token(text) == token
