"""The Kubernetes Lease store in virtual time, over an API server in memory. (tests/stores has the
real one.)"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from kube_lease import MemoryApi, fresh_lease
from virtual_time import VirtualClock, run

from leasekeeper.kubernetes import record
from leasekeeper.kubernetes.store import KubernetesStore
from leasekeeper.lease import (
    AlreadyGone,
    Candidate,
    Grant,
    Held,
    Lost,
    Released,
    Renewed,
    Timings,
    Unavailable,
    Unknown,
)

TIMINGS = Timings(lease_duration=15, renew_deadline=10, retry_period=2)


class World:
    def __init__(self) -> None:
        self.api = MemoryApi()
        self.clock = VirtualClock()

    def store(self, name: str = "a", clock: VirtualClock | None = None) -> KubernetesStore:
        return KubernetesStore(
            api=self.api,
            namespace="shop",
            name="orders",
            candidate=Candidate(name, "uid", f"nonce-of-{name}"),
            timings=TIMINGS,
            clock=clock or self.clock,
        )

    def make(self) -> None:
        """A Lease that somebody vouches for."""
        self.api.act("POST", fresh_lease("shop", "orders"))

    @property
    def spec(self) -> Any:
        assert self.api.lease is not None
        return self.api.lease["spec"]

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()


def virtual(test: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def in_virtual_time() -> None:
        async def main() -> None:
            await test(World())

        run(main())

    in_virtual_time.__name__, in_virtual_time.__doc__ = test.__name__, test.__doc__
    return in_virtual_time


async def won(store: KubernetesStore) -> Grant:
    outcome = await store.acquire()
    if isinstance(outcome, Unavailable) and outcome.retry_in is not None:
        await asyncio.sleep(outcome.retry_in)  # the Lease is new
        outcome = await store.acquire()
    assert isinstance(outcome, Grant), outcome
    return outcome


# -- a Lease that nobody has held ----------------------------------------------------------------


async def time_of_two_leaders(world: World) -> float:
    """Seconds between the next tenure's beginning and the end of the one that was deleted."""
    holder, other = world.store("a"), world.store("b")
    grant = await won(holder)
    assert isinstance(await other.acquire(), Held)
    world.api.delete()
    await won(other)
    return grant.deadline.left(world.clock.now())


@virtual
async def test_a_lease_that_is_deleted_under_its_holder_is_not_taken_while_that_may_lead(
    world: World,
) -> None:
    assert await time_of_two_leaders(world) <= 0


@virtual
async def test_control_a_new_lease_that_does_not_rest_has_two_leaders(world: World) -> None:
    parse = record.Lease.parse
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record.Lease, "parse", lambda obj: replace(parse(obj), new=False))
        assert await time_of_two_leaders(world) > 0


@virtual
async def test_a_lease_that_somebody_vouches_for_is_taken_at_once(world: World) -> None:
    world.make()
    assert isinstance(await world.store().acquire(), Grant)


@virtual
async def test_a_lease_that_was_given_back_is_taken_at_once(world: World) -> None:
    store = world.store("a")
    await store.release(await won(store))
    assert isinstance(await world.store("b").acquire(), Grant)


# -- the token -----------------------------------------------------------------------------------


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


# -- time ----------------------------------------------------------------------------------------


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


# -- lost, unknown, conflict ---------------------------------------------------------------------


@virtual
async def test_a_strangers_edit_is_no_loss(world: World) -> None:
    store = world.store()
    grant = await won(store)
    world.api.annotate(note="hello")
    renewed = await store.renew(grant)
    assert isinstance(renewed, Grant)
    assert renewed.token == grant.token
    assert world.api.lease is not None
    assert world.api.lease["metadata"]["annotations"]["leasekeeper.dev/note"] == "hello"


@virtual
async def test_a_renewal_whose_answer_was_lost_is_no_loss(world: World) -> None:
    store = world.store()
    grant = await won(store)
    world.api.answer_delay = 60
    outcome = await store.renew(grant)
    assert isinstance(outcome, Unknown)
    world.api.answer_delay = 0
    assert isinstance(await store.renew(grant), Grant)


@virtual
async def test_a_hanging_renewal_leaves_time_for_another(world: World) -> None:
    store = world.store()
    grant = await won(store)
    world.api.delay = 60
    outcomes: list[Renewed] = []
    while not grant.deadline.passed(world.clock.now()) and len(outcomes) < 3:
        outcomes.append(await store.renew(grant))
    assert [type(outcome) for outcome in outcomes] == [Unknown] * 3
    assert grant.deadline.left(world.clock.now()) > 1


@pytest.mark.parametrize("status", [0, 401, 403, 422, 429, 500, 503])
def test_a_refusal_says_nothing_about_the_holder(status: int) -> None:
    @virtual
    async def check(world: World) -> None:
        store = world.store()
        grant = await won(store)
        world.api.fault = status
        assert isinstance(await store.renew(grant), Unknown)
        assert isinstance(await store.release(grant), Unknown)
        assert isinstance(await world.store("b").acquire(), Unavailable)
        world.api.fault = None
        assert isinstance(await store.renew(grant), Grant)

    check()


@virtual
async def test_a_deleted_lease_is_lost_and_not_made_again_by_a_renewal(world: World) -> None:
    """Known bug 4."""
    store = world.store()
    grant = await won(store)
    world.api.delete()
    assert await store.renew(grant) == Lost("the Lease was deleted")
    assert world.api.lease is None
    assert await store.release(grant) == AlreadyGone()


@virtual
async def test_a_tenure_in_between_is_noticed(world: World) -> None:
    store = world.store()
    grant = await won(store)
    world.api.edit(holderIdentity="")
    await won(world.store("b"))
    world.api.edit(holderIdentity=grant.id)  # put back by hand: the token is a later one's
    outcome = await store.renew(grant)
    assert isinstance(outcome, Lost)
    assert "later token" in outcome.why


@virtual
async def test_a_restored_snapshot_is_noticed(world: World) -> None:
    store = world.store()
    grant = await won(store)
    grant_later = await store.renew(grant)
    assert isinstance(grant_later, Grant)
    assert world.api.lease is not None
    world.api.lease["metadata"]["resourceVersion"] = "7"
    outcome = await store.renew(grant_later)
    assert isinstance(outcome, Lost)
    assert "rolled back" in outcome.why


@virtual
async def test_a_tenure_whose_deadline_passed_is_never_renewed(world: World) -> None:
    store = world.store()
    grant = await won(store)
    await asyncio.sleep(10.1)
    assert isinstance(await store.renew(grant), Lost)


@virtual
async def test_an_attempt_that_was_cancelled_is_given_back(world: World) -> None:
    """Known bugs 17 and 22."""
    store = world.store()
    world.make()
    world.api.answer_delay = 1.0
    attempt = asyncio.create_task(store.acquire())
    await asyncio.sleep(1.5)  # read; the write was made, its answer is on its way
    assert world.spec["holderIdentity"].startswith("a/")
    attempt.cancel()
    world.api.answer_delay = 0.0
    with contextlib.suppress(asyncio.CancelledError):
        await attempt
    await store.close()
    assert world.spec["holderIdentity"] == ""


@virtual
async def test_a_release_is_finished_although_its_caller_is_cancelled(world: World) -> None:
    store = world.store()
    grant = await won(store)
    world.api.delay = 0.5
    release = asyncio.create_task(store.release(grant))
    await asyncio.sleep(0.1)
    release.cancel()
    await store.close()
    assert world.spec["holderIdentity"] == ""


@virtual
async def test_a_process_that_was_killed_renews_what_its_predecessor_held(world: World) -> None:
    """The sidecar keeps grant and id on a volume; the new process has another nonce."""
    grant = await won(world.store("a"))
    renewed = await world.store("a-again").renew(grant)
    assert isinstance(renewed, Grant)
    assert (renewed.id, renewed.token) == (grant.id, grant.token)


# -- wake-up and requests ------------------------------------------------------------------------


@virtual
async def test_a_release_that_is_heard_is_taken_by_one_write(world: World) -> None:
    holder, waiter = world.store("a"), world.store("b")
    grant = await won(holder)
    assert isinstance(await waiter.acquire(), Held)
    woken = asyncio.create_task(waiter.freed())
    await asyncio.sleep(1)
    assert not woken.done()
    assert await holder.release(grant) == Released()
    await woken
    world.api.log.clear()
    await won(waiter)
    assert world.api.log == ["PUT"]


@virtual
async def test_renewals_that_are_heard_keep_the_waiter_patient(world: World) -> None:
    holder, waiter = world.store("a"), world.store("b")
    grant = await won(holder)
    assert isinstance(await waiter.acquire(), Held)
    woken = asyncio.create_task(waiter.freed())
    await asyncio.sleep(8)
    assert isinstance(await holder.renew(grant), Grant)
    await asyncio.sleep(6)
    outcome = await waiter.acquire()
    assert isinstance(outcome, Held)
    assert outcome.free_in == pytest.approx(15 - 6)
    woken.cancel()


@virtual
async def test_a_watch_that_cannot_be_had_is_no_busy_loop(world: World) -> None:
    await won(world.store("a"))
    waiter = world.store("b")
    assert isinstance(await waiter.acquire(), Held)
    world.api.fault = 403
    began = world.now
    await waiter.freed()
    assert world.now - began >= TIMINGS.retry_period


@virtual
async def test_a_request_on_the_lease_comes_with_the_next_renewal(world: World) -> None:
    store = world.store()
    grant = await won(store)
    world.api.annotate(request="3 pause")
    renewed = await store.renew(grant)
    assert isinstance(renewed, Grant)
    assert renewed.request is not None
    assert (renewed.request.sequence, renewed.request.kind) == (3, "pause")
    assert await store.release(grant) == Released()
    assert await store.acquire() == Unavailable({"api-server": "paused by request"})


@virtual
async def test_fields_of_others_stay(world: World) -> None:
    store = world.store()
    grant = await won(store)
    world.api.edit(strategy="OldestEmulationVersion", fieldOfALaterVersion={"x": 1})
    assert isinstance(await store.renew(grant), Grant)
    await store.release(grant)
    assert world.spec["strategy"] == "OldestEmulationVersion"
    assert world.spec["fieldOfALaterVersion"] == {"x": 1}


@pytest.mark.parametrize(("ttl", "written"), [(15.0, 15), (2.5, 3), (0.3, 1)])
def test_others_wait_at_least_as_long_as_we_hold(ttl: float, written: int) -> None:
    """The field has whole seconds."""
    lease = record.Lease.parse({"metadata": {"resourceVersion": "5"}, "spec": {}})
    assert record.taken(lease, "a", 5, ttl, 0.0)["spec"]["leaseDurationSeconds"] == written


def test_times_are_as_kubernetes_writes_them() -> None:
    assert record.stamp(1763427723.4567891, "") == "2025-11-18T01:02:03.456789Z"
    assert record.stamp(0.0, record.stamp(0.0, "")) == "1970-01-01T00:00:00.000001Z"
