"""Objects as the API server hands them out, with the defaults filled in."""

from __future__ import annotations

from typing import Any

from leasekeeper_operator.model import Ensemble, Lock
from leasekeeper_operator.nodes import Passwords
from leasekeeper_operator.settings import Settings

Object = dict[str, Any]

PASSWORDS = Passwords("secret-of-the-agent", "secret-of-peers", "secret-of-the-operator")
SETTINGS = Settings(
    namespace="lk-system",
    sidecar_image="example.test/leasekeeper-sidecar:1",
    sidecar_pull_policy="Never",
    webhook_service="hook",
    webhook_configuration="hook",
)


def ensemble_object(name: str = "main", namespace: str = "store", **spec: Any) -> Object:
    return {
        "apiVersion": "leasekeeper.dev/v1alpha1",
        "kind": "LockEnsemble",
        "metadata": {"name": name, "namespace": namespace, "uid": "e-1", "generation": 1},
        "spec": {
            "nodes": 5,
            "longestLeaseSeconds": 30,
            "restartPolicy": {"delaySeconds": 32},
            "image": "docker.io/valkey/valkey:8.1",
            **spec,
        },
    }


def ensemble(**spec: Any) -> Ensemble:
    return Ensemble.parse(ensemble_object(**spec))


def lock(name: str = "orders", namespace: str = "shop", **spec: Any) -> Lock:
    return Lock.parse(
        {
            "metadata": {"name": name, "namespace": namespace, "uid": "l-1", "generation": 1},
            "spec": {
                "leaseDurationSeconds": 15,
                "renewDeadlineSeconds": 10,
                "retryPeriodSeconds": 2,
                "lockDelaySeconds": 0,
                **spec,
            },
        }
    )


def patched(document: Object, patch: list[Object]) -> Object:
    """RFC 6902, as far as `add` goes: what the API server does with the webhook's answer."""
    import copy

    result = copy.deepcopy(document)
    for operation in patch:
        assert operation["op"] == "add", operation
        *parents, last = (
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
        )
        target: Any = result
        for part in parents:
            target = target[int(part)] if isinstance(target, list) else target[part]
        value = copy.deepcopy(operation["value"])
        if isinstance(target, dict):
            target[last] = value
        else:
            target.insert(len(target) if last == "-" else int(last), value)
    return result
