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

from leasekeeper.redlock.tls import Tls
from leasekeeper.sql.database import Claim, DatabaseError, Look
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

# Of the server's error numbers.
_ACCESS_DENIED = (1044, 1045, 1698)
_NO_TABLE, _NO_DATABASE = 1146, 1049
_NO_RIGHT = (1142, 1143)
_READ_ONLY = (1290, 1792, 1836)


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
            self._connection = await aiomysql.connect(
                host=self._host,
                port=self._port,
                user=self._user,
                password=self._password,
                db=self._database,
                ssl=None if self._tls is None else self._tls.context(),
                autocommit=True,
                program_name="leasekeeper",
            )
        except (OSError, pymysql.MySQLError) as wrong:
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
        except (OSError, RuntimeError, pymysql.MySQLError) as wrong:
            raise DatabaseError(self._in_words(wrong)) from wrong

    def _in_words(self, wrong: Exception) -> str:
        at = f"MySQL at {self._host}:{self._port}"
        number = wrong.args[0] if wrong.args and isinstance(wrong.args[0], int) else 0
        said = wrong.args[1] if len(wrong.args) > 1 else str(wrong) or type(wrong).__name__
        if number == _NO_TABLE:
            return no_table("mysql", self._table)
        if number in _NO_RIGHT:  # which it also says of a table that is not there
            return f"{no_right(self._user, self._table)}; or {no_table('mysql', self._table)}"
        if number in _ACCESS_DENIED:
            return f"{at} refused user {self._user} or its password: {said}"
        if number in _READ_ONLY:
            return f"{at} is read-only: name the primary, or a name that follows it"
        if number == _NO_DATABASE or 1000 <= number < 2000:
            return f"{at} says: {said}"
        return f"{at} cannot be reached: {said}"


def _microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)
