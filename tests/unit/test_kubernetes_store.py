"""The Kubernetes Lease store, over an API server in memory: a new Lease, loss, doubt, wake-ups.
(tests/stores has the real one.)"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest
from kube_world import TIMINGS, World, virtual, won

from leasekeeper.kubernetes import record
from leasekeeper.lease import (
    AlreadyGone,
    Grant,
    Held,
    Lost,
    Released,
    Renewed,
    Unavailable,
    Unknown,
)

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
