"""The processes below this one, for `hold`.

What its command started is found by descent, and whoever loses a parent becomes our child, and not
that of process 1. A process group would miss whoever made one of its own, as `timeout` and
interactive shells do. And on a terminal the command must share ours, because the terminal, the
shell's job control, a script and the other programs of a pipeline go by it: a group of its own
would have to be given the terminal, and `hold -- CMD | less` could not read a key any more.

Only within our session: what took one of its own (a daemon, an agent) is to outlive us.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from contextlib import suppress
from dataclasses import dataclass

PR_SET_CHILD_SUBREAPER = 36

TO_DIE = 2.0
"""Seconds. SIGKILL takes microseconds, also on a busy machine far less than this; what is there
then is not ours to kill (it runs as another user), or hangs in the kernel."""


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    began: str  # a number of a process is given again, its beginning is not
    parent: int
    session: int
    state: str


class Descendants:
    """But for those that were there before: a shell that started them may have become us."""

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # Kept: the watcher of `hold` looks from another process, in a session of its own.
        self._root, self._session = os.getpid(), os.getsid(0)
        self._before = {(one.pid, one.began) for one in _running()}
        self.command = 0
        """The command itself: meant whatever its session is, and waited for by others."""

    def send(self, number: signal.Signals) -> list[int]:
        """To all that live; their numbers."""
        found = self.living()
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        return found

    async def kill(self) -> list[int]:
        """All, and what they started meanwhile; the numbers of those that are left."""
        loop = asyncio.get_running_loop()
        end, nobody = loop.time() + TO_DIE, 0
        while True:
            found = self.send(signal.SIGKILL)
            # Twice: one whose parent ended while we looked was not found below us.
            nobody = 0 if found else nobody + 1
            if nobody == 2 or loop.time() > end:
                return found
            await asyncio.sleep(0.01)

    def reap(self) -> None:
        """Of those that became our children, whoever has ended: nobody else does."""
        with suppress(ChildProcessError):
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            while (ended := os.waitid(os.P_ALL, 0, options)) and ended.si_pid != self.command:
                os.waitpid(ended.si_pid, os.WNOHANG)

    def living(self) -> list[int]:
        table = [one for one in _running() if (one.pid, one.began) not in self._before]
        below, more = set[int](), {self._root}
        while more:
            below |= more
            more = {one.pid for one in table if one.parent in below} - below
        return [
            one.pid
            for one in table
            if one.pid in below
            and (one.session == self._session or one.pid == self.command)
            and one.state not in "ZX"
        ]


def _running() -> list[Process]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat", errors="replace") as file:
            # The name of the program, which may contain anything, ends with the last parenthesis.
            fields = file.read().rpartition(")")[2].split()
            state, parent, _, session = fields[:4]
            found.append(Process(int(name), fields[19], int(parent), int(session), state))
    return found
