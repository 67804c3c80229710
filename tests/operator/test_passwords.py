"""New passwords for agents, peers and the operator while a pod leads."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from leasekeeper_operator import rotation
from leasekeeper_operator.api import Api
from leasekeeper_operator.nodes import Passwords
from leasekeeper_operator.passwords import Credentials, advance, valid_digests
from leasekeeper_operator.rotation import SETTLE
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.operator.conftest import Cluster
from tests.operator.real_world import Executioner, World, candidate, three_nodes
from tests.sidecar.conftest import Watcher

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONE, TWO = Passwords("a1", "p1", "o1"), Passwords("a2", "p2", "o2")


def step(known: Credentials, wanted: int = 2, nodes: int = 3, **more: Any) -> Credentials:
    told = {str(i): valid_digests(known) for i in range(nodes)}
    return advance(known, wanted, told, 3, more.get("now", NOW), lambda: TWO)


def test_new_ones_are_told_to_all_nodes_before_they_are_used_and_the_old_ones_go_last() -> None:
    known = Credentials(ONE)
    assert step(known, wanted=1) == known
    made = step(known)
    assert made == Credentials(ONE, 1, TWO)
    assert step(made, nodes=2) == made  # one node does not know them yet
    told = {str(i): valid_digests(known) for i in range(3)}
    assert advance(made, 2, told, 3, NOW, lambda: TWO) == made
    used = step(made)
    assert used == Credentials(TWO, 2, None, ONE, NOW)
    assert step(used, now=NOW + SETTLE / 2) == used
    assert step(used, now=NOW + SETTLE) == Credentials(TWO, 2)
    assert step(Credentials(TWO, 2)) == Credentials(TWO, 2)


@pytest.fixture
async def world(managed: Cluster, managed_api: Api) -> AsyncIterator[World]:
    async with three_nodes(managed, managed_api) as world:
        yield world


def secret(world: World) -> dict[str, str]:
    found = world.cluster.get(world.namespace, "secret", "main-credentials") or {}
    return {k: base64.b64decode(v).decode() for k, v in found.get("data", {}).items()}


def let_in(world: World, user: str, password: str) -> list[bool]:
    def one(number: int) -> bool:
        client = redis.Redis(
            unix_socket_path=str(world.nodes.nodes[number].server.socket),
            username=user,
            password=password,
            retry=Retry(NoBackoff(), 0),
        )
        try:
            with client:
                return bool(client.ping())
        except redis.AuthenticationError:
            return False

    return [one(number) for number in range(3)]


def mount(world: World) -> None:
    """What the kubelet would bring to the agents' files."""
    for user in ("agent", "peer"):
        path = world.nodes.home / "credentials" / user
        aside = path.with_suffix(".new")
        aside.write_text(secret(world)[user])
        aside.replace(path)


async def test_operators_killed_at_every_step_change_passwords_while_a_pod_leads(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.until_open(3)
    leader = candidate(world, tmp_path, "orders", await world.publish("orders")).start()
    try:
        await world.until(lambda: leader.path.exists() and leader.leads, "a leader")
        before, token = secret(world), leader.said()["token"]
        template = world.cluster.get(world.namespace, "statefulset", "main-0") or {}
        with Watcher([leader]) as watcher:
            body = {"spec": {"passwordGeneration": 2}}
            world.cluster.patch(world.namespace, "lens", "main", body)
            executioner = Executioner(monkeypatch, world)
            for lives in range(14, 80, 3):
                await executioner.one_more(lives)
            assert executioner.killed > 5
            await world.until(lambda: "old-agent" in secret(world), "the new ones to be used")
            after = secret(world)
            assert not {*before.values()} & {after[user] for user in before}
            for user in before:
                assert let_in(world, user, before[user]) == [True] * 3  # whose files are old
                assert let_in(world, user, after[user]) == [True] * 3
            mount(world)
            monkeypatch.setattr(rotation, "SETTLE", timedelta(0))
            await world.until(lambda: "old-agent" not in secret(world), "the old ones to go")
            await world.until(
                lambda: not any(let_in(world, "agent", before["agent"])), "and on the nodes"
            )
            for user in before:
                assert let_in(world, user, before[user]) == [False] * 3
                assert let_in(world, user, after[user]) == [True] * 3
            world.nodes.nodes[0].agent.restart()  # it comes with the new one
            await world.until(lambda: world.status()["openNodes"] == 3, "all nodes")
            assert leader.leads
        watcher.check()
        assert watcher.tenures == [("pod-0", token)]
        # No pod had to go for it.
        now = world.cluster.get(world.namespace, "statefulset", "main-0") or {}
        assert now["spec"]["template"] == template["spec"]["template"]
    finally:
        leader.kill()


async def test_a_server_that_restarts_before_its_file_is_new_is_told_again(
    world: World,
) -> None:
    """The kubelet brings a changed file within two minutes; until then it has the old ones only."""
    await world.until_open(3)
    before = secret(world)
    world.cluster.patch(world.namespace, "lens", "main", {"spec": {"passwordGeneration": 2}})
    await world.until(lambda: "old-agent" in secret(world), "the new ones to be used")
    world.nodes.nodes[0].server.restart()
    after = secret(world)
    assert let_in(world, "operator", before["operator"])[0]
    assert not let_in(world, "operator", after["operator"])[0]
    await world.until(
        lambda: all(let_in(world, user, after[user])[0] for user in before), "the new ones"
    )
    await world.until_open(3)
