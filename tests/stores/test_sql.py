"""What is the SQL stores' own: the table, a database that went back, every refusal in words."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from backends import PATIENT, TIMINGS, Backend
from candidates import Lock
from databases import MySql

from leasekeeper.clock import SystemClock
from leasekeeper.lease import (
    ConfigurationError,
    Grant,
    Held,
    LeaseStore,
    Lost,
    Released,
    Unavailable,
)
from leasekeeper.sql.schema import TABLE, schema

DIALECTS = ("postgresql", "mysql", "sqlite")
CLOCK = SystemClock()


@pytest.fixture(params=DIALECTS, scope="module")
def backend(request: pytest.FixtureRequest, backends: Callable[[str], Backend]) -> Any:
    return backends(request.param)


async def won(store: LeaseStore) -> Grant:
    async with asyncio.timeout(30):
        while not isinstance(outcome := await store.acquire(), Grant):
            await asyncio.sleep(0.02)
    return outcome


async def why(store: LeaseStore) -> str:
    """What an attempt gets instead of a lease."""
    outcome = await store.acquire()
    assert isinstance(outcome, Unavailable), outcome
    return "; ".join(outcome.causes.values())


# -- the table -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_printed_schema_is_what_the_tests_run_on(dialect: str) -> None:
    command = [sys.executable, "-m", "leasekeeper.cli", "sql-schema", dialect]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed == schema(dialect)


def test_an_unknown_dialect_and_a_table_that_needs_quoting_are_refused() -> None:
    for words in (["oracle"], ["sqlite", "--table", "x; DROP TABLE y"]):
        command = [sys.executable, "-m", "leasekeeper.cli", "sql-schema", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1


async def test_a_release_keeps_the_row_and_its_token(lock: Lock, backend: Any) -> None:
    store = lock.candidate("a")
    grant = await won(store)
    await store.release(grant)
    found = backend.sql(f"SELECT holder, token FROM {TABLE} WHERE resource = '{lock.name}'")
    assert found in (f"|{grant.token}", [("", grant.token)])


SETTINGS = {
    "postgresql": [("ALTER ROLE app SET default_transaction_isolation = {}", "serializable")],
    # Each changes what a statement means: the order of assignments, whether '' is something.
    "mysql": [
        ("SET GLOBAL sql_mode = {}", mode)
        for mode in ("'ORACLE'", "'SIMULTANEOUS_ASSIGNMENT'", "'EMPTY_STRING_IS_NULL'")
    ],
}


async def test_whatever_the_server_has_set_for_everybody_one_holds_and_tokens_rise(
    lock: Lock, backend: Any
) -> None:
    """With MariaDB's SIMULTANEOUS_ASSIGNMENT everybody took the lock: each assignment saw the row
    as it was.
    """
    if isinstance(getattr(backend, "server", None), MySql):
        return  # Oracle's has none of these modes
    for text, value in SETTINGS.get(lock.settings["store"], []):
        backend.sql(text.format(value))
        try:
            first, second = lock.candidate("a"), lock.candidate("b")
            grant = await won(first)
            assert isinstance(await second.acquire(), Held), value
            assert isinstance(await first.renew(grant), Grant), value
            assert await first.release(grant) == Released()
            taken = await won(second)
            assert taken.token > grant.token
            await second.release(taken)
        finally:
            backend.sql(text.format("DEFAULT"))


# -- a database that went back -------------------------------------------------------------------


async def test_a_restored_database_is_refused_by_who_remembers(lock: Lock, backend: Any) -> None:
    """The holder loses, a waiter does not take over, and both say why; mended, it goes on."""
    first, second = lock.candidate("a"), lock.candidate("b")
    grant = await won(first)
    assert isinstance(await second.acquire(), Held)
    past = f"SET token = {grant.token - 3}, holder = '' WHERE resource = '{lock.name}'"
    backend.sql(f"UPDATE {TABLE} {past}")
    lost = await first.renew(grant)
    assert isinstance(lost, Lost)
    assert f"went back from {grant.token} to {grant.token - 3}" in lost.why
    assert "the token went back" in await why(second)
    backend.sql(f"UPDATE {TABLE} SET token = {grant.token} WHERE resource = '{lock.name}'")
    assert (await won(second)).token == grant.token + 1


async def test_control_who_remembers_nothing_repeats_a_token(lock: Lock, backend: Any) -> None:
    """What is not detected: a process that has just started has nothing to compare with."""
    first = lock.candidate("a")
    grant = await won(first)
    past = f"SET token = {grant.token - 1}, holder = '' WHERE resource = '{lock.name}'"
    backend.sql(f"UPDATE {TABLE} {past}")
    assert (await won(lock.candidate("new"))).token == grant.token


async def test_a_lease_whose_row_is_deleted_is_waited_for(lock: Lock, backend: Any) -> None:
    first, second = lock.candidate("a"), lock.candidate("b")
    grant = await won(first)
    assert isinstance(await second.acquire(), Held)
    backend.delete(lock.name)
    assert "the lock's record is gone" in await why(second)
    assert (await won(second)).token > grant.token
    assert grant.deadline.passed(CLOCK.now())


def patient(lock: Lock, name: str) -> LeaseStore:
    return lock.candidate(name, timings=PATIENT)


async def test_a_row_with_the_same_token_that_went_back_is_waited_for(
    lock: Lock, backend: Any
) -> None:
    """A replica that lacks the last renewals has the same holder and token, with an older end. The
    holder leads on, by a renewal that another server answered; its successor has seen that."""
    first, second = patient(lock, "a"), patient(lock, "b")
    grant = await won(first)
    assert isinstance(await second.acquire(), Held)
    backend.sql(f"UPDATE {TABLE} SET {backend.ended} WHERE resource = '{lock.name}'")
    assert "the end of the lease" in await why(second)
    taken = await won(second)
    assert grant.deadline.passed(CLOCK.now())
    assert taken.token > grant.token


async def test_control_who_has_just_come_takes_a_row_that_went_back(
    lock: Lock, backend: Any
) -> None:
    grant = await won(patient(lock, "a"))
    backend.sql(f"UPDATE {TABLE} SET {backend.ended} WHERE resource = '{lock.name}'")
    taken = await won(lock.candidate("new"))
    assert not grant.deadline.passed(CLOCK.now())
    assert taken.token > grant.token


# -- what a database refuses, in one sentence ----------------------------------------------------


@contextmanager
def but(lock: Lock, **changes: Any) -> Iterator[LeaseStore]:
    name = lock.settings["store"]
    right = lock.settings
    lock.settings = {"store": name, name: right[name] | changes}
    try:
        yield lock.candidate("a")
    finally:
        lock.settings = right


def table(backend: Any, name: str, text: str) -> None:
    """Makes a table, and lets the candidates use it if there are users."""
    for statement in filter(str.strip, text.split(";")):
        backend.sql(statement)
    if hasattr(backend, "password"):
        backend.sql(f"GRANT SELECT, INSERT, UPDATE ON {name} TO app")


async def test_a_missing_table_is_named_and_found_once_it_is_made(lock: Lock, backend: Any) -> None:
    with but(lock, table="made_later") as store:
        said = await why(store)
        assert "there is no table made_later: make it with what `leasekeeper sql-schema" in said
        dialect = lock.settings["store"]
        lines = schema(dialect, "made_later").splitlines()
        table(backend, "made_later", "\n".join(line.partition("--")[0] for line in lines))
        assert isinstance(await won(store), Grant)


async def test_a_schema_of_another_version_is_refused(lock: Lock, backend: Any) -> None:
    text = f"CREATE TABLE v9 AS SELECT * FROM {TABLE} WHERE resource = ''; UPDATE v9 SET token = 9"
    table(backend, "v9", text)
    with but(lock, table="v9") as store:
        assert "the table v9 has version 9, and this program knows version 1" in await why(store)


async def test_a_missing_right_is_named(lock: Lock, backend: Any) -> None:
    if lock.settings["store"] == "sqlite":
        return  # SQLite has no users: its rights are the file's, and root may do everything
    backend.sql(f"CREATE TABLE secret AS SELECT * FROM {TABLE} WHERE resource = ''")
    with but(lock, table="secret") as store:
        assert "user app may not use the table secret: grant SELECT, INSERT and UPDATE" in (
            await why(store)
        )


async def test_a_wrong_password_and_an_unreachable_server_are_told_apart(
    lock: Lock, backend: Any
) -> None:
    if lock.settings["store"] == "sqlite":
        with but(lock, file="/nonexistent/locks.db") as store:
            assert "SQLite says of /nonexistent/locks.db: unable to open" in await why(store)
        return
    with but(lock, password="wrong") as store:
        assert "refused user app or its password" in await why(store)
    with but(lock, port=1) as store:
        assert "cannot be reached" in await why(store)


READ_ONLY = {
    "postgresql": ("ALTER ROLE app SET default_transaction_read_only = {}", "on", "off"),
    "mysql": ("SET GLOBAL read_only = {}", "1", "0"),
}


async def test_a_server_that_may_only_be_read_is_said(lock: Lock, backend: Any) -> None:
    """As a replica: its server answers with the same error."""
    store = lock.settings["store"]
    if store == "sqlite":
        return  # root, whom the tests may be, writes every file
    text, on, off = READ_ONLY[store]
    backend.sql(text.format(on))
    try:
        said = await why(lock.candidate("a"))
    finally:
        backend.sql(text.format(off))
    assert "name the primary, or a name that follows it" in said


def test_sqlite_files_are_not_made_by_looking_for_them(tmp_path: Path) -> None:
    """A misspelt path would be an election of its own."""
    from leasekeeper.sql.sqlite import Sqlite

    async def look() -> None:
        database = Sqlite(file=str(tmp_path / "typo.db"))
        with pytest.raises(Exception, match="unable to open"):
            await database.open("shop/orders", lambda _: None)
        await database.close()

    asyncio.run(look())
    assert not list(tmp_path.iterdir())


async def test_a_lock_without_a_name_is_refused(lock: Lock) -> None:
    """Its row is the schema's version: whoever took it would lock everybody out."""
    lock.name = ""
    with pytest.raises(ConfigurationError):
        lock.candidate("a")


# -- waiting -------------------------------------------------------------------------------------


async def test_a_second_waiter_is_not_forgotten(lock: Lock) -> None:
    """Known bug 25: all are called or look, one wins, and the others wait for the next release."""
    stores = [lock.candidate(name) for name in "abc"]
    grant, holder = await won(stores[0]), stores[0]
    for left in (2, 1):
        waiters = [store for store in stores if store is not holder][:left]
        outcomes = [await store.acquire() for store in waiters]
        assert all(isinstance(outcome, Held) for outcome in outcomes)
        woken = [asyncio.create_task(store.freed()) for store in waiters]
        await asyncio.sleep(0.05)
        await holder.release(grant)
        async with asyncio.timeout(10 * TIMINGS.retry_period):
            await asyncio.gather(*woken)
        holder = waiters[0]
        grant = await won(holder)
