"""SQLite, for tests and for several processes of one host. In a thread: it blocks.

The database's clock is the host's wall clock, and the file must be on a local disk: over NFS its
locks do not hold. A row is locked for the length of a statement, so a candidate that finds the
file busy waits for at most `patience`.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from leasekeeper.sql.database import Claim, DatabaseError, Look
from leasekeeper.sql.schema import TABLE, check_version, checked, no_table

_NOW = "CAST((julianday('now') - 2440587.5) * 86400000 AS integer)"
_ROW = f"holder, token, (expires - {_NOW}) / 1000.0"

_LOOK = f"""
SELECT {_NOW} / 1000.0, {_ROW} FROM (SELECT 1) LEFT JOIN {{table}} ON resource = :resource
"""

_TAKE = f"""
INSERT INTO {{table}} (resource, holder, token, expires)
VALUES (:resource, :id, max(:seen + 1, {_NOW}), {_NOW} + :ttl)
ON CONFLICT (resource) DO UPDATE
SET holder = excluded.holder, token = token + 1, expires = excluded.expires
WHERE token >= :seen AND (holder = '' OR holder = :mine
  OR (expires <= {_NOW} AND {_NOW} / 1000.0 BETWEEN :earliest AND :latest))
RETURNING {_NOW} / 1000.0, {_ROW}
"""

_EXTEND = f"""
UPDATE {{table}} SET expires = {_NOW} + :ttl
WHERE resource = :resource AND holder = :id AND token = :token
RETURNING {_NOW} / 1000.0, {_ROW}
"""

_GIVE_BACK = f"""
UPDATE {{table}} SET holder = '', expires = {_NOW}
WHERE resource = :resource AND holder = :id RETURNING token
"""

_VERSION = "SELECT token FROM {table} WHERE resource = ''"


class Sqlite:
    notifies = False

    def __init__(self, *, file: str, table: str = TABLE, patience: float = 2.0) -> None:
        self._file = file
        self._table = checked(table)
        self._patience = patience
        self._connection: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="leasekeeper-sqlite")
        texts = (_LOOK, _TAKE, _EXTEND, _GIVE_BACK, _VERSION)
        (self._look, self._take, self._extend, self._free, self._version) = (
            text.format(table=table) for text in texts
        )

    async def open(self, resource: str, on_freed: Callable[[int | None], None]) -> None:
        self._connection = await self._in_thread(self._connect)
        rows = await self._ask(self._version)
        check_version(rows[0][0] if rows else None, "sqlite", self._table)

    def _connect(self) -> sqlite3.Connection:
        # `rw`: a file that is not there is a mistake in the configuration, not a new database.
        return sqlite3.connect(
            f"{Path(self._file).absolute().as_uri()}?mode=rw",
            uri=True,
            timeout=self._patience,
            isolation_level=None,
            check_same_thread=False,
        )

    async def take(self, claim: Claim) -> Look:
        return await self._change(
            self._take,
            resource=claim.resource,
            id=claim.id,
            ttl=round(claim.ttl * 1000),
            seen=claim.seen,
            mine=claim.mine,
            earliest=claim.earliest,
            latest=claim.latest,
        )

    async def extend(self, resource: str, id: str, token: int, ttl: float) -> Look:
        return await self._change(
            self._extend, resource=resource, id=id, token=token, ttl=round(ttl * 1000)
        )

    async def give_back(self, resource: str, id: str) -> bool:
        return bool(await self._ask(self._free, resource=resource, id=id))

    async def look(self, resource: str) -> Look:
        now, holder, token, left = (await self._ask(self._look, resource=resource))[0]
        if holder is None:
            return Look(now)
        return Look(now, holder, token, left, exists=True)

    async def _change(self, text: str, resource: str, **arguments: Any) -> Look:
        rows = await self._ask(text, resource=resource, **arguments)
        if not rows:
            return await self.look(resource)
        now, holder, token, left = rows[0]
        return replace(Look(now, holder, token, left, exists=True), done=True)

    def drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.interrupt()
            self._thread.submit(connection.close)

    async def close(self) -> None:
        self.drop()
        self._thread.shutdown(wait=False)

    async def _ask(self, text: str, **arguments: Any) -> list[Any]:
        connection = self._connection
        if connection is None:
            raise DatabaseError("the database is closed")
        rows: list[Any] = await self._in_thread(
            lambda: connection.execute(text, arguments).fetchall()
        )
        return rows

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as wrong:
            raise DatabaseError(self._in_words(wrong)) from wrong

    def _in_words(self, wrong: sqlite3.Error) -> str:
        if "no such table" in str(wrong):
            return no_table("sqlite", self._table)
        if "readonly" in str(wrong):
            return f"{self._file} may not be written: give this user the right to write it"
        return f"SQLite says of {self._file}: {wrong}"
