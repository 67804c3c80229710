"""The stores that the conformance suite runs over: each is one entry of `backends.STORES`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from backends import STORES, Backend, started
from candidates import Lock


@pytest.fixture(scope="session")
def backends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Backend]]:
    """Each store's servers, started when they are first asked for, once for all tests."""
    running: dict[str, Backend] = {}
    with ExitStack() as stack:

        def get(name: str) -> Backend:
            if name not in running:
                folder = tmp_path_factory.mktemp(name)
                running[name] = stack.enter_context(started(name, folder))
            return running[name]

        yield get


@pytest.fixture(params=STORES, scope="module")
def backend(request: pytest.FixtureRequest, backends: Callable[[str], Backend]) -> Backend:
    return backends(request.param)


@pytest.fixture
async def lock(backend: Backend, tmp_path: Path) -> AsyncIterator[Lock]:
    made = Lock(backend, tmp_path)
    yield made
    backend.heal()
    await made.close()
