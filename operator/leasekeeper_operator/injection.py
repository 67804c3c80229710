"""From a pod that asks for a lock to the JSON patch that gives it the sidecar: a pure function.

The sidecar is a native one (an init container that keeps running) and stands first, so that it is
up before everything else of the pod and ends after it: the lease is released when the app is gone.
"""

from __future__ import annotations

from typing import Any

from leasekeeper_operator import names
from leasekeeper_operator.api import Object
from leasekeeper_operator.manifests.common import CONTAINER_SECURITY
from leasekeeper_operator.settings import Settings

CONTAINER = "leasekeeper"
LEADER_VOLUME, STATE_VOLUME = "leasekeeper-leader", "leasekeeper-state"
LOCK_VOLUME, TOKEN_VOLUME = "leasekeeper-lock", "leasekeeper-token"
LEADER_DIR = "/var/run/lock"
STATE_DIR = "/var/run/leasekeeper"
CONFIG_DIR = "/etc/leasekeeper"
TOKEN_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"
HTTP_PORT, LOCAL_PORT = 8090, 4040
ANNOTATION_INJECTED = "leasekeeper.dev/injected"
"""Tells our own container, when the API server asks a second time, from one that somebody wrote."""
TOKEN_SECONDS = 3607  # what Kubernetes uses for the tokens that it mounts by itself

SIDECAR_SETTINGS = (
    *("drain", "on-lost", "log"),
    *("health", "health-period", "health-failures", "health-escape"),
)
"""Settings of the sidecar that a pod may choose, as annotations `leasekeeper.dev/NAME`."""

Patch = list[Object]


class Denied(Exception):
    """The pod cannot be injected; the message says what to do."""


def wanted_locks(pod: Object) -> list[str]:
    """Which locks the pod asks for: one nearly always, several by commas."""
    annotations = pod.get("metadata", {}).get("annotations") or {}
    text: str | None = annotations.get(names.LABEL_LOCK)
    return [] if text is None else [name.strip() for name in text.split(",")]


def inject(pod: Object, settings: Settings) -> Patch:
    """What to change in a pod that asks for locks which exist. Nothing, if all is there."""
    locks = wanted_locks(pod)
    if not locks:
        return []
    check_names(locks)
    joined = ",".join(locks)
    spec = pod["spec"]
    existing = [c["name"] for field in _FIELDS for c in spec.get(field) or []]
    patch: Patch = []
    injected = (pod["metadata"].get("annotations") or {}).get(ANNOTATION_INJECTED) == joined
    inserted = not (injected and CONTAINER in existing)
    if inserted:
        _check_free(spec, existing, locks)
        # A label cannot list names; that it is there is what selects the pod.
        patch += metadata_patch(pod, "labels", {names.LABEL_LOCK: locks[0]})
        patch += metadata_patch(pod, "annotations", {ANNOTATION_INJECTED: joined})
        patch += _extend(spec, "volumes", _volumes(locks))
        patch += _insert_first(spec, "initContainers", _container(pod, locks, settings))
    for field in _FIELDS:
        shift = 1 if inserted and field == "initContainers" else 0
        for index, container in enumerate(spec.get(field) or []):
            if container["name"] != CONTAINER:
                patch += _mount_leader(f"/spec/{field}/{index + shift}", container)
    return patch


_FIELDS = ("initContainers", "containers")


def check_names(locks: list[str]) -> None:
    for lock in locks:
        _check_name(lock)
        if locks.count(lock) > 1:
            raise Denied(f"the annotation {names.LABEL_LOCK} names {lock!r} twice")


def _check_name(lock: str) -> None:
    if not names.valid_lock_name(lock):
        raise Denied(
            f"the annotation {names.LABEL_LOCK} is {lock!r}, which cannot be the name of a"
            f" DistributedLock: use at most {names.LONGEST_LOCK_NAME} lower-case letters, digits,"
            " dashes and dots"
        )


def _check_free(spec: Object, existing: list[str], locks: list[str]) -> None:
    if CONTAINER in existing:
        raise Denied(
            f"the pod asks for a lock and already has a container named {CONTAINER!r}: rename that"
            f" container, or take away the annotation {names.LABEL_LOCK}"
        )
    ours = {LEADER_VOLUME, STATE_VOLUME, TOKEN_VOLUME, *_folders(locks)}
    if taken := sorted(ours & {volume["name"] for volume in spec.get("volumes") or []}):
        raise Denied(
            f"the pod asks for a lock and already has a volume named {taken[0]!r}: rename that"
            f" volume, or take away the annotation {names.LABEL_LOCK}"
        )


def _mount_leader(path: str, container: Object) -> Patch:
    """The app reads the leader file, and cannot write it."""
    for mount in container.get("volumeMounts") or []:
        if mount["name"] == LEADER_VOLUME:
            return []
        if mount["mountPath"].rstrip("/") == LEADER_DIR:
            raise Denied(
                f"the container {container['name']!r} already mounts the volume {mount['name']!r}"
                f" at {LEADER_DIR}, where the leader file belongs: mount it elsewhere"
            )
    mount = {"name": LEADER_VOLUME, "mountPath": LEADER_DIR, "readOnly": True}
    return _extend(container, "volumeMounts", [mount], at=path)


def _container(pod: Object, locks: list[str], settings: Settings) -> Object:
    container: Object = {
        "name": CONTAINER,
        "image": settings.sidecar_image,
        "restartPolicy": "Always",
        "env": [*_environment(locks), *_by_annotation(pod)],
        "ports": [{"name": "leasekeeper", "containerPort": HTTP_PORT, "protocol": "TCP"}],
        # Ready means "can be a candidate", never "leads". The app starts when this says yes: half a
        # minute of quorum loss must not keep a pod from starting for longer than it lasts.
        "startupProbe": _probe("/readyz", periodSeconds=1, failureThreshold=300),
        "livenessProbe": _probe("/healthz", periodSeconds=10, failureThreshold=3),
        "resources": settings.sidecar_resources,
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            {"name": LEADER_VOLUME, "mountPath": LEADER_DIR},
            {"name": STATE_VOLUME, "mountPath": STATE_DIR},
            *(
                {"name": volume, "mountPath": folder, "readOnly": True}
                for volume, (_, folder) in _folders(locks).items()
            ),
            {"name": TOKEN_VOLUME, "mountPath": TOKEN_DIR, "readOnly": True},
        ],
    }
    if settings.sidecar_pull_policy:
        container["imagePullPolicy"] = settings.sidecar_pull_policy
    return container


def _folders(locks: list[str]) -> dict[str, tuple[str, str]]:
    """The volume of each lock's Secret: the lock, and where it is mounted."""
    if len(locks) == 1:
        return {LOCK_VOLUME: (locks[0], CONFIG_DIR)}
    return {
        f"{LOCK_VOLUME}-{number}": (lock, f"{CONFIG_DIR}/{lock}")
        for number, lock in enumerate(locks)
    }


def _environment(locks: list[str]) -> list[Object]:
    plain = {
        "LEASEKEEPER_CONFIG": ",".join(
            f"{folder}/lock.json" for _, folder in _folders(locks).values()
        ),
        "LEASEKEEPER_LEADER_DIR": LEADER_DIR,
        "LEASEKEEPER_STATE_DIR": STATE_DIR,
        "LEASEKEEPER_HTTP_PORT": str(HTTP_PORT),
        "LEASEKEEPER_LOCAL_PORT": str(LOCAL_PORT),
        "LEASEKEEPER_MIRROR": "kubernetes",
    }
    downward = {
        "LEASEKEEPER_POD_NAME": "metadata.name",
        "LEASEKEEPER_POD_NAMESPACE": "metadata.namespace",
        "LEASEKEEPER_POD_UID": "metadata.uid",
    }
    return [
        *({"name": name, "value": value} for name, value in plain.items()),
        *(
            {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
            for name, path in downward.items()
        ),
    ]


def _by_annotation(pod: Object) -> list[Object]:
    """What the app wants of its sidecar, which checks it, and says in its log what is wrong."""
    annotations = pod["metadata"].get("annotations") or {}
    found = {name: annotations.get(f"leasekeeper.dev/{name}") for name in SIDECAR_SETTINGS}
    return [
        {"name": "LEASEKEEPER_" + name.upper().replace("-", "_"), "value": value}
        for name, value in found.items()
        if value is not None
    ]


def _volumes(locks: list[str]) -> list[Object]:
    memory = {"medium": "Memory", "sizeLimit": "1Mi"}
    # A token of its own: pods that switch off the automatic one can still be candidates.
    token = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}},
        {
            "configMap": {
                "name": "kube-root-ca.crt",
                "items": [{"key": "ca.crt", "path": "ca.crt"}],
            }
        },
        {
            "downwardAPI": {
                "items": [
                    {
                        "path": "namespace",
                        "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                    }
                ]
            }
        },
    ]
    return [
        {"name": LEADER_VOLUME, "emptyDir": memory},
        {"name": STATE_VOLUME, "emptyDir": memory},
        *(
            # All of its keys: an ensemble with TLS adds its CA.
            {"name": volume, "secret": {"secretName": names.lock_objects(lock)}}
            for volume, (lock, _) in _folders(locks).items()
        ),
        {"name": TOKEN_VOLUME, "projected": {"sources": token}},
    ]


def _probe(path: str, **timing: Any) -> Object:
    return {"httpGet": {"path": path, "port": HTTP_PORT}, "timeoutSeconds": 3, **timing}


def metadata_patch(pod: Object, field: str, values: dict[str, str]) -> Patch:
    """Labels or annotations that are added, or replaced."""
    current = pod["metadata"].get(field) or {}
    if not current:
        return [{"op": "add", "path": f"/metadata/{field}", "value": values}]
    return [
        {"op": "add", "path": f"/metadata/{field}/{_escaped(key)}", "value": value}
        for key, value in values.items()
        if current.get(key) != value
    ]


def _extend(owner: Object, field: str, values: list[Object], at: str = "/spec") -> Patch:
    """Appends to a list that may not be there."""
    if not owner.get(field):
        return [{"op": "add", "path": f"{at}/{field}", "value": values}]
    return [{"op": "add", "path": f"{at}/{field}/-", "value": value} for value in values]


def _insert_first(spec: Object, field: str, value: Object) -> Patch:
    if not spec.get(field):
        return [{"op": "add", "path": f"/spec/{field}", "value": [value]}]
    return [{"op": "add", "path": f"/spec/{field}/0", "value": value}]


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
