"""The sidecar over another store: leader file, token, resume and log are what they always are."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from backends import Backend
from candidates import Lock
from leasekeeper_sidecar.claim import read_leader
from leasekeeper_sidecar.host import Proc
from servers import Process, wait_until

TIMINGS = {"leaseDurationSeconds": 4, "renewDeadlineSeconds": 3, "retryPeriodSeconds": 0.4}


class Sidecar(Process):
    def __init__(self, home: Path, lock: Lock, **changes: Any) -> None:
        home.mkdir()
        super().__init__(home / "log")
        store = lock.settings["store"]
        told = {"version": 1, "lock": lock.name, "timings": TIMINGS, "store": store}
        config = home / "lock.json"
        config.write_text(json.dumps(told | {store: lock.settings[store] | changes}))
        folders = {name: home / name for name in ("leader", "state")}
        for folder in folders.values():
            folder.mkdir()
        self.file = folders["leader"] / "leader"
        self._environment = {
            "LEASEKEEPER_CONFIG": str(config),
            "LEASEKEEPER_POD_NAME": home.name,
            "LEASEKEEPER_POD_UID": f"uid-of-{home.name}",
            "LEASEKEEPER_LEADER_DIR": str(folders["leader"]),
            "LEASEKEEPER_STATE_DIR": str(folders["state"]),
            "LEASEKEEPER_HTTP_PORT": "0",
            "LEASEKEEPER_LOCAL_PORT": "0",
            "LEASEKEEPER_MIRROR": "none",
        }

    def start(self) -> None:
        self.spawn([sys.executable, "-m", "leasekeeper_sidecar"], **self._environment)

    def token(self) -> int:
        """Once it leads."""
        wait_until(self.leads, f"{self.log.parent.name} to lead:\n{self.output()}")
        return read_leader(str(self.file), Proc()).token

    def leads(self) -> bool:
        return read_leader(str(self.file), Proc()).leader


@pytest.fixture(params=["postgresql", "zookeeper"])
def pods(
    request: pytest.FixtureRequest, backends: Callable[[str], Backend], tmp_path: Path
) -> Iterator[Callable[..., Sidecar]]:
    lock = Lock(backends(request.param), tmp_path)
    made: list[Sidecar] = []

    def make(name: str, **changes: Any) -> Sidecar:
        made.append(Sidecar(tmp_path / name, lock, **changes))
        made[-1].start()
        return made[-1]

    yield make
    for sidecar in made:
        sidecar.kill()


def test_one_leads_a_stop_passes_it_on_and_the_token_rises(pods: Callable[..., Sidecar]) -> None:
    first = pods("first")
    token = first.token()
    second = pods("second")
    wait_until(second.file.exists, "the second's file")
    assert not second.leads()
    assert first.terminate() == 0
    assert second.token() > token


@pytest.mark.parametrize("pods", ["postgresql"], indirect=True)
def test_a_killed_sidecar_comes_back_with_its_token(pods: Callable[..., Sidecar]) -> None:
    sidecar = pods("first")
    token = sidecar.token()
    sidecar.kill()
    sidecar.start()
    wait_until(lambda: "resuming" in sidecar.output(), f"a resume:\n{sidecar.output()}")
    assert sidecar.token() == token


@pytest.mark.parametrize("pods", ["postgresql"], indirect=True)
def test_a_store_that_cannot_be_used_is_said_and_the_sidecar_stands_by(
    pods: Callable[..., Sidecar],
) -> None:
    for name, changes, said in (
        ("table", {"table": "no_such_table"}, "there is no table no_such_table"),
        ("password", {"password": "wrong"}, "refused user app or its password"),
    ):
        sidecar = pods(name, **changes)
        wait_until(lambda: said in sidecar.output(), f"{said}:\n{sidecar.output()}")  # noqa: B023
        assert sidecar.running
        assert not sidecar.leads()
        assert "Traceback" not in sidecar.output()
