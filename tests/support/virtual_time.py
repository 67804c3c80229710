"""Virtual time: an event loop in which nobody waits, and clocks that follow it.

The loop's time stands still while anything can run, and jumps to the next timer when nothing can.
A test of an hour takes milliseconds, and two runs of it are the same.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from leasekeeper.clock import Instant

T = TypeVar("T")


class _Jump(selectors.SelectSelector):
    """Instead of waiting for `timeout`, moves the loop's time on by it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("deadlock: everybody waits, and no timer is set")
        self.now += max(timeout, 0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now


class VirtualClock:
    """A process's clocks. They may run at another rate than the loop's, jump, or stand still."""

    def __init__(self, loop: VirtualLoop | None = None) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self.boot_offset = 1000.0
        self.raw_offset = 500.0
        self.wall_offset = 1_763_427_000.0

    def now(self) -> Instant:
        time = self._loop.time()
        return Instant(boot=time + self.boot_offset, raw=time + self.raw_offset)

    def wall(self) -> float:
        return self._loop.time() + self.wall_offset


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
