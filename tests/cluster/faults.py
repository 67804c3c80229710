"""What can go wrong in a cluster, done for real, from the machine's side, and recorded.

Nothing here goes through the API server, except where a user would break it that way: a fault must
also be possible while that is down. Processes are found by the container's id in their cgroup.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from localkube import cgroups, processes
from localkube.topology import Node

from tests.cluster.client import Client, until
from tests.cluster.recorder import Recorder

Pod = dict[str, Any]

CUT = """
table inet cut {{
  chain input {{
    type filter hook input priority -300; policy drop;
    iifname lo accept
    ip saddr {{ {kubelet} }} accept
  }}
  chain output {{
    type filter hook output priority -300; policy drop;
    oifname lo accept
    ip daddr {{ {kubelet} }} accept
  }}
}}
"""
"""In the pod's own network namespace. Its kubelet still reaches it, as it would if the machine were
cut off: probes go on, and nobody restarts what only the network ails."""


class Faults:
    def __init__(self, client: Client, recorder: Recorder) -> None:
        self._client = client
        self._cluster = client.cluster
        self._recorder = recorder
        init = processes.init_of(self._cluster)
        assert init is not None, "the cluster is up"
        self._init = init

    # -- containers ------------------------------------------------------------------------------

    def pids(self, pod: Pod, container: str) -> list[int]:
        """The container's processes, oldest first."""
        status = pod["status"]
        known = status.get("initContainerStatuses", []) + status.get("containerStatuses", [])
        (found,) = [one for one in known if one["name"] == container]
        id = found["containerID"].rpartition("/")[2]
        members = []
        for pid in processes.all_pids():
            with contextlib.suppress(OSError):
                if id in Path(f"/proc/{pid}/cgroup").read_text():
                    members.append(pid)
        assert members, f"{pod['metadata']['name']} has no process of {container}"
        return sorted(members)

    @contextlib.contextmanager
    def frozen(self, pod: Pod, container: str) -> Iterator[float]:
        """SIGSTOP: as a machine that swaps, or a debugger. Yields when it began."""
        pids = self.pids(pod, container)
        with self._recorder.fault(f"{container} of {name_of(pod)} frozen") as began:
            _signal(pids, signal.SIGSTOP)
            try:
                yield began
            finally:
                _signal(pids, signal.SIGCONT)

    def kill(self, pod: Pod, container: str, number: int = signal.SIGKILL) -> float:
        pids = self.pids(pod, container)
        at = self._recorder.moment(f"{container} of {name_of(pod)}: {signal.Signals(number).name}")
        _signal(pids, number)
        return at

    # -- machines and their programs -------------------------------------------------------------

    def node(self, name: str) -> Node:
        (found,) = [node for node in self._cluster.nodes if node.name == name]
        return found

    @contextlib.contextmanager
    def machine_frozen(self, name: str) -> Iterator[float]:
        """All of it, pods, kubelet and container runtime, in one instant: as a machine whose
        hypervisor stops it for a while."""
        node = self.node(name)
        programs = self._component_pids(f"{name}.kubelet", f"{name}.containerd")
        with self._recorder.fault(f"machine {name} stands still") as began:
            _signal(programs, signal.SIGSTOP)
            cgroups.freeze(node, True)
            try:
                yield began
            finally:
                cgroups.freeze(node, False)
                _signal(programs, signal.SIGCONT)

    @contextlib.contextmanager
    def machine_cut_off(self, name: str) -> Iterator[float]:
        """Its network link is down. Its pods reach each other and nobody else."""
        link = ("ip", "link", "set", f"veth-{name}")
        with self._recorder.fault(f"machine {name} cut off") as began:
            self._in_network(self._init, *link, "down")
            try:
                yield began
            finally:
                self._in_network(self._init, *link, "up")

    @contextlib.contextmanager
    def components_frozen(self, *names: str) -> Iterator[float]:
        pids = self._component_pids(*names)
        with self._recorder.fault(f"{' and '.join(names)} frozen") as began:
            _signal(pids, signal.SIGSTOP)
            try:
                yield began
            finally:
                _signal(pids, signal.SIGCONT)

    @contextlib.contextmanager
    def components_killed(self, *names: str) -> Iterator[float]:
        """SIGKILL, and started again, in the order of the names, when the block ends."""
        pids = self._component_pids(*names)
        with self._recorder.fault(f"{' and '.join(names)} killed") as began:
            left = processes.kill(pids)
            assert left == [], f"still there: {left}"
            try:
                yield began
            finally:
                for name in names:
                    self._start(name)

    def _start(self, name: str) -> None:
        request = self._cluster.start / name
        request.touch()
        until(f"{name} is started", lambda: not request.exists(), every=0.05)

    def _component_pids(self, *names: str) -> list[int]:
        found = [processes.component_pid(self._cluster, name) for name in names]
        assert None not in found, f"{names} run as {found}"
        return [pid for pid in found if pid is not None]

    # -- the network of pods ---------------------------------------------------------------------

    @contextlib.contextmanager
    def pods_cut_off(self, pods: Sequence[Pod], container: str) -> Iterator[float]:
        """No packet to or from them, except between a pod and its own kubelet."""
        places = [(self.pids(pod, container)[0], self.node(machine_of(pod))) for pod in pods]
        names = ", ".join(name_of(pod) for pod in pods)
        with self._recorder.fault(f"{names} cut off") as began:
            for pid, node in places:
                # CNI's `ptp` gives the first address of a node's range to the node.
                gateway = node.pod_range.replace(".0/24", ".1")
                rules = CUT.format(kubelet=f"{gateway}, {node.ip}")
                self._in_network(pid, "nft", "-f", "-", given=rules)
            try:
                yield began
            finally:
                for pid, _ in places:
                    self._in_network(pid, "nft", "delete", "table", "inet", "cut")

    @staticmethod
    def _in_network(pid: int, *argv: str, given: str = "") -> None:
        command = ["nsenter", "-t", str(pid), "-n", "--", *argv]
        subprocess.run(command, input=given.encode(), check=True, timeout=20)

    # -- by the user's hand ----------------------------------------------------------------------

    def delete(self, pod: Pod, *options: str) -> float:
        how = "force-deleted" if "--force" in options else "deleted"
        at = self._recorder.moment(f"{name_of(pod)} {how}")
        place = ("-n", pod["metadata"]["namespace"])
        self._client.kubectl(*place, "delete", "pod", name_of(pod), "--wait=false", *options)
        return at


def _signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def name_of(pod: Pod) -> str:
    return str(pod["metadata"]["name"])


def machine_of(pod: Pod) -> str:
    return str(pod["spec"]["nodeName"])


def api_ready(client: Client) -> bool:
    return client.run("kubectl", "get", "--raw", "/readyz", seconds=30).returncode == 0


def pause(seconds: float) -> None:
    """Where time itself is what a scenario is about: an outage that lasts so long."""
    time.sleep(seconds)
