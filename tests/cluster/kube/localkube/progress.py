"""Progress lines with the elapsed time, and a closing table of what each part took.

Everything goes to standard error: standard output belongs to `cluster.py env`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Part:
    """One row of the closing table. Whoever does the work says whether it had to be done."""

    name: str
    cached: bool = False
    seconds: float = 0.0


@dataclass
class Progress:
    """Says what is going on, with the time since the command began."""

    started: float = field(default_factory=time.monotonic)
    parts: list[Part] = field(default_factory=list)

    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def say(self, text: str) -> None:
        print(f"[{self.elapsed():6.1f} s] {text}", file=sys.stderr, flush=True)

    @contextmanager
    def part(self, name: str) -> Iterator[Part]:
        part = Part(name)
        begun = time.monotonic()
        try:
            yield part
        finally:
            part.seconds = time.monotonic() - begun
            self.parts.append(part)

    def table(self) -> None:
        """What each part took; a part found in the cache counts as warm."""
        width = max((len(part.name) for part in self.parts), default=0)
        for part in self.parts:
            took = "cached" if part.cached else f"{part.seconds:.1f} s"
            print(f"  {part.name:<{width}}  {took}", file=sys.stderr)
        print(f"  {'all':<{width}}  {self.elapsed():.1f} s", file=sys.stderr, flush=True)
