"""The chart as helm renders it. `helm` is the pinned one of the test cluster."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "leasekeeper"

sys.path.insert(0, str(REPOSITORY / "tests" / "cluster" / "kube"))

Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]


@pytest.fixture(scope="session")
def helm_program() -> str:
    """Fetched into the cache on first use; no cluster is needed."""
    from localkube import pins, toolchain
    from localkube.progress import Progress

    return str(toolchain.helm(pins.load(), Progress()))


@pytest.fixture(scope="session")
def helm(helm_program: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [helm_program, *arguments], capture_output=True, text=True, check=False, timeout=60
        )

    return run


@pytest.fixture(scope="session")
def render(helm: Callable[..., subprocess.CompletedProcess[str]]) -> Render:
    """The objects of `helm template`, each argument a value as of --set-json."""

    def run(
        *values: str, release: str = "lk", namespace: str = "system", tests: bool = False
    ) -> list[Manifest]:
        options = [part for value in values for part in ("--set-json", value)]
        place = ("--namespace", namespace, *(() if tests else ("--skip-tests",)))
        done = helm("template", release, str(CHART), *place, *options)
        assert done.returncode == 0, done.stderr
        return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]

    return run


def one(manifests: list[Manifest], kind: str) -> Manifest:
    """The only object of that kind."""
    (found,) = [manifest for manifest in manifests if manifest["kind"] == kind]
    return found
