"""A run in which nobody led has shown nothing, and says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

OPTIONS = ["demo", "--json", "--no-chaos", "--lease", "2", "--seconds", "1"]


def run(program: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *program, *OPTIONS],
        env={**os.environ, **environment, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_what_the_shell_has_for_other_agents_and_sidecars_does_not_reach_them(
    folder: Path,
) -> None:
    nowhere = str(folder / "nowhere")
    others = {"LEASEKEEPER_TLS_CA": nowhere, "LEASEKEEPER_HEALTH": "http://127.0.0.1:1/"}
    found = run(["-m", "leasekeeper.cli"], folder, **others)
    assert found.returncode == 0, found.stdout + found.stderr
    assert json.loads(found.stdout.splitlines()[-1])["tenures"] >= 1


_SIDECARS_THAT_REFUSE = """
import sys
from leasekeeper import cli
from leasekeeper.demo import engine, world
engine.LONGEST_START = 3
world.renew_deadline = lambda lease: lease * 2
sys.exit(cli.main())
"""


def test_a_run_without_a_leader_fails_and_says_what_was_heard_last(folder: Path) -> None:
    found = run(["-c", _SIDECARS_THAT_REFUSE], folder)
    assert found.returncode == 3
    assert json.loads(found.stdout.splitlines()[-1])["tenures"] == 0
    assert "nobody ever led" in found.stderr
    assert "the agent of node 1 said last: " in found.stderr
    assert "renewDeadlineSeconds" in found.stderr.partition("the sidecar of candidate-1: ")[2]
