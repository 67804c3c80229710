"""What a node's programs are configured with, and their command lines."""

from __future__ import annotations

import json
from pathlib import Path

from localkube.components import Component
from localkube.topology import DNS_SERVICE_IP, PAUSE_IMAGE, POD_RANGE, Cluster, Node

CONTAINERD = """\
version = 2
root = "{containers}/root"
state = "{containers}/state"
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing",
  "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
  address = "{socket}"
[ttrpc]
  address = "{folder}/ct.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Without CAP_SYS_RESOURCE no score below one's own can be given: every sandbox would fail.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
        Root = "{containers}/runc"
"""

EVICTION = {
    "memory.available": "50Mi",
    "nodefs.available": "1%",
    "nodefs.inodesFree": "1%",
    "imagefs.available": "1%",
}
"""As late as can be: disk and memory are the machine's, shared with whatever else runs on it."""


def write_configuration(cluster: Cluster, node: Node) -> None:
    """Everything that the node's programs read. JSON is YAML."""
    for name in ("cni", "kubelet"):
        (node.folder / name).mkdir(parents=True, exist_ok=True)
    (node.folder / "resolv.conf").write_text("")  # the machine's own resolvers are out of reach
    (node.folder / "containerd.toml").write_text(
        CONTAINERD.format(
            folder=node.folder,
            containers=node.containers,
            socket=node.containerd_socket,
            pause=PAUSE_IMAGE,
        )
    )
    _write(node.folder / "cni" / "10-leasekeeper.conflist", _cni(node))
    _write(node.folder / "kubelet.yaml", _kubelet(cluster, node))
    _write(node.folder / "proxy.yaml", _proxy(cluster, node))


def _write(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=1))


def _cni(node: Node) -> dict[str, object]:
    ipam = {
        "type": "host-local",
        "dataDir": f"{node.folder}/ipam",
        "ranges": [[{"subnet": node.pod_range}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugin = {"type": "ptp", "ipMasq": False, "ipam": ipam}
    return {"cniVersion": "1.0.0", "name": "leasekeeper", "plugins": [plugin]}


def _kubelet(cluster: Cluster, node: Node) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "enforceNodeAllocatable": [],
        "address": node.ip,
        "healthzPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{cluster.pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{cluster.pki}/{node.name}.crt",
        "tlsPrivateKeyFile": f"{cluster.pki}/{node.name}.key",
        "clusterDNS": [DNS_SERVICE_IP],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{node.folder}/resolv.conf",
        "containerRuntimeEndpoint": f"unix://{node.containerd_socket}",
        # One for each: a kubelet removes the logs of every pod that is not its own.
        "podLogsDir": f"/var/log/pods/{node.name}",
        "volumePluginDir": f"{node.folder}/volume-plugins",
        "failSwapOn": False,
        "oomScoreAdj": 0,
        # There is no registry to pull a collected image from again.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": EVICTION,
        "fileCheckFrequency": "1h",
        "syncFrequency": "10s",
        "nodeStatusUpdateFrequency": "5s",
        "logging": {"verbosity": 2},
    }


def _proxy(cluster: Cluster, node: Node) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": f"{cluster.pki}/proxy.kubeconfig"},
        "hostnameOverride": node.name,
        "clusterCIDR": POD_RANGE,
        "oomScoreAdj": 0,
        # Zero leaves the machine's own limits alone: they cannot be set from a namespace.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    }


def containerd(node: Node) -> Component:
    return _inside(node, "containerd", ["containerd", "--config", f"{node.folder}/containerd.toml"])


def kubelet(cluster: Cluster, node: Node) -> Component:
    argv = [
        f"{cluster.programs}/kubelet",
        f"--config={node.folder}/kubelet.yaml",
        f"--root-dir={node.folder}/kubelet",
        f"--kubeconfig={cluster.pki}/{node.name}.kubeconfig",
        f"--hostname-override={node.name}",
        f"--node-ip={node.ip}",
    ]
    return _inside(node, "kubelet", argv)


def kube_proxy(cluster: Cluster, node: Node) -> Component:
    argv = [f"{cluster.programs}/kube-proxy", f"--config={node.folder}/proxy.yaml"]
    return _inside(node, "kube-proxy", argv)


def _inside(node: Node, name: str, argv: list[str]) -> Component:
    """In the node's network namespace. Not by `ip netns exec`: that mounts a fresh /sys, which
    hides the cgroups."""
    return Component(f"{node.name}.{name}", ("nsenter", f"--net={node.netns}", *argv))
