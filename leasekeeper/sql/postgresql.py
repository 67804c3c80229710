"""PostgreSQL, through asyncpg: one round trip a step, and a wake-up by LISTEN and NOTIFY."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any

import asyncpg

from leasekeeper.redlock.tls import Tls
from leasekeeper.sql.database import Claim, DatabaseError, Look, as_token, in_one_line
from leasekeeper.sql.driver_tls import context_for, in_words
from leasekeeper.sql.schema import TABLE, check_version, checked, no_right, no_table

_NOW = "extract(epoch FROM statement_timestamp())::float8"
_LEFT = "extract(epoch FROM {0}.expires - statement_timestamp())::float8"
_END = "statement_timestamp() + {0}::float8 * interval '1 second'"

_LOOK = f"""
SELECT {_NOW}, l.holder, l.token, {_LEFT.format("l")}, false
FROM (SELECT 1) AS one LEFT JOIN {{table}} AS l ON l.resource = $1
"""

# If a statement changed nothing, the row as its snapshot has it says why.
_OR_LOOK = f"""
SELECT {_NOW}, holder, token, {_LEFT.format("changed")}, true FROM changed
UNION ALL
SELECT * FROM ({_LOOK}) AS look WHERE NOT EXISTS (SELECT 1 FROM changed)
"""

# $1 resource, $2 id, $3 ttl, $4 seen, $5 mine, $6 earliest, $7 latest: see `Claim`. A first token
# is the time in milliseconds: a row that was deleted and made again goes on above its old tokens.
_TAKE = f"""
WITH changed AS (
  INSERT INTO {{table}} AS l (resource, holder, token, expires)
  VALUES ($1, $2, greatest($4::bigint + 1, floor({_NOW} * 1000)::bigint), {_END.format("$3")})
  ON CONFLICT (resource) DO UPDATE
  SET holder = excluded.holder, token = l.token + 1, expires = excluded.expires
  WHERE l.token >= $4::bigint AND (l.holder = '' OR l.holder = $5::text
    OR (l.expires <= statement_timestamp() AND {_NOW} BETWEEN $6::float8 AND $7::float8))
  RETURNING l.holder, l.token, l.expires
) {_OR_LOOK}
"""

_EXTEND = f"""
WITH changed AS (
  UPDATE {{table}} SET expires = {_END.format("$4")}
  WHERE resource = $1 AND holder = $2::text AND token = $3::bigint
  RETURNING holder, token, expires
) {_OR_LOOK}
"""

_GIVE_BACK = """
WITH changed AS (
  UPDATE {table} SET holder = '', expires = statement_timestamp()
  WHERE resource = $1 AND holder = $2::text RETURNING token
) SELECT count(pg_notify($3, token::text)) FROM changed
"""

_VERSION = "SELECT token FROM {table} WHERE resource = ''"


class PostgreSql:
    """One connection. It must be a session of its own: a pooler that hands out transactions loses
    LISTEN, and with it the wake-up (the election goes on, slower).
    """

    notifies = True

    def __init__(
        self,
        *,
        host: str,
        port: int = 5432,
        database: str,
        username: str,
        password: str,
        table: str = TABLE,
        tls: Tls | None = None,
    ) -> None:
        self._where = {"host": host, "port": port, "database": database, "user": username}
        self._host, self._port, self._user = host, port, username
        self._password = password
        self._table = checked(table)
        self._tls = tls
        self._connection: Any = None
        texts = (_LOOK, _TAKE, _EXTEND, _GIVE_BACK, _VERSION)
        (self._look, self._take, self._extend, self._free, self._version) = (
            text.format(table=table) for text in texts
        )

    def _channel(self, resource: str) -> str:
        """A channel's name has at most 63 bytes."""
        return "lk_" + hashlib.sha256(f"{self._table} {resource}".encode()).hexdigest()[:40]

    async def open(self, resource: str, on_freed: Callable[[int | None], None]) -> None:
        try:
            connection = await asyncpg.connect(
                **self._where,
                password=self._password,
                ssl=context_for(self._tls, self._host) or False,
                server_settings={"application_name": "leasekeeper"},
                statement_cache_size=16,
            )
        except Exception as wrong:  # its own, and what it stumbles over if that is no server
            raise DatabaseError(self._in_words(wrong)) from wrong
        self._connection = connection

        def heard(_connection: Any, _pid: int, _channel: str, payload: str) -> None:
            on_freed(as_token(payload))

        check_version(await self._ask("fetchval", self._version), "postgresql", self._table)
        await self._ask("add_listener", self._channel(resource), heard)
        connection.add_termination_listener(lambda _: on_freed(None))

    async def take(self, claim: Claim) -> Look:
        return self._seen(
            await self._ask(
                "fetchrow",
                self._take,
                claim.resource,
                claim.id,
                claim.ttl,
                claim.seen,
                claim.mine,
                claim.earliest,
                claim.latest,
            )
        )

    async def extend(self, resource: str, id: str, token: int, ttl: float) -> Look:
        return self._seen(await self._ask("fetchrow", self._extend, resource, id, token, ttl))

    async def give_back(self, resource: str, id: str) -> bool:
        return bool(await self._ask("fetchval", self._free, resource, id, self._channel(resource)))

    async def look(self, resource: str) -> Look:
        return self._seen(await self._ask("fetchrow", self._look, resource))

    def drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.close(timeout=1)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection.terminate()

    @staticmethod
    def _seen(row: Any) -> Look:
        now, holder, token, left, done = row
        if holder is None:
            return Look(now)
        return Look(now, holder, token, left, exists=True, done=done)

    async def _ask(self, method: str, *arguments: Any) -> Any:
        if self._connection is None or self._connection.is_closed():
            raise DatabaseError("the connection to the database has ended")
        try:
            return await getattr(self._connection, method)(*arguments)
        except Exception as wrong:
            raise DatabaseError(self._in_words(wrong)) from wrong

    def _in_words(self, wrong: Exception) -> str:
        at, said = f"PostgreSQL at {self._host}:{self._port}", in_one_line(wrong)
        if isinstance(wrong, asyncpg.UndefinedTableError):
            return no_table("postgresql", self._table)
        if isinstance(wrong, asyncpg.InsufficientPrivilegeError):
            return f"{no_right(self._user, self._table)}: {said}"
        if isinstance(wrong, asyncpg.InvalidAuthorizationSpecificationError):
            return f"{at} refused user {self._user} or its password: {said}"
        if isinstance(wrong, asyncpg.ReadOnlySQLTransactionError):
            return f"{at} is a read-only replica: name the primary, or a name that follows it"
        if isinstance(wrong, asyncpg.PostgresError):
            return f"{at} says: {said}"
        if isinstance(wrong, asyncio.IncompleteReadError | ConnectionResetError):
            return f"{at} closed the connection"
        if why := in_words(self._tls, wrong, self._host):
            return f"{at}: {why}"
        if "rejected SSL upgrade" in said:
            return f"{at} does not speak TLS; turn TLS on there, or off here"
        return f"{at} cannot be reached: {said}"
