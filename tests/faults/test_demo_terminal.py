"""The live view on a real pseudo-terminal: it is drawn, its keys work, and it leaves no trace."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import termios
from pathlib import Path

import pytest
from screen import PATIENCE, Screen


def test_a_leader_is_killed_by_a_key_and_another_takes_over(folder: Path) -> None:
    command = [sys.executable, "-m", "leasekeeper.cli", "demo", "--lease", "2"]
    screen = Screen(command, TMPDIR=str(folder))
    try:
        screen.until(lambda t: "leads with token" in t, "a leader")
        assert "overlaps 0  regressions 0" in screen.text
        assert "k kill f freeze" in screen.text
        leader = int(re.findall(r"candidate-(\d) leads with token", screen.text)[-1])
        screen.press(f"{leader % 5 + 1}s")  # another one is asked to step down
        screen.until(lambda t: "there is nothing to step down from" in t, "the complaint")
        complained = screen.text.rindex("there is nothing")
        screen.until(lambda t: "k kill f freeze" in t[complained:], "the keys to be back")
        screen.press("0")  # the leader again, whoever it is
        screen.press("K")
        screen.until(lambda t: "is killed: nobody else can win before" in t, "the kill")
        screen.until(lambda t: "tenures 2" in t, "the takeover")
        screen.press("Q")
        screen.until(lambda _: screen.process.poll() is not None, "the end")
        screen.until(lambda t: t.rstrip().endswith("}"), "the summary")
    finally:
        screen.process.kill()
        screen.process.wait()
    summary = json.loads(screen.text[screen.text.rindex("{") :])
    assert screen.process.returncode == 0
    assert (summary["faults"], summary["overlaps"], summary["regressions"]) == (1, 0, 0)
    assert list(folder.iterdir()) == []


def waits_for_enter(screen: Screen) -> bool:
    return bool(termios.tcgetattr(screen.ours)[3] & termios.ICANON)


@pytest.mark.parametrize("number", [signal.SIGTSTP, signal.SIGSTOP])
def test_its_keys_work_again_when_it_was_stopped_and_goes_on(
    number: signal.Signals, folder: Path
) -> None:
    """Ctrl-Z and `fg`. A shell has made the terminal its own meanwhile."""
    screen = Screen([sys.executable, "-m", "leasekeeper.cli", "demo"], TMPDIR=str(folder))
    try:
        screen.until(lambda t: "stands by" in t, "the first frame")
        ours = termios.tcgetattr(screen.ours)
        assert not waits_for_enter(screen)
        os.kill(screen.process.pid, number)
        state = Path(f"/proc/{screen.process.pid}/stat")
        screen.until(lambda _: ") T " in state.read_text(), "the pause")
        if number == signal.SIGTSTP:
            assert waits_for_enter(screen), "handed back"
        shells = [*ours[:3], ours[3] | termios.ICANON | termios.ECHO, *ours[4:]]
        termios.tcsetattr(screen.ours, termios.TCSANOW, shells)
        os.kill(screen.process.pid, signal.SIGCONT)
        screen.until(lambda _: not waits_for_enter(screen), "its keys")
        screen.press("q")
        screen.until(lambda _: screen.process.poll() is not None, "the end")
    finally:
        screen.process.kill()
        screen.process.wait()
    assert screen.process.returncode == 0
    assert list(folder.iterdir()) == []


def test_a_closed_terminal_ends_it(folder: Path) -> None:
    screen = Screen([sys.executable, "-m", "leasekeeper.cli", "demo"], TMPDIR=str(folder))
    screen.until(lambda t: "stands by" in t, "the first frame")
    os.close(screen.ours)
    screen.process.wait(PATIENCE)
    assert list(folder.iterdir()) == []
