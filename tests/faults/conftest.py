"""For the tests of the demo."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty one with a short path, because sockets will be in it."""
    with tempfile.TemporaryDirectory(prefix="lk-") as name:
        yield Path(name)
