"""The file `busy`: who works as leader holds a lock on it, of either kind, and is waited for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from leasekeeper_sidecar.busy import Busy

HOLD = """
import fcntl, sys, time
file = open(sys.argv[1])  # for reading only: the volume is read-only in the app's container
fcntl.{0}(file, fcntl.LOCK_SH)
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["flock", "lockf"])
async def test_a_holder_is_waited_for_however_it_ends(tmp_path: Path, kind: str) -> None:
    busy = Busy(str(tmp_path))
    busy.install()
    await busy.over()
    program = [sys.executable, "-c", HOLD.format(kind), str(tmp_path / "busy")]
    holders = [
        await asyncio.create_subprocess_exec(*program, stdout=subprocess.PIPE) for _ in range(2)
    ]
    async with asyncio.timeout(40):
        for holder in holders:
            assert holder.stdout is not None
            await holder.stdout.readline()
        waiting = asyncio.ensure_future(busy.over())
        for holder in holders:
            await asyncio.sleep(0.1)
            assert not waiting.done(), "somebody still works"
            holder.kill()
            await holder.wait()
        await waiting


async def test_a_restarted_sidecar_finds_the_same_file(tmp_path: Path) -> None:
    """A lock is on a file, not on a name: replaced, nobody would be seen any more."""
    Busy(str(tmp_path)).install()
    first = (tmp_path / "busy").stat()
    Busy(str(tmp_path)).install()
    assert (tmp_path / "busy").stat().st_ino == first.st_ino
    assert first.st_mode & 0o777 == 0o644


async def test_without_the_file_nobody_is_waited_for(tmp_path: Path) -> None:
    async with asyncio.timeout(20):
        await Busy(str(tmp_path)).over()
