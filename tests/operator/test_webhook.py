"""The webhook, asked by a real API server whenever a pod is made."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import re
import ssl
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from leasekeeper_operator.api import Api, ApiError
from leasekeeper_operator.settings import Settings
from leasekeeper_operator.webhook import Webhook
from leasekeeper_operator.wishes import asked_by
from servers import free_port

from tests.operator.conftest import REPOSITORY, Cluster, Refusal, eventually
from tests.operator.samples import SETTINGS

Object = dict[str, Any]


class World:
    """A namespace whose pods are shown to the webhook, by an URL: there is no Service here."""

    def __init__(self, cluster: Cluster, settings: Settings, webhook: Webhook) -> None:
        self.cluster = cluster
        self.settings = settings
        self.webhook = webhook
        self.namespace = settings.namespace

    def configuration(self) -> Object:
        url = f"https://localhost:{self.settings.webhook_port}/inject"
        match = "has(object.metadata.annotations) && 'leasekeeper.dev/lock' in"
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": self.settings.webhook_configuration},
            "webhooks": [
                {
                    "name": "inject.leasekeeper.dev",
                    "admissionReviewVersions": ["v1"],
                    "clientConfig": {"url": url},
                    "rules": [
                        {
                            "apiGroups": [""],
                            "apiVersions": ["v1"],
                            "resources": ["pods"],
                            "operations": ["CREATE"],
                        }
                    ],
                    "namespaceSelector": {
                        "matchLabels": {"kubernetes.io/metadata.name": self.namespace}
                    },
                    "matchConditions": [
                        {"name": "asks", "expression": f"{match} object.metadata.annotations"}
                    ],
                    "reinvocationPolicy": "IfNeeded",
                    "sideEffects": "None",
                    "timeoutSeconds": 5,
                },
                self.asked(),
            ],
        }

    def asked(self) -> Object:
        """With the condition of the chart."""
        chart = REPOSITORY / "charts" / "leasekeeper" / "templates" / "webhook.yaml"
        (expression,) = re.findall(
            r"asks-of-the-holder\n +expression: >-\n(.*?)\n +\{\{-", chart.read_text(), re.DOTALL
        )
        rule = {
            "apiGroups": ["leasekeeper.dev"],
            "apiVersions": ["v1alpha1"],
            "resources": ["distributedlocks"],
            "operations": ["CREATE", "UPDATE"],
        }
        return {
            "name": "asked.leasekeeper.dev",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": f"https://localhost:{self.settings.webhook_port}/asked"},
            "rules": [rule],
            "matchConditions": [{"name": "asks", "expression": " ".join(expression.split())}],
            "failurePolicy": "Ignore",
            "sideEffects": "None",
            "timeoutSeconds": 5,
        }

    def pod(self, name: str, lock: str | None, **spec: Any) -> Object:
        container = {"name": "app", "image": "example.test/app"}
        metadata: Object = {"name": name, "namespace": self.namespace}
        if lock is not None:
            metadata["annotations"] = {"leasekeeper.dev/lock": lock}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            # Without the controller manager there is no admission that would fill it in.
            "spec": {"containers": [container], "serviceAccountName": "default", **spec},
        }

    def bundle(self) -> str:
        found = self.cluster.get("", "mutatingwebhookconfiguration", "hook") or {}
        webhook = found["webhooks"][0]
        return str(webhook["clientConfig"].get("caBundle", ""))


@pytest.fixture
async def world(cluster: Cluster, api: Api) -> AsyncIterator[World]:
    namespace = cluster.namespace()
    settings = dataclasses.replace(SETTINGS, namespace=namespace, webhook_port=free_port())
    webhook = Webhook(api, settings, ["localhost"], linger=0.0)
    world = World(cluster, settings, webhook)
    cluster.run("delete", "mutatingwebhookconfiguration", "hook", "--ignore-not-found")
    cluster.run("create", "-f", "-", document=world.configuration())
    cluster.lock(namespace)
    async with webhook.serve():
        # The API server watches its configurations; the CA takes a moment to arrive there.
        await eventually(lambda: _injects(world), "the API server to know the webhook")
        yield world
    cluster.run("delete", "mutatingwebhookconfiguration", "hook")


def _injects(world: World) -> bool:
    try:
        made = _create(world, world.pod("probe", "orders"), "--dry-run=server")
    except Refusal as refusal:
        print(refusal)
        return False
    return "initContainers" in made["spec"]


def _create(world: World, pod: Object, *more: str) -> Object:
    return dict(json.loads(world.cluster.run("create", "-o=json", *more, "-f", "-", document=pod)))


async def create(world: World, pod: Object) -> Object:
    """In a thread: this event loop must answer the API server meanwhile."""
    return await asyncio.to_thread(_create, world, pod)


async def test_a_pod_that_asks_is_injected(world: World) -> None:
    made = await create(world, world.pod("a", "orders"))
    (sidecar,) = made["spec"]["initContainers"]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("leasekeeper", "Always")
    assert made["metadata"]["labels"]["leasekeeper.dev/lock"] == "orders"
    mounts = {m["mountPath"]: m for m in made["spec"]["containers"][0]["volumeMounts"]}
    assert mounts["/var/run/lock"]["readOnly"] is True


async def test_an_injected_pod_passes_the_restricted_profile(world: World) -> None:
    label = "pod-security.kubernetes.io/enforce=restricted"
    world.cluster.run("label", "namespace", world.namespace, label)
    security = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    pod = world.pod("a", "orders", securityContext=security)
    pod["spec"]["containers"][0]["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert (await create(world, pod))["spec"]["initContainers"]


async def test_a_pod_that_does_not_ask_is_left_alone_also_without_a_webhook(world: World) -> None:
    assert "initContainers" not in (await create(world, world.pod("a", None)))["spec"]


@pytest.mark.parametrize(
    ("lock", "containers", "sentence"),
    [
        (
            "nothing",
            ["app"],
            "there is no DistributedLock 'nothing' in the namespace '{namespace}': create it first,"
            " or correct the annotation leasekeeper.dev/lock",
        ),
        ("No_Name", ["app"], "'No_Name', which cannot be the name of a DistributedLock"),
        (
            "orders",
            ["leasekeeper"],
            "the pod asks for a lock and already has a container named 'leasekeeper': rename",
        ),
    ],
)
async def test_what_cannot_be_injected_is_refused_with_a_sentence(
    world: World, lock: str, containers: list[str], sentence: str
) -> None:
    named = [{"name": name, "image": "example.test/app"} for name in containers]
    with pytest.raises(Refusal) as refusal:
        await create(world, world.pod("a", lock, containers=named))
    assert sentence.format(namespace=world.namespace) in str(refusal.value)


async def test_a_ca_bundle_that_somebody_took_away_is_brought_back(world: World) -> None:
    before = world.bundle()
    assert before
    world.cluster.run("replace", "-f", "-", document=world.configuration())
    assert world.bundle() == ""
    await world.webhook.tls.refresh()
    assert world.bundle() == before


async def test_a_second_replica_serves_the_same_certificate(world: World, api: Api) -> None:
    before = world.cluster.get(world.namespace, "secret", "hook-certificate")
    assert before is not None
    await Webhook(api, world.settings, ["localhost"]).tls.refresh()
    after = world.cluster.get(world.namespace, "secret", "hook-certificate")
    assert after == before


async def test_a_configuration_that_is_not_there_is_not_made(world: World, api: Api) -> None:
    settings = dataclasses.replace(world.settings, webhook_configuration="elsewhere")
    await Webhook(api, settings, ["localhost"]).tls.refresh()
    assert world.cluster.get("", "mutatingwebhookconfiguration", "elsewhere") is None


async def test_a_lock_that_cannot_be_looked_up_is_said_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(*_: Any) -> None:
        raise ApiError(0, "the API server cannot be reached: no route")

    monkeypatch.setattr(Api, "get", down)
    with pytest.raises(Refusal, match=r"cannot be looked up now: the API server cannot be reached"):
        await create(world, world.pod("a", "orders"))


async def test_what_is_no_review_is_a_bad_request(world: World) -> None:
    url = f"https://localhost:{world.settings.webhook_port}/inject"
    trust = ssl.create_default_context(cadata=base64.b64decode(world.bundle()).decode())
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=b"[]", ssl=trust) as answer,
    ):
        assert answer.status == 400
        assert "not an AdmissionReview" in await answer.text()


async def test_while_it_ends_it_still_answers_and_sends_the_next_review_elsewhere(
    cluster: Cluster, api: Api
) -> None:
    """Whoever routes reviews hears of a replica's end at the same time as the replica does."""
    namespace, port = cluster.namespace(), free_port()
    settings = dataclasses.replace(
        SETTINGS, namespace=namespace, webhook_port=port, webhook_configuration=""
    )
    cluster.lock(namespace)
    told = asyncio.Event()
    webhook = Webhook(api, settings, ["localhost"], linger=5.0)

    async def serve() -> None:
        async with webhook.serve():
            await told.wait()

    ending = asyncio.create_task(serve())
    await eventually(lambda: webhook.serving, "the webhook to serve")
    secret = cluster.get(namespace, "secret", "hook-certificate") or {}
    trust = ssl.create_default_context(cadata=base64.b64decode(secret["data"]["ca.crt"]).decode())
    pod = {"metadata": {"annotations": {"leasekeeper.dev/lock": "orders"}}}
    asked = {"uid": "1", "namespace": namespace, "object": {**pod, "spec": {"containers": []}}}

    async def answer() -> tuple[bool, bool]:
        url = f"https://localhost:{port}/inject"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json={"request": asked}, ssl=trust) as found,
        ):
            said = await found.json()
            closes = found.headers.get("Connection", "").lower() == "close"
            return said["response"]["allowed"], closes

    assert await answer() == (True, False)
    told.set()
    await eventually(lambda: not webhook.serving, "the webhook to be told")
    assert await answer() == (True, True)
    assert not ending.done()
    await ending
    with pytest.raises(aiohttp.ClientConnectorError):
        await answer()


async def test_who_asks_a_holder_for_something_is_noted(world: World) -> None:
    def asked(spec: Object, *as_user: str) -> str:
        place = (world.namespace, "dlock", "orders")
        return asked_by(world.cluster.patch(*place, {"spec": spec}, *as_user))

    cluster = world.cluster
    cluster.run("create", "clusterrole", "locks", "--verb=get,patch", "--resource=distributedlocks")
    cluster.run("create", "clusterrolebinding", "locks", "--clusterrole=locks", "--user=jane")

    def patch(spec: Object) -> str:
        return asked(spec, "--as=jane")

    unseen = "kubectl-patch (a program; the user was not seen)"
    # Timings are nobody's wish, and the webhook is not asked.
    assert await asyncio.to_thread(patch, {"leaseDurationSeconds": 16}) != "jane"
    assert await asyncio.to_thread(patch, {"paused": True}) == "jane"
    assert await asyncio.to_thread(patch, {"leaseDurationSeconds": 17}) == "jane"
    assert await asyncio.to_thread(patch, {"stepDown": {"token": 7}}) == "jane"
    # Who edits the note afterwards asks for nothing, and puts it down to nobody else.
    forged = json.dumps({"by": "bob", "paused": True, "stepDown": 7})

    def edited(note: str | None) -> str:
        body = {"metadata": {"annotations": {"leasekeeper.dev/asked-by": note}}}
        place = (world.namespace, "dlock", "orders")
        return asked_by(cluster.patch(*place, body, "--as=jane"))

    for note in (forged, None):
        assert await asyncio.to_thread(edited, note) == "jane"
    # What the webhook did not see is not put down to who asked before, nor to who writes the note.
    cluster.run("delete", "mutatingwebhookconfiguration", "hook")

    def forgotten() -> bool:
        wish = {"stepDown": {"token": time.time_ns() % 10**12}}
        return asked(wish, "--show-managed-fields") == unseen

    await eventually(forgotten, "the API server to forget the webhook")
    cluster.run("create", "-f", "-", document=world.configuration())
