"""From a pod that asks for a lock to the JSON patch that gives it the sidecar: a pure function.

The sidecar is a native one (an init container that keeps running) and stands first, so that it is
up before everything else of the pod and ends after it: the lease is released when the app is gone.
"""

from __future__ import annotations

import posixpath
from typing import Any

from leasekeeper_operator import names
from leasekeeper_operator.api import Object
from leasekeeper_operator.manifests.common import CONTAINER_SECURITY
from leasekeeper_operator.settings import Settings

CONTAINER = "leasekeeper"
LEADER_VOLUME, STATE_VOLUME = "leasekeeper-leader", "leasekeeper-state"
HEALTH_VOLUME = "leasekeeper-health"
LOCK_VOLUME, TOKEN_VOLUME = "leasekeeper-lock", "leasekeeper-token"
LEADER_DIR = "/var/run/lock"
STATE_DIR = "/var/run/leasekeeper"
CONFIG_DIR = "/etc/leasekeeper"
TOKEN_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"
HTTP_PORT, LOCAL_PORT = 8090, 4040
ANNOTATION_INJECTED = "leasekeeper.dev/injected"
"""Tells our own container, when the API server asks a second time, from one that somebody wrote."""
ANNOTATION_HEALTH = "leasekeeper.dev/health"
TOKEN_SECONDS = 3607  # what Kubernetes uses for the tokens that it mounts by itself

SIDECAR_SETTINGS = (
    *("drain", "on-lost", "log"),
    *("health", "health-period", "health-failures", "health-escape"),
)
"""Settings of the sidecar that a pod may choose, as annotations `leasekeeper.dev/NAME`."""

MOST_LOCKS = 32
"""Of one pod. Each is a Secret that is mounted and an election that is taken part in; a list as
long as annotations may be, of tens of thousands of names, would stop the event loop for minutes."""

Patch = list[Object]


class Denied(Exception):
    """The pod cannot be injected; the message says what to do."""


def asked_locks(pod: Object) -> list[str]:
    """What the pod's annotation says: one name nearly always, several by commas."""
    annotations = pod.get("metadata", {}).get("annotations") or {}
    text: str | None = annotations.get(names.LABEL_LOCK)
    return [] if text is None else [name.strip() for name in text.split(",")]


def wanted_locks(pod: Object) -> list[str]:
    """The locks that a pod may be a candidate of. Annotations of pods that run are edited, and
    nobody checks what they say then."""
    return [name for name in asked_locks(pod)[:MOST_LOCKS] if names.valid_lock_name(name)]


def inject(pod: Object, settings: Settings) -> Patch:
    """What to change in a pod that asks for locks which exist. Nothing, if all is there."""
    locks = asked_locks(pod)
    if not locks:
        return []
    check_names(locks)
    joined = ",".join(locks)
    spec = pod["spec"]
    existing = [c["name"] for field in _FIELDS for c in spec.get(field) or []]
    patch: Patch = []
    injected = (pod["metadata"].get("annotations") or {}).get(ANNOTATION_INJECTED) == joined
    inserted = not (injected and CONTAINER in existing)
    health = _health_folder(pod)
    if inserted:
        _check_free(spec, existing, locks)
        # A label cannot list names; that it is there is what selects the pod.
        patch += metadata_patch(pod, "labels", {names.LABEL_LOCK: locks[0]})
        patch += metadata_patch(pod, "annotations", {ANNOTATION_INJECTED: joined})
        patch += _extend(spec, "volumes", _volumes(locks, health))
        patch += _insert_first(spec, "initContainers", _container(pod, locks, health, settings))
    for field in _FIELDS:
        shift = 1 if inserted and field == "initContainers" else 0
        for index, container in enumerate(spec.get(field) or []):
            if container["name"] != CONTAINER:
                patch += _mount_shared(f"/spec/{field}/{index + shift}", container, health)
    return patch


_FIELDS = ("initContainers", "containers")


def check_names(locks: list[str]) -> None:
    if len(locks) > MOST_LOCKS:
        raise Denied(
            f"the annotation {names.LABEL_LOCK} names {len(locks)} locks, and a pod can ask for"
            f" {MOST_LOCKS} at most: share them out among several pods"
        )
    for lock in locks:
        _check_name(lock)
        if locks.count(lock) > 1:
            raise Denied(f"the annotation {names.LABEL_LOCK} names {lock!r} twice")


def _check_name(lock: str) -> None:
    if not names.valid_lock_name(lock):
        raise Denied(
            f"the annotation {names.LABEL_LOCK} is {lock[:80]!r}, which cannot be the name of a"
            f" DistributedLock: use at most {names.LONGEST_LOCK_NAME} lower-case letters, digits,"
            " dashes and dots"
        )


def _check_free(spec: Object, existing: list[str], locks: list[str]) -> None:
    if CONTAINER in existing:
        raise Denied(
            f"the pod asks for a lock and already has a container named {CONTAINER!r}: rename that"
            f" container, or take away the annotation {names.LABEL_LOCK}"
        )
    ours = {LEADER_VOLUME, STATE_VOLUME, HEALTH_VOLUME, TOKEN_VOLUME, *_folders(locks)}
    if taken := sorted(ours & {volume["name"] for volume in spec.get("volumes") or []}):
        raise Denied(
            f"the pod asks for a lock and already has a volume named {taken[0]!r}: rename that"
            f" volume, or take away the annotation {names.LABEL_LOCK}"
        )


def _health_folder(pod: Object) -> str:
    """Where the app's health file stands, if the pod asks for one: a volume of its own, because the
    app cannot write beside the leader file, and the sidecar sees nothing else of the app's.
    """
    path: str = (pod["metadata"].get("annotations") or {}).get(ANNOTATION_HEALTH, "")
    if not path.startswith("/"):
        return ""
    folder = posixpath.dirname(path)
    if posixpath.normpath(path) != path or path.startswith("//") or folder == "/" or ":" in path:
        raise Denied(
            f"the annotation {ANNOTATION_HEALTH} is {path!r}: name a file in a folder of its own,"
            " as in /var/run/health/well"
        )
    for ours in (LEADER_DIR, STATE_DIR, CONFIG_DIR, TOKEN_DIR):
        if posixpath.commonpath([folder, ours]) in (folder, ours):
            raise Denied(
                f"the annotation {ANNOTATION_HEALTH} is {path!r}, but {ours} is the sidecar's: name"
                " a file elsewhere, as in /var/run/health/well"
            )
    return folder


def _mount_shared(path: str, container: Object, health: str) -> Patch:
    """The app reads the leader file, and cannot write it; its health file it writes."""
    wanted = [{"name": LEADER_VOLUME, "mountPath": LEADER_DIR, "readOnly": True}]
    if health:
        wanted.append({"name": HEALTH_VOLUME, "mountPath": health})
    mounts = container.get("volumeMounts") or []
    there = {mount["name"] for mount in mounts}
    missing = [mount for mount in wanted if mount["name"] not in there]
    for mount in mounts:
        place = mount["mountPath"].rstrip("/")
        if place in {str(one["mountPath"]) for one in missing}:
            what = "leader" if place == LEADER_DIR else "health"
            raise Denied(
                f"the container {container['name']!r} already mounts the volume {mount['name']!r}"
                f" at {place}, where the {what} file belongs: mount it elsewhere"
            )
    return _extend(container, "volumeMounts", missing, at=path) if missing else []


def _container(pod: Object, locks: list[str], health: str, settings: Settings) -> Object:
    container: Object = {
        "name": CONTAINER,
        "image": settings.sidecar_image,
        "restartPolicy": "Always",
        "env": [*_environment(locks), *_by_annotation(pod)],
        "ports": [{"name": "leasekeeper", "containerPort": HTTP_PORT, "protocol": "TCP"}],
        # Ready means "takes part", never "leads", and not even "reaches the nodes": pods must start
        # without a quorum, too. The app starts when this says yes.
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
    if health:
        mount = {"name": HEALTH_VOLUME, "mountPath": health, "readOnly": True}
        container["volumeMounts"].append(mount)
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


def _volumes(locks: list[str], health: str) -> list[Object]:
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
        *([{"name": HEALTH_VOLUME, "emptyDir": memory}] if health else []),
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
