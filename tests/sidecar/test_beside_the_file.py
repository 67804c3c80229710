"""What the sidecar puts beside the leader file: before the programs that look for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from leasekeeper_sidecar import config as configuration
from leasekeeper_sidecar.leader_file import LeaderFile
from leasekeeper_sidecar.log import Log
from leasekeeper_sidecar.main import Sidecar

from leasekeeper.lease import Timings

NODES = [{"id": str(i), "host": "127.0.0.1", "port": i + 1} for i in range(3)]
MEMBERSHIP = {"number": 1, "maxTtlSeconds": 15, "quarantineSeconds": 16, "capSeconds": 0.1}
REDLOCK = {"membership": {**MEMBERSHIP, "nodes": NODES}, "username": "u", "password": "p"}


class Enough(Exception):
    """The last program is there."""


async def test_whoever_waits_for_a_program_finds_what_it_looks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An app's entry point may wait for `run-as-leader`, and start it in the same moment."""
    leader_dir = tmp_path / "leader"
    found: dict[str, set[str]] = {}
    install = LeaderFile.install_programs

    def spy(file: LeaderFile) -> None:
        found[Path(file.folder).name] = {path.name for path in Path(file.folder).iterdir()}
        install(file)
        if file.folder == str(leader_dir):
            raise Enough

    monkeypatch.setattr(LeaderFile, "install_programs", spy)
    locks = [
        {"version": 1, "lock": f"shop/{name}", "store": "redlock", "redlock": REDLOCK}
        for name in ("orders", "stock")
    ]
    config = configuration.load(
        [],
        {
            "LEASEKEEPER_CONFIG_JSON": json.dumps(locks),
            "LEASEKEEPER_POD_NAME": "orders-0",
            "LEASEKEEPER_POD_UID": "5f0c",
            "LEASEKEEPER_LEADER_DIR": str(leader_dir),
            "LEASEKEEPER_STATE_DIR": str(tmp_path / "state"),
        },
    )
    with pytest.raises(Enough):
        await Sidecar(config, Log()).run()
    for name in ("orders", "stock"):
        assert found[name] == {"leader", "leader.env", "busy", "time-to-stop"}
        said = int((leader_dir / name / "time-to-stop").read_text())
        assert 0 <= Timings().time_to_stop * 100 - said < 1
    assert found["leader"] == {"orders", "stock"}
