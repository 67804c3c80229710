"""Running other programs: quietly, with a log, with a sign of life, and with a useful failure."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from localkube.progress import Progress

HEARTBEAT_SECONDS = 15.0
"""Often enough that nobody thinks a ten-minute build hangs, seldom enough not to fill a CI log."""


class ClusterError(Exception):
    """Something the person at the terminal has to know; printed without a traceback."""


def capture(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> str:
    """The standard output of a short command; its standard error is in the exception."""
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(argv)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def tail(path: Path, lines: int = 30) -> str:
    if not path.exists():
        return ""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def run_logged(
    argv: Sequence[str],
    *,
    log: Path,
    progress: Progress,
    label: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> None:
    """Runs a long command with its output in `log`, and says every so often that it still does."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as out:
        child = subprocess.Popen(
            argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
        try:
            _wait(child, log=log, progress=progress, label=label)
        finally:
            if child.poll() is None:  # interrupted: nothing of ours may run on unattended
                child.terminate()
                child.wait()
    if child.returncode != 0:
        raise ClusterError(f"{label} failed (exit {child.returncode}), see {log}:\n{tail(log)}")


def _wait(child: subprocess.Popen[bytes], *, log: Path, progress: Progress, label: str) -> None:
    begun = time.monotonic()
    while True:
        try:
            child.wait(timeout=HEARTBEAT_SECONDS)
            return
        except subprocess.TimeoutExpired:
            with log.open("rb") as lines:
                count = sum(1 for _ in lines)
            took = time.monotonic() - begun
            progress.say(f"{label}: still running, {took:.0f} s, {count} lines of output")


def environment(**changes: str) -> dict[str, str]:
    """This process's environment with some variables set."""
    return {**os.environ, **changes}
