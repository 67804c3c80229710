"""Ensembles that are gone, or were made again, while their locks may still have a leader: on a real
API server, with real nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from leasekeeper_operator import names
from leasekeeper_operator.api import Api
from leasekeeper_operator.manifests.ensemble import LONGEST_EVER, longest_lease_in
from leasekeeper_operator.model import Ensemble, Key, lock_key

from tests.operator.conftest import Cluster
from tests.operator.real_world import SHORT, World, candidate, three_nodes

QUARANTINE = 4.1
LONGEST = 5.0  # of the LockEnsemble that the world declares for such nodes


@pytest.fixture
async def world(managed: Cluster, managed_api: Api) -> AsyncIterator[World]:
    async with three_nodes(managed, managed_api, QUARANTINE) as world:
        await world.until_open(3)
        yield world


def reason(world: World, lock: str = "orders") -> str:
    found = world.cluster.get(world.namespace, "dlock", lock) or {}
    conditions = {c["type"]: c for c in found.get("status", {}).get("conditions", [])}
    return str(conditions.get("Ready", {}).get("reason"))


def pods(world: World) -> list[str]:
    return world.cluster.names(world.namespace, "pod")


async def clock() -> float:
    return asyncio.get_running_loop().time()


async def move(world: World, *, restart: bool) -> Key:
    """The lock and its ensemble are deleted together, and it is made again on another one."""
    await world.publish("orders")
    world.cluster.run("-n", world.namespace, "delete", "dlock", "orders")
    world.cluster.run("-n", world.namespace, "delete", "lens", "main")
    if restart:
        await world.ensembles.close()
        world.start_operator(world.api)
    world.cluster.ensemble(world.namespace, "second", nodes=3)
    world.cluster.lock(world.namespace, "orders", ensembleRef={"name": "second"}, **SHORT)
    return lock_key(world.namespace, "orders")


@pytest.mark.parametrize("restart", [False, True])
async def test_a_lock_waits_until_nobody_can_lead_on_an_ensemble_that_is_gone(
    world: World, restart: bool
) -> None:
    """Also if nobody but the Secret ENSEMBLE-users remembers."""
    key = await move(world, restart=restart)
    began = await clock()
    await world.locks.reconcile(key)
    assert reason(world) == "MovingEnsemble"
    last_pod = began
    while await world.ensembles.reconcile(world.key) is not None:
        if pods(world):
            last_pod = await clock()
        assert await world.locks.reconcile(key) == 2.0
        assert reason(world) == "MovingEnsemble"
        assert await clock() - began < 90
        await asyncio.sleep(0.2)
    assert await clock() - last_pod >= LONGEST - 1  # the look that saw the last one gone is earlier
    assert "main-users" not in world.cluster.names(world.namespace, "secret")
    await asyncio.sleep(1.1)  # what was read of all ensembles is believed for a second
    await world.locks.reconcile(key)
    assert "leasekeeper-orders" in world.cluster.names(world.namespace, "secret")


@pytest.mark.parametrize(
    ("place", "believed"), [("own", True), ("operator", True), ("another", False)]
)
async def test_who_writes_secrets_elsewhere_holds_up_no_lock_of_others(
    world: World, managed: Cluster, place: str, believed: bool
) -> None:
    namespace = {"own": world.namespace, "operator": "lk-system"}.get(place, managed.namespace())
    if place == "operator" and managed.get("", "namespace", namespace) is None:
        managed.run("create", "namespace", namespace)
    lock = f"{world.namespace}/orders"
    secret = ("-n", namespace, "create", "secret", "generic", "forged-users")
    managed.run(*secret, f"--from-literal=departing={lock}")
    labels = (names.MANAGED_SELECTOR, f"{names.LABEL_ENSEMBLE}=forged")
    managed.run("-n", namespace, "label", "secret", "forged-users", *labels)
    try:
        managed.lock(world.namespace, "orders", ensembleRef={"name": "main"}, **SHORT)
        await world.locks.reconcile(lock_key(world.namespace, "orders"))
        assert reason(world) == ("MovingEnsemble" if believed else "Published")
    finally:
        managed.run("-n", namespace, "delete", "secret", "forged-users")


def test_how_long_to_wait_is_never_more_than_the_longest_quarantine() -> None:
    def noted(text: str) -> float:
        name = "leasekeeper.dev/longest-lease-seconds"
        return longest_lease_in({"metadata": {"annotations": {name: text}}})

    assert noted("32") == 32.0
    for text in ("-1", "1e9", "inf", "nan", "forged"):
        assert noted(text) == LONGEST_EVER
    assert longest_lease_in({"metadata": {}}) == LONGEST_EVER


async def test_an_ensemble_made_again_rests_before_it_votes(world: World) -> None:
    """A manifest of lock and ensemble that is deleted and applied again: the old pod may lead until
    its deadline, and the new nodes know nothing of it."""
    await world.publish("orders")
    world.cluster.run("-n", world.namespace, "delete", "dlock", "orders")
    await world.locks.reconcile(lock_key(world.namespace, "orders"))
    assert "leasekeeper-orders" not in world.cluster.names(world.namespace, "secret")
    # The servers' passwords stay, which nobody could give to the test's own again.
    world.cluster.run("-n", world.namespace, "delete", "lens", "main", "--cascade=orphan")
    await world.ensembles.reconcile(world.key)
    began = await clock()
    for node in world.nodes.nodes:
        node.server.restart()
    known = world.nodes.membership
    world.cluster.ensemble(
        world.namespace,
        nodes=3,
        longestLeaseSeconds=int(known.max_ttl),
        restartPolicy={"delaySeconds": int(known.quarantine + 1)},
    )
    await world.until_open(3)
    assert await clock() - began >= QUARANTINE


async def test_tokens_of_a_lock_begin_above_those_of_its_time_on_a_younger_ensemble(
    world: World, tmp_path: Path
) -> None:
    """Made again on an ensemble of last year, it must not go on with last year's tokens."""
    password = await world.publish("orders")
    secret = world.cluster.get(world.namespace, "secret", "leasekeeper-orders") or {}
    ensemble = Ensemble.parse(world.cluster.get(world.namespace, "lens", "main") or {})
    given = await world.ensembles.users._load(ensemble)
    above = given[f"{world.namespace}/orders"].above
    made = world.cluster.get(world.namespace, "lens", "main") or {}
    assert above > made["status"]["registry"]["floor"]
    assert above % 1000 == 0, f"of {secret['metadata']['creationTimestamp']}, in whole seconds"
    for node in world.nodes.nodes:
        with node.server.client() as client:
            assert client.hget(f"lk:lock:{world.namespace}/orders", "fence") == str(above)
    leader = candidate(world, tmp_path, "orders", password).start()
    try:
        await world.until(lambda: leader.path.exists() and leader.leads, "a leader")
        token = leader.said()["token"]
        assert token > above
        # Told again, also to a node that has forgotten the user: nothing goes down, nobody falls.
        with world.nodes.nodes[0].server.client() as client:
            client.execute_command("ACL", "DELUSER", f"lock:{world.namespace}/orders")
        world.ensembles.locks_changed(world.key)
        await world.until(lambda: world.may_enter(0, "orders", password), "the user to be back")
        leader.wait_renewed()
        assert leader.said()["token"] == token
    finally:
        leader.kill()
