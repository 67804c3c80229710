"""The Kubernetes Lease store: time is never compared across machines."""

from __future__ import annotations

import asyncio

import pytest
from kube_world import World, virtual, won
from virtual_time import VirtualClock

from leasekeeper.kubernetes import record
from leasekeeper.lease import (
    Grant,
    Held,
    Unavailable,
)


@virtual
async def test_a_dead_holders_lease_is_taken_after_its_duration_on_the_waiters_clock(
    world: World,
) -> None:
    await won(world.store("a"))
    await asyncio.sleep(7)
    waiter = world.store("b")
    held = await waiter.acquire()  # it sees the record for the first time now
    assert held == Held(by="a/uid/nonce-of-a", free_in=15)
    await asyncio.sleep(14.9)
    assert isinstance(await waiter.acquire(), Held)
    await asyncio.sleep(0.2)
    await won(waiter)


@virtual
async def test_wall_clocks_may_say_what_they_like(world: World) -> None:
    """Known bug 8: a holder a year behind is not expired, a dead one a year ahead is."""
    for offset in (-3e7, 3e7):
        holder, waiter = world.store("a"), world.store("b")
        world.clock.wall_offset = 1.7e9 + offset
        grant = await won(holder)
        assert isinstance(await waiter.acquire(), Held)
        for _ in range(10):
            await asyncio.sleep(2)
            renewed = await holder.renew(grant)
            assert isinstance(renewed, Grant)
            grant = renewed
            assert isinstance(await waiter.acquire(), Held)
        await asyncio.sleep(15.1)
        taken = await won(waiter)
        await waiter.release(taken)


@virtual
async def test_a_renewal_is_seen_even_if_the_wall_clock_stands_still(world: World) -> None:
    """The API server takes an equal object for no change: others would see none."""

    class Stopped(VirtualClock):
        def wall(self) -> float:
            return 1.7e9

    holder, waiter = world.store("a", Stopped()), world.store("b")
    grant = await won(holder)
    assert isinstance(await waiter.acquire(), Held)
    for _ in range(12):
        await asyncio.sleep(2)
        before = world.api.revision
        renewed = await holder.renew(grant)
        assert isinstance(renewed, Grant)
        grant = renewed
        assert world.api.revision == before + 1
        assert isinstance(await waiter.acquire(), Held)


@virtual
async def test_who_waits_errs_towards_not_yet(world: World) -> None:
    """A suspended waiter's two clocks differ: the smaller difference counts."""
    await won(world.store("a"))
    clock = VirtualClock()
    waiter = world.store("b", clock)
    assert isinstance(await waiter.acquire(), Held)
    clock.boot_offset += 100
    assert isinstance(await waiter.acquire(), Held)


@virtual
async def test_labels_do_not_keep_a_dead_holder_alive(world: World) -> None:
    await won(world.store("a"))
    waiter = world.store("b")
    assert isinstance(await waiter.acquire(), Held)
    for minute in range(3):
        await asyncio.sleep(5.1)
        world.api.annotate(note=str(minute))
    await won(waiter)


@virtual
async def test_a_lease_of_another_duration_is_waited_for_as_long_as_it_says(world: World) -> None:
    await won(world.store("a"))
    world.api.edit(holderIdentity="client-go_1", leaseDurationSeconds=60)
    waiter = world.store("b")
    assert await waiter.acquire() == Held(by="client-go_1", free_in=60)
    await asyncio.sleep(59)
    assert isinstance(await waiter.acquire(), Held)
    await asyncio.sleep(1.1)
    await won(waiter)


@virtual
async def test_validity_counts_from_before_the_write(world: World) -> None:
    """Known bug 2."""
    world.make()
    world.api.delay = 1.5
    store = world.store()
    assert isinstance(await store.acquire(), Grant)
    began = world.now
    grant = await won(world.store("a"))  # an own, older attempt is replaced: known bug 13
    # One read and one write of 1.5 s each; the second counts from its beginning.
    assert grant.deadline.left(world.clock.now()) == pytest.approx(10 - 1.5)
    assert world.now - began == pytest.approx(3.0)
    renewed = await store.renew(grant)
    assert isinstance(renewed, Grant)
    assert renewed.deadline.left(world.clock.now()) <= 10 - 1.5


@virtual
async def test_a_lease_whose_answer_came_too_late_is_not_held_and_given_back(world: World) -> None:
    """Known bugs 1 and 22."""
    store = world.store()
    await won(store)
    world.api.edit(holderIdentity="")

    clock = VirtualClock()
    frozen = world.store("b", clock)

    def freeze(method: str) -> None:
        """As if the process had been frozen while the answer lay in its socket."""
        if method == "PUT":
            clock.boot_offset += 11
            world.api.on_answer = lambda _: None

    world.api.on_answer = freeze
    outcome = await frozen.acquire()
    assert isinstance(outcome, Unavailable)
    assert "too late" in outcome.causes["api-server"]
    await frozen.close()
    assert world.spec["holderIdentity"] == ""


@pytest.mark.parametrize(("ttl", "written"), [(15.0, 15), (2.5, 3), (0.3, 1)])
def test_others_wait_at_least_as_long_as_we_hold(ttl: float, written: int) -> None:
    """The field has whole seconds."""
    lease = record.Lease.parse({"metadata": {"resourceVersion": "5"}, "spec": {}})
    assert record.taken(lease, "a", 5, ttl, 0.0)["spec"]["leaseDurationSeconds"] == written


def test_times_are_as_kubernetes_writes_them() -> None:
    assert record.stamp(1763427723.4567891, "") == "2025-11-18T01:02:03.456789Z"
    assert record.stamp(0.0, record.stamp(0.0, "")) == "1970-01-01T00:00:00.000001Z"
