"""Real servers, agents and sidecars killed, frozen and stopped at random, and never two leaders.

The run is the demo's own, so that what a newcomer sees is what is tested.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from leasekeeper.demo.history import History, Reading

SECONDS = 120 if os.environ.get("LEASEKEEPER_LONG") else 30


@pytest.mark.parametrize("seed", [7, 8])
def test_nobody_overlaps_and_no_token_goes_down(seed: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "leasekeeper.cli", "demo", "--json"]
    options = ["--seconds", str(SECONDS), "--lease", "2", "--seed", str(seed)]
    run = subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        timeout=SECONDS + 60,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )
    events = [json.loads(line) for line in run.stdout.splitlines()]
    summary = events[-1]
    assert run.returncode == 0, run.stdout + run.stderr
    assert (summary["overlaps"], summary["regressions"]) == (0, 0)
    assert summary["faults"] >= 2, "a run in which nothing was broken proves nothing"
    assert summary["tenures"] >= 2
    assert list(tmp_path.iterdir()) == [], "it leaves no file behind"


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
