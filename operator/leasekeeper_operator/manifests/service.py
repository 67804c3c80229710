"""A lock's Service that leads to the holder's pod, and to nobody else.

Without a selector: its EndpointSlices are written here, one a family of addresses, each with one
address or none.
"""

from __future__ import annotations

from leasekeeper_operator import names
from leasekeeper_operator.api import ENDPOINT_SLICE, SERVICE, Object
from leasekeeper_operator.injection import wanted_locks
from leasekeeper_operator.manifests.lock import lock_object
from leasekeeper_operator.model import Lock

SERVICE_NAME = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
FAMILIES = ("IPv4", "IPv6")


def leader_service(lock: Lock) -> Object:
    assert lock.service is not None, "asked for"
    spec: Object = {
        "type": "ClusterIP",
        # On a cluster of both families, both; on any other, the one that there is.
        "ipFamilyPolicy": "PreferDualStack",
        "ports": [
            {
                "name": port["name"],
                "port": port["port"],
                "targetPort": port["targetPort"],
                "protocol": port["protocol"],
            }
            for port in lock.service["ports"]
        ],
    }
    if lock.service.get("headless"):
        spec["clusterIP"] = "None"
    return lock_object(lock, SERVICE, name=lock.service["name"], spec=spec)


def leader_slice(lock: Lock, family: str, pod: Object | None) -> Object:
    """`pod`: the holder's, or none."""
    assert lock.service is not None, "asked for"
    service = lock.service["name"]
    address = address_of(pod, family) if pod else ""
    endpoints = [_endpoint(pod, address)] if pod and address else []
    ports = [
        {"name": port["name"], "port": port["targetPort"], "protocol": port["protocol"]}
        for port in lock.service["ports"]
    ]
    labels = {SERVICE_NAME: service, MANAGED_BY: "leasekeeper.dev"}
    return lock_object(
        lock,
        ENDPOINT_SLICE,
        labels,
        name=names.leader_slice(service, family),
        addressType=family,
        endpoints=endpoints,
        ports=ports,
    )


def address_of(pod: Object, family: str) -> str:
    """The pod's address of that family; empty: it has none."""
    found = [entry["ip"] for entry in pod.get("status", {}).get("podIPs", [])]
    return next((ip for ip in found if (":" in ip) == (family == "IPv6")), "")


def _endpoint(pod: Object, address: str) -> Object:
    metadata = pod["metadata"]
    endpoint: Object = {
        "addresses": [address],
        "conditions": {"ready": True},
        "targetRef": {
            "kind": "Pod",
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
    }
    if node := pod["spec"].get("nodeName"):
        endpoint["nodeName"] = node
    return endpoint


def can_serve(pod: Object | None, lock: Lock, uid: str) -> bool:
    """Whether traffic may go to this pod: it is the very one that holds the lock (a name proves
    nothing), a candidate of this lock, ready, and not about to end."""
    if pod is None or pod["metadata"]["uid"] != uid:
        return False
    metadata, status = pod["metadata"], pod.get("status", {})
    ready = any(
        c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", [])
    )
    # The label has room for one name; a pod with several locks names them in its annotation.
    asked = {metadata.get("labels", {}).get(names.LABEL_LOCK), *wanted_locks(pod)}
    ours = lock.name in asked
    return ready and ours and "deletionTimestamp" not in metadata
