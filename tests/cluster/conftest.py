"""A real cluster for the tests of this folder: see kube/README.md.

    LEASEKEEPER_CLUSTER=NAME        which cluster (default: `default`)
    LEASEKEEPER_KEEP_CLUSTER=1      leave it up when the tests are done

A cluster that was up before the tests is used as it is, with the project's images built anew, and
stays up: somebody works with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

KUBE = Path(__file__).resolve().parent / "kube"
REPOSITORY = KUBE.parents[2]
LOGS = REPOSITORY / "build" / "cluster-logs"

sys.path.insert(0, str(KUBE))

from localkube import lifecycle, topology  # noqa: E402

from tests.cluster.client import Client  # noqa: E402

NAME = os.environ.get("LEASEKEEPER_CLUSTER", "default")

KEEP_LOGS = 5
"""Folders of failed runs that are kept; each has some megabytes."""


def cluster_py(command: str, *arguments: str) -> None:
    argv = [sys.executable, str(KUBE / "cluster.py"), command, "--name", NAME, *arguments]
    subprocess.run(argv, check=True)


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    if os.geteuid() != 0 and not os.environ.get("CI"):
        pytest.skip("a cluster needs root")
    cluster = topology.Cluster(NAME)
    was_up = lifecycle.is_up(cluster)
    cluster_py("load" if was_up else "up")
    yield Client(cluster)
    if not was_up and not os.environ.get("LEASEKEEPER_KEEP_CLUSTER"):
        cluster_py("down")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A failure leaves the logs of every component in one folder, and the report says where."""
    report = yield
    uses_cluster = "client" in getattr(item, "fixturenames", ())
    if report.failed and uses_cluster:  # type: ignore[attr-defined]
        report.sections.append(("logs of the cluster", _collect(item)))  # type: ignore[attr-defined]
    return report


def _collect(item: pytest.Item) -> str:
    folder = LOGS / f"{time.strftime('%Y%m%d-%H%M%S')}-{item.name}"
    folder.mkdir(parents=True, exist_ok=True)
    for old in sorted(LOGS.iterdir())[:-KEEP_LOGS]:
        shutil.rmtree(old, ignore_errors=True)
    try:
        cluster_py("logs", str(folder))
    except subprocess.CalledProcessError as failed:
        return f"could not be collected: {failed}"
    watched = item.funcargs.get("watcher") if hasattr(item, "funcargs") else None
    if watched is not None and watched.out.exists():
        shutil.copy(watched.out, folder / "watcher.jsonl")
    return str(folder)
