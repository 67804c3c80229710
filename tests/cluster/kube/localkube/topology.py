"""Names and addresses of a cluster, and where its files are.

Every cluster has the same addresses: each lives in network namespaces of its own.

    init's namespace        10.10.0.1 on a bridge: etcd, API server, controllers, and clients
    node i's namespace      10.10.0.1i on a veth: containerd, kubelet, kube-proxy
    pods of node i          10.244.i.0/24, routed statically
    services                10.96.0.0/16, by kube-proxy on the nodes (not for the control plane)
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

CONTROL_PLANE_IP = "10.10.0.1"
API_PORT = 6443
SERVICE_RANGE = "10.96.0.0/16"
KUBERNETES_SERVICE_IP = "10.96.0.1"
DNS_SERVICE_IP = "10.96.0.10"
POD_RANGE = "10.244.0.0/16"

PAUSE_IMAGE = "localhost/pause:1"
COREDNS_IMAGE = "localhost/coredns:1"


def clusters_root() -> Path:
    """Where the run folders are: on a disk, so that the logs outlive a crash, and with a short
    name, because the path of a Unix socket may have 107 bytes."""
    return Path(os.environ.get("LEASEKEEPER_CLUSTERS", "/var/lib/leasekeeper")).absolute()


@dataclass(frozen=True)
class Node:
    """One worker: its own network namespace, container runtime and kubelet."""

    number: int
    folder: Path
    cgroup: str

    @property
    def name(self) -> str:
        return f"n{self.number}"

    @property
    def ip(self) -> str:
        return f"10.10.0.{10 + self.number}"

    @property
    def pod_range(self) -> str:
        return f"10.244.{self.number}.0/24"

    @property
    def netns(self) -> str:
        return f"/run/netns/{self.name}"

    @property
    def containers(self) -> Path:
        """containerd's images, snapshots and state; a tmpfs inside the cluster."""
        return self.folder / "ctr"

    @property
    def containerd_socket(self) -> Path:
        return self.folder / "c.sock"


@dataclass(frozen=True)
class Cluster:
    """One cluster by its name. Only a description: nothing has to exist."""

    name: str = "default"
    size: int = 2

    @property
    def folder(self) -> Path:
        return clusters_root() / self.name

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(
            Node(number, self.folder / f"n{number}", f"{self.cgroup}/n{number}")
            for number in range(1, self.size + 1)
        )

    @property
    def cgroup(self) -> str:
        """The parent of all the cluster's cgroups, relative to each controller's root."""
        return f"leasekeeper-{self.name}"

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def kubeconfig(self) -> Path:
        return self.pki / "admin.kubeconfig"

    @property
    def logs(self) -> Path:
        return self.folder / "log"

    @property
    def pids(self) -> Path:
        """One file a component, e.g. `n1.kubelet`, with its pid inside the cluster's namespace."""
        return self.folder / "pid"

    @property
    def start(self) -> Path:
        """An empty file here, with a component's name, makes the init start it once more."""
        return self.folder / "start"

    @property
    def programs(self) -> Path:
        """The binaries, linked from the cache so that a pruned cache does not break a cluster."""
        return self.folder / "libexec"

    @property
    def wrappers(self) -> Path:
        """kubectl and helm that work from an ordinary shell."""
        return self.folder / "bin"

    @property
    def images(self) -> Path:
        return self.folder / "images"

    @property
    def progress(self) -> Path:
        """Lines written by the init as it comes up."""
        return self.folder / "progress"

    @property
    def ready(self) -> Path:
        """Exists when everything is up."""
        return self.folder / "ready"

    @property
    def failed(self) -> Path:
        """Exists, and says why, when the init gave up or a component ended."""
        return self.folder / "failed"
