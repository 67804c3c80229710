"""A start that cannot be, and SIGTERM at odd moments. No node answers here: none is needed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from servers import free_port, wait_until

if TYPE_CHECKING:
    from tests.sidecar.conftest import Pod


def lock_of(host: str) -> dict[str, Any]:
    nodes = [{"id": str(n), "host": host, "port": free_port()} for n in range(3)]
    membership = {
        "number": 1,
        "maxTtlSeconds": 15,
        "quarantineSeconds": 16,
        "capSeconds": 0.1,
        "nodes": nodes,
    }
    redlock = {"membership": membership, "username": "app", "password": "secret"}
    return {"version": 1, "lock": "test/stop", "store": "redlock", "redlock": redlock}


@pytest.fixture
def pod(tmp_path: Path, make_pod: Callable[..., Pod]) -> Iterator[Pod]:
    config = tmp_path / "lock.json"
    config.write_text(json.dumps(lock_of("127.0.0.1")))
    made = make_pod(tmp_path / "pod", "pod-0", config)
    yield made
    made.kill()


@pytest.mark.parametrize("key", ["LEASEKEEPER_LEADER_DIR", "LEASEKEEPER_STATE_DIR"])
def test_a_volume_that_cannot_be_used_is_named_by_its_key(pod: Pod, key: str) -> None:
    pod.environment[key] = "/proc/sys"
    pod.start()
    assert pod.wait() == 1
    assert pod.output().startswith(f"a volume or a port cannot be used: {key}: ")
    assert "Traceback" not in pod.output()


@pytest.mark.parametrize("key", ["LEASEKEEPER_HTTP_PORT", "LEASEKEEPER_LOCAL_PORT"])
def test_a_port_that_is_taken_is_named_by_its_key(pod: Pod, key: str) -> None:
    with socket.create_server(("127.0.0.1", int(pod.environment[key]))):
        pod.start()
        assert pod.wait() == 1
    assert f"a volume or a port cannot be used: {key}: " in pod.output()
    assert "Traceback" not in pod.output()


def stopped_before_it_listens(pod: Pod, command: list[str]) -> int:
    """The status of a sidecar that is told to stop while it reads its configuration."""
    config = Path(pod.environment["LEASEKEEPER_CONFIG"])
    pipe = config.with_name("pipe.json")
    os.mkfifo(pipe)
    pod.environment["LEASEKEEPER_CONFIG"] = str(pipe)
    pod.spawn(command, **pod.environment)
    wait_until(pod.sleeps_in_open, "it to read its configuration")
    pod.send(signal.SIGTERM)
    fd = os.open(pipe, os.O_RDWR)  # does not wait for the other end
    with contextlib.suppress(FileNotFoundError):
        os.write(fd, config.read_bytes())
        wait_until(lambda: not pod.running or not pod.sleeps_in_open(), "it to go on")
    os.close(fd)
    return pod.wait()


def test_a_stop_that_comes_before_anybody_listens_is_a_stop(pod: Pod) -> None:
    assert stopped_before_it_listens(pod, [sys.executable, "-m", "leasekeeper_sidecar"]) == 0
    assert pod.events("stopped")
    assert not pod.leads


def test_control_without_the_first_line_it_is_a_death_by_a_signal(pod: Pod) -> None:
    without = [sys.executable, "-c", "from leasekeeper_sidecar.main import main; main()"]
    assert stopped_before_it_listens(pod, without) == -signal.SIGTERM


SLOW_NAMES = """
import pathlib, socket, time
real = socket.getaddrinfo

def getaddrinfo(host, *more, **others):
    if host == "node.example":
        pathlib.Path({begun!r}).touch()
        time.sleep(60)
        pathlib.Path({done!r}).touch()
    return real(host, *more, **others)

socket.getaddrinfo = getaddrinfo
"""


def test_a_stop_does_not_wait_for_a_name_service_that_hangs(pod: Pod, tmp_path: Path) -> None:
    """Names are looked up in threads, which nobody can end."""
    begun, done = tmp_path / "begun", tmp_path / "done"
    (tmp_path / "sitecustomize.py").write_text(SLOW_NAMES.format(begun=str(begun), done=str(done)))
    (tmp_path / "lock.json").write_text(json.dumps(lock_of("node.example")))
    pod.environment["PYTHONPATH"] = str(tmp_path)
    pod.start()
    wait_until(begun.exists, "it to look up a name")
    pod.send(signal.SIGTERM)
    assert pod.wait() == 0
    assert not done.exists()
    assert pod.said()["leader"] is False
