"""One Redis or Valkey server, as most teams have it: `SET NX PX` and compare-and-delete, with a
token.

It is asked as a database is (`leasekeeper/sql`), with scripts for statements; what a candidate
remembers of it protects as far as there. The honest label: this is one server whose memory is the
lock. A restart without its data, or a failover to a replica, frees the lock under its holder for
everybody who remembers nothing; Redis ends keys by its wall clock. `docs/stores.md` has the table;
Redlock over five nodes is the store without these holes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from importlib import resources

from leasekeeper.redlock.membership import Node
from leasekeeper.redlock.tls import Tls
from leasekeeper.redlock.transport import Answer, Failure, TcpLink
from leasekeeper.sql.database import Claim, DatabaseError, Look, as_token, in_one_line

PATIENCE = 0.5  # for a connection that is being made; a server on the same network needs 1 ms


def _script(name: str) -> str:
    folder = resources.files(__package__)
    return "\n".join((folder / f"{file}.lua").read_text() for file in ("common", name))


_LOOK, _TAKE, _EXTEND, _GIVE_BACK = map(_script, ("look", "take", "extend", "give_back"))


class SingleRedis:
    """A `Database`. Its connection is made again in the background whenever it breaks."""

    notifies = True

    def __init__(
        self,
        *,
        host: str,
        port: int = 6379,
        username: str = "default",
        password: str = "",
        patience: float,
        key: str = "",
        tls: Tls | None = None,
    ) -> None:
        """`key`: the lock's key, if not `leasekeeper:LOCK`. Programs that `SET NX PX` the same key
        and ours exclude each other. `patience`: after which an overdue answer ends a connection.
        """
        self._node = Node("redis", host, port)
        self._user, self._password = username, password or "none"  # `nopass` takes any
        self._patience = patience
        self._key = key
        self._tls = tls
        self._link: TcpLink | None = None

    def _keys(self, resource: str) -> tuple[str, str]:
        key = self._key or f"leasekeeper:{resource}"
        return key, f"{key}:token"

    def _channel(self, resource: str) -> str:
        return f"{self._keys(resource)[0]}:freed"

    async def open(self, resource: str, on_freed: Callable[[int | None], None]) -> None:
        if self._link is None:
            self._link = TcpLink(
                self._node,
                username=self._user,
                password=self._password,
                patience=self._patience,
                tls=self._tls,
            )

            def heard(_: str, message: bytes) -> None:
                on_freed(as_token(message.decode(errors="replace")))

            # A new connection may have missed a release, so that is a hint, too.
            self._link.listen(self._channel(resource), heard, lambda _: on_freed(None))
        try:
            async with asyncio.timeout(PATIENCE):
                await self._link.up()
        except TimeoutError:
            await self.look(resource)  # fails, and says why

    async def take(self, claim: Claim) -> Look:
        return _seen(
            await self._run(
                _TAKE,
                claim.resource,
                claim.id,
                _milliseconds(claim.ttl),
                str(claim.seen),
                claim.mine,
                _milliseconds(claim.earliest),
                _milliseconds(claim.latest),
            )
        )

    async def extend(self, resource: str, id: str, token: int, ttl: float) -> Look:
        return _seen(await self._run(_EXTEND, resource, id, str(token), _milliseconds(ttl)))

    async def give_back(self, resource: str, id: str) -> bool:
        return await self._run(_GIVE_BACK, resource, id, self._channel(resource)) == ["1"]

    async def look(self, resource: str) -> Look:
        return _seen(await self._run(_LOOK, resource))

    def drop(self) -> None:
        """The link does it by itself, and keeps answers and requests together."""

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()
            self._link = None

    async def _run(self, script: str, resource: str, *arguments: str) -> list[str]:
        if self._link is None:
            raise DatabaseError("the connection was closed")
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        keys = self._keys(resource)
        self._link.call(("EVAL", script, "2", *keys, *arguments), partial(_resolve, answer))
        got = await answer
        if isinstance(got, Failure):
            raise DatabaseError(self._in_words(got.why))
        return [field.decode(errors="replace") for field in got]

    def _rules(self) -> str:
        """What `ACL SETUSER` must be told for this lock; by default, for all locks."""
        if not (key := self._key):
            return "~leasekeeper:* &leasekeeper:*"
        return f"~{key} ~{key}:token &{key}:freed"

    def _in_words(self, why: str) -> str:
        at = f"Redis at {self._node.address}"
        if "refused user and password" in why:
            return f"{at} refused user {self._user} or its password"
        if "NOPERM" in why:
            return (
                f"user {self._user} of {at} may not do this: it needs +eval and what the scripts"
                " call (get set del pttl pexpire hget hmget hset time publish subscribe), and its"
                f" keys and channel {self._rules()} ({why})"
            )
        if "READONLY" in why:
            return f"{at} is a read-only replica: name the primary"
        if why.startswith(self._node.address):
            return f"{at} cannot be reached:{why.removeprefix(self._node.address + ':')}"
        return f"{at} says: {in_one_line(Exception(why))}"


def _resolve(future: asyncio.Future[Answer], answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)


def _seen(fields: list[str]) -> Look:
    done, now, holder, token, left, exists = fields
    return Look(
        int(now) / 1000,
        holder,
        int(token),
        int(left) / 1000,
        exists=exists == "1",
        done=done == "1",
    )


def _milliseconds(seconds: float) -> str:
    return str(round(seconds * 1000))
