"""Locks that leave an ensemble, and who waits for them: the nodes and the clock are played here."""

from __future__ import annotations

import base64

import pytest
from leasekeeper_operator import lock_users
from leasekeeper_operator.manifests.ensemble import edition_in, known_locks

from tests.operator.users_world import World, published_world


@pytest.fixture
def world() -> World:
    return published_world()


def move(world: World, *, with_secret: bool) -> None:
    world.make_lock(uid="l-2", ensembleRef={"name": "other", "namespace": "store"})
    if with_secret:
        del world.objects["Secret", "shop", "leasekeeper-orders"]


@pytest.mark.parametrize("with_secret", [True, False])
def test_a_lock_made_again_on_another_ensemble_is_cut_off_here(
    world: World, with_secret: bool
) -> None:
    move(world, with_secret=with_secret)
    world.sync()
    assert world.in_file == {"shop/stays"}
    assert all({*users} == {"shop/stays"} for users in world.on_nodes.values())


def leave(world: World) -> None:
    move(world, with_secret=True)
    world.sync()
    world.agents_read()
    world.sync(lock_users.RECHECK_SECONDS)


def test_a_lock_that_left_is_named_until_its_longest_lease_has_ended(world: World) -> None:
    leave(world)
    assert "shop/orders" in known_locks(world.users_secret)
    world.sync(31)  # the quarantine of the sample: 32 s
    assert "shop/orders" in known_locks(world.users_secret)
    world.sync(1, changed=False)
    assert known_locks(world.users_secret) == {"shop/stays"}


def test_an_old_copy_of_the_file_lets_nobody_in_who_leads_elsewhere(world: World) -> None:
    """Agents that begin again go by what the kubelet has brought, however long ago."""
    old = {id: dict(users) for id, users in world.on_nodes.items()}
    move(world, with_secret=True)
    world.sync()
    world.agents_read("0")
    for _ in range(20):
        world.sync(30)
    assert "shop/orders" in known_locks(world.users_secret)
    for node in "12":
        world.on_nodes[node] = dict(old[node])
    world.sync(60)
    assert "shop/orders" in known_locks(world.users_secret)
    # From now on, one of three could do so, and that is no quorum.
    world.agents_read("1")
    world.sync(60)
    world.sync(31)
    assert "shop/orders" in known_locks(world.users_secret)
    world.sync(1)
    assert "shop/orders" not in known_locks(world.users_secret)


def test_a_new_pod_with_an_old_copy_of_the_file_is_waited_for_again(world: World) -> None:
    """Node 2 has not read it yet: together they would be a quorum that lets in who left."""
    old = edition_in(world.users_secret)
    move(world, with_secret=True)
    world.sync()
    world.agents_read("01")
    world.sync(lock_users.RECHECK_SECONDS)
    world.editions["1"] = old
    for _ in range(10):
        world.sync(30)
    assert "shop/orders" in known_locks(world.users_secret)
    world.agents_read("1")
    world.sync(lock_users.RECHECK_SECONDS)
    world.sync(31)
    assert "shop/orders" in known_locks(world.users_secret)
    world.sync(1)
    assert "shop/orders" not in known_locks(world.users_secret)


def test_an_edition_is_never_used_twice(world: World) -> None:
    """What an agent has read proves nothing about another file of the same number."""
    first = edition_in(world.users_secret)
    world.sync()
    assert edition_in(world.users_secret) == first, "it is the same file"
    world.publish("more")
    world.sync()
    second = edition_in(world.users_secret)
    assert second > first
    del world.objects["Secret", "store", "main-users"]
    world.start_operator()
    world.sync()
    assert edition_in(world.users_secret) >= second


def test_a_file_of_an_operator_before_this_one_is_numbered(world: World) -> None:
    text = base64.b64decode(world.users_secret["data"]["users"]).decode()
    numbered = edition_in(world.users_secret)
    plain = text.partition("\n")[2].encode()
    world.users_secret["data"]["users"] = base64.b64encode(plain).decode()
    assert edition_in(world.users_secret) == 0
    world.start_operator()
    world.sync()
    assert edition_in(world.users_secret) > numbered


def test_an_operator_that_starts_anew_waits_anew(world: World) -> None:
    leave(world)
    world.start_operator()
    world.sync(40)
    assert "shop/orders" in known_locks(world.users_secret)
    world.sync(32)
    assert known_locks(world.users_secret) == {"shop/stays"}


def test_the_wait_begins_when_the_nodes_that_may_know_it_are_no_quorum(world: World) -> None:
    move(world, with_secret=True)
    world.silent = {"0", "1"}
    world.sync()
    world.agents_read()
    world.sync(100)
    assert "shop/orders" in known_locks(world.users_secret)
    world.silent = {"0"}
    world.sync()
    world.sync(31)
    assert "shop/orders" in known_locks(world.users_secret)
    world.sync(1)
    assert "shop/orders" not in known_locks(world.users_secret)


def test_a_node_that_let_it_in_again_begins_the_wait_anew(world: World) -> None:
    leave(world)
    world.on_nodes["0"]["shop/orders"] = frozenset({"of an old file"})
    world.sync(30)
    assert "shop/orders" not in world.on_nodes["0"]
    world.sync(5)
    assert "shop/orders" in known_locks(world.users_secret)


def test_a_lock_made_again_here_does_not_wait(world: World) -> None:
    del world.objects["DistributedLock", "shop", "orders"]
    world.sync()
    world.publish(uid="l-2")
    world.sync()
    assert world.in_file == {"shop/orders", "shop/stays"}
    assert "departing" not in world.users_secret["data"]
