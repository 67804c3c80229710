"""The Kubernetes Lease store in virtual time, over an API server in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from kube_lease import MemoryApi, fresh_lease
from virtual_time import VirtualClock, run

from leasekeeper.kubernetes.store import KubernetesStore
from leasekeeper.lease import (
    Candidate,
    Grant,
    Timings,
    Unavailable,
)

TIMINGS = Timings(lease_duration=15, renew_deadline=10, retry_period=2)


class World:
    def __init__(self) -> None:
        self.api = MemoryApi()
        self.clock = VirtualClock()

    def store(self, name: str = "a", clock: VirtualClock | None = None) -> KubernetesStore:
        return KubernetesStore(
            api=self.api,
            namespace="shop",
            name="orders",
            candidate=Candidate(name, "uid", f"nonce-of-{name}"),
            timings=TIMINGS,
            clock=clock or self.clock,
        )

    def make(self) -> None:
        """A Lease that somebody vouches for."""
        self.api.act("POST", fresh_lease("shop", "orders"))

    @property
    def spec(self) -> Any:
        assert self.api.lease is not None
        return self.api.lease["spec"]

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()


def virtual(test: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def in_virtual_time() -> None:
        async def main() -> None:
            await test(World())

        run(main())

    in_virtual_time.__name__, in_virtual_time.__doc__ = test.__name__, test.__doc__
    return in_virtual_time


async def won(store: KubernetesStore) -> Grant:
    outcome = await store.acquire()
    if isinstance(outcome, Unavailable) and outcome.retry_in is not None:
        await asyncio.sleep(outcome.retry_in)  # the Lease is new
        outcome = await store.acquire()
    assert isinstance(outcome, Grant), outcome
    return outcome
