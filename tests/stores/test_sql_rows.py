"""The two classic locks on a row, on real servers: FOR UPDATE, and a version column."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiomysql
import asyncpg
import pytest
from backends import Backend

from leasekeeper.lease import ConfigurationError
from leasekeeper.sql.rows import (
    AioMySql,
    AsyncPg,
    BlockingSqlite,
    Busy,
    RowBusy,
    RowChanged,
    change_row,
    lock_row,
    take_rows,
)

TABLE = "app_orders"


class Two:
    """Two connections, each in a transaction of its own."""

    def __init__(self, raw: list[Any], kind: Any) -> None:
        self.raw = raw
        self.first, self.second = map(kind, raw)


@pytest.fixture(params=["postgresql", "mysql"], scope="module")
def backend(request: pytest.FixtureRequest, backends: Callable[[str], Backend]) -> Any:
    found: Any = backends(request.param)
    found.sql(f"CREATE TABLE {TABLE} (id integer PRIMARY KEY, state text, version integer)")
    found.sql(f"GRANT SELECT, INSERT, UPDATE ON {TABLE} TO app")
    return found


@pytest.fixture
async def two(backend: Any) -> AsyncIterator[Two]:
    backend.sql(f"DELETE FROM {TABLE}")
    backend.sql(f"INSERT INTO {TABLE} VALUES (1, 'new', 1), (2, 'new', 1), (3, 'new', 1)")
    user = {"host": "127.0.0.1", "port": backend.port, "user": "app", "password": backend.password}
    if hasattr(backend.server, "socket"):
        raw = [await aiomysql.connect(db="app", autocommit=False, **user) for _ in range(2)]
        yield Two(raw, AioMySql)
        for connection in raw:
            connection.close()
        return
    raw = [await asyncpg.connect(database="app", **user) for _ in range(2)]
    for connection in raw:
        await connection.execute("BEGIN")
    yield Two(raw, AsyncPg)
    for connection in raw:
        connection.terminate()


async def commit(connection: Any) -> None:
    if hasattr(connection, "commit"):
        await connection.commit()
    else:
        await connection.execute("COMMIT")


async def test_a_locked_row_fails_or_is_passed_over_and_is_free_after_the_commit(two: Two) -> None:
    row = await lock_row(two.first, TABLE, {"id": 1})
    assert row is not None
    assert row["state"] == "new"
    assert await lock_row(two.second, TABLE, {"id": 1}, busy=Busy.SKIP) is None
    waiting = asyncio.create_task(lock_row(two.second, TABLE, {"id": 1}, busy=Busy.WAIT))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await commit(two.raw[0])
    async with asyncio.timeout(10):
        assert await waiting is not None


async def test_with_nowait_a_locked_row_is_busy_at_once(two: Two) -> None:
    await lock_row(two.first, TABLE, {"id": 1})
    with pytest.raises(RowBusy):
        await lock_row(two.second, TABLE, {"id": 1}, busy=Busy.FAIL)


async def test_two_workers_of_a_queue_take_different_jobs(two: Two) -> None:
    mine = await take_rows(two.first, TABLE, {"state": "new"}, limit=1)
    theirs = await take_rows(two.second, TABLE, {"state": "new"}, limit=1)
    assert {row["id"] for row in mine}.isdisjoint(row["id"] for row in theirs)


async def test_the_second_of_two_changes_from_one_version_is_refused(two: Two) -> None:
    assert await change_row(two.first, TABLE, {"id": 1}, 1, {"state": "paid"}) == 2
    await commit(two.raw[0])
    with pytest.raises(RowChanged):
        await change_row(two.second, TABLE, {"id": 1}, 1, {"state": "cancelled"})


async def test_control_without_the_version_a_change_is_lost(two: Two, backend: Any) -> None:
    text = f"UPDATE {TABLE} SET state = ? WHERE id = ?"
    assert await two.first.changed(text, ["paid", 1]) == 1
    await commit(two.raw[0])
    assert await two.second.changed(text, ["cancelled", 1]) == 1  # and nobody was told


async def test_sqlite_has_the_version_and_no_row_locks(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "app.db") as raw:
        raw.execute(f"CREATE TABLE {TABLE} (id integer PRIMARY KEY, state text, version integer)")
        raw.execute(f"INSERT INTO {TABLE} VALUES (1, 'new', 1)")
        connection = BlockingSqlite(raw)
        assert await change_row(connection, TABLE, {"id": 1}, 1, {"state": "paid"}) == 2
        with pytest.raises(RowChanged):
            await change_row(connection, TABLE, {"id": 1}, 1, {"state": "cancelled"})
        with pytest.raises(NotImplementedError):
            await lock_row(connection, TABLE, {"id": 1})


async def test_names_that_need_quoting_are_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "app.db") as raw, pytest.raises(ConfigurationError):
        await change_row(BlockingSqlite(raw), TABLE, {"id = 1 OR 1": 1}, 1, {"state": "x"})
