"""What is the single Redis' own: its honest label, and programs that use the same key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from backends import PATIENT, Backend
from candidates import Lock

from leasekeeper.clock import SystemClock
from leasekeeper.lease import Grant, Held, LeaseStore, Released, Unavailable

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


async def test_an_older_record_is_waited_for_by_who_remembers(lock: Lock, backend: Any) -> None:
    """A replica that lacks the last renewals: its key and its record have ended. The control is
    who has just come: they have nothing to compare with, and take it."""
    grant = await won(lock.candidate("a", timings=PATIENT))
    second = lock.candidate("b", timings=PATIENT)
    await second.ready()
    while not isinstance(outcome := await second.acquire(), Held):
        assert isinstance(outcome, Unavailable), outcome
    key = f"leasekeeper:{lock.name}"
    with backend.server.client() as theirs:
        theirs.delete(key)
        theirs.hset(f"{key}:token", "until", 1)
    outcome = await second.acquire()
    assert isinstance(outcome, Unavailable), outcome
    assert "the end of the lease" in outcome.causes["redis"]
    taken = await won(lock.candidate("new"))
    assert not grant.deadline.passed(CLOCK.now())
    assert taken.token > grant.token


async def test_a_release_without_a_record_frees_the_lock_and_is_heard(
    lock: Lock, backend: Any
) -> None:
    """`allkeys-*` may evict the record alone."""
    first, second = lock.candidate("a"), lock.candidate("b")
    grant = await won(first)
    await second.ready()
    while not isinstance(outcome := await second.acquire(), Held):
        assert isinstance(outcome, Unavailable), outcome
    with backend.server.client() as theirs:
        theirs.delete(f"leasekeeper:{lock.name}:token")
    woken = asyncio.create_task(second.freed())
    await asyncio.sleep(0.05)
    assert await first.release(grant) == Released()
    async with asyncio.timeout(5):
        await woken
    assert (await won(second)).token > grant.token


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
    assert "~leasekeeper:* &leasekeeper:*" in said


@pytest.mark.parametrize("named", [{}, {"key": "app:lock"}], ids=["default", "key"])
async def test_what_a_refusal_advises_is_all_that_a_user_needs(
    lock: Lock, backend: Any, named: dict[str, str]
) -> None:
    user = {"username": f"user-{len(named)}", "password": "secret", **named}
    with backend.server.client() as admin:
        rules = ("reset", "on", ">secret", "+eval")
        admin.execute_command("ACL", "SETUSER", user["username"], *rules)
        said = await why(lock, **user)
        advice, _, _ = said.partition(" (NOPERM")
        commands = [f"+{word}" for word in advice[advice.index("(") + 1 :].split(")")[0].split()]
        keys = [word for word in advice.split() if word[0] in "~&"]
        admin.execute_command("ACL", "SETUSER", user["username"], *commands, *keys)
    lock.settings["redis"].update(user)
    first, second = lock.candidate("a"), lock.candidate("b")
    grant = await won(first)
    await second.ready()
    while not isinstance(outcome := await second.acquire(), Held):
        assert isinstance(outcome, Unavailable), outcome
    woken = asyncio.create_task(second.freed())
    assert await first.release(grant) == Released()
    async with asyncio.timeout(30):
        await woken


async def test_a_replica_is_said(lock: Lock, backend: Any) -> None:
    with backend.server.client() as admin:
        admin.replicaof("127.0.0.1", 1)
        try:
            assert "is a read-only replica: name the primary" in await why(lock)
        finally:
            admin.replicaof("NO", "ONE")
