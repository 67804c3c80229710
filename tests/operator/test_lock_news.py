"""What the locks' reconciler tells of locks, instead of a reading of all of them."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from leasekeeper_operator import lock_index, lock_users
from leasekeeper_operator.api import Api, Kind
from leasekeeper_operator.apply import Applier
from leasekeeper_operator.lock_index import Followed
from leasekeeper_operator.lock_users import LockUsers
from leasekeeper_operator.model import Ensemble, ensemble_key

from tests.operator.samples import Object
from tests.operator.users_world import PLACE, World, published_world


@pytest.fixture
def world() -> World:
    return published_world()


def test_a_lock_that_comes_is_let_in_without_a_reading_of_all(world: World) -> None:
    before = world.readings
    world.publish("new")
    lock = world.make_lock("new")
    world.sync(changed=False)
    assert "shop/new" not in world.in_file  # the control: nobody has told
    world.users.seen(lock)
    world.users.published(Ensemble.parse(world.ensemble), world.secret("new"))
    world.sync(changed=False)
    assert "shop/new" in world.in_file
    assert all("shop/new" in users for users in world.on_nodes.values())
    assert world.readings == before


def test_a_lock_that_goes_is_cut_off_without_a_reading_of_all(world: World) -> None:
    before = world.readings
    del world.objects["DistributedLock", "shop", "orders"]
    world.users.gone("shop/orders")
    world.sync(changed=False)
    assert world.in_file == {"shop/stays"}
    assert all({*users} == {"shop/stays"} for users in world.on_nodes.values())
    assert world.readings == before


def test_what_is_told_while_a_node_is_brought_up_to_date_is_not_forgotten(world: World) -> None:
    """A lock that comes while the API server is asked about a user that nobody knows."""
    world.publish("new")
    lock, ensemble = world.make_lock("new"), Ensemble.parse(world.ensemble)
    ask = world.get

    async def asked(kind: Kind, namespace: str, name: str) -> Object | None:
        if (kind.name, name) == ("DistributedLock", "stranger"):
            world.users.seen(lock)
            world.users.published(ensemble, world.secret("new"))
            await asyncio.sleep(0)
        return await ask(kind, namespace, name)

    world.get = asked  # type: ignore[method-assign]
    world.on_nodes["0"]["shop/stranger"] = frozenset()
    world.sync(lock_users.RECHECK_SECONDS, changed=False)
    assert "shop/stranger" not in world.on_nodes["0"]
    assert "shop/new" not in world.in_file, "it came too late for this look"
    world.sync(changed=False)
    assert "shop/new" in world.in_file


def test_nobody_is_cut_off_by_hearsay(world: World) -> None:
    """The control is the test above: there it is true."""
    world.users.gone("shop/orders")
    world.users.withdrawn("shop/stays")
    world.sync(changed=False)
    assert world.in_file == {"shop/orders", "shop/stays"}
    assert all({*users} == world.in_file for users in world.on_nodes.values())
    assert "departing" not in world.users_secret["data"]


def test_who_is_not_told_reads_all_again_after_a_while(world: World) -> None:
    world.publish("new")
    world.make_lock("new")
    world.sync(lock_index.REREAD_SECONDS - 1, changed=False)
    assert "shop/new" not in world.in_file
    world.sync(2, changed=False)
    assert "shop/new" in world.in_file


def test_only_the_ensembles_of_a_lock_are_told_of_it(world: World) -> None:
    looked: list[Any] = []
    world.users = LockUsers(cast(Api, world), cast(Applier, world), PLACE, looked.append)
    world.sync()
    lock = world.make_lock()
    world.users.seen(lock)
    world.users.published(Ensemble.parse(world.ensemble), world.secret())
    assert looked == []  # all of it was known
    world.users.seen(world.make_lock(ensembleRef={"name": "other", "namespace": "store"}))
    assert {*looked} == {ensemble_key(*PLACE), ensemble_key("store", "other")}


async def test_what_is_said_during_a_reading_is_newer_than_what_it_finds() -> None:
    followed: Followed[int] = Followed()

    async def load() -> dict[str, int]:
        followed.put("changed", 2)
        followed.put("gone", None)
        followed.put("new", 1)
        return {"changed": 1, "gone": 1, "same": 1}

    await followed.read(load)
    assert dict(followed.items()) == {"changed": 2, "new": 1, "same": 1}


def test_a_lock_is_elsewhere_as_soon_as_we_write_it_there(world: World) -> None:
    """However old the reading of all ensembles' files is."""
    other = ensemble_key("store", "other")

    def elsewhere(lock: str) -> Any:
        return asyncio.run(world.users.elsewhere(lock, other))

    assert elsewhere("shop/new") is None
    before = world.readings
    world.publish("new")
    world.users.seen(world.make_lock("new"))
    world.users.published(Ensemble.parse(world.ensemble), world.secret("new"))
    world.sync(changed=False)
    assert elsewhere("shop/new") == ensemble_key(*PLACE)
    assert elsewhere("shop/never") is None
    assert asyncio.run(world.users.elsewhere("shop/new", ensemble_key(*PLACE))) is None
    assert world.readings == before  # a thousand new locks are not a thousand readings
