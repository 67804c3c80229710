"""The stores that the conformance suite runs over. A new store is added by one entry of STORES."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from ensemble import Ensemble
from kube_lease import administrator, control_plane

from leasekeeper.clock import SystemClock
from leasekeeper.kubernetes.store import KubernetesStore
from leasekeeper.lease import Candidate, LeaseStore, Timings
from leasekeeper.redlock.store import RedlockStore

TIMINGS = Timings(lease_duration=3.0, renew_deadline=2.0, retry_period=0.5)

MakeStore = Callable[[str, str], LeaseStore]
"""A store for a lock and a candidate's name; `prepare` has made the lock known."""


class Backend:
    """One store's servers: makes locks, and candidates for them."""

    def __init__(self, prepare: Callable[[str], None], make: MakeStore) -> None:
        self.prepare = prepare
        self.make = make


@contextmanager
def redlock() -> Iterator[Backend]:
    with Ensemble(5, max_ttl=3.0, quarantine=3.2) as ensemble:
        ensemble.wait_open()
        credentials: dict[str, tuple[str, str]] = {}

        def prepare(lock: str) -> None:
            credentials[lock] = ensemble.add_lock(lock)

        def make(lock: str, name: str) -> LeaseStore:
            username, password = credentials[lock]
            return RedlockStore(
                membership=ensemble.membership,
                lock=lock,
                candidate=Candidate(name, "uid", secrets.token_hex(4)),
                timings=TIMINGS,
                clock=SystemClock(),
                username=username,
                password=password,
            )

        yield Backend(prepare, make)


@contextmanager
def kubernetes() -> Iterator[Backend]:
    with control_plane() as plane:
        kubectl = (str(plane.kubectl), "--kubeconfig", str(plane.kubeconfig))
        subprocess.run([*kubectl, "create", "namespace", "shop"], check=True, timeout=60)

        def make(lock: str, name: str) -> LeaseStore:
            namespace, _, lease = lock.partition("/")
            return KubernetesStore(
                api=administrator(plane),
                namespace=namespace,
                name=lease,
                candidate=Candidate(name, "uid", secrets.token_hex(4)),
                timings=TIMINGS,
                clock=SystemClock(),
            )

        yield Backend(lambda lock: None, make)


STORES: dict[str, Callable[[], AbstractContextManager[Backend]]] = {
    "redlock": redlock,
    "kubernetes": kubernetes,
}


@pytest.fixture(scope="module", params=STORES)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with STORES[request.param]() as running:
        yield running


@pytest.fixture
async def candidate(backend: Backend) -> AsyncIterator[Callable[[str], LeaseStore]]:
    """Makes candidates of a lock that is this test's own."""
    lock = f"shop/{secrets.token_hex(4)}"
    backend.prepare(lock)
    made: list[LeaseStore] = []

    def make(name: str) -> LeaseStore:
        made.append(backend.make(lock, name))
        return made[-1]

    yield make
    for store in made:
        await store.close()
