"""Fixtures of the tests with real servers. With CI=true nothing is skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from servers import FLAVOURS, Server, binary


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> str:
    """Each test that asks for it runs on Redis 7.0 and on Valkey."""
    name: str = request.param
    if binary(name) is None and not os.environ.get("CI"):
        pytest.skip(f"{name} is not installed here")
    return name


@pytest.fixture
def server(flavour: str) -> Iterator[Server]:
    """One server with a node's configuration and an empty memory; no agent."""
    with Server(flavour) as running:
        yield running
