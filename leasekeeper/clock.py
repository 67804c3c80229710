"""Time on clocks that nobody sets.

A lease is a promise about *elapsed* time, so the wall clock has no say in it. Two kernel clocks are
read together, because each has one flaw that the other has not:

- CLOCK_BOOTTIME runs on through a suspend, but its rate is slewed by NTP;
- CLOCK_MONOTONIC_RAW is not slewed, but stands still in a suspend.

The time since an instant is the larger of the two differences: a candidate that errs must err
towards "it is over"."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Instant:
    """One reading of both clocks, in seconds. Only meaningful on the machine and boot that it was
    read on.
    """

    boot: float
    raw: float

    def elapsed_since(self, earlier: Instant) -> float:
        return max(self.boot - earlier.boot, self.raw - earlier.raw)


@dataclass(frozen=True, slots=True)
class Deadline:
    """The instant `after` seconds behind `start`; there is no boolean to forget: ask how much is
    left of it.
    """

    start: Instant
    after: float

    def left(self, now: Instant) -> float:
        """Seconds until the deadline; zero or less means that it has passed."""
        return self.after - now.elapsed_since(self.start)

    def passed(self, now: Instant) -> bool:
        return self.left(now) <= 0


class Clock(Protocol):
    """The one source of time in the core. Tests and the simulation inject their own."""

    def now(self) -> Instant: ...

    def wall(self) -> float:
        """Unix time, for people to read. No decision may rest on it."""


class SystemClock:
    """The kernel's clocks."""

    def now(self) -> Instant:
        return Instant(
            boot=time.clock_gettime(time.CLOCK_BOOTTIME),
            raw=time.clock_gettime(time.CLOCK_MONOTONIC_RAW),
        )

    def wall(self) -> float:
        return time.time()


@dataclass(frozen=True, slots=True)
class Drift:
    """By how much two clocks may disagree over a span of time, and still be trusted.

    `rate` covers the difference of two quartzes with a large margin (real ones stay within 0.02 %),
    `fixed` covers the truncation of `/proc/uptime` to hundredths of a second, which is the clock
    that readers of the leader file have."""

    rate: float = 0.01
    fixed: float = 0.010

    def allowance(self, span: float) -> float:
        return span * self.rate + self.fixed
