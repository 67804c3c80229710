"""Mounts, links and routes of a cluster. Called inside its namespaces only."""

from __future__ import annotations

import subprocess
from pathlib import Path

from localkube.topology import CONTROL_PLANE_IP, Cluster, Node

HIDDEN = (
    "/run/netns",
    "/run/containerd",
    "/var/lib/cni",
    "/var/lib/kubelet",
    "/var/log/containers",
)
"""Paths built into kubelet, containerd's shim and the CNI plugins: behind a tmpfs, two clusters do
not meet there, and a real one on the machine is out of reach."""

KUBELET_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What a kubelet sets for the whole machine unless it finds it set: it is shown these files
instead, so that a test cluster does not change how its host handles memory and panics."""


IP_FORWARD = "/proc/sys/net/ipv4/ip_forward"


def isolate(cluster: Cluster) -> None:
    for path in HIDDEN:
        Path(path).mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "none", path)
    # Images and containers in memory, about 0.7 GB a node: unpacking them is quick even while the
    # disk is busy, and they go with the namespace instead of file by file (27,000 of them).
    for node in cluster.nodes:
        node.containers.mkdir(parents=True)
        _run("mount", "-t", "tmpfs", "none", str(node.containers))
    # The pods' logs outlive the cluster, for whoever has to find out why it failed.
    pods = cluster.logs / "pods"
    for folder in (*(pods / node.name for node in cluster.nodes), Path("/var/log/pods")):
        folder.mkdir(parents=True, exist_ok=True)
    _run("mount", "--bind", str(pods), "/var/log/pods")
    for name, value in KUBELET_SYSCTLS.items():
        shown = cluster.folder / "sysctl" / name.replace("/", ".")
        shown.parent.mkdir(exist_ok=True)
        shown.write_text(f"{value}\n")
        _run("mount", "--bind", str(shown), f"/proc/sys/{name}")


def connect(cluster: Cluster) -> None:
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "link", "add", "br0", "type", "bridge")
    _run("ip", "addr", "add", f"{CONTROL_PLANE_IP}/24", "dev", "br0")
    _run("ip", "link", "set", "br0", "up")
    Path(IP_FORWARD).write_text("1")
    for node in cluster.nodes:
        _connect_node(cluster, node)


def _connect_node(cluster: Cluster, node: Node) -> None:
    link = f"veth-{node.name}"
    _run("ip", "netns", "add", node.name)
    peer = ("peer", "name", "eth0", "netns", node.name)
    _run("ip", "link", "add", link, "type", "veth", *peer)
    _run("ip", "link", "set", link, "master", "br0", "up")
    _run("ip", "route", "add", node.pod_range, "via", node.ip, "dev", "br0", "onlink")
    inside = ("ip", "-n", node.name)
    _run(*inside, "link", "set", "lo", "up")
    _run(*inside, "addr", "add", f"{node.ip}/24", "dev", "eth0")
    _run(*inside, "link", "set", "eth0", "up")
    _run(*inside, "route", "add", "default", "via", CONTROL_PLANE_IP)
    for other in cluster.nodes:
        if other != node:
            _run(*inside, "route", "add", other.pod_range, "via", other.ip)
    _run("nsenter", f"--net={node.netns}", "sh", "-c", f"echo 1 > {IP_FORWARD}")


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True)
