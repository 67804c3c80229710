"""The two classic locks on a row, for application code. When to use which: `docs/stores.md`.

Neither is a lease: the pessimistic lock lasts as long as a transaction, the optimistic one is no
lock at all but a check that nothing was lost. Both are safe against pauses and clocks, because the
database itself refuses; so prefer them where all that is protected is in that database.

    async with connection.transaction():                       # asyncpg
        row = await lock_row(AsyncPg(connection), "orders", {"id": 7}, busy=Busy.FAIL)

    version = await change_row(AsyncPg(connection), "orders", {"id": 7}, version, {"state": "paid"})
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from leasekeeper.lease import LeaseError
from leasekeeper.sql.schema import checked


class RowBusy(LeaseError):
    """Another transaction has the row locked."""


class RowChanged(LeaseError):
    """Somebody changed the row since it was read, or deleted it. Read it again, and decide anew."""


class Busy(enum.Enum):
    """What to do about a row that another transaction has locked."""

    WAIT = ""
    FAIL = " NOWAIT"
    SKIP = " SKIP LOCKED"


class Connection(Protocol):
    """What these helpers ask of a driver. `?` stands for each value."""

    async def rows(self, text: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        """Raises RowBusy where the database says so."""

    async def changed(self, text: str, values: Sequence[Any]) -> int:
        """How many rows were changed."""


async def lock_row(
    connection: Connection, table: str, key: Mapping[str, Any], *, busy: Busy = Busy.FAIL
) -> dict[str, Any] | None:
    """Locks the row until the caller's transaction ends; outside of one, it locks nothing. None:
    there is no such row, or (with SKIP) it is locked.
    """
    rows = await _locked(connection, table, key, busy, limit=1)
    return rows[0] if rows else None


async def take_rows(
    connection: Connection, table: str, where: Mapping[str, Any], *, limit: int
) -> list[dict[str, Any]]:
    """Up to `limit` rows that nobody else has locked, locked: a queue of jobs for many workers.
    They come in no particular order, and what is locked is passed over.
    """
    return await _locked(connection, table, where, Busy.SKIP, limit)


async def change_row(
    connection: Connection,
    table: str,
    key: Mapping[str, Any],
    version: int,
    changes: Mapping[str, Any],
    *,
    column: str = "version",
) -> int:
    """Changes the row if it still has this version, and raises the version. The new one; or
    RowChanged, and nothing was changed.
    """
    checked(column)
    sets = ", ".join([*(f"{checked(name)} = ?" for name in changes), f"{column} = {column} + 1"])
    condition, values = _condition({**key, column: version})
    text = f"UPDATE {checked(table)} SET {sets} WHERE {condition}"
    if await connection.changed(text, [*changes.values(), *values]) != 1:
        raise RowChanged(f"{table} {dict(key)} no longer has version {version}: read it again")
    return version + 1


async def _locked(
    connection: Connection, table: str, where: Mapping[str, Any], busy: Busy, limit: int
) -> list[dict[str, Any]]:
    condition, values = _condition(where)
    text = f"SELECT * FROM {checked(table)} WHERE {condition} LIMIT {int(limit)} FOR UPDATE"
    return await connection.rows(text + busy.value, values)


def _condition(where: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Names go into the statement as they are, so only plain ones; values never do."""
    return " AND ".join(f"{checked(name)} = ?" for name in where), list(where.values())


class AsyncPg:
    """Over a connection of asyncpg."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def rows(self, text: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        import asyncpg

        try:
            found = await self._connection.fetch(_numbered(text), *values)
        except asyncpg.LockNotAvailableError as wrong:
            raise RowBusy(str(wrong)) from wrong
        return [dict(row) for row in found]

    async def changed(self, text: str, values: Sequence[Any]) -> int:
        status: str = await self._connection.execute(_numbered(text), *values)
        return int(status.rpartition(" ")[2])


class AioMySql:
    """Over a connection of aiomysql. MariaDB from 10.6 and MySQL from 8 know SKIP LOCKED."""

    _BUSY = (1205, 3572)  # of MariaDB, and of MySQL

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def rows(self, text: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        import aiomysql
        import pymysql

        try:
            async with self._connection.cursor(aiomysql.DictCursor) as cursor:
                await cursor.execute(text.replace("?", "%s"), values)
                return list(await cursor.fetchall())
        except pymysql.err.OperationalError as wrong:
            if wrong.args[0] in self._BUSY:
                raise RowBusy(str(wrong.args[1])) from wrong
            raise

    async def changed(self, text: str, values: Sequence[Any]) -> int:
        async with self._connection.cursor() as cursor:
            return int(await cursor.execute(text.replace("?", "%s"), values))


class BlockingSqlite:
    """Over a connection of sqlite3, for `change_row`. SQLite locks the whole file for a writer
    (`BEGIN IMMEDIATE`), and has no FOR UPDATE.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def rows(self, text: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        raise NotImplementedError("SQLite has no row locks: BEGIN IMMEDIATE locks the file")

    async def changed(self, text: str, values: Sequence[Any]) -> int:
        return int(self._connection.execute(text, values).rowcount)


def _numbered(text: str) -> str:
    """`?` as PostgreSQL has it: $1, $2, …"""
    head, *rest = text.split("?")
    return head + "".join(f"${number}{part}" for number, part in enumerate(rest, start=1))
