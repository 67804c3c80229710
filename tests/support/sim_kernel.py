"""True time, processes and their clocks: what every simulated thing stands on.

There is one queue of events in true time. A process handles what is delivered to it, one thing
after the other; while it is paused, what is delivered waits; when it is dead, nothing reaches it,
and nothing that it still does has an effect. Everything is a function of the seed.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from leasekeeper.clock import Instant

Callback = Callable[..., object]

RATE_SPREAD = 0.0049
"""Of every clock, around true time: any two differ by less than the protocol's 1 %."""


Timer = list[Any]
"""One event to come: when, in which order of all, what, and with what. A list, because the queue
makes and compares a thousand of them in a schedule.
"""


def cancel(timer: Timer) -> None:
    """It stays in the queue, and what it held on to does not."""
    timer[2], timer[3] = None, ()


class Kernel:
    """The queue of events, the dice, the trace, and the record of what was seen."""

    def __init__(self, seed: int | str, *, traced: bool = False) -> None:
        self.now = 0.0
        self.dice = random.Random(seed)
        self.trace: list[str] | None = [] if traced else None
        self.seen: Counter[str] = Counter()
        """How often each kind of thing happened (sim_coverage says which must)."""
        self.stopped = False
        """Set by whoever has seen enough; `run` returns then."""
        self._queue: list[Timer] = []
        self._order = 0
        self._names = 0

    def at(self, when: float, callback: Callback, *args: Any) -> Timer:
        self._order = order = self._order + 1
        timer = [when, order, callback, args]
        heapq.heappush(self._queue, timer)
        return timer

    def after(self, seconds: float, callback: Callback, *args: Any) -> Timer:
        return self.at(self.now + seconds, callback, *args)

    def run(self, until: float) -> None:
        """Until that time, or until somebody stops it."""
        queue, pop = self._queue, heapq.heappop
        while queue and queue[0][0] <= until and not self.stopped:
            when, _, callback, args = pop(queue)
            if callback is not None:
                if when > self.now:
                    self.now = when
                callback(*args)
        if not self.stopped:
            self.now = max(self.now, until)

    def forget(self) -> None:
        """Nothing more is to come. Whatever is still due holds on to all that there was."""
        self._queue.clear()

    def say(self, who: str, what: str) -> None:
        """One line of the trace. Callers on hot paths look at `trace` before they make the text."""
        if self.trace is not None:
            self.trace.append(f"{self.now:9.4f}  {who:<10} {what}")

    def fresh(self, what: str) -> str:
        """A name that was never used; the simulation's random bytes."""
        self._names += 1
        return f"{what}{self._names}"


class MachineClocks:
    """The clocks of one machine. They begin anywhere, and each has a rate of its own."""

    def __init__(self, kernel: Kernel, spread: float = RATE_SPREAD) -> None:
        dice = kernel.dice
        self._kernel = kernel
        # At the ends of what is allowed more often than in the middle: errors live there.
        self.rate = 1 + dice.choice([-spread, spread, dice.uniform(-spread, spread)])
        slew = dice.choice([0.0, dice.uniform(-spread, spread) * 0.1])
        self.boot_rate = min(max(self.rate + slew, 1 - spread), 1 + spread)
        self.boot_offset = dice.uniform(10, 1000)
        self.raw_offset = dice.uniform(1, self.boot_offset)
        self.wall_offset = dice.uniform(100, 200)  # small, so that tokens can be read
        self._suspended_at: float | None = None

    def raw(self) -> float:
        at = self._kernel.now if self._suspended_at is None else self._suspended_at
        return at * self.rate + self.raw_offset

    def boot(self) -> float:
        return self._kernel.now * self.boot_rate + self.boot_offset

    def now(self) -> Instant:
        return Instant(boot=self.boot(), raw=self.raw())

    def wall(self) -> float:
        return self._kernel.now + self.wall_offset

    def true_of_raw(self, raw: float) -> float:
        return (raw - self.raw_offset) / self.rate

    def true_of_boot(self, boot: float) -> float:
        return (boot - self.boot_offset) / self.boot_rate

    @property
    def suspended(self) -> bool:
        return self._suspended_at is not None

    def suspend(self) -> None:
        """The raw clock stands still; the boot clock runs on."""
        if self._suspended_at is None:
            self._suspended_at = self._kernel.now

    def wake(self) -> None:
        if self._suspended_at is not None:
            self.raw_offset -= (self._kernel.now - self._suspended_at) * self.rate
            self._suspended_at = None


class Process:
    """Something that handles one event at a time, can be paused, and can die."""

    def __init__(self, kernel: Kernel, name: str, clocks: MachineClocks) -> None:
        self.kernel = kernel
        self.name = name
        self.host = name
        """Where it is on the network: what is cut off, and what finds a ghost."""
        self.clocks = clocks
        self.alive = True
        self.pauses = 0
        self._waiting: deque[tuple[Callback, tuple[Any, ...]]] = deque()

    @property
    def paused(self) -> bool:
        return self.pauses > 0

    def deliver(self, callback: Callback, *args: Any) -> None:
        if not self.alive:
            return
        if self.pauses:
            self._waiting.append((callback, args))
        else:
            self.handle(callback, args)

    def handle(self, callback: Callback, args: tuple[Any, ...]) -> None:
        callback(*args)

    def pause(self, seconds: float, *, suspend: bool = False) -> None:
        """Pauses may overlap; the process goes on when the last of them has ended."""
        if self.alive:
            self.kernel.say(self.name, f"{'suspended' if suspend else 'paused'} for {seconds:.3f}")
            self.pauses += 1
            if suspend:
                self.clocks.suspend()
            self.kernel.after(seconds, self._unpause)

    def _unpause(self) -> None:
        self.pauses -= 1
        if self.pauses:
            return
        self.clocks.wake()
        if not self.alive:
            return
        self.kernel.say(self.name, "goes on")
        while self._waiting and self.alive and not self.pauses:
            callback, args = self._waiting.popleft()
            self.handle(callback, args)

    def die(self) -> None:
        self.alive = False
        self._waiting.clear()
