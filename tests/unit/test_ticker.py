"""The arithmetic of the tick rule, and the order in which the ticker reads its clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekeeper.redlock.blocking import Broken
from leasekeeper.redlock.ticker import Ticked, Ticker, TickRule

CAP = 0.1
MS = 1_000_000  # nanoseconds


def capped(delta: int) -> int:
    """What the node's function makes of it."""
    return min(delta, int(CAP * 1e6))


def test_the_first_tick_counts_from_the_registrations_answer() -> None:
    assert TickRule(cap=CAP, registered=500 * MS).send(530 * MS) == 30_000


def test_time_counts_from_the_sending_of_the_last_tick_so_nothing_is_lost() -> None:
    rule = TickRule(cap=CAP, registered=0)
    assert rule.send(50 * MS) == 50_000
    rule.answered(51 * MS)
    assert rule.send(100 * MS) == 50_000


def test_a_slow_answer_loses_what_is_beyond_the_cap() -> None:
    rule = TickRule(cap=CAP, registered=0)
    rule.send(50 * MS)
    rule.answered(1000 * MS)
    assert capped(rule.send(1000 * MS)) == 100_000


def test_a_fraction_of_a_microsecond_is_never_rounded_up() -> None:
    assert TickRule(cap=CAP, registered=0).send(1999) == 1


def test_a_second_tick_in_flight_is_a_mistake_in_the_program() -> None:
    rule = TickRule(cap=CAP, registered=0)
    rule.send(1)
    with pytest.raises(AssertionError):
        rule.send(2)


@given(st.lists(st.tuples(st.integers(0, 400 * MS), st.integers(0, 400 * MS)), max_size=30))
def test_ticks_never_count_more_than_the_time_that_passed(waits: list[tuple[int, int]]) -> None:
    """Whatever the turns and the answers take; and `ref = max(S, A − C)` is, behind the function's
    cap, the same as `ref = S`: the proof uses the first form, a reader may think in the second.
    """
    rule, now, counted, sent = TickRule(cap=CAP, registered=0), 0, 0, 0
    for idle, answer in waits:
        now += idle
        delta = capped(rule.send(now))
        assert delta == capped((now - sent) // 1000)
        sent, counted = now, counted + delta
        now += answer
        rule.answered(now)
    assert counted * 1000 <= sent


class ScriptedServer:
    """Answers, and lets time pass on the way there and back."""

    def __init__(self, *replies: list[str] | Exception) -> None:
        self.now = 0
        self.commands: list[tuple[str, ...]] = []
        self._replies = list(replies)

    def clock(self) -> int:
        return self.now

    def call(self, *command: str, timeout: float | None = None) -> list[str]:
        self.commands.append(command)
        self.now += 10 * MS
        reply = self._replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


def ticker(server: ScriptedServer) -> Ticker:
    return Ticker(server, cap=CAP, timeout=1.0, clock=server.clock)


def test_the_clock_is_read_before_a_tick_is_sent_and_after_it_is_answered() -> None:
    server = ScriptedServer(["OK", "1"], ["OK", "40000", "1"], ["OK", "90000", "1"])
    one = ticker(server)
    assert one.register("life")
    server.now += 40 * MS
    assert one.tick() is Ticked.OK
    server.now += 40 * MS
    assert one.tick() is Ticked.OK
    assert [command[-1] for command in server.commands[1:]] == ["40000", "50000"]
    assert one.value == 90_000


def test_every_connection_has_a_fresh_nonce() -> None:
    replies = (["OK", "1"], ["OK", "1"])
    server = ScriptedServer(*replies)
    ticker(server).register("life")
    ticker(server).register("life")
    assert server.commands[0][-1] != server.commands[1][-1]


def test_a_memory_of_another_life_refuses_the_registration() -> None:
    assert not ticker(ScriptedServer(["REFUSED", "other"])).register("life")


@pytest.mark.parametrize(
    ("reply", "result"),
    [
        (["REFUSED"], Ticked.SUPERSEDED),
        (["OK", "1", "0"], Ticked.CLOSED),
        (["OK", "1", "1"], Ticked.OK),
    ],
)
def test_what_a_ticks_answer_means(reply: list[str], result: Ticked) -> None:
    one = ticker(ScriptedServer(["OK", "1"], reply))
    one.register("life")
    assert one.tick() is result


def test_a_ticker_without_its_answer_cannot_be_used_again() -> None:
    """The tick may still arrive: only a new connection, with a new nonce, may count on."""
    one = ticker(ScriptedServer(["OK", "1"], Broken("no answer in time"), ["OK", "1", "1"]))
    one.register("life")
    with pytest.raises(Broken):
        one.tick()
    with pytest.raises(AssertionError):
        one.tick()
