"""Finding a cluster's processes from outside, by what they are and not by a remembered pid.

A pid in a file may belong to somebody else by the time it is read, after a reboot for certain.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from localkube.topology import Cluster

INIT = "cluster_init.py"

CLIENT_MARK = "LEASEKEEPER_CLUSTER_CLIENT"
"""Set by the wrappers for kubectl and helm: a forgotten `kubectl get -w` would keep the cluster's
network namespace alive, and has to be found when the cluster goes down."""

EXEC_TRIES = 20
"""An exec takes microseconds; 0.2 s is for a machine with a long queue for its processors. Programs
may also have emptied their own command line, and must not hold us up for long."""


def all_pids() -> Iterator[int]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            yield int(entry.name)


def _read(pid: int, name: str) -> list[str]:
    """The words of `cmdline` or `environ`. In the middle of an exec both are empty, and on a busy
    machine that is met: then again, unless it is a kernel thread or a zombie, which have none."""
    for _ in range(EXEC_TRIES):
        try:
            words = Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace").split("\0")
            if words != [""]:
                return words
            os.readlink(f"/proc/{pid}/exe")
        except OSError:
            return []
        time.sleep(0.01)
    return []


def namespace(pid: int, kind: str) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return None


def of_cluster(cluster: Cluster) -> list[int]:
    """The init and the `unshare` that started it: the two with the init's command line."""
    found = []
    for pid in all_pids():
        argv = _read(pid, "cmdline")[:-1]
        if argv[-1:] == [str(cluster.folder)] and any(Path(word).name == INIT for word in argv):
            found.append(pid)
    return found


def init_of(cluster: Cluster) -> int | None:
    """The cluster's process 1, as seen from here."""
    own = namespace(os.getpid(), "pid")
    for pid in of_cluster(cluster):
        if namespace(pid, "pid") not in (own, None):
            return pid
    return None


def clients_of(cluster: Cluster) -> list[int]:
    mark = f"{CLIENT_MARK}={cluster.folder}"
    return [pid for pid in all_pids() if mark in _read(pid, "environ")]


def inside(init: int) -> dict[int, int]:
    """Every process of the cluster: the pid in its own namespace to the pid seen from here."""
    space = namespace(init, "pid")
    pids: dict[int, int] = {}
    for pid in all_pids():
        if namespace(pid, "pid") == space:
            with contextlib.suppress(OSError, StopIteration):
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                numbers = next(line for line in lines if line.startswith("NSpid:")).split()
                pids[int(numbers[-1])] = pid
    return pids


def component_pid(cluster: Cluster, name: str) -> int | None:
    """The pid, seen from here, of e.g. `etcd` or `n1.kubelet`; for tests that stop or kill it."""
    init = init_of(cluster)
    file = cluster.pids / name
    if init is None or not file.exists():
        return None
    return inside(init).get(int(file.read_text()))


def kill(pids: Iterable[int], timeout: float = 10.0) -> list[int]:
    """Kills and waits; returns those that are still there."""
    left = set(pids)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + timeout
    while left and time.monotonic() < deadline:
        left = {pid for pid in left if alive(pid)}
        time.sleep(0.02)
    return sorted(left)


def alive(pid: int) -> bool:
    """A zombie is dead: it waits only for its parent to notice."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
