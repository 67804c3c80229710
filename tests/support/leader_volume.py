"""A leader volume with the two programs on it, run by a shell of the test's choice."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from leasekeeper_sidecar.claim import Claim
from leasekeeper_sidecar.host import Proc
from leasekeeper_sidecar.leader_file import LeaderFile

BOOT = "5f0c2a44-6c1e-4c55-9b1e-6f0f2b1f7a10"
UPTIME_CS = 812_345
SHELLS = {"dash": ["dash"], "busybox": ["busybox", "sh"]}


class Volume:
    """The leader volume, and a /proc whose clocks the test sets."""

    def __init__(self, path: Path, shell: list[str], *, real_clocks: bool = False) -> None:
        self.path = path
        self.shell = shell
        self.file = LeaderFile(str(path))
        self.file.install_programs()
        self.host = Proc()
        if not real_clocks:
            (path / "proc/sys/kernel/random").mkdir(parents=True)
            (path / "proc/sys/kernel/random/boot_id").write_text(BOOT + "\n")
            self.set_uptime(UPTIME_CS)
            program = path / "is-leader"
            text = program.read_text()
            assert "\nproc=/proc\n" in text
            program.write_text(text.replace("\nproc=/proc\n", f"\nproc={path}/proc\n"))
            self.host = Proc(str(path / "proc"))

    def set_uptime(self, cs: int) -> None:
        (self.path / "proc/uptime").write_text(f"{cs // 100}.{cs % 100:02d} 5000.00\n")

    def claim(self, seconds: float = 300, token: int = 17) -> Claim:
        """The wall clock is real, and a busy machine takes seconds to start a shell."""
        wall = self.host.wall()
        return Claim(
            lock="shop/orders",
            leader=True,
            boot=self.host.boot_id(),
            holder="orders-x2x",
            token=token,
            acquired=wall,
            expires=wall + seconds,
            expires_unix=int(wall + seconds),
            deadline_cs=self.host.uptime_cs() + int(seconds * 100),
        )

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        # Only what the contract allows on the PATH: sh is given, date and sleep are looked up.
        return subprocess.run(
            [*self.shell, str(self.path / program), *arguments],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
            env={"PATH": os.environ["PATH"]},
        )

    def spawn(self, *arguments: str, stderr: int | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.shell, str(self.path / "run-as-leader"), *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )


def wait_for(path: Path, text: str) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if path.exists() and path.read_text() == text:
            return
        time.sleep(0.02)
    raise TimeoutError(f"{path.name} is not {text!r}: {path.exists() and path.read_text()!r}")
