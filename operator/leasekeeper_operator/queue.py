"""A queue of keys: each is worked on by one worker at a time, and a key that waits is there once.
Each kind has workers of its own: a look at nodes does not wait behind a thousand locks, and locks
do not wait for nodes that do not answer.

add ──▶ ready ──▶ running ──done──▶ (asked again in so many seconds) ──▶ ready
         ▲           └──failed──▶ back-off ──▶ ready
         └── added while running: once more, afterwards
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from leasekeeper_operator.api import ENSEMBLE, LOCK, ApiError
from leasekeeper_operator.model import Key

log = logging.getLogger(__name__)

FIRST_BACK_OFF = 0.5  # an optimistic write that lost is won at the next try
LONGEST_BACK_OFF = 30.0  # how long after the end of an outage the last key is served again

KINDS = (ENSEMBLE.name, LOCK.name)

Reconcile = Callable[[Key], Awaitable[float | None]]
"""Brings the world to the spec; returns in how many seconds it wants to look again, or none."""


def back_off(failures: int) -> float:
    """Doubles, with jitter, so that all keys that failed together do not come back together."""
    pause: float = min(FIRST_BACK_OFF * 2 ** min(failures - 1, 10), LONGEST_BACK_OFF)
    return pause * random.uniform(0.75, 1.0)


class Queue:
    """Not thread-safe: one event loop."""

    def __init__(self) -> None:
        self._ready: dict[str, asyncio.Queue[Key]] = {kind: asyncio.Queue() for kind in KINDS}
        self._waiting: set[Key] = set()
        self._running: set[Key] = set()
        self._again: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._unless: dict[Key, list[Callable[[], bool]]] = {}

    @property
    def idle(self) -> bool:
        """Nothing to do now; later, maybe."""
        return not self._waiting and not self._running

    @property
    def depth(self) -> int:
        """Keys that wait for a worker."""
        return len(self._waiting)

    @property
    def failing(self) -> int:
        """Keys whose last reconciliation failed."""
        return len(self._failures)

    def add(self, key: Key, after: float = 0.0) -> None:
        """The earliest of several times counts."""
        if key in self._waiting:
            return
        timer = self._timers.get(key)
        if after > 0:
            loop = asyncio.get_running_loop()
            if timer is None or timer.when() > loop.time() + after:
                if timer is not None:
                    timer.cancel()
                self._timers[key] = loop.call_later(after, self._due, key)
            return
        if timer is not None:
            timer.cancel()
        self._due(key)

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        if key in self._running:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready[key.kind].put_nowait(key)

    def add_unless(self, key: Key, known: Callable[[], bool]) -> None:
        """After an event that may be the echo of our own work. Whoever works on the key now may be
        about to write, or to hear what was written, so `known` is asked when that is done."""
        if key in self._running:
            self._unless.setdefault(key, []).append(known)
        elif not known():
            self.add(key)

    def start(self, reconcile: Reconcile, workers: int) -> list[asyncio.Task[None]]:
        """So many workers for each kind; they go on until they are cancelled."""
        return [
            asyncio.create_task(self._work(ready, reconcile), name=f"worker {number} of {kind}")
            for kind, ready in self._ready.items()
            for number in range(workers)
        ]

    async def _work(self, ready: asyncio.Queue[Key], reconcile: Reconcile) -> None:
        while True:
            key = await ready.get()
            self._waiting.discard(key)
            self._running.add(key)
            try:
                again = await reconcile(key)
            except Exception as error:  # noqa: BLE001  the root of a key's work: others go on
                self._failed(key, error)
            else:
                self._failures.pop(key, None)
                if again is not None:
                    self.add(key, again)
            finally:
                self._running.discard(key)
                unknown = [known for known in self._unless.pop(key, ()) if not known()]
                if key in self._again or unknown:
                    self._again.discard(key)
                    self.add(key)

    def _failed(self, key: Key, error: Exception) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause = back_off(failures)
        log.warning(
            'reconcile-failed kind=%s key=%s failures=%d retry_in=%.1f error="%s: %s"',
            *(key.kind, key, failures, pause, type(error).__name__, error),
            # What the API server says explains itself; anything else may be a bug of ours.
            exc_info=None if isinstance(error, ApiError) else error,
        )
        # An event that came meanwhile must not take away the pause.
        self._again.discard(key)
        self._unless.pop(key, None)
        self.add(key, pause)
