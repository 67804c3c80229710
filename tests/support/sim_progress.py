"""A bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

WIDTH = 24
ON_TERMINAL, ELSEWHERE = 0.5, 20.0  # seconds between two looks


def duration(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


class Progress:
    def __init__(self, total: int, out: TextIO = sys.stdout) -> None:
        self._total = total
        self._out = out
        self._bar = out.isatty()
        self._began = self._said = time.monotonic()

    def show(self, done: int, violations: int) -> None:
        now = time.monotonic()
        if now - self._said < (ON_TERMINAL if self._bar else ELSEWHERE):
            return
        self._said = now
        line = self.line(done, violations, now - self._began)
        print(
            f"\r{line}\033[K" if self._bar else line, end="" if self._bar else "\n", file=self._out
        )
        self._out.flush()

    def line(self, done: int, violations: int, seconds: float) -> str:
        rate = done / seconds if seconds > 0 else 0.0
        left = duration((self._total - done) / rate) if rate else "?"
        full = WIDTH * done // self._total
        bar = "█" * full + "░" * (WIDTH - full)
        return (
            f"{bar} {100 * done // self._total:>3} %  {done:,} of {self._total:,} schedules"
            f"  {rate:.0f} a second  {left} left  {violations} violations"
        )

    def clear(self) -> None:
        """The bar goes away, so that something else can be said."""
        if self._bar:
            print("\r\033[K", end="", file=self._out, flush=True)
