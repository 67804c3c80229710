"""MySQL and MariaDB, through aiomysql. A step is one statement, and a look at what it did.

The look is a statement of its own, because MySQL has no RETURNING. It can say nothing wrong: an id
stands for one attempt only, so a row with this id was taken by this attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import aiomysql
import pymysql
from pymysql.constants import CLIENT

from leasekeeper.redlock.tls import Tls
from leasekeeper.sql.database import Claim, DatabaseError, Look, in_one_line
from leasekeeper.sql.driver_tls import context_for, in_words
from leasekeeper.sql.schema import TABLE, check_version, checked, no_right, no_table

_NOW = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1000000)"
_END = "UTC_TIMESTAMP(6) + INTERVAL %(ttl)s MICROSECOND"

_LOOK = f"""
SELECT {_NOW}, l.holder, l.token, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), l.expires) / 1000000
FROM (SELECT 1 AS one) AS o LEFT JOIN {{table}} AS l ON l.resource = %(resource)s
"""

# Assignments are made from left to right, and each sees what those before it have made. So the
# token comes first (raised, it still is not below `seen`), then the holder, and what the others
# were judged by comes last: by then the holder says whether the row was taken.
_FREE = f"""
token >= %(seen)s AND (holder = '' OR holder = %(mine)s OR (expires <= UTC_TIMESTAMP(6)
  AND {_NOW} BETWEEN %(earliest)s AND %(latest)s))
"""
_TAKE = f"""
INSERT INTO {{table}} (resource, holder, token, expires)
VALUES (%(resource)s, %(id)s, GREATEST(%(seen)s + 1, FLOOR({_NOW} * 1000)), {_END})
ON DUPLICATE KEY UPDATE
  token = IF({_FREE}, token + 1, token),
  holder = IF({_FREE}, %(id)s, holder),
  expires = IF(holder = %(id)s, {_END}, expires)
"""

_EXTEND = f"""
UPDATE {{table}} SET expires = {_END}
WHERE resource = %(resource)s AND holder = %(id)s AND token = %(token)s
"""

_GIVE_BACK = """
UPDATE {table} SET holder = '', expires = UTC_TIMESTAMP(6)
WHERE resource = %(resource)s AND holder = %(id)s
"""

_VERSION = "SELECT token FROM {table} WHERE resource = ''"

# Whatever the server has for everybody: MariaDB's SIMULTANEOUS_ASSIGNMENT would undo the order
# above, and EMPTY_STRING_IS_NULL what is said of '' everywhere here. aiomysql puts it in as it is.
_MODE = "'STRICT_ALL_TABLES'"

# Of the server's error numbers.
_ACCESS_DENIED = (1044, 1045, 1698)
_NO_TABLE = 1146
_NO_RIGHT = (1142, 1143)
_READ_ONLY = (1290, 1792, 1836)

_IN_CLEAR = "it wants the password in clear, without TLS"
_NO_TLS = 2026  # of the client's: CR_SSL_CONNECTION_ERROR


class _Connection(aiomysql.Connection):  # type: ignore[misc]  # aiomysql has no types
    """aiomysql's own goes on without TLS if the server, or whoever sits before it, says that it has
    none; and then it sends the password in clear to who asks for that.
    """

    async def _request_authentication(self) -> None:
        if self._ssl_context and not self.server_capabilities & CLIENT.SSL:
            raise pymysql.OperationalError(_NO_TLS, "it does not speak TLS")
        if not self._ssl_context and self._server_auth_plugin == "mysql_clear_password":
            raise pymysql.OperationalError(_NO_TLS, _IN_CLEAR)
        await super()._request_authentication()

    async def _process_auth(self, plugin: Any, packet: Any) -> Any:
        if not self._secure and plugin == b"mysql_clear_password":
            raise pymysql.OperationalError(_NO_TLS, _IN_CLEAR)
        return await super()._process_auth(plugin, packet)


class MySql:
    notifies = False

    def __init__(
        self,
        *,
        host: str,
        port: int = 3306,
        database: str,
        username: str,
        password: str,
        table: str = TABLE,
        tls: Tls | None = None,
    ) -> None:
        self._host, self._port, self._user = host, port, username
        self._database = database
        self._password = password
        self._table = checked(table)
        self._tls = tls
        self._connection: Any = None
        texts = (_LOOK, _TAKE, _EXTEND, _GIVE_BACK, _VERSION)
        (self._look, self._take, self._extend, self._free, self._version) = (
            text.format(table=table) for text in texts
        )

    async def open(self, resource: str, on_freed: Callable[[int | None], None]) -> None:
        try:
            connection = _Connection(
                host=self._host,
                port=self._port,
                user=self._user,
                password=self._password,
                db=self._database,
                ssl=context_for(self._tls, self._host),
                autocommit=True,
                sql_mode=_MODE,
                program_name="leasekeeper",
            )
            self._connection = connection
            await connection._connect()
        except Exception as wrong:  # its own, and what it stumbles over if that is no server
            raise DatabaseError(self._in_words(wrong)) from wrong
        _, rows = await self._ask(self._version, {})
        check_version(int(rows[0][0]) if rows else None, "mysql", self._table)

    async def take(self, claim: Claim) -> Look:
        await self._ask(
            self._take,
            {
                "resource": claim.resource,
                "id": claim.id,
                "ttl": _microseconds(claim.ttl),
                "seen": claim.seen,
                "mine": claim.mine,
                "earliest": claim.earliest,
                "latest": claim.latest,
            },
        )
        look = await self.look(claim.resource)
        return replace(look, done=look.holder == claim.id)

    async def extend(self, resource: str, id: str, token: int, ttl: float) -> Look:
        changed, _ = await self._ask(
            self._extend,
            {"resource": resource, "id": id, "token": token, "ttl": _microseconds(ttl)},
        )
        look = await self.look(resource)
        return replace(look, done=changed > 0 and (look.holder, look.token) == (id, token))

    async def give_back(self, resource: str, id: str) -> bool:
        changed, _ = await self._ask(self._free, {"resource": resource, "id": id})
        return changed > 0

    async def look(self, resource: str) -> Look:
        _, rows = await self._ask(self._look, {"resource": resource})
        now, holder, token, left = rows[0]
        if holder is None:
            return Look(float(now))
        return Look(float(now), holder, int(token), float(left), exists=True)

    def drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def close(self) -> None:
        self.drop()

    async def _ask(self, text: str, arguments: dict[str, Any]) -> tuple[int, Any]:
        if self._connection is None:
            raise DatabaseError("the connection to the database has ended")
        try:
            async with self._connection.cursor() as cursor:
                changed = await cursor.execute(text, arguments)
                return changed, await cursor.fetchall()
        except Exception as wrong:
            raise DatabaseError(self._in_words(wrong)) from wrong

    def _in_words(self, wrong: Exception) -> str:
        at = f"MySQL at {self._host}:{self._port}"
        number = wrong.args[0] if wrong.args and isinstance(wrong.args[0], int) else 0
        said = in_one_line(Exception(wrong.args[1]) if len(wrong.args) > 1 else wrong)
        if number == _NO_TABLE:
            return no_table("mysql", self._table)
        if number in _NO_RIGHT:  # which it also says of a table that is not there
            return f"{no_right(self._user, self._table)}; or {no_table('mysql', self._table)}"
        if number in _ACCESS_DENIED:
            return f"{at} refused user {self._user} or its password: {said}"
        if number in _READ_ONLY:
            return f"{at} is read-only: name the primary, or a name that follows it"
        if why := in_words(self._tls, wrong, self._host):
            return f"{at}: {why}"
        if number == _NO_TLS:
            return f"{at} cannot be used: {said}; turn TLS on there, or mend `tls` here"
        if "'cryptography' package is required" in said:
            return (
                f"{at} lets user {self._user} send the password only through TLS or a key that"
                " this image has no package for (cryptography): turn `tls` on"
            )
        if number and not 2000 <= number < 3000:  # those are the client's own
            return f"{at} says: {said}"
        if wrong.__cause__ is not None:
            said = in_one_line(wrong.__cause__)
        return f"{at} cannot be reached: {said}"


def _microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)
