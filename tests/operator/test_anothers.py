"""What has the name of one of our objects and is somebody else's stays as it is, and is named.

An app `main` has a disruption budget `main` and a Secret `main-credentials` soon enough, and an
ensemble of a lock is named after the lock, which is named after the app.
"""

from __future__ import annotations

from typing import Any

import pytest
from leasekeeper_operator.anothers import Anothers, refuse, say
from leasekeeper_operator.api import Api
from leasekeeper_operator.manifests.lock import role

from tests.operator.conftest import Cluster
from tests.operator.samples import lock
from tests.operator.test_ensemble import World as EnsembleWorld
from tests.operator.test_lock import World as LockWorld

Object = dict[str, Any]

POLICY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "spec": {"podSelector": {"matchLabels": {"app": "main"}}, "policyTypes": ["Ingress"]},
}
BUDGET = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "main"}}},
}
SECRET = {"apiVersion": "v1", "kind": "Secret", "data": {"password": "c2VjcmV0"}}


def theirs(world: EnsembleWorld | LockWorld, document: Object, name: str) -> Object:
    metadata = {"name": name, "namespace": world.namespace, "labels": {"app": "main"}}
    return world.cluster.apply({**document, "metadata": metadata})


def substance(obj: Object) -> Object:
    """All but its status, which controllers write."""
    return {key: value for key, value in obj.items() if key != "status"}


@pytest.mark.parametrize("document", [POLICY, BUDGET], ids=["policy", "budget"])
async def test_an_ensemble_overwrites_nothing_and_says_what_is_in_its_way(
    cluster: Cluster, api: Api, document: Object
) -> None:
    world = EnsembleWorld(cluster, api, cluster.namespace())
    kind = str(document["kind"])
    before = theirs(world, document, "main")
    cluster.ensemble(world.namespace, nodes=3)
    await world.reconcile()
    assert substance(world.get(kind, "main")) == substance(before)
    (said,) = [
        c for c in world.get("lens", "main")["status"]["conditions"] if c["type"] == "Updated"
    ]
    assert (said["status"], said["reason"]) == ("False", "Refused")
    assert (
        f"the {kind} {world.namespace}/main is somebody else's: rename or delete" in said["message"]
    )
    # All the rest is there, and when the name is free, so is this.
    assert len(cluster.names(world.namespace, "statefulset")) == 3
    cluster.run("-n", world.namespace, "delete", kind, "main")
    await world.reconcile()
    assert "leasekeeper.dev/ensemble" in world.get(kind, "main")["metadata"]["labels"]
    await world.reconciler.close()


@pytest.mark.parametrize("name", ["main-credentials", "main-users"])
async def test_a_secret_of_somebody_else_is_not_taken_over(
    cluster: Cluster, api: Api, name: str
) -> None:
    world = EnsembleWorld(cluster, api, cluster.namespace())
    before = theirs(world, SECRET, name)
    cluster.ensemble(world.namespace, nodes=3)
    with pytest.raises(Anothers) as refused:
        await world.reconcile()
    assert world.get("secret", name) == before
    # As the operator does it (main.py).
    await say(api, world.key, refused.value)
    (said,) = world.get("lens", "main")["status"]["conditions"]
    assert (said["type"], said["status"], said["reason"]) == ("Updated", "False", "Refused")
    assert f"the Secret {world.namespace}/{name} is somebody else's" in said["message"]
    await world.reconciler.close()


async def test_a_locks_role_does_not_take_the_place_of_another(cluster: Cluster, api: Api) -> None:
    """In the operator's own namespace, the lock `operator` would have taken its election's rights
    away."""
    world = LockWorld(cluster, api)
    cluster.ensemble(world.namespace, nodes=3)
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
    document = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "rules": [rule]}
    before = theirs(world, document, "leasekeeper-orders")
    cluster.lock(world.namespace, ensembleRef={"name": "main"})
    with pytest.raises(Anothers) as refused:
        await world.reconcile()
    assert world.get("role") == before
    await say(api, world.key, refused.value)
    assert world.condition("Ready")[:2] == ("False", "ObjectConflict")
    cluster.run("-n", world.namespace, "delete", "role", "leasekeeper-orders")
    await world.reconcile()
    assert world.get("role")["rules"][0]["resources"] == ["distributedlocks/status"]


@pytest.mark.parametrize("trace", ["labels", "annotations", "ownerReferences"])
def test_what_was_ours_is_ours_by_any_trace(trace: str) -> None:
    """Labels are taken away by hand: such an object comes back."""
    wanted = role(lock())
    full = {**wanted["metadata"], "annotations": {"leasekeeper.dev/applied": "x"}}
    refuse({**wanted, "metadata": {trace: full[trace]}}, wanted)
    with pytest.raises(Anothers):
        refuse({**wanted, "metadata": {"labels": {"app": "main"}}}, wanted)
