"""The sidecar's image with `--build-arg STORES=…`: its drivers are there, fit its interpreter, and
lead over real servers. In the image's own root file system, as its user; no cluster is needed.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from backends import started
from leasekeeper_sidecar.claim import read_leader
from leasekeeper_sidecar.host import Proc
from localkube import images, pins
from localkube.progress import Progress
from servers import Process, wait_until

from benchmarks import image_root

STORES = ("postgresql", "mysql", "zookeeper")


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    image = images.sidecar_with(" ".join(STORES), pins.load(), Progress())
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        image_root.unpack(image.archive, Path(folder))
        yield Path(folder)


@pytest.fixture
def home() -> Iterator[Path]:
    """For everybody, and so are those above it: the sidecar is not root."""
    with tempfile.TemporaryDirectory() as folder:
        for path in (Path(folder), Path(folder, "leader"), Path(folder, "state")):
            path.mkdir(exist_ok=True)
            path.chmod(0o777)
        yield Path(folder)


@pytest.mark.parametrize("store", STORES)
def test_the_image_leads_over_the_stores_that_it_was_built_with(
    store: str, root: Path, home: Path, tmp_path: Path
) -> None:
    with started(store, tmp_path) as backend:
        told = {"version": 1, "lock": "shop/orders", **backend.settings("shop/orders")}
        (home / "lock.json").write_text(json.dumps(told))
        sidecar = Process(tmp_path / "log")
        sidecar.spawn(
            image_root.command(root, home),
            LEASEKEEPER_CONFIG=str(home / "lock.json"),
            LEASEKEEPER_POD_NAME="orders-1",
            LEASEKEEPER_POD_UID="uid",
            LEASEKEEPER_LEADER_DIR=str(home / "leader"),
            LEASEKEEPER_STATE_DIR=str(home / "state"),
            LEASEKEEPER_HTTP_PORT="0",
            LEASEKEEPER_LOCAL_PORT="0",
            LEASEKEEPER_MIRROR="none",
        )
        try:
            file = str(home / "leader" / "leader")
            leads = f"the sidecar to lead:\n{sidecar.output()}"
            wait_until(lambda: read_leader(file, Proc()).leader, leads)
            assert sidecar.terminate() == 0
        finally:
            sidecar.kill()
