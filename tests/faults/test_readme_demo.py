"""The README's commands that need no cluster, as they stand there. (The others: tests/cluster.)"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
import readme
from screen import Screen

TESTS = "make test"
# As a person's shell has it: called from another make (`make test`), make speaks of folders.
SHELL = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
COMMANDS = [c for c in readme.commands() if not c.needs_a_cluster and c.text != TESTS]
WITHOUT_HANDS = [c for c in COMMANDS if "--json" in c.text]
WITH_HANDS = [c for c in COMMANDS if "--json" not in c.text]


@pytest.mark.parametrize("command", WITHOUT_HANDS, ids=lambda c: c.text)
def test_a_run_without_hands_ends_with_a_summary(command: readme.Command, folder: Path) -> None:
    run = subprocess.run(
        ["sh", "-c", command.text],
        cwd=readme.README.parent,
        env={**SHELL, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    *events, summary = [json.loads(line) for line in run.stdout.splitlines()]
    shown = json.loads(command.answer.splitlines()[-1])
    assert summary.keys() == shown.keys()
    assert (summary["overlaps"], summary["regressions"]) == (0, 0)
    assert summary["faults"] >= 1
    assert summary["tenures"] >= 1
    assert {event["event"] for event in events} >= {"started", "leads", "fault"}
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("command", WITH_HANDS, ids=lambda c: c.text)
def test_a_run_on_a_terminal_shows_a_leader_and_ends_with_ctrl_c(
    command: readme.Command, folder: Path
) -> None:
    in_its_place = f"cd {readme.README.parent} && {command.text}"
    screen = Screen(["sh", "-c", in_its_place], TMPDIR=str(folder))
    try:
        screen.until(lambda t: "leads with token" in t, "a leader")
        os.killpg(screen.process.pid, signal.SIGINT)
        screen.until(lambda t: '"overlaps": 0, "regressions": 0' in t, "the summary")
        screen.process.wait(60)
    finally:
        if screen.process.poll() is None:
            screen.process.kill()
            screen.process.wait()
    assert list(folder.iterdir()) == []


def test_both_kinds_are_there() -> None:
    assert (len(WITHOUT_HANDS), len(WITH_HANDS)) == (1, 2)


def test_the_command_for_the_tests_is_what_ci_runs() -> None:
    """It cannot be run from within itself."""
    assert TESTS in [command.text for command in readme.commands()]
    ci = (readme.README.parent / ".ci" / "run").read_text()
    assert ci.splitlines()[-1] == f"exec {TESTS}"
