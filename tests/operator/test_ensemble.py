"""An ensemble's objects on a real API server: made, kept, mended, and otherwise left alone.

No kubelet: pods never start, and every node is unreachable.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from leasekeeper_operator.api import Api
from leasekeeper_operator.apply import Applier
from leasekeeper_operator.ensemble import EnsembleReconciler
from leasekeeper_operator.model import Key, ensemble_key
from leasekeeper_operator.queue import Queue

from tests.operator.conftest import Cluster
from tests.operator.samples import SETTINGS

Object = dict[str, Any]
KINDS = ("statefulset", "service", "secret", "configmap", "pdb", "networkpolicy")


class World:
    """One ensemble, and an operator that works only when it is told to."""

    def __init__(self, cluster: Cluster, api: Api, namespace: str) -> None:
        self.cluster = cluster
        self.api = api
        self.namespace = namespace
        self.key: Key = ensemble_key(namespace, "main")
        self.reconciler = self.operator()

    def operator(self) -> EnsembleReconciler:
        """A new one, which remembers nothing."""
        return EnsembleReconciler(
            self.api,
            Applier(self.api),
            SETTINGS,
            Queue(),
            resolve=lambda node: ("127.0.0.1", 1),  # nobody listens there
        )

    async def reconcile(self) -> float | None:
        self.reconciler.objects_changed(self.key)
        return await self.reconciler.reconcile(self.key)

    def get(self, kind: str, name: str) -> Object:
        found = self.cluster.get(self.namespace, kind, name)
        assert found is not None, f"{kind} {name}"
        return found

    def versions(self) -> dict[str, str]:
        """Of everything in the namespace: what was not written is what it was."""
        out = (
            "jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.resourceVersion}\n{end}"
        )
        text = self.cluster.run("-n", self.namespace, "get", ",".join((*KINDS, "lens")), "-o", out)
        return dict(line.split() for line in text.splitlines() if line)


@pytest.fixture
async def world(cluster: Cluster, api: Api) -> AsyncIterator[World]:
    world = World(cluster, api, cluster.namespace())
    cluster.ensemble(world.namespace, nodes=3)
    yield world
    await world.reconciler.close()


async def test_all_objects_are_made(world: World) -> None:
    await world.reconcile()
    names = [f"main-{i}" for i in range(3)]
    assert world.cluster.names(world.namespace, "statefulset") == names
    assert world.cluster.names(world.namespace, "service") == names
    assert world.cluster.names(world.namespace, "secret") == [
        "main-credentials",
        "main-server",
        "main-users",
    ]
    assert "main-membership" in world.cluster.names(world.namespace, "configmap")
    assert world.cluster.names(world.namespace, "pdb") == ["main"]
    assert world.cluster.names(world.namespace, "networkpolicy") == ["main"]


async def test_nothing_is_written_when_nothing_changed(world: World) -> None:
    await world.reconcile()
    before = world.versions()
    assert len(before) > 10
    await world.reconcile()
    world.reconciler = world.operator()
    await world.reconcile()
    assert world.versions() == before


async def test_no_finalizer_and_no_annotation_is_put_on_the_users_object(world: World) -> None:
    before = world.get("lens", "main")["metadata"]
    await world.reconcile()
    after = world.get("lens", "main")["metadata"]
    for field in ("finalizers", "annotations", "labels", "ownerReferences"):
        assert after.get(field) == before.get(field)


async def test_passwords_are_made_once(world: World) -> None:
    await world.reconcile()
    before = world.get("secret", "main-credentials")["data"]
    assert {*before} == {"agent", "peer", "operator"}
    assert len({*before.values()}) == 3
    assert min(len(base64.b64decode(value)) for value in before.values()) >= 32
    world.cluster.patch(world.namespace, "lens", "main", {"spec": {"image": "redis:8"}})
    world.reconciler = world.operator()
    await world.reconcile()
    assert world.get("secret", "main-credentials")["data"] == before


async def test_a_password_that_is_missing_is_added_and_the_others_are_kept(world: World) -> None:
    await world.reconcile()
    before = world.get("secret", "main-credentials")["data"]
    world.cluster.patch(world.namespace, "secret", "main-credentials", {"data": {"peer": None}})
    await world.reconcile()
    after = world.get("secret", "main-credentials")["data"]
    assert after["agent"] == before["agent"]
    assert after["operator"] == before["operator"]
    assert after["peer"]


@pytest.mark.parametrize(
    ("kind", "name", "edit", "path"),
    [
        ("statefulset", "main-0", {"spec": {"replicas": 0}}, ("spec", "replicas")),
        (
            "service",
            "main-1",
            {"spec": {"publishNotReadyAddresses": False}},
            ("spec", "publishNotReadyAddresses"),
        ),
        ("pdb", "main", {"spec": {"maxUnavailable": 5}}, ("spec", "maxUnavailable")),
        ("configmap", "main-membership", {"data": {"membership.json": ""}}, ("data",)),
    ],
)
async def test_what_somebody_edited_is_brought_back(
    world: World, kind: str, name: str, edit: Object, path: tuple[str, ...]
) -> None:
    def value() -> Any:
        found: Any = world.get(kind, name)
        for part in path:
            found = found.get(part)
        return found

    await world.reconcile()
    before = value()
    world.cluster.patch(world.namespace, kind, name, edit)
    assert value() != before
    await world.reconcile()
    assert value() == before


@pytest.mark.parametrize(
    ("kind", "name"),
    [("statefulset", "main-2"), ("service", "main-2"), ("secret", "main-server")],
)
async def test_what_somebody_deleted_is_made_again(world: World, kind: str, name: str) -> None:
    await world.reconcile()
    world.cluster.run("-n", world.namespace, "delete", kind, name, "--wait=false")
    await world.reconcile()
    assert name in world.cluster.names(world.namespace, kind)


async def test_what_others_add_stays(world: World) -> None:
    await world.reconcile()
    edit = {"metadata": {"annotations": {"team": "till"}}, "spec": {"minReadySeconds": 3}}
    world.cluster.patch(world.namespace, "statefulset", "main-0", edit)
    before = world.versions()
    await world.reconcile()
    assert world.versions() == before


async def test_a_change_of_the_spec_arrives_and_can_be_taken_back(world: World) -> None:
    def selector() -> Any:
        spec = world.get("statefulset", "main-0")["spec"]["template"]["spec"]
        return spec.get("nodeSelector")

    await world.reconcile()
    for wanted in ({"disk": "none"}, None):
        world.cluster.patch(world.namespace, "lens", "main", {"spec": {"nodeSelector": wanted}})
        await world.reconciler.reconcile(world.key)
        assert selector() == wanted


async def test_quantities_in_another_form_are_not_written_again_and_again(world: World) -> None:
    resources = {"requests": {"cpu": "1000m", "memory": "1024Ki"}}
    world.cluster.patch(world.namespace, "lens", "main", {"spec": {"resources": resources}})
    await world.reconcile()
    before = world.versions()
    await world.reconcile()
    assert world.versions() == before


async def test_the_status_says_what_is_missing(world: World) -> None:
    assert await world.reconcile() == 1.0  # soon again: somebody is waiting
    status = world.get("lens", "main")["status"]
    assert status["observedGeneration"] == 1
    assert status["openNodes"] == 0
    assert [node["state"] for node in status["nodes"]] == ["Unreachable"] * 3
    conditions = {c["type"]: c for c in status["conditions"]}
    assert conditions["Ready"]["status"] == "False"
    assert conditions["Ready"]["reason"] == "Starting"
    assert "node 0 unreachable" in conditions["Ready"]["message"]
    assert conditions["QuorumAvailable"]["status"] == "False"
    assert conditions["Born"]["reason"] == "Unborn"


async def test_an_ensemble_made_again_takes_over_what_the_old_one_left(world: World) -> None:
    await world.reconcile()
    passwords = world.get("secret", "main-credentials")["data"]
    world.cluster.run("-n", world.namespace, "delete", "lens", "main")
    world.cluster.ensemble(world.namespace, nodes=3)
    await world.reconcile()
    uid = world.get("lens", "main")["metadata"]["uid"]
    for kind, name in (("secret", "main-credentials"), ("statefulset", "main-0")):
        (owner,) = world.get(kind, name)["metadata"]["ownerReferences"]
        assert owner["uid"] == uid
    assert world.get("secret", "main-credentials")["data"] == passwords


async def test_an_ensemble_that_is_gone_is_not_brought_back(world: World) -> None:
    await world.reconcile()
    world.cluster.run("-n", world.namespace, "delete", "lens", "main")
    world.cluster.run("-n", world.namespace, "delete", "statefulset", "--all")
    assert await world.reconcile() is None
    assert world.cluster.names(world.namespace, "statefulset") == []
