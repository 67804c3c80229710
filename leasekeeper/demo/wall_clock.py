"""Steps the wall clock of one node's server, by a small library that is loaded into it."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

SOURCE = Path(__file__).with_name("wall_clock.c")


def build_shim(home: Path) -> Path | None:
    """The library; none: there is no C compiler here, or it cannot."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    shim = home / "wall_clock.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(shim), str(SOURCE)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        return shim if _works(home, shim) else None
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _works(home: Path, shim: Path) -> bool:
    """Tried on a program of ours: in a folder that is mounted `noexec` it would not be loaded."""
    clock = WallClock(home / "wall_clock-tried", shim)
    clock.set(10_000)
    command = [sys.executable, "-I", "-S", "-c", "import time; print(time.time())"]
    environment = {**os.environ, **clock.environment}
    tried = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True, timeout=60
    )
    return float(tried.stdout) - time.time() > 5_000


class WallClock:
    """The step of one server's clock, in a file that the server has mapped: it counts at once."""

    def __init__(self, file: Path, shim: Path | None) -> None:
        self.step = 0
        self._file = file
        self._shim = shim
        self._write()

    @property
    def can_be_stepped(self) -> bool:
        return self._shim is not None

    @property
    def environment(self) -> dict[str, str]:
        if self._shim is None:
            return {}
        return {"LD_PRELOAD": str(self._shim), "LEASEKEEPER_DEMO_WALL_CLOCK": str(self._file)}

    def set(self, seconds: int) -> None:
        self.step = seconds
        self._write()

    def _write(self) -> None:
        # In place: the server maps this very file.
        with self._file.open("r+b" if self._file.exists() else "w+b") as file:
            file.write(struct.pack("q", self.step))
