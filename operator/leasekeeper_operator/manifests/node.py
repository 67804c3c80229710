"""One node: a StatefulSet of one pod with an unmodified server and our agent, and its Service."""

from __future__ import annotations

from typing import Any

from leasekeeper_operator import names
from leasekeeper_operator.api import SERVICE, STATEFUL_SET, Object
from leasekeeper_operator.apply import digest
from leasekeeper_operator.manifests.common import (
    CONTAINER_SECURITY,
    USER_ID,
    ensemble_object,
    selector,
)
from leasekeeper_operator.model import SERVER_PORT, Ensemble

AGENT_PORT = 8080
RUN = "/run/leasekeeper"
SOCKET = f"{RUN}/server.sock"
CONFIG = "/etc/leasekeeper"
TLS = "/etc/leasekeeper-tls"
"""The same in both containers: the agent tells the server to read these files again."""
DATA = "/data"
"""The server's folder: empty, and mounted read-only. No dump can get there, and none be loaded."""

ANNOTATION_CONFIGURATION = "leasekeeper.dev/configuration"


def server_command(image: str) -> list[str]:
    """By the image's own name: `…/redis:8` has redis-server, everything else valkey-server."""
    name = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    return ["redis-server" if "redis" in name else "valkey-server"]


def service(ensemble: Ensemble, node_id: str) -> Object:
    return ensemble_object(
        ensemble,
        SERVICE,
        names.node(ensemble.name, node_id),
        node_id=node_id,
        spec={
            "type": "ClusterIP",
            "selector": selector(ensemble, node_id),
            # Nodes in quarantine are not ready, and must reach each other to end it.
            "publishNotReadyAddresses": True,
            "ports": [
                {"name": "server", "port": SERVER_PORT, "targetPort": "server", "protocol": "TCP"},
                {"name": "agent", "port": AGENT_PORT, "targetPort": "agent", "protocol": "TCP"},
            ],
        },
    )


def stateful_set(
    ensemble: Ensemble, node_id: str, *, agent_image: str, pull_policy: str, configuration: str
) -> Object:
    """`configuration`: what the server reads only at its start; its change is a new revision."""
    labels = selector(ensemble, node_id)
    name = names.node(ensemble.name, node_id)
    annotations = {
        **ensemble.spec.get("podAnnotations", {}),
        ANNOTATION_CONFIGURATION: digest(configuration),
    }
    pod_labels = {
        "app.kubernetes.io/name": "leasekeeper",
        "app.kubernetes.io/component": "node",
        "app.kubernetes.io/instance": ensemble.name,
        **labels,
    }
    return ensemble_object(
        ensemble,
        STATEFUL_SET,
        name,
        node_id=node_id,
        spec={
            "replicas": 1,
            "serviceName": name,
            "selector": {"matchLabels": labels},
            # A careless `kubectl rollout restart` of all nodes would be a loss of all memory.
            "updateStrategy": {"type": "OnDelete"},
            "podManagementPolicy": "Parallel",
            "template": {
                "metadata": {"labels": pod_labels, "annotations": annotations},
                "spec": _pod(ensemble, node_id, agent_image, pull_policy),
            },
        },
    )


def _pod(ensemble: Ensemble, node_id: str, agent_image: str, pull_policy: str) -> Object:
    spec = ensemble.spec
    handed_on = ("nodeSelector", "tolerations", "affinity", "priorityClassName", "imagePullSecrets")
    return {
        "affinity": _different_zones(ensemble),
        **{field: spec[field] for field in handed_on if spec.get(field)},
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # Neither of the two has anything to save or to say goodbye for.
        "terminationGracePeriodSeconds": 5,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [_spread(ensemble)],
        "containers": [_server(ensemble), _agent(ensemble, node_id, agent_image, pull_policy)],
        "volumes": [
            {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "data", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            _secret("server", names.server_secret(ensemble.name), "server.conf"),
            # The agent is not given the operator's password.
            _secret("credentials", names.credentials_secret(ensemble.name), "agent", "peer"),
            _secret("users", names.users_secret(ensemble.name), "users"),
            {
                "name": "membership",
                "configMap": {"name": names.membership_config_map(ensemble.name)},
            },
            *_tls_volume(ensemble),
        ],
    }


def _tls_volume(ensemble: Ensemble) -> list[Object]:
    if ensemble.tls is None:
        return []
    return [_secret("tls", names.tls_secret(ensemble.name), "ca.crt", "tls.crt", "tls.key")]


def _tls_mount(ensemble: Ensemble) -> list[Object]:
    return [] if ensemble.tls is None else [_mount("tls", TLS)]


def _spread(ensemble: Ensemble) -> Object:
    """On different machines, if that can be had; on a cluster of two, five nodes must still start.

    Zones are no second constraint of this kind: the scheduler ignores machines that lack any of the
    keys, and where none has a zone, it would not look at machines either.
    """
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector(ensemble)},
    }


def _different_zones(ensemble: Ensemble) -> Object:
    term = {
        "topologyKey": "topology.kubernetes.io/zone",
        "labelSelector": {"matchLabels": selector(ensemble)},
    }
    wish = {"weight": 50, "podAffinityTerm": term}
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}


def _secret(volume: str, secret: str, *keys: str) -> Object:
    items = [{"key": key, "path": key} for key in keys]
    return {"name": volume, "secret": {"secretName": secret, "defaultMode": 0o440, "items": items}}


def _mount(volume: str, path: str, *, read_only: bool = True) -> Object:
    mount: Object = {"name": volume, "mountPath": path}
    return {**mount, "readOnly": True} if read_only else mount


def _server(ensemble: Ensemble) -> Object:
    """No probes: a server that is slow must not be killed for it, because its memory would be gone.
    The agent sees what is wrong with it, and says so by not being ready."""
    spec = ensemble.spec
    container: Object = {
        "name": "server",
        "image": ensemble.image,
        "command": list(spec.get("command") or server_command(ensemble.image)),
        "args": [f"{CONFIG}/server.conf"],
        "ports": [{"name": "server", "containerPort": SERVER_PORT, "protocol": "TCP"}],
        "resources": spec.get("resources", {}),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            _mount("run", RUN, read_only=False),
            _mount("data", DATA),
            _mount("server", CONFIG),
            *_tls_mount(ensemble),
        ],
    }
    if policy := spec.get("imagePullPolicy"):
        container["imagePullPolicy"] = policy
    return container


def _agent(ensemble: Ensemble, node_id: str, image: str, pull_policy: str) -> Object:
    settings = {
        "LEASEKEEPER_NODE": node_id,
        "LEASEKEEPER_SERVER": f"unix://{SOCKET}",
        "LEASEKEEPER_MEMBERSHIP": f"{CONFIG}/membership/membership.json",
        "LEASEKEEPER_CREDENTIALS": f"{CONFIG}/credentials",
        "LEASEKEEPER_USERS": f"{CONFIG}/users/users",
        "LEASEKEEPER_HTTP": f":{AGENT_PORT}",
        **({} if ensemble.tls is None else {"LEASEKEEPER_TLS_CA": f"{TLS}/ca.crt"}),
    }
    container: Object = {
        "name": "agent",
        "image": image,
        "command": ["leasekeeper", "node-agent"],
        "env": [{"name": key, "value": value} for key, value in settings.items()],
        "ports": [{"name": "agent", "containerPort": AGENT_PORT, "protocol": "TCP"}],
        "readinessProbe": _probe("/readyz", periodSeconds=2, failureThreshold=1),
        # Generous: a restarted agent costs a registration only, but a machine under load is slow.
        "livenessProbe": _probe("/healthz", periodSeconds=10, failureThreshold=3),
        "resources": ensemble.spec.get("agentResources", {}),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            _mount("run", RUN, read_only=False),
            _mount("data", DATA),
            _mount("membership", f"{CONFIG}/membership"),
            _mount("credentials", f"{CONFIG}/credentials"),
            _mount("users", f"{CONFIG}/users"),
            *_tls_mount(ensemble),
        ],
    }
    if pull_policy:
        container["imagePullPolicy"] = pull_policy
    return container


def _probe(path: str, **timing: Any) -> Object:
    return {"httpGet": {"path": path, "port": "agent"}, "timeoutSeconds": 3, **timing}
