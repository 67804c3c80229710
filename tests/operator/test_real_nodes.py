"""The operator with real servers, real agents and a real API server: birth, users, loss.

The agents stand where the kubelet would have started them; the operator is told their ports.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from leasekeeper_operator.api import Api
from leasekeeper_operator.manifests.ensemble import edition_in, parse_users
from leasekeeper_operator.model import lock_key
from leasekeeper_operator.nodes import OPEN, Nodes, Passwords

from leasekeeper.redlock.registry import NodeView
from tests.operator.conftest import Cluster
from tests.operator.real_world import SHORT, Executioner, World, three_nodes


@pytest.fixture
async def world(managed: Cluster, managed_api: Api) -> AsyncIterator[World]:
    async with three_nodes(managed, managed_api) as world:
        yield world


async def test_nodes_are_born_by_the_record_and_open(world: World) -> None:
    await world.until_open(3)
    record = world.status()["registry"]
    assert record["generation"] == 1
    assert record["floor"] > 1_700_000_000_000  # unix milliseconds
    assert {*record["lives"]} == {"0", "1", "2"}
    conditions = {c["type"]: c["status"] for c in world.status()["conditions"]}
    assert {k: v for k, v in conditions.items() if k != "Updated"} == {
        "Ready": "True",
        "QuorumAvailable": "True",
        "Born": "True",
    }
    assert [node["state"] for node in world.status()["nodes"]] == ["Open"] * 3


async def test_operators_killed_at_every_step_bear_the_nodes_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second birth could hand out tokens again."""
    executioner, records = Executioner(monkeypatch, world), []
    async for _ in executioner.every_step():
        if record := world.status().get("registry"):
            records.append(record)
    await world.until_open(3)
    assert records
    assert all(record == world.status()["registry"] for record in records)


async def test_operators_killed_at_every_step_mend_a_total_loss_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.until_open(3)
    before = world.status()["registry"]
    for node in world.nodes.nodes[:2]:
        node.server.restart()
    executioner, lives = Executioner(monkeypatch, world), 1
    end = asyncio.get_running_loop().time() + 180
    while world.status()["registry"]["generation"] == 1:  # their quarantine takes some rounds
        assert asyncio.get_running_loop().time() < end
        await executioner.one_more(lives)
        lives = 1 if executioner.lived else lives + 1  # all steps, again and again
    assert executioner.killed > 5
    after = world.status()["registry"]
    assert after["floor"] >= before["floor"] + 2**20
    assert after["incarnationFloor"] > before["incarnationFloor"]
    async for _ in executioner.every_step():
        assert world.status()["registry"] == after
    await world.until_open(3)
    assert world.status()["registry"] == after
    assert world.condition("Born")[:2] == ("True", "Reborn")


async def test_passwords_that_somebody_deleted_are_put_back(world: World) -> None:
    """The servers know them, and would let nobody in with new ones."""
    await world.until_open(3)
    before = world.cluster.get(world.namespace, "secret", "main-credentials") or {}
    world.cluster.run("-n", world.namespace, "delete", "secret", "main-credentials")
    world.ensembles.objects_changed(world.key)
    await world.ensembles.reconcile(world.key)
    after = world.cluster.get(world.namespace, "secret", "main-credentials") or {}
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["data"] == before["data"]
    assert world.status()["openNodes"] == 3


@pytest.mark.parametrize("name", ["main-server", "main-users"])
async def test_a_secret_of_the_nodes_that_somebody_deleted_is_made_again(
    world: World, name: str
) -> None:
    """With the same in it, but for the number of the edition, and nobody is cut off."""
    await world.until_open(3)
    password = await world.publish("orders")
    before = world.cluster.get(world.namespace, "secret", name) or {}
    world.cluster.run("-n", world.namespace, "delete", "secret", name)
    world.start_operator(world.api)
    await world.ensembles.reconcile(world.key)
    after = world.cluster.get(world.namespace, "secret", name) or {}
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    if name == "main-users":
        assert edition_in(after) > edition_in(before)
        assert parse_users(after) == parse_users(before)
    else:
        assert after["data"] == before["data"]
    assert all(world.may_enter(i, "orders", password) for i in range(3))


async def test_of_two_operators_one_records_the_birth(world: World) -> None:
    other = World.__new__(World)
    other.__dict__.update(world.__dict__)
    other.start_operator(world.api)
    operators = (world.ensembles, other.ensembles)
    outcomes: list[Any] = []
    while not world.status().get("registry"):
        both = (operator.reconcile(world.key) for operator in operators)
        outcomes += await asyncio.gather(*both, return_exceptions=True)
        await asyncio.sleep(0.1)
    record = world.status()["registry"]
    await world.until_open(3)
    assert world.status()["registry"] == record
    await other.ensembles.close()


async def test_a_node_that_lost_its_memory_is_not_born_again(world: World) -> None:
    await world.until_open(3)
    before = world.status()["registry"]
    (past,) = [n for n in world.status()["nodes"] if n["id"] == "1"]
    world.nodes.nodes[1].server.restart()
    await world.until_open(2)
    (node,) = [n for n in world.status()["nodes"] if n["id"] == "1"]
    assert node["state"] in ("Closed", "Unreachable")
    ready = {c["type"]: c for c in world.status()["conditions"]}["Ready"]
    assert (ready["status"], ready["reason"]) == ("False", "NodesMissing")
    await world.until_open(3)  # by asking the others
    assert world.status()["registry"] == before
    (node,) = [n for n in world.status()["nodes"] if n["id"] == "1"]
    assert node["incarnation"] > past["incarnation"]


async def test_nothing_is_written_at_rest(world: World) -> None:
    await world.until_open(3)
    await world.until_updated()
    await world.publish("orders")
    await world.locks.reconcile(lock_key(world.namespace, "orders"))

    def versions() -> str:
        out = (
            "jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.resourceVersion}\n{end}"
        )
        kinds = "lens,dlock,secret,statefulset,service,configmap,role,rolebinding,pdb"
        return world.cluster.run("-n", world.namespace, "get", kinds, "-o", out)

    before = versions()
    for _ in range(5):
        assert await world.ensembles.reconcile(world.key) == 5.0
        await world.locks.reconcile(lock_key(world.namespace, "orders"))
    assert versions() == before


async def test_a_new_lock_is_known_to_the_nodes_at_once(world: World) -> None:
    await world.until_open(3)
    password = await world.publish("orders")
    assert all(world.may_enter(i, "orders", password) for i in range(3))
    users = world.cluster.get(world.namespace, "secret", "main-users")
    assert users is not None
    assert parse_users(users).keys() == {f"{world.namespace}/orders"}


async def test_a_node_that_opens_later_is_told_then(world: World) -> None:
    await world.until_open(3)
    world.nodes.nodes[2].server.restart()
    await world.until_open(2)
    password = await world.publish("orders")
    assert [world.may_enter(i, "orders", password) for i in range(3)] == [True, True, False]
    await world.until_open(3)
    await world.until(lambda: world.may_enter(2, "orders", password), "node 2 to know the lock")


async def test_a_deleted_lock_is_cut_off_and_the_others_stay(world: World) -> None:
    await world.until_open(3)
    gone, stays = await world.publish("gone"), await world.publish("stays")
    world.cluster.run("-n", world.namespace, "delete", "dlock", "gone")
    await world.locks.reconcile(lock_key(world.namespace, "gone"))
    world.ensembles.locks_changed(world.key)  # the watch, if the garbage collector was faster
    await world.ensembles.reconcile(world.key)
    assert not any(world.may_enter(i, "gone", gone) for i in range(3))
    assert all(world.may_enter(i, "stays", stays) for i in range(3))


async def test_a_deleted_lock_is_forgotten_when_its_longest_lease_has_ended(world: World) -> None:
    """Bug 26: counters of deleted locks fill the memory."""
    await world.until_open(3)
    await world.publish("gone")
    key = f"lk:lock:{world.namespace}/gone"
    fence = int(time.time() * 1000) + 10_000
    clients = [node.server.client() for node in world.nodes.nodes]
    for client in clients:
        client.hset(key, "fence", str(fence))
    world.cluster.run("-n", world.namespace, "delete", "dlock", "gone")
    await world.locks.reconcile(lock_key(world.namespace, "gone"))
    world.ensembles.locks_changed(world.key)
    await world.ensembles.reconcile(world.key)
    assert all(client.exists(key) for client in clients)  # it may have a leader still
    world.mount_users()
    await world.until(lambda: not any(c.exists(key) for c in clients), "the key to go")
    assert [client.hget("lk:node", "floor") for client in clients] == [str(fence)] * 3
    for client in clients:
        client.close()


async def test_a_lock_deleted_while_the_operator_was_down_is_cut_off_later(world: World) -> None:
    await world.until_open(3)
    gone = await world.publish("gone")
    for kind, name in (("dlock", "gone"), ("secret", "leasekeeper-gone")):
        world.cluster.run("-n", world.namespace, "delete", kind, name, "--ignore-not-found")
    world.start_operator(world.api)
    await world.ensembles.reconcile(world.key)
    assert not any(world.may_enter(i, "gone", gone) for i in range(3))


async def test_a_lost_secret_does_not_cut_off_a_running_election(world: World) -> None:
    await world.until_open(3)
    password = await world.publish("orders")
    world.cluster.run("-n", world.namespace, "delete", "secret", "leasekeeper-orders")
    world.start_operator(world.api)
    await world.ensembles.reconcile(world.key)
    assert all(world.may_enter(i, "orders", password) for i in range(3))


async def test_a_forged_secret_gets_nothing_and_spoils_nothing(world: World) -> None:
    await world.until_open(3)
    password = await world.publish("orders")
    genuine = world.cluster.get(world.namespace, "secret", "leasekeeper-orders")
    assert genuine is not None
    other = world.cluster.namespace()  # the ensemble does not allow it
    for namespace, lock in ((other, "orders"), (world.namespace, "Not_a.Name")):
        labels = {**genuine["metadata"]["labels"], "leasekeeper.dev/lock": lock}
        metadata = {"name": "leasekeeper-forged", "namespace": namespace, "labels": labels}
        forged = {**genuine, "metadata": metadata}
        world.cluster.apply(forged)
    world.start_operator(world.api)
    await world.ensembles.reconcile(world.key)
    users = world.cluster.get(world.namespace, "secret", "main-users")
    assert users is not None
    assert parse_users(users).keys() == {f"{world.namespace}/orders"}
    assert all(world.may_enter(i, "orders", password) for i in range(3))


async def test_a_hung_node_does_not_hold_up_the_others(world: World) -> None:
    await world.until_open(3)
    world.nodes.nodes[0].hang()
    try:
        started = asyncio.get_running_loop().time()
        await world.ensembles.reconcile(world.key)
        assert asyncio.get_running_loop().time() - started < 5
        states = {n["id"]: n for n in world.status()["nodes"]}
        assert states["0"]["state"] == "Unreachable"
        assert states["0"]["message"] == "it does not answer the operator"
        password = await world.publish("orders")
        assert world.may_enter(1, "orders", password)
    finally:
        world.nodes.nodes[0].go_on()


async def test_the_highest_token_of_a_node_is_found_over_many_pages(world: World) -> None:
    await world.until_open(3)
    with world.nodes.nodes[0].server.client() as client:
        for i in range(1200):
            client.hset(f"lk:lock:shop/{i}", "fence", str(i))
        client.hset("lk:lock:shop/nonsense", "fence", str(2**52))
    known = world.nodes.passwords
    passwords = Passwords(known.agent, known.peer, known.operator)
    nodes = Nodes(world.nodes.membership, passwords)
    assert await nodes.highest("0") == 1199
    await nodes.close()


async def test_no_number_that_a_tenant_writes_into_its_key_spoils_a_look(world: World) -> None:
    """To Lua, "nan" is a number; one tenant would have stopped births, users and the status of all
    who share the ensemble."""
    await world.until_open(3)
    written = {"shop/a": "nan", "shop/b": "inf", "shop/c": "-1", "shop/d": "1e300", "shop/e": "7"}
    with world.nodes.nodes[0].server.client() as client:
        for lock, fence in written.items():
            entry = {"owner": "pod/uid/nonce/1", "expires": "inf", "fence": fence}
            client.hset(f"lk:lock:{lock}", mapping=entry)
    known = world.nodes.passwords
    passwords = Passwords(known.agent, known.peer, known.operator)
    nodes = Nodes(world.nodes.membership, passwords)
    try:
        sight = (await nodes.look())["0"]
    finally:
        await nodes.close()
    assert sight.state == OPEN
    found = {lock: entry.fence for lock, entry in (sight.entries or {}).items()}
    assert found == {"shop/a": 0, "shop/b": 0, "shop/c": 0, "shop/d": 0, "shop/e": 7}


@pytest.mark.parametrize("forgotten", [False, True])
async def test_a_pause_goes_with_its_lock(world: World, forgotten: bool) -> None:
    """Made again, it would be paused for ever by a wish that no status records."""
    await world.until_open(3)
    await world.publish("orders")
    key = lock_key(world.namespace, "orders")
    place = f"lk:lock:{world.namespace}/orders"
    clients = [node.server.client() for node in world.nodes.nodes]

    def asked() -> set[str]:
        texts = [str(client.hget(place, "request") or "none none") for client in clients]
        return {text.split()[1] for text in texts}

    async def look() -> None:
        for _ in range(2):
            await world.ensembles.reconcile(world.key)
            await world.locks.reconcile(key)
        await world.ensembles.reconcile(world.key)

    world.cluster.patch(world.namespace, "dlock", "orders", {"spec": {"paused": True}})
    await look()
    assert asked() == {"pause"}
    world.cluster.run("-n", world.namespace, "delete", "dlock", "orders")
    await look()
    if forgotten:
        world.mount_users()
        await world.until(lambda: not any(c.exists(place) for c in clients), "the key to go")
        await look()
        assert not any(client.exists(place) for client in clients)
    await world.publish("orders")
    await look()
    assert asked() == {"none" if forgotten else "resume"}
    for client in clients:
        client.close()


async def test_a_lock_of_a_namespace_that_is_not_served_writes_nothing_to_nodes(
    world: World,
) -> None:
    await world.until_open(3)
    other = world.cluster.namespace()
    reference = {"name": "main", "namespace": world.namespace}
    world.cluster.lock(other, "orders", ensembleRef=reference, paused=True, **SHORT)
    key = lock_key(other, "orders")
    for _ in range(2):
        await world.locks.reconcile(key)
        await world.ensembles.reconcile(world.key)
    status = (world.cluster.get(other, "dlock", "orders") or {})["status"]
    assert {c["type"]: c["reason"] for c in status["conditions"]}["Ready"] == "EnsembleNotAllowed"
    for node in world.nodes.nodes:
        with node.server.client() as client:
            assert client.keys("lk:lock:*") == []


async def test_a_node_that_speaks_another_version_is_not_taken_for_empty(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty one may be replaced at any time, all at once."""
    await world.until_open(3)

    def unreadable(reply: object) -> NodeView:
        raise ValueError("a field too many")

    await world.ensembles.close()
    world.start_operator(world.api)  # which has read none of their answers yet
    monkeypatch.setattr(NodeView, "from_reply", unreadable)
    await world.ensembles.reconcile(world.key)
    nodes = world.status()["nodes"]
    assert {node["state"] for node in nodes} == {"Unreachable"}
    assert "it speaks another version: a field too many" in nodes[0]["message"]
