"""The cluster's cgroups: one folder below each controller's root, and one below that for each node.

The kubelets are given theirs as `cgroupRoot`. The host's processes (etcd, kubelet, ...) stay in the
cgroups they were started in, except in one hierarchy: there they are members of `NAME/host`, by
which they can be found and their CPU be counted as one number.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from localkube.shell import ClusterError
from localkube.topology import Cluster, Node

MOUNT = Path("/sys/fs/cgroup")

KUBELETS = ("cpu", "cpuset", "memory", "pids", "hugetlb")
"""On v2 a kubelet wants those of them that the machine has in its own cgroup, or says "missing
controllers" and ends. A cgroup has what its parent hands down."""

NEEDED = {"cpu", "memory", "pids"}
"""Without these no pod's limits hold, whatever a kubelet says."""


def _unified() -> bool:
    """v2 alone, as Debian has it since 11. Written by the documentation, and never tried: the
    machines that these tests were made on have v1."""
    return (MOUNT / "cgroup.controllers").exists()


def _hierarchies() -> list[Path]:
    """Every hierarchy: those of the v1 controllers and, beside them or alone, that of v2."""
    if _unified():
        return [MOUNT]
    folders = [folder for folder in sorted(MOUNT.iterdir()) if not folder.is_symlink()]
    return [folder for folder in folders if (folder / "cgroup.procs").exists()]


def _roots() -> list[Path]:
    """Where the kubelets expect to find their cgroups. Not in a v2 hierarchy that has no
    controllers; runc does make some there, and they have to be removed with the others."""
    return [root for root in _hierarchies() if root.name != "unified"]


def _host_root() -> Path:
    return next((root for root in _roots() if root.name == "cpuacct"), _roots()[0])


def check() -> None:
    """Whether kubelets can have their controllers: asked before a build of many minutes."""
    if _unified():
        _hand_down(MOUNT)


def _hand_down(folder: Path) -> None:
    offered = (folder / "cgroup.controllers").read_text().split()
    if not NEEDED.issubset(offered):
        raise _lacking(folder, f"it has only {', '.join(offered) or 'none'}")
    wanted = " ".join(f"+{name}" for name in KUBELETS if name in offered)
    try:
        (folder / "cgroup.subtree_control").write_text(wanted)
    except OSError as refused:
        raise _lacking(folder, str(refused.strerror)) from refused


def _lacking(folder: Path, why: str) -> ClusterError:
    return ClusterError(
        f"a cluster needs the cgroup controllers {', '.join(sorted(NEEDED))}, and {folder}"
        f" cannot hand them down: {why}; in a container, try it on the machine itself"
    )


def create(cluster: Cluster) -> None:
    if _unified():
        (MOUNT / cluster.cgroup).mkdir(exist_ok=True)
        for folder in (MOUNT, MOUNT / cluster.cgroup):
            _hand_down(folder)
    for root in _roots():
        for name in (cluster.cgroup, *(node.cgroup for node in cluster.nodes)):
            (root / name).mkdir(parents=True, exist_ok=True)
            # A new cpuset is empty, and nothing can run in it before it is not.
            for setting in ("cpuset.cpus", "cpuset.mems"):
                if root.name == "cpuset" and (root / setting).exists():
                    (root / name / setting).write_text((root / setting).read_text())
    (_host_root() / cluster.cgroup / "host").mkdir(exist_ok=True)


def freeze(node: Node, frozen: bool) -> None:
    """All of a node's pods in one instant, and on again."""
    if _unified():
        (MOUNT / node.cgroup / "cgroup.freeze").write_text(str(int(frozen)))
    else:
        state = MOUNT / "freezer" / node.cgroup / "freezer.state"
        state.write_text("FROZEN" if frozen else "THAWED")


def join_host(cluster: Cluster) -> None:
    """Moves this process; what it starts from now on comes along."""
    (_host_root() / cluster.cgroup / "host" / "cgroup.procs").write_text("0")


def folders(cluster: Cluster) -> list[Path]:
    """All the cluster's cgroups that exist, children before their parents."""
    found: list[Path] = []
    for root in _hierarchies():
        for parent, _, _ in os.walk(root / cluster.cgroup, topdown=False):
            found.append(Path(parent))
    return found


def members(cluster: Cluster) -> set[int]:
    """The processes in any of the cluster's cgroups, as pids of the caller's namespace."""
    pids: set[int] = set()
    for folder in folders(cluster):
        with contextlib.suppress(OSError):
            pids.update(int(line) for line in (folder / "cgroup.procs").read_text().split())
    return pids


def remove(cluster: Cluster, timeout: float = 10.0) -> None:
    """Removes the folders; one that a dying process is still in is asked again for a while."""
    deadline = time.monotonic() + timeout
    while left := folders(cluster):
        for folder in left:
            with contextlib.suppress(OSError):
                folder.rmdir()
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)
