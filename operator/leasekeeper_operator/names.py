"""The names of everything that the operator makes (docs/architecture.md §5)."""

from __future__ import annotations

import re

LABEL_LOCK = "leasekeeper.dev/lock"
"""On pods: the lock that they are candidates of. Also the annotation that asks for it."""
LABEL_ENSEMBLE = "leasekeeper.dev/ensemble"
LABEL_ENSEMBLE_NAMESPACE = "leasekeeper.dev/ensemble-namespace"
LABEL_NODE = "leasekeeper.dev/node"
ANNOTATION_APPLIED = "leasekeeper.dev/applied"
"""Hash of what was applied, so that nothing is written when nothing changed."""
MANAGED = {"app.kubernetes.io/managed-by": "leasekeeper"}
MANAGED_SELECTOR = "app.kubernetes.io/managed-by=leasekeeper"
OF_ENSEMBLES = f"{MANAGED_SELECTOR},{LABEL_ENSEMBLE},!{LABEL_LOCK}"
"""Of the objects of all ensembles; those of locks name theirs, too."""

LONGEST_LOCK_NAME = 63
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def valid_lock_name(name: str) -> bool:
    return len(name) <= LONGEST_LOCK_NAME and _SUBDOMAIN.fullmatch(name) is not None


def valid_pod_name(name: str) -> bool:
    return len(name) <= 253 and _SUBDOMAIN.fullmatch(name) is not None


def node(ensemble: str, node_id: str) -> str:
    """Of a node's StatefulSet and Service; its pod is this with `-0`."""
    return f"{ensemble}-{node_id}"


def server_secret(ensemble: str) -> str:
    return f"{ensemble}-server"


def credentials_secret(ensemble: str) -> str:
    return f"{ensemble}-credentials"


def ca_secret(ensemble: str) -> str:
    """The CA that the operator made for the ensemble's certificates. No pod mounts it."""
    return f"{ensemble}-ca"


def tls_secret(ensemble: str) -> str:
    """What its nodes use."""
    return f"{ensemble}-tls"


def users_secret(ensemble: str) -> str:
    return f"{ensemble}-users"


def membership_config_map(ensemble: str) -> str:
    return f"{ensemble}-membership"


def lock_objects(lock: str) -> str:
    """Of a lock's Secret, Role and RoleBinding."""
    return f"leasekeeper-{lock}"


def leader_slice(service: str, family: str) -> str:
    """Of the EndpointSlice of a lock's Service; `family`: IPv4 or IPv6."""
    return f"{service}-leader-{family.lower()}"


def certificate_secret(service: str) -> str:
    return f"{service}-certificate"
