"""What a lock's namespace is given: how to reach the nodes, and the right to mirror the holder."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from leasekeeper.redlock import users
from leasekeeper_operator import names
from leasekeeper_operator.api import ENSEMBLE, GROUP, LOCK, ROLE, ROLE_BINDING, SECRET, Kind, Object
from leasekeeper_operator.manifests.common import base64_data, text_of
from leasekeeper_operator.model import Ensemble, Lock
from leasekeeper_operator.rotation import Rotating, noted

NEXT, OLD = "next-password", "old-password"
"""Beside lock.json, while a password is followed by another."""
RBAC_GROUP = "rbac.authorization.k8s.io"


def lock_json(lock: Lock, ensemble: Ensemble, password: str) -> Object:
    """What a sidecar reads (docs/architecture.md §3)."""
    tls = {} if ensemble.tls is None else {"tls": {"caFile": "ca.crt"}}
    return {
        "version": 1,
        "lock": lock.full_name,
        "store": "redlock",
        "timings": lock.timings,
        "redlock": {
            "membership": ensemble.membership.to_json(),
            "username": users.lock_user(lock.full_name),
            "password": password,
            **tls,
        },
    }


def password_of(secret: Object) -> str:
    """The password in a published lock.json; empty if there is none that can be read. Tenants can
    write what they like there, so whatever is wrong with it is wrong with this one only."""
    try:
        password = json.loads(text_of(secret, "lock.json"))["redlock"]["password"]
        password.encode()  # a lone surrogate is JSON, and not text
        return str(password)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ""


def passwords_in(secret: Object, make: Callable[[], str]) -> Rotating[str]:
    """Of a published Secret. What somebody took away from it is made anew."""
    generation, since = noted(secret)
    following, old = (text_of(secret, key, "replace") or None for key in (NEXT, OLD))
    current = password_of(secret) or make()
    return Rotating(current, generation, following, old, since if old else None)


def digests_in(secret: Object) -> frozenset[str]:
    """Of the passwords that nodes take for the lock; empty: there is none in use."""
    if not password_of(secret):
        return frozenset()
    return digests_of(passwords_in(secret, str))


def digests_of(passwords: Rotating[str]) -> frozenset[str]:
    return frozenset(users.digest(password) for password in passwords.valid)


def published_by(secret: Object, lock: str) -> str:
    """The uid of the DistributedLock of that name that this Secret belongs to; empty: it is not one
    that we published for it."""
    metadata = secret["metadata"]
    if metadata.get("labels", {}).get(names.LABEL_LOCK) != lock:
        return ""
    for owner in metadata.get("ownerReferences", []):
        if (owner["apiVersion"], owner["kind"]) == (LOCK.api_version, LOCK.name) and (
            owner["name"] == lock
        ):
            return str(owner["uid"])
    return ""


def ensemble_of(secret: Object) -> tuple[str, str] | None:
    """Which ensemble a lock was published for: namespace and name."""
    labels = secret["metadata"].get("labels", {})
    if names.LABEL_ENSEMBLE not in labels:
        return None
    return labels.get(names.LABEL_ENSEMBLE_NAMESPACE, ""), labels[names.LABEL_ENSEMBLE]


def published_for(ensemble: Ensemble) -> str:
    """A selector of the Secrets of all locks of an ensemble."""
    labels = {
        names.LABEL_ENSEMBLE: ensemble.name,
        names.LABEL_ENSEMBLE_NAMESPACE: ensemble.namespace,
    }
    return ",".join([names.LABEL_LOCK, *(f"{key}={value}" for key, value in labels.items())])


def lock_secret(
    lock: Lock, ensemble: Ensemble, passwords: Rotating[str], trusted: str = ""
) -> Object:
    """`trusted`: the CAs of the nodes' certificates, where they have some."""
    text = json.dumps(lock_json(lock, ensemble, passwords.current), sort_keys=True)
    labels = {
        names.LABEL_ENSEMBLE: ensemble.name,
        names.LABEL_ENSEMBLE_NAMESPACE: ensemble.namespace,
    }
    more = {"ca.crt": trusted, NEXT: passwords.next, OLD: passwords.old}
    data = base64_data(**{"lock.json": text, **{k: text for k, text in more.items() if text}})
    made = lock_object(lock, SECRET, labels, type="Opaque", data=data)
    made["metadata"]["annotations"] = passwords.notes
    return made


def own_ensemble(lock: Lock) -> Object:
    """The LockEnsemble of a lock that brings its own: one path for all ensembles."""
    return lock_object(lock, ENSEMBLE, name=lock.name, spec=lock.ensemble)


def role(lock: Lock) -> Object:
    """To patch this lock's status, and nothing else; the admission policy of the chart checks that
    the holder that is written is the pod that writes."""
    rule = {
        "apiGroups": [GROUP],
        "resources": ["distributedlocks/status"],
        "resourceNames": [lock.name],
        "verbs": ["patch"],
    }
    return lock_object(lock, ROLE, rules=[rule])


def role_binding(lock: Lock) -> Object:
    subjects: list[Object] = [
        {"kind": "ServiceAccount", "name": name, "namespace": lock.namespace}
        for name in lock.service_accounts
    ] or [
        {
            "kind": "Group",
            "apiGroup": RBAC_GROUP,
            "name": f"system:serviceaccounts:{lock.namespace}",
        }
    ]
    reference = {"apiGroup": RBAC_GROUP, "kind": ROLE.name, "name": names.lock_objects(lock.name)}
    return lock_object(lock, ROLE_BINDING, roleRef=reference, subjects=subjects)


def lock_object(
    lock: Lock, kind: Kind, labels: dict[str, str] | None = None, *, name: str = "", **fields: Any
) -> Object:
    """One object that goes when the lock goes."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "metadata": {
            "name": name or names.lock_objects(lock.name),
            "namespace": lock.namespace,
            "labels": {
                "app.kubernetes.io/name": "leasekeeper",
                "app.kubernetes.io/component": "lock",
                "app.kubernetes.io/instance": lock.name,
                **names.MANAGED,
                names.LABEL_LOCK: lock.name,
                **(labels or {}),
            },
            "ownerReferences": [lock.owner(LOCK)],
        },
        **fields,
    }
