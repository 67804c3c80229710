"""What a process that holds one lease on five nodes has in memory."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.result import Row, at_most, note
from benchmarks.rig import HOLDER, Rig, command

MIB = 1024.0  # /proc counts in KiB
BARE = "import asyncio, time; asyncio.run(asyncio.sleep(0)); print(1, flush=True); time.sleep(9)"


def measure(rig: Rig) -> list[Row]:
    job = rig.our_job("", "bench/memory", name="holder", nonce="n")
    with _running(command([sys.executable, str(HOLDER)], job), 5.0) as holder:
        ours = _resident(holder)
    with _running([sys.executable, "-c", BARE], 0.5) as interpreter:
        python = _resident(interpreter)
    figure = "RSS, one lease on five nodes"
    return [
        at_most(figure, "MiB", ours, 23, "a bound"),
        note(figure, "MiB", ours, "Python with asyncio alone", python),
    ]


class _running:
    """A child that printed its first line and then had time to settle."""

    def __init__(self, argv: list[str], settle: float) -> None:
        self._argv, self._settle = argv, settle

    def __enter__(self) -> int:
        self._process = subprocess.Popen(self._argv, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._process.stdout.readline()
        time.sleep(self._settle)
        return self._process.pid

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def _resident(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / MIB
