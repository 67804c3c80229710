"""Real servers, agents and sidecars killed, frozen and stopped at random, and never two leaders.

The run is the demo's own, so that what a newcomer sees is what is tested.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leasekeeper.demo.engine import Demo, Feed
from leasekeeper.demo.history import History, Reading
from leasekeeper.demo.journal import Journal
from leasekeeper.redlock import users

LONG = bool(os.environ.get("LEASEKEEPER_LONG"))
SECONDS = 120 if LONG else 30
COMMAND = [sys.executable, "-m", "leasekeeper.cli", "demo", "--json", "--lease", "2"]


@pytest.mark.parametrize("seed", [8, 9] if LONG else [8])
def test_nobody_overlaps_and_no_token_goes_down(seed: int, folder: Path) -> None:
    run = subprocess.run(
        [*COMMAND, "--seconds", str(SECONDS), "--seed", str(seed)],
        capture_output=True,
        text=True,
        timeout=SECONDS + 180,
        env={**os.environ, "TMPDIR": str(folder)},
        check=False,
    )
    events = [json.loads(line) for line in run.stdout.splitlines()]
    summary = events[-1]
    assert run.returncode == 0, run.stdout + run.stderr
    assert (summary["overlaps"], summary["regressions"]) == (0, 0)
    assert summary["faults"] >= 2, "a run in which nothing was broken proves nothing"
    assert summary["tenures"] >= 2
    assert summary["journal"] > 0, "the apps worked"
    assert list(folder.iterdir()) == [], "it leaves no file behind"


def test_a_forged_leader_file_is_counted_and_the_exit_code_says_so(folder: Path) -> None:
    """The control of the whole run: a second leader, with an older token, is not overlooked."""
    with subprocess.Popen(
        [*COMMAND, "--no-chaos", "--seconds", "8"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    ) as run:
        assert run.stdout is not None
        events: list[dict[str, Any]] = [json.loads(run.stdout.readline())]
        while events[-1].get("event") != "leads":
            events.append(json.loads(run.stdout.readline()))
        holders = {f"candidate-{i}" for i in (1, 2)} - {events[-1]["holder"]}
        forge = threading.Thread(
            target=_forge,
            args=(Path(events[0]["home"]), events[-1]["holder"], min(holders), run.poll),
        )
        forge.start()
        *told, summary = [json.loads(line) for line in run.stdout]
        forge.join()
    assert run.returncode == 1
    assert (summary["overlaps"] >= 1, summary["regressions"] >= 1) == (True, True)
    assert "wrong" in {event["event"] for event in told}


def _forge(home: Path, leader: str, other: str, ended: Callable[[], object]) -> None:
    """What the leader's file says, in the other's, with a smaller token."""
    with suppress(FileNotFoundError):  # the demo has ended and cleaned up
        while ended() is None:
            said = json.loads((home / leader / "lock" / "leader").read_text())
            aside = home / other / "lock" / "forged"
            aside.write_text(json.dumps({**said, "holder": other, "token": said["token"] - 1}))
            aside.replace(home / other / "lock" / "leader")
            time.sleep(0.02)


def reading(pod: str, token: int, at: float) -> Reading:
    return Reading("demo/leader", pod, pod, token, at, at + 0.001)


def test_the_checker_catches_two_leaders() -> None:
    """The control: the same checker, fed with what a broken election would show."""
    history = History()
    for at in (1.0, 1.2):
        history.see(reading("a", 1, at))
    history.see(reading("b", 2, 1.3))
    assert history.wrong == [], "a hand-over is none"
    history.see(reading("a", 1, 1.4))
    history.see(reading("b", 2, 1.5))
    assert len(history.overlaps) == 1


@pytest.mark.parametrize("token", [5, 4])
def test_the_checker_catches_a_token_that_does_not_grow(token: int) -> None:
    history = History()
    history.see(reading("a", 5, 1.0))
    history.see(reading("b", token, 2.0))
    assert len(history.regressions) == 1


def test_the_demo_counts_by_deadlines_and_tells_by_the_whole_rule(tmp_path: Path) -> None:
    """The wall clock's half of the rule has whole seconds, and may end first: nobody reads the old
    file as a yes any more, and its deadline is too late all the same."""
    sweeps = [
        [reading("a", 1, 1.0)],
        [replace(reading("a", 1, 1.2), leads=False)],
        [replace(reading("a", 1, 1.3), leads=False), reading("b", 2, 1.4)],
        [replace(reading("a", 1, 1.5), leads=False), reading("b", 2, 1.6)],
    ]
    world = SimpleNamespace(
        journal=tmp_path / "journal",
        lease=2.0,
        nodes=[],
        passwords={users.OPERATOR: ""},
        readings=lambda: sweeps.pop(0),
    )
    demo = Demo(cast(Any, world), Feed(), seed=1, chaos=False, tell=lambda _: None)
    shown = []
    while sweeps:
        demo._sweep()
        shown.append(sorted(demo.readings))
    assert shown == [["a"], [], ["b"], ["b"]]
    assert demo.wrong == ["two leaders of demo/leader: a (token 1) and b (token 2)"]


def journal_of(folder: Path, *lines: str) -> Journal:
    path = folder / "journal"
    path.write_text("".join(f"{line}\n" for line in lines))
    journal = Journal(path, "demo/leader")
    journal.look()
    return journal


def test_the_journal_refuses_late_work_and_calls_it_no_overlap(tmp_path: Path) -> None:
    """The app `a` asked while it led, was paused, and wrote after `b` had led."""
    journal = journal_of(tmp_path, "5 a 1.0 1.1", "6 b 2.0 2.1", "5 a 1.2 1.3", "6 b 2.2 2.3")
    assert (journal.refused, journal.history.wrong) == (1, [])


def test_the_journal_refuses_late_work_also_if_it_is_the_first_of_its_token(tmp_path: Path) -> None:
    journal = journal_of(tmp_path, "6 b 2.0 2.1", "5 a 1.0 1.1")
    assert (journal.refused, journal.history.wrong) == (1, [])


def test_the_journal_shows_two_that_believed_at_the_same_time(tmp_path: Path) -> None:
    lines = ["5 a 1.0 1.1", "6 b 2.0 2.1", "5 a 2.2 2.3", "6 b 2.4 2.5"]
    assert len(journal_of(tmp_path, *lines).history.overlaps) == 1


def test_the_journal_shows_a_token_that_went_down(tmp_path: Path) -> None:
    assert len(journal_of(tmp_path, "6 a 1.0 1.1", "5 b 2.0 2.1").history.regressions) == 1


def test_a_line_that_is_still_being_written_waits(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text("5 a 1.0 1.1\n6 b")
    journal = Journal(path, "demo/leader")
    journal.look()
    assert journal.entries == 1
    path.write_text("5 a 1.0 1.1\n6 b 2.0 2.1\n")
    journal.look()
    assert journal.entries == 2
