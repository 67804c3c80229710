"""However the demo ends, no process and no file of it stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import IO, Any

import pytest
from servers import wait_until

from leasekeeper.demo.web import TOKEN_HEADER

COMMAND = [sys.executable, "-m", "leasekeeper.cli", "demo", "--json", "--lease", "2"]
PATIENCE = 60.0


class Run:
    """A demo as a process of its own, watched by its events."""

    def __init__(self, folder: Path, *options: str, stderr: int | None = None) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *options],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, "TMPDIR": str(folder)},
            start_new_session=True,
        )
        self.home = Path(self.until("started")["home"])

    @property
    def out(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def until(self, event: str) -> dict[str, Any]:
        for line in self.out:
            told: dict[str, Any] = json.loads(line)
            if told.get("event") == event:
                return told
        raise AssertionError(f"the demo ended before {event!r}")

    def processes(self) -> list[int]:
        """All that know the home of this demo, by their arguments or environment."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != self.process.pid:
                try:
                    text = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
                except OSError:
                    continue
                if os.fsencode(self.home) in text:
                    found.append(int(folder.name))
        return found


def gone(run: Run, folder: Path) -> None:
    wait_until(lambda: not run.processes(), "all processes to end", PATIENCE)
    wait_until(lambda: not list(folder.iterdir()), "all files to be removed", PATIENCE)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_nothing_stays_behind(number: signal.Signals, folder: Path) -> None:
    """Ctrl-C, a closed terminal, a crash; with one candidate frozen, which hears no other signal
    than SIGKILL.
    """
    run = Run(folder, "--no-chaos")
    run.until("leads")
    # 5 servers, 5 agents, 5 sidecars, 5 apps and the guard.
    assert len(run.processes()) == 21
    sidecar = next(p for p in run.processes() if b"leasekeeper_sidecar" in _cmdline(p))
    os.kill(sidecar, signal.SIGSTOP)
    run.process.send_signal(number)
    code = run.process.wait(PATIENCE)
    gone(run, folder)
    if number != signal.SIGKILL:
        summary = json.loads(run.out.readlines()[-1])
        assert (code, summary["overlaps"], summary["regressions"]) == (0, 0, 0)


_CRASH = """
import os, signal, sys
from pathlib import Path
from leasekeeper.demo import processes
if sys.argv[1] == "without":
    processes._PR_SET_PDEATHSIG = 3  # asks for something else, and changes nothing
child = processes.Child(["sleep", "60"], Path(os.devnull), {})
child.start()
print(child._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("protection", ["with", "without"])
def test_a_child_ends_with_a_parent_that_crashed(protection: str) -> None:
    """The control is the same without the protection: then it stays."""
    run = subprocess.run(
        [sys.executable, "-c", _CRASH, protection], capture_output=True, check=False, timeout=60
    )
    child = int(run.stdout)
    if protection == "with":
        wait_until(lambda: not _alive(child), "the child to end")
    else:
        assert _alive(child)
        os.kill(child, signal.SIGKILL)


def test_a_reader_that_goes_away_ends_it(folder: Path) -> None:
    """`leasekeeper demo | head -1`."""
    run = Run(folder, "--seconds", "60")
    run.out.close()
    run.process.wait(PATIENCE)
    gone(run, folder)


def test_an_open_page_sees_the_last_moment_and_not_how_all_is_taken_down(folder: Path) -> None:
    """Nor does the demo wait for it to be closed, or complain about it."""
    run = Run(folder, "--web", stderr=subprocess.PIPE)
    host, _, token = run.until("page")["address"].removeprefix("http://").partition("/#")
    page = HTTPConnection(host, timeout=PATIENCE)
    page.request("GET", "/api/stream", headers={TOKEN_HEADER: token})
    stream = page.getresponse()
    assert "kinds" in json.loads(stream.readline())
    run.until("leads")
    run.process.send_signal(signal.SIGINT)
    states = [json.loads(piece)["state"] for piece in stream]
    assert all(candidate["running"] for candidate in states[-1]["candidates"])
    assert run.process.communicate(timeout=PATIENCE)[1] == ""
    assert run.process.returncode == 0
    gone(run, folder)


def test_two_run_side_by_side(folder: Path) -> None:
    runs = [Run(folder, "--no-chaos") for _ in range(2)]
    for run in runs:
        run.until("leads")
    for run in runs:
        run.process.send_signal(signal.SIGINT)
    for run in runs:
        assert run.process.wait(PATIENCE) == 0
        gone_ = json.loads(run.out.readlines()[-1])
        assert gone_["tenures"] >= 1
    gone(runs[0], folder)


def _alive(pid: int) -> bool:
    try:
        return b"sleep" in _cmdline(pid)  # that of a zombie is empty
    except OSError:
        return False


def _cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
