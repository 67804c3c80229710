"""What tokens of a new lock begin above."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from leasekeeper_operator.manifests.ensemble import known_locks
from leasekeeper_operator.model import ensemble_key
from leasekeeper_operator.nodes import Answered

from tests.operator.users_world import PLACE, World, published_world

PUBLISHED = "2026-11-19T01:02:03Z"
LEAST = 1_795_050_124_000
"""The end of that second."""


@pytest.fixture
def world() -> World:
    return published_world()


def taught(world: World) -> list[int]:
    return [node.get("shop/new", 0) for node in world.taught.values()]


def test_a_new_lock_is_taught_before_anybody_lets_it_in(world: World) -> None:
    """Also agents that read ENSEMBLE-users before the operator comes to them, or instead of it."""
    world.publish_at(PUBLISHED)
    world.sync()
    assert taught(world) == [LEAST] * 3
    assert "shop/new" in world.in_file
    assert all("shop/new" in users for users in world.on_nodes.values())


@pytest.mark.parametrize("hindered", ["silent", "refusing"])
def test_a_lock_that_too_few_nodes_were_taught_is_let_in_nowhere_yet(
    world: World, hindered: str
) -> None:
    """A quorum of the others would hand out smaller tokens."""
    setattr(world, hindered, {"0", "1"})
    world.publish_at(PUBLISHED)
    world.sync()
    assert "shop/new" not in world.in_file
    assert not any("shop/new" in users for users in world.on_nodes.values())
    setattr(world, hindered, {"0"})
    world.sync(changed=False)
    assert taught(world) == [0, LEAST, LEAST]
    assert "shop/new" in world.in_file


def test_who_has_a_successor_is_not_counted_among_those_who_were_taught(world: World) -> None:
    """That one may have learnt from the others before they were taught."""
    world.silent = {"0"}
    world.vectors = {"1": {"1": 1, "2": 2}}
    world.publish_at(PUBLISHED)
    world.sync()
    assert "shop/new" not in world.in_file
    world.silent = set()
    world.sync(changed=False)
    assert "shop/new" in world.in_file


def test_a_lock_that_was_let_in_is_not_taught_again(world: World) -> None:
    """Its Secret may be a later one, and its leader have a smaller token."""
    world.publish_at(PUBLISHED, "orders")
    world.start_operator()
    for node in world.on_nodes.values():
        node.clear()
    world.sync()
    assert all("shop/orders" in users for users in world.on_nodes.values())
    assert not any(world.taught.values())


def test_what_is_below_the_floor_of_the_birth_needs_no_teaching(world: World) -> None:
    world.floor = LEAST
    world.publish_at(PUBLISHED)
    world.sync()
    assert "shop/new" in world.in_file
    assert not any(world.taught.values())


def test_a_lock_is_elsewhere_while_nodes_are_taught_of_it(world: World) -> None:
    """Which a node that hangs makes long: deleted meanwhile, and made again on another ensemble, it
    is named here for a look all the same, and who was let in by that may lead."""
    other, said = ensemble_key("store", "other"), []
    teach = world.teach

    async def taught(node: str, life: str, least: Mapping[str, int]) -> Answered:
        for kind, name in (("DistributedLock", "new"), ("Secret", "leasekeeper-new")):
            world.objects.pop((kind, "shop", name), None)
        world.users.gone("shop/new")
        world.users.withdrawn("shop/new")
        said.append(await world.users.elsewhere("shop/new", other))
        return await teach(node, life, least)

    world.publish_at(PUBLISHED)
    world.teach = taught  # type: ignore[method-assign]
    world.sync()
    assert said == [ensemble_key(*PLACE)] * 3
    world.sync()
    assert "shop/new" not in world.in_file
    assert "shop/new" in known_locks(world.users_secret)
