"""The health gate: a pod whose app is ill gives up leadership, and stays out of the race until it
is well.

With an escape, or one health check that is wrong everywhere would leave a lock without a leader for
ever: when nobody has led for that long, an ill pod may lead. It leads for as long again and then
gives up once more, so that a pod that has become well meanwhile gets its turn; if none has, it is
back after one lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from dataclasses import dataclass, field

from leasekeeper.clock import Instant
from leasekeeper_sidecar.config import HealthConfig
from leasekeeper_sidecar.loopback import Address, NoAnswer

LONGEST_LOOK = 5.0  # seconds; a shorter period is a shorter patience, too


@dataclass(slots=True)
class Gate:
    """What the looks so far mean. Pure: told what was seen and when, it says whether the pod may
    lead.
    """

    failures: int
    escape: float
    encore: float
    """How long nobody must have led, after an escape that was given up: one lease."""
    healthy: bool = False
    """Not before the first good look: an app that starts cannot lead yet."""
    failed: int = 0
    escaped: bool = False
    _patience: float = field(init=False)
    _since: Instant | None = None  # nobody leads; or, escaped, we do

    def __post_init__(self) -> None:
        self._patience = self.escape

    def look(self, well: bool, *, leading: bool, somebody: bool, now: Instant) -> bool:
        """Whether the pod may lead. `somebody`: another pod leads, as far as anybody knows."""
        if well:
            self.healthy, self.failed, self.escaped, self._since = True, 0, False, None
            self._patience = self.escape
            return True
        self.failed += 1
        if self.failed >= self.failures:
            self.healthy = False
        if self.healthy or (leading and self.failed < self.failures):
            return True  # also a tenure that a killed sidecar left: a few bad looks do not end it
        return self._escape(leading, somebody, now)

    def _escape(self, leading: bool, somebody: bool, now: Instant) -> bool:
        if somebody:
            # Whoever escaped at the same moment and did not win is out again: in the race it would
            # take the turn that the ill leader gives up for one that is well.
            self.escaped, self._since, self._patience = False, None, self.escape
        elif self._since is None:
            self._since = now
        if self.escaped:
            if leading and self._elapsed(now) >= self.escape:
                self.escaped, self._since, self._patience = False, None, self.encore
        elif not leading and self._since is not None and self._elapsed(now) >= self._patience:
            self.escaped, self._since = True, None
        return self.escaped

    def _elapsed(self, now: Instant) -> float:
        return 0.0 if self._since is None else now.elapsed_since(self._since)


class Probe:
    """Looks at the app."""

    def __init__(self, config: HealthConfig) -> None:
        self._address = config.address
        self.period = config.period
        self._within = min(config.period, LONGEST_LOOK)
        self._looking: asyncio.Future[bool] | None = None

    async def look(self) -> str:
        """Why the app is ill; empty: it is well."""
        if self._address.startswith("/"):
            return await self._look_at_file(self._address)
        try:
            status = await Address.parse(self._address).ask("GET", b"", self._within)
        except TimeoutError:
            return f"no answer within {self._within:g} s"
        except NoAnswer as wrong:
            return str(wrong)
        return "" if 200 <= status < 400 else f"status {status}"

    async def _look_at_file(self, path: str) -> str:
        if self._looking is None:
            self._looking = _exists(path)
        try:
            async with asyncio.timeout(self._within):
                there = await asyncio.shield(self._looking)
        except TimeoutError:
            return f"its volume does not answer within {self._within:g} s"
        self._looking = None
        return "" if there else f"there is no file {path}"


def _exists(path: str) -> asyncio.Future[bool]:
    """In a thread, because the volume is the app's and may hang; and in one that nobody waits for
    at the end, as asyncio does for its own.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[bool] = loop.create_future()

    def look() -> None:
        there = os.path.exists(path)
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(found.set_result, there)

    threading.Thread(target=look, daemon=True).start()
    return found
