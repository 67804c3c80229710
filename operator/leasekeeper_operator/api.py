"""The handful of calls that the operator makes to the API server, typed.

The official client's models are left alone: an object is the JSON that it is, and a model of a
newer field would drop it silently. What stays of the client is what is hard: kubeconfig, the
refreshed token of a pod, TLS and the pool of connections.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

import aiohttp

FIELD_MANAGER = "leasekeeper"
TIMEOUT_SECONDS = 10.0
"""For one request. The server ends what it cannot do within a minute; a key that waits that long
blocks nobody but itself, and its next try comes sooner than the server's own time-out."""

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object, and where the API server has it."""

    api_version: str
    name: str
    plural: str

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        root = "/apis/" if "/" in self.api_version else "/api/"
        parts = [root + self.api_version]
        if namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


GROUP = "leasekeeper.dev"
VERSION = "v1alpha1"
LOCK = Kind(f"{GROUP}/{VERSION}", "DistributedLock", "distributedlocks")
ENSEMBLE = Kind(f"{GROUP}/{VERSION}", "LockEnsemble", "lockensembles")
SECRET = Kind("v1", "Secret", "secrets")
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")
SERVICE = Kind("v1", "Service", "services")
STATEFUL_SET = Kind("apps/v1", "StatefulSet", "statefulsets")
DISRUPTION_BUDGET = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
POD = Kind("v1", "Pod", "pods")
ENDPOINT_SLICE = Kind("discovery.k8s.io/v1", "EndpointSlice", "endpointslices")
EVENT = Kind("v1", "Event", "events")
ROLE = Kind("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDING = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
WEBHOOK_CONFIGURATION = Kind(
    "admissionregistration.k8s.io/v1",
    "MutatingWebhookConfiguration",
    "mutatingwebhookconfigurations",
)
KINDS = {
    (kind.api_version, kind.name): kind
    for kind in (
        LOCK,
        ENSEMBLE,
        SECRET,
        CONFIG_MAP,
        SERVICE,
        STATEFUL_SET,
        DISRUPTION_BUDGET,
        NETWORK_POLICY,
        POD,
        ENDPOINT_SLICE,
        EVENT,
        ROLE,
        ROLE_BINDING,
        WEBHOOK_CONFIGURATION,
    )
}


def kind_of(obj: Object) -> Kind:
    return KINDS[obj["apiVersion"], obj["kind"]]


class ApiError(Exception):
    """The API server refused, or could not be reached (status 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Conflict(ApiError):
    """Somebody else was first: read again, and decide again."""


async def client_configuration(kubeconfig: str | None = None) -> Any:
    """Where the API server is and who we are to it, as the official client has it."""
    from kubernetes.aio.client.configuration import Configuration
    from kubernetes.aio.config import load_incluster_config, load_kube_config

    configuration = Configuration()
    if path := kubeconfig or os.environ.get("KUBECONFIG"):
        await load_kube_config(path, client_configuration=configuration)  # type: ignore[no-untyped-call]
    else:
        load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    # Else it looks for proxies and a ~/.netrc, by a thread and for every single request.
    configuration.client_session_kwargs = {"trust_env": False}
    return configuration


class Api:
    """Talks to the API server as the operator."""

    served: tuple[str, ...] = ()
    """The only namespaces that we have rights in; none: the whole cluster."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @classmethod
    async def connect(cls, kubeconfig: str | None = None) -> Self:
        """By this file, or KUBECONFIG's; else as the pod that this process runs in."""
        # Here, because it costs 20 MiB and half a second, and tests of pure functions need none.
        from kubernetes.aio.client.api_client import ApiClient

        return cls(ApiClient(await client_configuration(kubeconfig)))

    async def close(self) -> None:
        await self._client.close()

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object | None:
        try:
            return await self._request("GET", kind.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def find(
        self, kind: Kind, namespace: str | None = None, labels: str = ""
    ) -> list[Object]:
        """In one namespace, or in all that are served.

        From a cache of the API server (resourceVersion 0 is not asked for: it may be stale).
        """
        query = {"labelSelector": labels} if labels else {}
        places = [namespace] if namespace is not None else self.served or [None]
        answers = [await self._request("GET", kind.path(place), query) for place in places]
        # The items of a list do not say what they are.
        what = {"apiVersion": kind.api_version, "kind": kind.name}
        return [{**what, **item} for answer in answers for item in answer["items"]]

    async def create(self, obj: Object) -> Object:
        """Conflict, if there is one already."""
        path = kind_of(obj).path(obj["metadata"].get("namespace"))
        return await self._request("POST", path, {"fieldManager": FIELD_MANAGER}, obj)

    async def apply(self, obj: Object) -> Object:
        """Server-side apply. What we name is ours, also if somebody edited it by hand."""
        metadata = obj["metadata"]
        path = kind_of(obj).path(metadata.get("namespace"), metadata["name"])
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._request("PATCH", path, query, obj, "application/apply-patch+yaml")

    async def set_owners(self, obj: Object, owners: list[Object]) -> Object:
        """Compare-and-swap; the garbage collector may be about to delete the object."""
        metadata = obj["metadata"]
        path = kind_of(obj).path(metadata.get("namespace"), metadata["name"])
        version = metadata["resourceVersion"]
        body = {"metadata": {"resourceVersion": version, "ownerReferences": owners}}
        query = {"fieldManager": FIELD_MANAGER}
        return await self._request("PATCH", path, query, body, "application/merge-patch+json")

    async def patch_labels(self, obj: Object, labels: dict[str, str | None]) -> None:
        """Of this very object, not of a new one of the same name. Does nothing if it is gone."""
        metadata = obj["metadata"]
        path = kind_of(obj).path(metadata["namespace"], metadata["name"])
        body = {"metadata": {"uid": metadata["uid"], "labels": labels}}
        query = {"fieldManager": FIELD_MANAGER}
        try:
            await self._request("PATCH", path, query, body, "application/merge-patch+json")
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def patch_status(self, obj: Object, status: Object) -> Object:
        """Merges into the status of an object that is known to be there."""
        metadata = obj["metadata"]
        path = kind_of(obj).path(metadata["namespace"], metadata["name"], "status")
        # With the uid, a new object of the same name is not given its predecessor's status.
        body = {"metadata": {"uid": metadata["uid"]}, "status": status}
        query = {"fieldManager": FIELD_MANAGER}
        return await self._request("PATCH", path, query, body, "application/merge-patch+json")

    async def replace_status(self, obj: Object) -> Object:
        """Compare-and-swap by the resourceVersion in `obj`: Conflict, if it is not the newest."""
        metadata = obj["metadata"]
        path = kind_of(obj).path(metadata["namespace"], metadata["name"], "status")
        return await self._request("PUT", path, {"fieldManager": FIELD_MANAGER}, obj)

    async def delete(self, obj: Object) -> None:
        """This very object, not a new one of the same name. Does nothing if it is gone."""
        metadata = obj["metadata"]
        path = kind_of(obj).path(metadata.get("namespace"), metadata["name"])
        body = {"preconditions": {"uid": metadata["uid"]}}
        try:
            await self._request("DELETE", path, {}, body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def evict(self, pod: Object) -> None:
        """Asks for this very pod to go. The API server refuses (429) what a disruption budget does
        not allow. Does nothing if it is gone."""
        metadata = pod["metadata"]
        path = POD.path(metadata["namespace"], metadata["name"], "eviction")
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
            "deleteOptions": {"preconditions": {"uid": metadata["uid"]}},
        }
        try:
            await self._request("POST", path, {}, body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def _request(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> Object:
        headers = {"Accept": "application/json", "Content-Type": content_type}
        request = await self._client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            response = await self._client.call_api(*request, _request_timeout=TIMEOUT_SECONDS)
            text = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = str(error) or type(error).__name__
            raise ApiError(0, f"the API server cannot be reached: {why}") from error
        return _decode(response.status, text)


def _decode(status: int, text: bytes) -> Object:
    try:
        answer = json.loads(text)
    except ValueError:
        answer = {"message": text[:200].decode(errors="replace")}
    if status < 400:
        return dict(answer)
    message = answer.get("message") or f"HTTP {status}"
    raise (Conflict if status == 409 else ApiError)(status, message)
