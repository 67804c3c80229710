"""The sidecar's image as it is shipped: what is in it, what is not, and what it can do without. It
runs in the image's own root file system; no cluster is needed.
"""

from __future__ import annotations

import json
import re
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from backends import started
from leasekeeper_sidecar.claim import read_leader
from leasekeeper_sidecar.host import Proc
from servers import Process, wait_until

from benchmarks import image_root

COMPILER = re.compile(r"(.*-)?(gcc|g\+\+|c\+\+|cc|cc1|clang|tcc|ld|as|make|rustc|go)(-[\d.]+)?")
INSTALLER = re.compile(r"(pip|ensurepip|setuptools|_distutils_hack)([\d.]*|-.*)")
SHELLS = ("sh", "bash", "dash", "rbash", "busybox")
SOMEBODY = 1234567
"""Not the image's own user: a pod may ask for another, and has no name for it then."""


@dataclass(frozen=True)
class Image:
    root: Path
    config: dict[str, Any]


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    archive = image_root.sidecar()
    with tarfile.open(archive) as outer:
        manifest = json.load(outer.extractfile("manifest.json"))  # type: ignore[arg-type]
        config = json.load(outer.extractfile(manifest[0]["Config"]))  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        image_root.unpack(archive, Path(folder))
        yield Image(Path(folder), config["config"])


def test_its_user_is_not_root_and_no_shell_starts_it(image: Image) -> None:
    """By number: `runAsNonRoot` cannot tell who a name is."""
    user, _, group = image.config["User"].partition(":")
    assert int(user) > 0
    assert int(group) > 0
    assert image.config["Entrypoint"] == ["leasekeeper-sidecar"]
    assert not image.config.get("Cmd")


def test_there_is_no_compiler_and_no_pip_in_it(image: Image) -> None:
    everything = list(image.root.rglob("*"))
    programs = [path for path in everything if path.parent.name in ("bin", "sbin", "libexec")]
    assert len(programs) > 50, "that is no whole root"
    assert COMPILER.fullmatch("x86_64-linux-gnu-gcc-14"), "as Debian names them"
    assert INSTALLER.fullmatch("pip-25.1.dist-info")
    assert not [path for path in programs if COMPILER.fullmatch(path.name)]
    assert not [path for path in everything if INSTALLER.fullmatch(path.name)]


def test_nothing_in_it_may_become_another_user(image: Image) -> None:
    """Our own part of it; what Debian has (`su`) does nothing under `no_new_privs`."""
    own = image.root / "opt/leasekeeper"
    assert own.is_dir()
    assert not [path for path in own.rglob("*") if path.lstat().st_mode & 0o6000]


def test_it_leads_as_any_user_on_a_read_only_root_and_without_a_shell(
    image: Image, tmp_path: Path
) -> None:
    root = image.root
    for folder in ("bin", "usr/bin"):
        for shell in SHELLS:
            (root / folder / shell).unlink(missing_ok=True)
    assert not (root / "bin/sh").exists()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for path in (home, home / "leader", home / "state"):
            path.mkdir(exist_ok=True)
            path.chmod(0o777)
        with started("sqlite", home) as backend:
            lock = {"version": 1, "lock": "shop/orders", **backend.settings("shop/orders")}
        (home / "locks.db").chmod(0o666)
        inside = root / home.relative_to("/")
        inside.mkdir(parents=True)
        steps = [
            f"mount --bind {root} {root}",
            f"mount --bind /proc {root}/proc",
            f"mount --bind {home} {inside}",
            f"mount -o remount,bind,ro {root}",
            f"! touch {root}/x 2>/dev/null",
            f"exec chroot --userspec={SOMEBODY}:{SOMEBODY} {root}"
            " /opt/leasekeeper/bin/leasekeeper-sidecar",
        ]
        sidecar = Process(tmp_path / "log")
        sidecar.spawn(
            ["unshare", "--mount", "sh", "-c", " && ".join(steps)],
            LEASEKEEPER_CONFIG_JSON=json.dumps(lock),
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
            wait_until(
                lambda: read_leader(file, Proc()).leader or not sidecar.running, "it to lead"
            )
            assert sidecar.running, sidecar.output()
            assert (home / "leader" / "leader").stat().st_uid == SOMEBODY
            assert sidecar.terminate() == 0
        finally:
            sidecar.kill()
