"""The command lines of the control plane, for the cluster and for the bare API server alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Component:
    """A long-running program. Its name is also that of its log and of its pid file."""

    name: str
    argv: tuple[str, ...]


def _flags(**values: object) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]


def etcd(
    programs: Path, data: Path, *, client_port: int = 2379, peer_port: int = 2380
) -> Component:
    client, peer = (f"http://127.0.0.1:{port}" for port in (client_port, peer_port))
    flags = _flags(
        data_dir=data,
        listen_client_urls=client,
        advertise_client_urls=client,
        listen_peer_urls=peer,
        initial_advertise_peer_urls=peer,
        initial_cluster=f"default={peer}",
        log_level="warn",
    )
    # Nothing here outlives the machine's power: a flush to the disk a write would only cost time.
    return Component("etcd", (str(programs / "etcd"), *flags, "--unsafe-no-fsync"))


def api_server(
    programs: Path,
    pki: Path,
    *,
    bind: str,
    advertise: str,
    port: int,
    service_range: str,
    etcd_port: int = 2379,
    extra: tuple[str, ...] = (),
) -> Component:
    flags = _flags(
        etcd_servers=f"http://127.0.0.1:{etcd_port}",
        bind_address=bind,
        advertise_address=advertise,
        secure_port=port,
        tls_cert_file=pki / "apiserver.crt",
        tls_private_key_file=pki / "apiserver.key",
        client_ca_file=pki / "ca.crt",
        service_account_key_file=pki / "sa.pub",
        service_account_signing_key_file=pki / "sa.key",
        service_account_issuer="https://kubernetes.default.svc",
        service_cluster_ip_range=service_range,
        authorization_mode="Node,RBAC",
        enable_admission_plugins="NodeRestriction",
        kubelet_client_certificate=pki / "admin.crt",
        kubelet_client_key=pki / "admin.key",
        # Node names resolve nowhere.
        kubelet_preferred_address_types="InternalIP",
        allow_privileged="true",
        # Webhooks are called at a pod's address: no kube-proxy serves the control plane.
        enable_aggregator_routing="true",
        profiling="false",
    )
    return Component("apiserver", (str(programs / "kube-apiserver"), *flags, *extra))


def controller_manager(programs: Path, pki: Path, *, port: int = 10257) -> Component:
    kubeconfig = pki / "controller-manager.kubeconfig"
    flags = _flags(
        kubeconfig=kubeconfig,
        authentication_kubeconfig=kubeconfig,
        authorization_kubeconfig=kubeconfig,
        root_ca_file=pki / "ca.crt",
        service_account_private_key_file=pki / "sa.key",
        use_service_account_credentials="true",
        cluster_signing_cert_file=pki / "ca.crt",
        cluster_signing_key_file=pki / "ca.key",
        leader_elect="false",
        # Pod ranges are ours: routes and CNI configuration are written before a node exists.
        allocate_node_cidrs="false",
        bind_address="127.0.0.1",
        secure_port=port,
        profiling="false",
    )
    return Component("controller-manager", (str(programs / "kube-controller-manager"), *flags))


def scheduler(programs: Path, pki: Path) -> Component:
    kubeconfig = pki / "scheduler.kubeconfig"
    flags = _flags(
        kubeconfig=kubeconfig,
        authentication_kubeconfig=kubeconfig,
        authorization_kubeconfig=kubeconfig,
        leader_elect="false",
        bind_address="127.0.0.1",
        profiling="false",
    )
    return Component("scheduler", (str(programs / "kube-scheduler"), *flags))
