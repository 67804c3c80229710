"""When a candidate's turn has come. What the store makes of it: test_store.py."""

from __future__ import annotations

import asyncio

import pytest
from virtual_time import run

from leasekeeper.redlock.gate import gate_order
from leasekeeper.redlock.waiting import (
    SUBSTITUTE_PAUSE,
    Call,
    Chance,
    Waiting,
    look_in,
    parse_call,
)

PATIENCE = 0.006
GATE, *REST = gate_order("shop/orders", [str(number) for number in range(5)])


class TestCall:
    def test_has_a_token_and_a_rank(self) -> None:
        assert parse_call(b"41 2") == Call(41, 2)

    @pytest.mark.parametrize(
        "message",
        [b"", b"41", b"41 ", b" 0", b"-1 0", b"4x 0", b"41 0 0", b"9" * 5000 + b" 0", b"41 999"],
    )
    def test_that_makes_no_sense_is_none(self, message: bytes) -> None:
        assert parse_call(message) is None

    def test_with_a_token_that_nodes_never_reach_is_none(self) -> None:
        assert parse_call(b"%d 0" % 2**52) is None


class TestLook:
    def test_the_first_nodes_word_counts_at_once(self) -> None:
        assert look_in(Call(1, 0), first_node=True, patience=PATIENCE) == 0

    def test_another_nodes_word_counts_after_the_patience(self) -> None:
        assert look_in(Call(1, 0), first_node=False, patience=PATIENCE) == PATIENCE

    def test_substitutes_come_one_after_the_other_and_behind_the_first(self) -> None:
        looks = [look_in(Call(1, r), first_node=True, patience=PATIENCE) for r in range(3)]
        assert looks == sorted(looks)
        assert looks[1] > PATIENCE
        assert looks[2] - looks[1] == pytest.approx(SUBSTITUTE_PAUSE)


class TestWaiting:
    def test_the_earliest_of_several_calls_wakes(self) -> None:
        async def scenario() -> None:
            waiting = Waiting(GATE, PATIENCE)
            loop = asyncio.get_running_loop()
            waiting.on_push(GATE, b"41 2")
            waiting.on_push(REST[0], b"41 0")
            waiting.on_push(REST[1], b"41 1")
            await waiting.freed.wait()
            assert loop.time() == pytest.approx(PATIENCE)
            chance = waiting.begin()
            assert chance == Chance(True, 41, (GATE, REST[0], REST[1]))
            assert waiting.begin() == Chance(False, None, ()), "told once"

        run(scenario())

    def test_a_substitute_knows_of_no_free_node(self) -> None:
        async def scenario() -> None:
            waiting = Waiting(GATE, PATIENCE)
            waiting.on_push(GATE, b"41 1")
            await waiting.freed.wait()
            assert waiting.begin() == Chance(True, 41, ()), "the first may have taken them"

        run(scenario())

    def test_a_call_from_before_the_own_tenure_is_answered_already(self) -> None:
        async def scenario() -> None:
            waiting = Waiting(GATE, PATIENCE)
            waiting.won(42)
            waiting.on_push(GATE, b"41 0")
            assert not waiting.freed.is_set()
            waiting.on_push(GATE, b"43 0")
            assert waiting.freed.is_set()

        run(scenario())
