"""The Kubernetes Lease store: tokens rise, whatever becomes of the Lease."""

from __future__ import annotations

import pytest
from kube_world import World, virtual, won

from leasekeeper.kubernetes import record
from leasekeeper.lease import (
    Unavailable,
)


@virtual
async def test_tokens_rise_although_the_lease_is_deleted_between_any_two_tenures(
    world: World,
) -> None:
    tokens = []
    for turn in range(6):
        store = world.store(f"c{turn}")
        grant = await won(store)
        tokens.append(grant.token)
        if turn % 2:
            await store.release(grant)
        world.api.delete()
    assert tokens == sorted(set(tokens))


@virtual
async def test_control_a_token_of_transitions_alone_would_repeat(world: World) -> None:
    await won(world.store("a"))
    first = world.spec["leaseTransitions"]
    world.api.delete()
    await won(world.store("b"))
    assert world.spec["leaseTransitions"] == first


@virtual
async def test_an_elector_that_drops_our_annotation_does_not_take_the_order_away(
    world: World,
) -> None:
    first = await won(world.store("a"))
    assert world.api.lease is not None
    world.api.lease["metadata"]["annotations"] = {}
    world.api.edit(holderIdentity="other_elector")
    world.api.edit(holderIdentity="")
    assert (await won(world.store("b"))).token > first.token


@virtual
async def test_a_lease_that_came_from_a_cluster_with_larger_numbers_keeps_its_order(
    world: World,
) -> None:
    await won(world.store("a"))
    world.api.edit(holderIdentity="")
    world.api.annotate(token="1000000")
    assert (await won(world.store("b"))).token == 1000001


@pytest.mark.parametrize("text", ["", "-5", "many", "9" * 25, "١٢"])
def test_a_token_that_is_no_token_is_nobodys_floor(text: str) -> None:
    @virtual
    async def check(world: World) -> None:
        await won(world.store("a"))
        world.api.edit(holderIdentity="")
        world.api.annotate(token=text)
        assert (await won(world.store("b"))).token == world.api.revision - 1

    check()


@virtual
async def test_the_largest_token_is_not_passed_in_silence(world: World) -> None:
    await won(world.store("a"))
    world.api.edit(holderIdentity="")
    world.api.annotate(token=str(record.LARGEST_TOKEN))
    outcome = await world.store("b").acquire()
    assert isinstance(outcome, Unavailable)
    assert "too large" in outcome.causes["api-server"]


@virtual
async def test_a_version_that_is_no_number_gives_no_lease(world: World) -> None:
    await won(world.store("a"))
    world.api.edit(holderIdentity="")
    assert world.api.lease is not None
    world.api.lease["metadata"]["resourceVersion"] = "a1f9"
    outcome = await world.store("b").acquire()
    assert isinstance(outcome, Unavailable)
    assert "not a number" in outcome.causes["api-server"]


@virtual
async def test_a_count_of_transitions_that_is_full_stops_nobody(world: World) -> None:
    await won(world.store("a"))
    world.api.edit(holderIdentity="", leaseTransitions=2**31 - 1)
    await won(world.store("b"))
    assert world.spec["leaseTransitions"] == 2**31 - 1
