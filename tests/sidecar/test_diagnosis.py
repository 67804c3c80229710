"""What a person finds in the log."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field

import pytest
from leasekeeper_sidecar.diagnosis import Explaining
from leasekeeper_sidecar.log import Log
from leasekeeper_sidecar.metrics import Counters

from leasekeeper.clock import Instant
from leasekeeper.lease import Acquired, Held, LeaseStore, Unavailable


@dataclass
class Scripted:
    """Answers attempts from a list. Only what this test uses of a store."""

    outcomes: list[Acquired] = field(default_factory=list)

    async def acquire(self) -> Acquired:
        return self.outcomes.pop(0)


class Clock:
    time = 0.0

    def now(self) -> Instant:
        return Instant(self.time, self.time)

    def wall(self) -> float:
        return self.time


async def said(
    outcomes: list[Acquired], capfd: pytest.CaptureFixture[str], *, step: float = 1.0
) -> list[str]:
    store, clock = Scripted(list(outcomes)), Clock()
    # A part of a store stands for the whole one here.
    explaining = Explaining(
        store,  # type: ignore[arg-type]
        lock="a/b",
        every=15,
        clock=clock,
        log=Log(),
        counters=Counters(),
    )
    for expected in outcomes:
        assert await explaining.acquire() is expected
        clock.time += step
    return [re.sub(r"at=\S+ ", "", line) for line in capfd.readouterr().err.splitlines()]


async def test_a_missing_quorum_is_explained_once_and_its_return_is_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    down = Unavailable({"1": "CLOSED", "0": "refused"})
    lines = await said([down, down, down, Held("x/u/n/1", 3)], capfd)
    assert lines == [
        'no-quorum lock=a/b causes="0: refused; 1: CLOSED"',
        "quorum-again lock=a/b",
    ]


async def test_causes_that_change_all_the_time_do_not_fill_the_log(
    capfd: pytest.CaptureFixture[str],
) -> None:
    changing: list[Acquired] = [Unavailable({"0": f"after {n} s"}) for n in range(40)]
    assert len(await said(changing, capfd)) == 3


async def test_a_pause_is_not_called_a_missing_quorum(capfd: pytest.CaptureFixture[str]) -> None:
    lines = await said([Unavailable({"0": "PAUSED 7", "1": "PAUSED 7"})], capfd)
    assert lines == ['kept-out lock=a/b causes="0: PAUSED 7; 1: PAUSED 7"']


async def test_a_split_vote_is_no_news(capfd: pytest.CaptureFixture[str]) -> None:
    assert await said([Unavailable({"0": "HELD"}, retry_in=0.01)], capfd) == []


def test_every_call_of_a_store_is_passed_on() -> None:
    """Explaining must not fall behind the protocol that it stands in for."""
    public = {name for name in vars(LeaseStore) if not name.startswith("_")}
    assert public <= set(vars(Explaining)), public - set(vars(Explaining))


def line_of(*, as_json: bool, **fields: object) -> str:
    reading, writing = os.pipe()
    Log(writing, as_json=as_json).event("leading", **fields)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return pipe.read()


def test_a_line_is_the_events_name_and_then_keys_and_values() -> None:
    line = line_of(as_json=False, lock="a/b", token=7, why="two words", nothing=None, empty="")
    assert re.fullmatch(r'leading at=\S+Z lock=a/b token=7 why="two words"\n', line)


def test_a_value_cannot_forge_a_line() -> None:
    line = line_of(as_json=False, why='x"\nleading lock=a/b')
    assert line.count("\n") == 1


def test_json_on_request() -> None:
    line = json.loads(line_of(as_json=True, lock="a/b", token=7))
    assert (line["event"], line["lock"], line["token"]) == ("leading", "a/b", 7)


def test_a_very_long_line_is_cut_and_still_a_line() -> None:
    line = line_of(as_json=False, why="x" * 10_000)
    assert len(line) == 4096
    assert line.endswith("\n")
