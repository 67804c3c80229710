"""A Lease of a test's own on a real API server, and candidates of it."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kube_lease import administrator, fresh_lease

from leasekeeper.clock import SystemClock
from leasekeeper.kubernetes.store import KubernetesStore
from leasekeeper.lease import (
    AlreadyGone,
    Candidate,
    Grant,
    Released,
    Timings,
    Unknown,
)

if TYPE_CHECKING:
    from control_plane import ControlPlane

TIMINGS = Timings(lease_duration=3.0, renew_deadline=2.0, retry_period=0.5)
CLOCK = SystemClock()


@dataclass
class Lock:
    """One Lease of a test's own."""

    plane: ControlPlane
    name: str = field(default_factory=lambda: f"lock-{secrets.token_hex(4)}")

    @classmethod
    def make(cls, plane: ControlPlane) -> Lock:
        lock = cls(plane)
        lock.kubectl("create", "-f-", given=json.dumps(fresh_lease("default", lock.name)))
        return lock

    def store(self, name: str) -> KubernetesStore:
        return KubernetesStore(
            api=administrator(self.plane),
            namespace="default",
            name=self.name,
            candidate=Candidate(name, "uid", secrets.token_hex(4)),
            timings=TIMINGS,
            clock=CLOCK,
        )

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        command = [str(self.plane.kubectl), "--kubeconfig", str(self.plane.kubeconfig), *arguments]
        return subprocess.run(
            command, check=True, input=given, capture_output=True, text=True, timeout=60
        ).stdout

    def object(self) -> Any:
        return json.loads(self.kubectl("get", "lease", self.name, "-o=json"))


async def won(store: KubernetesStore) -> Grant:
    async with asyncio.timeout(30):
        while not isinstance(outcome := await store.acquire(), Grant):
            await asyncio.sleep(0.02)
    return outcome


async def renewed(store: KubernetesStore, grant: Grant) -> Grant:
    """As an elector renews: on a busy machine the API server may not answer within a period, and
    "cannot tell" ends nothing before the deadline."""
    while isinstance(outcome := await store.renew(grant), Unknown):
        pass
    assert isinstance(outcome, Grant), outcome
    return outcome


async def given_back(store: KubernetesStore, grant: Grant) -> None:
    """A release whose answer was lost may have worked, and can be said again."""
    unsure = False
    while isinstance(outcome := await store.release(grant), Unknown):
        unsure = True
    assert outcome == Released() or (unsure and outcome == AlreadyGone())
