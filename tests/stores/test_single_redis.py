"""What is the single Redis' own: its honest label, and programs that use the same key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from backends import Backend
from candidates import Lock

from leasekeeper.clock import SystemClock
from leasekeeper.lease import Grant, Held, LeaseStore, Unavailable

CLOCK = SystemClock()


@pytest.fixture(scope="module")
def backend(backends: Callable[[str], Backend]) -> Any:
    return backends("redis")


async def won(store: LeaseStore) -> Grant:
    async with asyncio.timeout(30):
        while not isinstance(outcome := await store.acquire(), Grant):
            await asyncio.sleep(0.02)
    return outcome


async def why(lock: Lock, **changes: Any) -> str:
    right = lock.settings
    lock.settings = {"store": "redis", "redis": right["redis"] | changes}
    store = lock.candidate("a")
    lock.settings = right
    async with asyncio.timeout(30):
        while True:
            outcome = await store.acquire()
            assert isinstance(outcome, Unavailable), outcome
            if "not connected" not in (said := outcome.causes["redis"]):
                return said


async def test_the_label_a_restart_without_data_frees_the_lock_for_who_remembers_nothing(
    lock: Lock, backend: Any
) -> None:
    """The conformance suite has the other half: who remembers the lease waits for its end."""
    grant = await won(lock.candidate("a"))
    backend.restart()
    taken = await won(lock.candidate("new"))
    assert not grant.deadline.passed(CLOCK.now())
    assert taken.token > grant.token  # the time in milliseconds: tokens go on all the same


async def test_a_key_that_is_evicted_frees_nothing_before_its_end(lock: Lock, backend: Any) -> None:
    """`volatile-*` evicts what has a TTL: the lock, and not its record. Also for who remembers
    nothing: the record knows."""
    grant = await won(lock.candidate("a"))
    with backend.server.client() as theirs:
        theirs.delete(f"leasekeeper:{lock.name}")
    new = lock.candidate("new")
    outcome = await new.acquire()
    while isinstance(outcome, Unavailable):
        outcome = await new.acquire()
    assert isinstance(outcome, Held) or grant.deadline.passed(CLOCK.now()), outcome
    taken = await won(new)
    assert grant.deadline.passed(CLOCK.now())
    assert taken.token > grant.token


async def test_a_program_that_sets_the_same_key_and_we_exclude_each_other(
    lock: Lock, backend: Any
) -> None:
    key = f"leasekeeper:{lock.name}"
    with backend.server.client() as theirs:
        store = lock.candidate("a")
        grant = await won(store)
        assert theirs.set(key, "their-id", nx=True, px=60_000) is None
        await store.release(grant)
        assert theirs.set(key, "their-id", nx=True, px=60_000)
        outcome = await store.acquire()
        assert isinstance(outcome, Held)
        assert outcome.free_in > 30
        theirs.delete(key)


async def test_every_refusal_is_one_sentence(lock: Lock, backend: Any) -> None:
    assert "refused user app or its password" in await why(lock, password="wrong")
    assert "cannot be reached" in await why(lock, port=1)
    with backend.server.client() as admin:
        rules = ("reset", "on", ">secret", "~other:*", "&*", "+@all")
        admin.execute_command("ACL", "SETUSER", "stranger", *rules)
    said = await why(lock, username="stranger", password="secret")
    assert "user stranger of Redis at" in said
    assert "the keys ~leasekeeper:*" in said
