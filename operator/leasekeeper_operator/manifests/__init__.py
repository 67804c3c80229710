"""From what people wrote to the objects that shall be: pure functions, one object each."""

from __future__ import annotations

from leasekeeper_operator.manifests.ensemble import ensemble_objects, server_conf
from leasekeeper_operator.manifests.lock import lock_json, lock_secret, role, role_binding
from leasekeeper_operator.manifests.node import service, stateful_set

__all__ = [
    "ensemble_objects",
    "lock_json",
    "lock_secret",
    "role",
    "role_binding",
    "server_conf",
    "service",
    "stateful_set",
]
