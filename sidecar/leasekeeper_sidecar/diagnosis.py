"""A store that says why nobody can be elected, and measures how it is renewed.

The elector acts on outcomes and needs no reasons; a person who finds a pod without a leader does:
which node did not answer, which one is in quarantine, which password is wrong.
"""

from __future__ import annotations

from collections.abc import Callable

from leasekeeper.clock import Clock, Instant
from leasekeeper.lease import (
    Acquired,
    Causes,
    Grant,
    LeaseStore,
    Observation,
    ReleaseOutcome,
    Renewed,
    Unavailable,
)
from leasekeeper.redlock.store import RedlockStore
from leasekeeper_sidecar.log import Log
from leasekeeper_sidecar.metrics import Counters


def as_text(causes: Causes) -> str:
    return "; ".join(f"{node}: {why}" for node, why in sorted(causes.items()))


class Explaining:
    """Passes everything on to another store, and logs what keeps an attempt from being decided."""

    def __init__(
        self,
        store: LeaseStore,
        *,
        lock: str,
        every: float,
        clock: Clock,
        log: Log,
        counters: Counters,
    ) -> None:
        self._store = store
        self._counters = counters
        self._said_yes: dict[str, Instant] = {}
        self._by_node = isinstance(store, RedlockStore)
        if isinstance(store, RedlockStore):
            store.on_renewal = self._heard
        self._lock = lock
        self._every = every
        self._clock = clock
        self._log = log
        self._said = ""
        self._said_at: Instant | None = None
        self.on_released: Callable[[], None] = lambda: None
        """Told when the lease was given back, as far as the nodes could be reached; the mirror
        listens. Must not block.
        """

    async def acquire(self) -> Acquired:
        outcome = await self._store.acquire()
        if not isinstance(outcome, Unavailable):
            if self._said:
                self._log.event("quorum-again", lock=self._lock)
            self._said = ""
        elif outcome.retry_in is None:  # otherwise a split vote: it passes within milliseconds
            self._explain(as_text(outcome.causes))
        return outcome

    def _heard(self, node: str, yes: bool, seconds: float) -> None:
        self._counters.count_answer(node, seconds)
        if yes:
            self._said_yes[node] = self._clock.now()

    def quorum_margin(self, within: float) -> int | None:
        """By how many more nodes than it takes the lease was renewed lately; none: there are no
        nodes to count.
        """
        if not isinstance(self._store, RedlockStore):
            return None
        now = self._clock.now()
        yes = sum(now.elapsed_since(at) <= within for at in self._said_yes.values())
        return yes - self._store.quorum

    def _explain(self, why: str) -> None:
        """At a change, and from time to time; not at every attempt."""
        now = self._clock.now()
        recent = self._said_at is not None and now.elapsed_since(self._said_at) < self._every
        if why == self._said or (self._said and recent):
            return
        self._said, self._said_at = why or "no reason given", now
        # Nodes that keep this pod out on purpose (a pause, a step-down) are no loss of a quorum.
        name = "kept-out" if "PAUSED" in why else "no-quorum"
        self._log.event(name, lock=self._lock, causes=self._said)

    async def ready(self) -> None:
        await self._store.ready()

    async def renew(self, grant: Grant) -> Renewed:
        began = self._clock.now()
        outcome = await self._store.renew(grant)
        if not self._by_node:
            self._counters.count_answer("store", self._clock.now().elapsed_since(began))
        return outcome

    async def release(self, grant: Grant) -> ReleaseOutcome:
        outcome = await self._store.release(grant)
        self.on_released()
        return outcome

    async def freed(self) -> None:
        await self._store.freed()

    async def observe(self) -> Observation:
        return await self._store.observe()

    async def close(self) -> None:
        await self._store.close()
