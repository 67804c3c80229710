"""What every store must do, on real servers: the elector knows no store, so all must be alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from leasekeeper.clock import SystemClock
from leasekeeper.lease import AlreadyGone, Grant, Held, LeaseStore, Lost, Released

Candidates = Callable[[str], LeaseStore]
CLOCK = SystemClock()


async def ready(store: LeaseStore) -> LeaseStore:
    async with asyncio.timeout(10):
        await store.ready()
    return store


async def won(store: LeaseStore) -> Grant:
    async with asyncio.timeout(20):
        while not isinstance(outcome := await store.acquire(), Grant):
            await asyncio.sleep(0.02)
    return outcome


async def test_one_holds_and_the_other_is_told(candidate: Candidates) -> None:
    first, second = await ready(candidate("a")), await ready(candidate("b"))
    grant = await won(first)
    outcome = await second.acquire()
    assert isinstance(outcome, Held)
    assert outcome.by.startswith("a/")
    assert not grant.deadline.passed(CLOCK.now())


async def test_every_tenure_has_a_larger_token(candidate: Candidates) -> None:
    stores = [await ready(candidate(name)) for name in "ab"]
    tokens = []
    for store in stores * 3:
        grant = await won(store)
        tokens.append(grant.token)
        assert await store.release(grant) == Released()
    assert tokens == sorted(set(tokens))


async def test_a_renewal_keeps_the_token_and_moves_both_ends_on(candidate: Candidates) -> None:
    store = await ready(candidate("a"))
    grant = await won(store)
    later = await store.renew(grant)
    assert isinstance(later, Grant)
    assert later.token == grant.token
    now = CLOCK.now()
    assert later.deadline.left(now) > grant.deadline.left(now)
    assert later.lease_end.left(now) > later.deadline.left(now)


async def test_a_lease_that_passed_to_another_is_lost(candidate: Candidates) -> None:
    first, second = await ready(candidate("a")), await ready(candidate("b"))
    grant = await won(first)
    await first.release(grant)
    await won(second)
    assert isinstance(await first.renew(grant), Lost)
    assert await first.release(grant) == AlreadyGone()


async def test_a_killed_candidates_lock_passes_on_after_its_lease_and_not_before(
    candidate: Candidates,
) -> None:
    first, second = await ready(candidate("a")), await ready(candidate("b"))
    grant = await won(first)
    await first.close()
    taken = await won(second)
    assert grant.lease_end.passed(CLOCK.now())
    assert taken.token > grant.token


async def test_a_candidate_that_slept_past_its_deadline_is_not_renewed(
    candidate: Candidates,
) -> None:
    store = await ready(candidate("a"))
    grant = await won(store)
    await asyncio.sleep(grant.deadline.left(CLOCK.now()) + 0.05)
    assert isinstance(await store.renew(grant), Lost)


async def test_two_candidates_with_one_name_are_two(candidate: Candidates) -> None:
    """Known bug 12."""
    first, namesake = await ready(candidate("same")), await ready(candidate("same"))
    await won(first)
    assert isinstance(await namesake.acquire(), Held)


async def test_a_release_wakes_who_waits(candidate: Candidates) -> None:
    first, second = await ready(candidate("a")), await ready(candidate("b"))
    grant = await won(first)
    assert isinstance(await second.acquire(), Held)
    woken = asyncio.create_task(second.freed())
    await asyncio.sleep(0.05)
    assert not woken.done()
    await first.release(grant)
    async with asyncio.timeout(5):
        await woken


async def test_observe_names_the_holder_and_its_token(candidate: Candidates) -> None:
    store = await ready(candidate("a"))
    grant = await won(store)
    seen = await store.observe()
    assert seen.holder == grant.id
    assert seen.token == grant.token
