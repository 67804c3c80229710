"""A real API server for the operator's tests; its objects are made and read by plain JSON."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from leasekeeper_operator.api import Api

REPOSITORY = Path(__file__).resolve().parents[2]
CRDS = REPOSITORY / "crds"

sys.path.insert(0, str(REPOSITORY / "tests" / "cluster" / "kube"))

Object = dict[str, Any]


class Refusal(Exception):
    """What the API server said, as kubectl shows it."""


class Cluster:
    """kubectl as the administrator, against an API server without nodes."""

    def __init__(self, kubectl: str, kubeconfig: str, server: str) -> None:
        self.kubectl = kubectl
        self.kubeconfig = kubeconfig
        self.server = server
        self._numbers = itertools.count(1)

    def run(self, *arguments: str, document: Object | None = None) -> str:
        done = subprocess.run(
            [self.kubectl, "--kubeconfig", self.kubeconfig, *arguments],
            input=json.dumps(document) if document is not None else None,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if done.returncode != 0:
            raise Refusal(done.stderr.strip())
        return done.stdout

    def namespace(self) -> str:
        """A fresh one for each test: objects of earlier ones cannot disturb it."""
        name = f"test-{os.getpid()}-{next(self._numbers)}"
        self.run("create", "namespace", name)
        return name

    def apply(self, document: Object) -> Object:
        output = self.run("apply", "--server-side", "-f", "-", "-o", "json", document=document)
        return dict(json.loads(output))

    def patch(self, namespace: str, kind: str, name: str, body: Object, *more: str) -> Object:
        place = ("-n", namespace, "patch", kind, name, "--type=merge", "-o=json", *more)
        return dict(json.loads(self.run(*place, "-p", json.dumps(body))))

    def get(self, namespace: str, kind: str, name: str) -> Object | None:
        output = self.run("-n", namespace, "get", kind, name, "--ignore-not-found", "-o=json")
        return dict(json.loads(output)) if output else None

    def names(self, namespace: str, kind: str) -> list[str]:
        output = self.run("-n", namespace, "get", kind, "-o=name").split()
        return sorted(line.partition("/")[2] for line in output)

    def lock(self, namespace: str, name: str = "orders", **spec: Any) -> Object:
        return self.apply(custom("DistributedLock", namespace, name, spec))

    def ensemble(self, namespace: str, name: str = "main", **spec: Any) -> Object:
        return self.apply(custom("LockEnsemble", namespace, name, spec))


def custom(kind: str, namespace: str, name: str, spec: Object) -> Object:
    return {
        "apiVersion": "leasekeeper.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Without controllers: what is deleted is not cleaned up behind a test's back."""
    with control_plane(tmp_path_factory.mktemp("plane")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def managed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With the controllers of StatefulSets, disruption budgets and garbage."""
    with control_plane(tmp_path_factory.mktemp("managed"), controller_manager=True) as cluster:
        yield cluster


@contextlib.contextmanager
def control_plane(directory: Path, controller_manager: bool = False) -> Iterator[Cluster]:
    from control_plane import ControlPlane

    with ControlPlane(directory, controller_manager) as plane:
        cluster = Cluster(str(plane.kubectl), str(plane.kubeconfig), plane.server)
        cluster.run("apply", "--server-side", "-f", str(CRDS))
        cluster.run("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        # Established, and for a moment "storage is (re)initializing": kubectl tries again.
        cluster.run("get", "dlock,lens", "--all-namespaces")
        yield cluster


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[Api]:
    api = await Api.connect(cluster.kubeconfig)
    yield api
    await api.close()


@pytest.fixture
async def managed_api(managed: Cluster) -> AsyncIterator[Api]:
    api = await Api.connect(managed.kubeconfig)
    yield api
    await api.close()


async def eventually(true: Callable[[], Any], what: str, patience: float = 30.0) -> Any:
    """The first true value. The condition may block: it is asked in a thread."""
    end = asyncio.get_running_loop().time() + patience
    while True:
        if value := await asyncio.to_thread(true):
            return value
        if asyncio.get_running_loop().time() > end:
            raise TimeoutError(f"waited {patience:g} s for: {what}")
        await asyncio.sleep(0.05)
