"""A new password for the candidates of a lock while one of them leads, on real nodes."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import redis
from leasekeeper_operator import rotation
from leasekeeper_operator.api import Api
from leasekeeper_operator.model import lock_key

from tests.operator.conftest import Cluster
from tests.operator.real_world import Executioner, World, candidate, mount_lock, three_nodes
from tests.sidecar.conftest import Pod, Watcher


@pytest.fixture
async def world(managed: Cluster, managed_api: Api) -> AsyncIterator[World]:
    async with three_nodes(managed, managed_api) as world:
        await world.until_open(3)
        yield world


def secret(world: World) -> dict[str, str]:
    found = world.cluster.get(world.namespace, "secret", "leasekeeper-orders") or {}
    return {k: base64.b64decode(v).decode() for k, v in found.get("data", {}).items()}


def published(world: World) -> str:
    return str(json.loads(secret(world)["lock.json"])["redlock"]["password"])


def said(world: World) -> int:
    found = world.cluster.get(world.namespace, "dlock", "orders") or {}
    return int(found["status"].get("passwordGeneration", 1))


def let_in(world: World, password: str) -> list[bool]:
    return [world.may_enter(node, "orders", password) for node in range(3)]


def ask_for_a_new_one(world: World) -> None:
    body = {"spec": {"passwordGeneration": 2}}
    world.cluster.patch(world.namespace, "dlock", "orders", body)


async def work(world: World) -> None:
    await world.locks.reconcile(lock_key(world.namespace, "orders"))
    await world.ensembles.reconcile(world.key)


@contextmanager
def somebody_who_came_in_before(world: World, password: str) -> Iterator[list[redis.Redis]]:
    """With the old password, and stays connected."""
    clients = [
        redis.Redis(
            unix_socket_path=str(node.server.socket),
            username=f"lock:{world.namespace}/orders",
            password=password,
            single_connection_client=True,
        )
        for node in world.nodes.nodes
    ]
    for client in clients:
        client.ping()
    yield clients
    for client in clients:
        client.close()


def cut_off(client: redis.Redis) -> bool:
    try:
        client.ping()
    except (redis.ConnectionError, redis.AuthenticationError):
        return True
    return False


async def test_the_leader_keeps_its_token_and_the_old_password_is_refused(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await world.publish("orders")
    leader, standby = (candidate(world, tmp_path, "orders", old, f"pod-{i}") for i in range(2))
    leader.start()
    try:
        await world.until(lambda: leader.path.exists() and leader.leads, "a leader")
        standby.start()
        token = leader.said()["token"]
        with Watcher([leader, standby]) as watcher, somebody_who_came_in_before(world, old) as them:
            ask_for_a_new_one(world)
            await work(world)
            assert published(world) == old  # first, all nodes are told
            new = secret(world)["next-password"]
            assert let_in(world, old) == let_in(world, new) == [True] * 3
            await work(world)
            assert published(world) == new
            assert secret(world)["old-password"] == old
            mount_lock(world, tmp_path, "orders", new)
            await work(world)
            assert let_in(world, old) == [True] * 3  # whose files are old
            assert said(world) == 1
            monkeypatch.setattr(rotation, "SETTLE", timedelta(0))
            await work(world)
            # One node at a time loses the old one: its connections are cut.
            assert sum(let_in(world, old)) == 2
            while said(world) == 1:
                await work(world)
            assert let_in(world, old) == [False] * 3
            assert let_in(world, new) == [True] * 3
            assert {*secret(world)} == {"lock.json"}
            assert all(map(cut_off, them))
            leader.wait_renewed(3)
            assert leader.leads
        watcher.check()
        assert watcher.tenures == [("pod-0", token)]
        # And the other one takes over with the new one.
        leader.kill()
        await world.until(lambda: standby.leads, "the standby to lead")
        assert standby.said()["token"] > token
    finally:
        stop(leader, standby)


def stop(*pods: Pod) -> None:
    for pod in pods:
        pod.kill()


async def test_operators_killed_at_every_step_give_one_new_password(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await world.publish("orders")
    leader = candidate(world, tmp_path, "orders", old).start()
    try:
        await world.until(lambda: leader.path.exists() and leader.leads, "a leader")
        token = leader.said()["token"]
        with Watcher([leader]) as watcher:
            ask_for_a_new_one(world)
            executioner, made = Executioner(monkeypatch, world, work=lambda: work(world)), set()
            lives = 0
            while lives < 60 and "old-password" not in secret(world):
                lives += 1
                await executioner.one_more(lives)
                made |= {secret(world).get("next-password", "")}
                assert let_in(world, published(world)) == [True] * 3
            while "old-password" not in secret(world):
                await work(world)
            new = published(world)
            assert made <= {"", new}
            assert executioner.killed > 10
            mount_lock(world, tmp_path, "orders", new)
            monkeypatch.setattr(rotation, "SETTLE", timedelta(0))
            for lives in range(1, 60):
                await executioner.one_more(lives)
            while said(world) == 1:
                await work(world)
            assert (let_in(world, old), let_in(world, new)) == ([False] * 3, [True] * 3)
            leader.wait_renewed(3)
        watcher.check()
        assert watcher.tenures == [("pod-0", token)]
    finally:
        stop(leader)


async def test_while_a_node_does_not_answer_the_old_password_stays(world: World) -> None:
    old = await world.publish("orders")
    world.nodes.nodes[2].hang()
    try:
        ask_for_a_new_one(world)
        for _ in range(3):
            await work(world)
        assert published(world) == old
        assert "next-password" in secret(world)
    finally:
        world.nodes.nodes[2].go_on()
    while published(world) == old:
        await work(world)
