"""The live view on a real pseudo-terminal: it is drawn, its keys work, and it leaves no trace."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 60.0


class Screen:
    """What the program wrote to its terminal so far."""

    def __init__(self, command: list[str], **environment: str) -> None:
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30", **environment},
            start_new_session=True,
        )
        os.close(theirs)
        self.text = ""

    def until(self, true: Callable[[str], object], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not true(self.text):
            assert time.monotonic() < end, f"waited in vain for {what}:\n{self.text[-3000:]}"
            if select.select([self.ours], [], [], 0.1)[0]:
                try:
                    data = os.read(self.ours, 65536).decode("utf-8", "ignore")
                except OSError:  # the other end was closed
                    data = ""
                self.text += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", data)

    def press(self, key: str) -> None:
        os.write(self.ours, key.encode())


def test_a_leader_is_killed_by_a_key_and_another_takes_over(folder: Path) -> None:
    command = [sys.executable, "-m", "leasekeeper.cli", "demo", "--lease", "2"]
    screen = Screen(command, TMPDIR=str(folder))
    try:
        screen.until(lambda t: "leads with token" in t, "a leader")
        assert "overlaps 0  regressions 0" in screen.text
        assert "k kill  f freeze" in screen.text
        screen.press("k")
        screen.until(lambda t: "is killed: nobody else can win before" in t, "the kill")
        screen.until(lambda t: "tenures 2" in t, "the takeover")
        screen.press("q")
        screen.until(lambda _: screen.process.poll() is not None, "the end")
        screen.until(lambda t: t.rstrip().endswith("}"), "the summary")
    finally:
        screen.process.kill()
        screen.process.wait()
    summary = json.loads(screen.text[screen.text.rindex("{") :])
    assert screen.process.returncode == 0
    assert (summary["faults"], summary["overlaps"], summary["regressions"]) == (1, 0, 0)
    assert list(folder.iterdir()) == []


def test_a_closed_terminal_ends_it(folder: Path) -> None:
    screen = Screen([sys.executable, "-m", "leasekeeper.cli", "demo"], TMPDIR=str(folder))
    screen.until(lambda t: "stands by" in t, "the first frame")
    os.close(screen.ours)
    screen.process.wait(PATIENCE)
    assert list(folder.iterdir()) == []
