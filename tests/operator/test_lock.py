"""A lock on a real API server: published, refused with a sentence, and cleaned up."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from leasekeeper_operator import names
from leasekeeper_operator.api import Api
from leasekeeper_operator.apply import Applier
from leasekeeper_operator.board import Board
from leasekeeper_operator.holders import Outlook
from leasekeeper_operator.lock import LockReconciler
from leasekeeper_operator.lock_users import LockUsers
from leasekeeper_operator.model import Ensemble, Key, ensemble_key, lock_key

from tests.operator.conftest import Cluster
from tests.operator.samples import SETTINGS

Object = dict[str, Any]


class Users:
    """Those who let candidates in, and only tell which ensembles they would look at."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._secrets: dict[Key, str] = {}

    def seen(self, lock: Object) -> None:
        pass

    def gone(self, lock: str) -> None:
        pass

    def published(self, ensemble: Ensemble, secret: Object) -> None:
        version = secret["metadata"]["resourceVersion"]
        if self._secrets.get(ensemble.key) != version:
            self._secrets[ensemble.key] = version
            self._world.told.append(ensemble.key)

    def withdrawn(self, lock: str) -> None:
        self._world.told += self._secrets
        self._secrets.clear()

    async def elsewhere(self, lock: str, ensemble: Key) -> Key | None:
        api = self._world.api
        return await LockUsers(api, Applier(api), SETTINGS.default_place).elsewhere(lock, ensemble)

    def told(self, key: Key, lock: str, digests: frozenset[str]) -> bool:
        return False


class World:
    def __init__(self, cluster: Cluster, api: Api) -> None:
        self.cluster = cluster
        self.api = api
        self.namespace = cluster.namespace()
        self.key = lock_key(self.namespace, "orders")
        self.told: list[Key] = []
        """Ensembles that have to look again."""
        self.board = Board()  # nobody has looked at the nodes
        self.users = Users(self)
        self.reconciler = LockReconciler(api, Applier(api), SETTINGS, self)

    # -- the other reconciler ------------------------------------------------------------------

    def newest(self, key: Key) -> Object | None:
        return None

    def look(self, key: Key) -> None:
        self.told.append(key)

    async def reconcile(self) -> None:
        await self.reconciler.reconcile(self.key)

    def get(self, kind: str, name: str = "leasekeeper-orders") -> Object:
        found = self.cluster.get(self.namespace, kind, name)
        assert found is not None, f"{kind} {name}"
        return found

    def published(self) -> Object:
        data = self.get("secret")["data"]["lock.json"]
        return dict(json.loads(base64.b64decode(data)))

    def condition(self, kind: str) -> tuple[str, str, str]:
        conditions = self.get("dlock", "orders")["status"]["conditions"]
        (found,) = [c for c in conditions if c["type"] == kind]
        return found["status"], found["reason"], found["message"]

    def open_nodes(self, number: int, namespace: str | None = None) -> None:
        """What the ensemble's reconciler would say."""
        body = {"status": {"openNodes": number}}
        place = (namespace or self.namespace, "lens", "main")
        self.cluster.patch(*place, body, "--subresource=status")


@pytest.fixture
async def world(cluster: Cluster, api: Api) -> World:
    world = World(cluster, api)
    cluster.ensemble(world.namespace, nodes=3)
    world.open_nodes(3)
    cluster.lock(world.namespace, ensembleRef={"name": "main"})
    return world


async def test_a_lock_is_published_to_its_namespace(world: World) -> None:
    await world.reconcile()
    assert world.published()["lock"] == f"{world.namespace}/orders"
    assert world.get("role")["rules"][0]["resourceNames"] == ["orders"]
    (subject,) = world.get("rolebinding")["subjects"]
    assert subject["name"] == f"system:serviceaccounts:{world.namespace}"
    assert world.told == [ensemble_key(world.namespace, "main")]
    status = world.get("dlock", "orders")["status"]
    assert status["nodes"] == "3/3"
    assert status["quorum"] == 2
    assert status["ensemble"] == f"{world.namespace}/main"
    assert status["observedGeneration"] == 1
    assert world.condition("Ready")[:2] == ("True", "Published")
    assert world.condition("QuorumAvailable")[0] == "True"


async def test_nothing_is_written_when_nothing_changed(world: World) -> None:
    def versions() -> list[str]:
        objects = [world.get(kind) for kind in ("secret", "role", "rolebinding")]
        objects.append(world.get("dlock", "orders"))
        return [obj["metadata"]["resourceVersion"] for obj in objects]

    await world.reconcile()
    before, world.told = versions(), []
    world.reconciler = LockReconciler(world.api, Applier(world.api), SETTINGS, world)
    await world.reconcile()
    await world.reconcile()
    assert versions() == before
    assert world.told == []


async def test_new_timings_are_published_and_the_password_is_kept(world: World) -> None:
    await world.reconcile()
    before = world.published()
    body = {"spec": {"leaseDurationSeconds": 20}}
    world.cluster.patch(world.namespace, "dlock", "orders", body)
    await world.reconcile()
    after = world.published()
    assert after["timings"]["leaseDurationSeconds"] == 20
    assert after["redlock"] == before["redlock"]


async def test_what_a_sidecar_wrote_stays(world: World) -> None:
    mirror = {"status": {"holder": "orders-1", "token": 7}}
    world.cluster.patch(world.namespace, "dlock", "orders", mirror, "--subresource=status")
    await world.reconcile()
    assert mirror["status"].items() <= world.get("dlock", "orders")["status"].items()


async def test_without_a_quorum_it_is_published_and_not_ready(world: World) -> None:
    world.open_nodes(1)
    await world.reconcile()
    assert world.published()
    assert world.condition("Ready")[:2] == ("False", "NoQuorum")
    status, _, message = world.condition("QuorumAvailable")
    assert status == "False"
    assert message.startswith("only 1 of 3 nodes vote, but 2 are needed: no leader can be elected")


async def test_an_ensemble_that_is_not_there(world: World) -> None:
    world.cluster.lock(world.namespace, "lost", ensembleRef={"name": "nowhere"})
    await world.reconciler.reconcile(lock_key(world.namespace, "lost"))
    (ready,) = world.get("dlock", "lost")["status"]["conditions"]
    assert (ready["status"], ready["reason"]) == ("False", "EnsembleNotFound")
    assert f"there is no LockEnsemble {world.namespace}/nowhere: create it" in ready["message"]
    assert world.cluster.names(world.namespace, "secret") == []


async def test_an_ensemble_of_another_namespace_must_allow_it(world: World) -> None:
    other = world.cluster.namespace()
    world.cluster.ensemble(other, nodes=3)
    world.open_nodes(3, other)
    reference = {"name": "main", "namespace": other}
    world.cluster.lock(world.namespace, "guest", ensembleRef=reference)
    key = lock_key(world.namespace, "guest")
    for allowed, reason in (([], "EnsembleNotAllowed"), ([world.namespace], "Published")):
        body = {"spec": {"allowedNamespaces": allowed}}
        world.cluster.patch(other, "lens", "main", body)
        await world.reconciler.reconcile(key)
        ready = world.get("dlock", "guest")["status"]["conditions"][0]
        assert ready["reason"] == reason


async def test_a_lease_that_the_nodes_would_refuse_leaves_the_last_valid_one_in_force(
    world: World,
) -> None:
    await world.reconcile()
    before, world.told = world.published(), []
    body = {"spec": {"leaseDurationSeconds": 25, "lockDelaySeconds": 6}}
    world.cluster.patch(world.namespace, "dlock", "orders", body)
    await world.reconcile()
    status, reason, message = world.condition("Ready")
    assert (status, reason) == ("False", "LeaseTooLong")
    assert "spec.leaseDurationSeconds + spec.lockDelaySeconds (31) must not exceed" in message
    assert "longestLeaseSeconds (30)" in message
    assert world.published() == before
    assert world.told == []


async def test_a_secret_of_somebody_else_is_not_touched(world: World) -> None:
    world.cluster.run(
        *("-n", world.namespace, "create", "secret", "generic", "leasekeeper-orders"),
        "--from-literal=mine=1",
    )
    before = world.get("secret")
    await world.reconcile()
    assert world.condition("Ready")[1] == "SecretConflict"
    assert world.get("secret") == before


async def test_a_lock_whose_default_ensemble_changed_is_not_moved(world: World) -> None:
    """`spec.ensembleRef` cannot be changed, but what it defaults to is the operator's setting."""
    await world.reconcile()
    before = world.published()
    other = world.cluster.namespace()
    label = {"metadata": {"labels": {"leasekeeper.dev/ensemble-namespace": other}}}
    world.cluster.patch(world.namespace, "secret", "leasekeeper-orders", label)
    await world.reconcile()
    status, reason, message = world.condition("Ready")
    assert (status, reason) == ("False", "EnsembleChanged")
    assert "two ensembles could elect two leaders at once" in message
    assert world.published() == before


async def test_a_deleted_secret_is_made_again_with_a_new_password(world: World) -> None:
    await world.reconcile()
    before = world.published()
    world.cluster.run("-n", world.namespace, "delete", "secret", "leasekeeper-orders")
    await world.reconcile()
    assert world.published()["redlock"]["password"] != before["redlock"]["password"]
    assert len(world.told) == 2


async def test_a_role_edited_by_hand_is_brought_back(world: World) -> None:
    await world.reconcile()
    before = world.get("role")["rules"]
    rule = {**before[0], "verbs": ["*"]}
    world.cluster.patch(world.namespace, "role", "leasekeeper-orders", {"rules": [rule]})
    await world.reconcile()
    assert world.get("role")["rules"] == before


async def test_a_lock_that_is_gone_leaves_no_secret(world: World) -> None:
    await world.reconcile()
    world.told.clear()
    world.cluster.run("-n", world.namespace, "delete", "dlock", "orders")
    await world.reconcile()
    assert world.cluster.names(world.namespace, "secret") == []
    assert world.told == [ensemble_key(world.namespace, "main")]


async def test_a_lock_made_again_takes_over_what_the_old_one_left(world: World) -> None:
    await world.reconcile()
    world.cluster.run("-n", world.namespace, "delete", "dlock", "orders")
    made = world.cluster.lock(world.namespace, ensembleRef={"name": "main"})
    await world.reconcile()
    for kind in ("secret", "role", "rolebinding"):
        (owner,) = world.get(kind)["metadata"]["ownerReferences"]
        assert owner["uid"] == made["metadata"]["uid"]
    assert world.condition("Ready")[0] == "True"


async def test_a_lock_that_another_ensemble_may_still_know_is_not_published(world: World) -> None:
    other = world.cluster.namespace()
    world.cluster.ensemble(other, nodes=3)
    known = f"{world.namespace}/orders"
    labels = (names.MANAGED_SELECTOR, f"{names.LABEL_ENSEMBLE}=main")
    for key, line, marked in (
        ("users", f"{known} 0123", True),
        ("departing", known, True),
        ("users", f"{known} 0123", False),  # somebody took its labels away
    ):
        world.cluster.run(
            *("-n", other, "create", "secret", "generic", "main-users"),
            f"--from-literal={key}={line}",
        )
        if marked:
            world.cluster.run("-n", other, "label", "secret", "main-users", *labels)
        world.told.clear()
        assert await world.reconciler.reconcile(world.key) == 2.0
        status, reason, message = world.condition("Ready")
        assert (status, reason) == ("False", "MovingEnsemble")
        assert f"was on LockEnsemble {other}/main" in message
        assert world.cluster.names(world.namespace, "secret") == []
        assert world.told == [ensemble_key(other, "main")]
        world.cluster.run("-n", other, "delete", "secret", "main-users")
    await world.reconcile()
    assert world.published()


async def test_what_a_lock_of_the_same_name_left_on_another_ensemble_goes(world: World) -> None:
    await world.reconcile()
    world.cluster.run("-n", world.namespace, "delete", "dlock", "orders")
    world.cluster.ensemble(world.namespace, "second", nodes=3)
    world.cluster.lock(world.namespace, ensembleRef={"name": "second"})
    await world.reconcile()
    assert world.condition("Ready")[1] == "MovingEnsemble"
    assert world.cluster.names(world.namespace, "secret") == []


@pytest.mark.parametrize("owned", [False, True])
async def test_a_secret_of_an_ensemble_with_a_colliding_name_stays(
    world: World, owned: bool
) -> None:
    """The credentials of the ensemble leasekeeper-X, and a lock called X-credentials."""
    labels = {"leasekeeper.dev/ensemble": "leasekeeper-x"}
    if owned:  # labelled as a lock's, but it belongs to something else
        labels["leasekeeper.dev/lock"] = "x-credentials"
    metadata = {"name": "leasekeeper-x-credentials", "namespace": world.namespace}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {**metadata, "labels": labels}}
    world.cluster.apply(secret)
    await world.reconciler.reconcile(lock_key(world.namespace, "x-credentials"))
    assert world.get("secret", "leasekeeper-x-credentials")


async def test_a_lock_that_brings_its_own_ensemble(world: World) -> None:
    key = lock_key(world.namespace, "alone")
    world.cluster.lock(world.namespace, "alone", ensemble={"nodes": 3})
    await world.reconciler.reconcile(key)
    made = world.get("lens", "alone")
    assert made["spec"]["nodes"] == 3
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("DistributedLock", "alone")
    status = world.get("dlock", "alone")["status"]
    assert status["ensemble"] == f"{world.namespace}/alone"
    assert world.get("secret", "leasekeeper-alone")
    # Its spec is the lock's, also if somebody edited it; and a change of the lock's arrives.
    world.cluster.patch(world.namespace, "lens", "alone", {"spec": {"image": "redis:7"}})
    body = {"spec": {"ensemble": {"podAnnotations": {"team": "till"}}}}
    world.cluster.patch(world.namespace, "dlock", "alone", body)
    await world.reconciler.reconcile(key)
    spec = world.get("lens", "alone")["spec"]
    assert (spec["image"], spec["podAnnotations"]) == (made["spec"]["image"], {"team": "till"})


async def test_an_ensemble_of_somebody_else_is_not_taken_for_the_locks_own(world: World) -> None:
    before = world.get("lens", "main")
    world.cluster.lock(world.namespace, "main", ensemble={"nodes": 5})
    await world.reconciler.reconcile(lock_key(world.namespace, "main"))
    conditions = world.get("dlock", "main")["status"]["conditions"]
    (ready,) = [c for c in conditions if c["type"] == "Ready"]
    assert (ready["status"], ready["reason"]) == ("False", "EnsembleConflict")
    assert world.get("lens", "main") == before


async def test_a_lock_waits_for_the_ensemble_of_the_lock_before_it_to_go(world: World) -> None:
    key = lock_key(world.namespace, "alone")
    world.cluster.lock(world.namespace, "alone", ensemble={"nodes": 3})
    await world.reconciler.reconcile(key)
    world.cluster.run("-n", world.namespace, "delete", "dlock", "alone")
    made = world.cluster.lock(world.namespace, "alone", ensemble={"nodes": 3})
    assert await world.reconciler.reconcile(key) == 2.0
    conditions = world.get("dlock", "alone")["status"]["conditions"]
    (ready,) = [c for c in conditions if c["type"] == "Ready"]
    assert (ready["status"], ready["reason"]) == ("False", "EnsembleEnding")
    assert "belongs to an earlier lock of this name, and goes with it" in ready["message"]
    # The garbage collector, which is not here.
    world.cluster.run("-n", world.namespace, "delete", "lens", "alone")
    await world.reconciler.reconcile(key)
    (owner,) = world.get("lens", "alone")["metadata"]["ownerReferences"]
    assert owner["uid"] == made["metadata"]["uid"]


async def test_nothing_is_said_of_an_ensemble_that_is_gone(world: World) -> None:
    world.board.see(ensemble_key(world.namespace, "main"), Outlook(2, 0, {}, {}))
    await world.reconcile()
    said = ("QuorumAvailable", "Held", "Degraded")
    assert all(world.condition(kind)[0] != "Unknown" for kind in said)
    world.cluster.run("-n", world.namespace, "delete", "lens", "main")
    await world.reconcile()
    assert world.condition("Ready")[:2] == ("False", "EnsembleNotFound")
    for kind in said:
        assert world.condition(kind)[:2] == ("Unknown", "EnsembleNotFound")
    assert "nodes" not in world.get("dlock", "orders")["status"]
