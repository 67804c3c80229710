"""What the kernel shows to every container alike: boot clock, boot id and wall clock."""

from __future__ import annotations

import os
import time
from typing import Protocol


class Host(Protocol):
    """The clocks of the readers of the leader file. Tests inject their own."""

    def uptime_cs(self) -> int:
        """`/proc/uptime`, in hundredths of a second, as the kernel truncated it."""

    def boot_id(self) -> str: ...

    def wall(self) -> float: ...


class Proc:
    """The real ones."""

    def __init__(self, root: str = "/proc") -> None:
        self._uptime = f"{root}/uptime"
        self._boot_id = f"{root}/sys/kernel/random/boot_id"

    def uptime_cs(self) -> int:
        first = _read(self._uptime).split()[0]
        seconds, _, hundredths = first.partition(".")
        # Two digits whatever the kernel prints: gVisor's and lxcfs' files are not the kernel's own.
        return int(seconds) * 100 + int((hundredths + "00")[:2])

    def boot_id(self) -> str:
        return _read(self._boot_id).strip()

    def wall(self) -> float:
        return time.time()


def _read(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 256).decode("ascii")
    finally:
        os.close(fd)
