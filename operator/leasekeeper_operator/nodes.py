"""The operator's own look at the nodes, and what it tells them: births, and users of locks.

Nothing here decides. Deadlines are short, because a node that hangs must not hold up what concerns
the others; whoever did not answer is `Unreachable` in the status, and asked again at the next look.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import redis.asyncio
from redis.asyncio.connection import Connection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, ConnectionError, RedisError

from leasekeeper.lease import Request
from leasekeeper.redlock import requests, users
from leasekeeper.redlock.learnt import Learnt
from leasekeeper.redlock.membership import Membership, Node
from leasekeeper.redlock.registry import NodeView, Record

log = logging.getLogger(__name__)

ANSWER_SECONDS = 1.5
"""For one request, connecting included: a healthy node answers in a millisecond, and the look of
all nodes, which is taken in parallel, must end well within its period of five seconds."""

OPEN, CLOSED, UNREACHABLE = "Open", "Closed", "Unreachable"
LEFT_BEHIND = "delete its pod: it slept through a total loss and its votes do not count"


@dataclass(frozen=True, slots=True)
class Entry:
    """What one node has of one lock that is held there, or of whose holder something is asked."""

    owner: str
    """The holder's id, candidate/attempt; empty: nobody."""
    fence: int
    request: str = ""


@dataclass(frozen=True, slots=True)
class Sight:
    """What the operator saw of one node."""

    id: str
    state: str
    view: NodeView | None = None
    """None: it did not answer, or its agent has not begun with it yet."""
    message: str = ""
    entries: Mapping[str, Entry] | None = None
    """By lock, of an open node. None: it could not be asked for them."""


class NodeError(Exception):
    """A node did not do what it was asked."""


class Unreachable(NodeError):
    """It did not answer. Why is for the log only: a network says it in other words every time, and
    the status would be written at each look."""

    def __init__(self, details: str) -> None:
        super().__init__("it does not answer the operator")
        self.details = details


Resolve = Callable[[Node], tuple[str, int]]


def by_name(node: Node) -> tuple[str, int]:
    return node.host, node.port


class TlsConnection(Connection):
    """redis-py's own would trust every public CA beside ours, and check for the name that it
    connects to; a node's certificate is for its name in the membership."""

    def __init__(self, *, context: ssl.SSLContext, server_name: str, **rest: Any) -> None:
        super().__init__(**rest)
        self._context, self._server_name = context, server_name

    def _connection_arguments(self) -> dict[str, Any]:
        plain = super()._connection_arguments()
        return {**plain, "ssl": self._context, "server_hostname": self._server_name}


def tls_context(trusted: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificates and names
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=trusted)
    return context


class Link:
    """One connection to one node, opened when it is needed."""

    def __init__(
        self,
        host: str,
        port: int,
        user: str,
        password: str,
        tls: tuple[ssl.SSLContext, str] | None = None,
    ) -> None:
        """`tls`: the context, and the name that the node's certificate must be for."""
        secured: dict[str, Any] = {}
        if tls is not None:
            secured = {
                "connection_class": TlsConnection,
                "context": tls[0],
                "server_name": tls[1],
            }
        pool = redis.asyncio.ConnectionPool(
            host=host,
            port=port,
            username=user,
            password=password,
            decode_responses=True,
            # Tenants write the fields that `lk1_dump` reads; what is not text must not raise here.
            encoding_errors="replace",
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=ANSWER_SECONDS,
            # What fails, fails now; the next look is the retry.
            retry=Retry(NoBackoff(), 0),
            max_connections=1,
            # The operator's user may not call CLIENT SETINFO.
            driver_info=None,
            **secured,
        )
        self._redis = redis.asyncio.Redis.from_pool(pool)

    async def call(self, *command: str) -> Any:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._redis.execute_command(*command)  # type: ignore[no-untyped-call]
        except AuthenticationError as error:  # which is a ConnectionError to redis-py
            raise NodeError(str(error)) from error
        except TimeoutError:
            raise Unreachable(f"no answer within {ANSWER_SECONDS:g} s") from None
        except (ConnectionError, redis.exceptions.TimeoutError, OSError) as error:
            raise Unreachable(str(error) or type(error).__name__) from error
        except RedisError as error:
            raise NodeError(str(error) or type(error).__name__) from error

    async def fcall(self, function: str, *args: str) -> list[str]:
        answer = await self.call("FCALL", function, "0", *args)
        if not isinstance(answer, list) or not answer:
            raise NodeError(f"{function}: unexpected answer {answer!r}")
        return [str(part) for part in answer]

    async def close(self) -> None:
        with contextlib.suppress(RedisError, OSError):
            await self._redis.aclose()


USERS = (users.AGENT, users.PEER, users.OPERATOR)


@dataclass(frozen=True, slots=True)
class Passwords:
    """Of the users that a server's configuration file has."""

    agent: str
    peer: str
    operator: str


class Nodes:
    """The nodes of one ensemble. Made anew when membership or passwords change."""

    def __init__(
        self,
        membership: Membership,
        passwords: Passwords,
        *,
        trusted: str = "",
        resolve: Resolve = by_name,
    ) -> None:
        """`trusted`: the CAs of the nodes' certificates; empty: they speak without TLS."""
        self.membership = membership
        self.passwords = passwords
        self.trusted = trusted
        self._context = tls_context(trusted) if trusted else None
        self._nodes = {node.id: node for node in membership.nodes}
        self._places = {node.id: resolve(node) for node in membership.nodes}
        self._links = {
            node: self._link(node, users.OPERATOR, passwords.operator) for node in self._nodes
        }

    def _link(self, node: str, user: str, password: str) -> Link:
        tls = (self._context, self._nodes[node].host) if self._context else None
        return Link(*self._places[node], user, password, tls)

    async def look(self) -> dict[str, Sight]:
        """Of all of them, in parallel."""
        sights = await asyncio.gather(*(self._look(node) for node in self._links))
        return {sight.id: sight for sight in sights}

    async def _look(self, node: str) -> Sight:
        try:
            view = NodeView.from_reply(await self._links[node].fcall("lk1_state"))
        except NodeError as error:
            if isinstance(error, Unreachable):
                log.debug('unreachable node=%s error="%s"', node, error.details)
            return sight_of_error(node, str(error))
        except ValueError as error:
            return Sight(node, CLOSED, None, f"it speaks another version: {error}")
        if not view.open:
            return Sight(node, CLOSED, view, why_closed(view))
        try:
            return Sight(node, OPEN, view, entries=await self._entries(node))
        except Unreachable as error:
            return sight_of_error(node, str(error))
        except NodeError as error:
            # An agent of the version before has loaded no such function: it votes all the same.
            log.debug('entries-not-read node=%s error="%s"', node, error)
            return Sight(node, OPEN, view)

    async def _entries(self, node: str) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        cursor = "0"
        while True:
            _, cursor, *fields = await self._links[node].fcall("lk1_entries", cursor)
            found |= parse_entries(fields[:-2])  # the last two are of the node itself
            if cursor == "0":
                return found

    async def highest(self, node: str) -> int:
        """The largest token that this node knows of. Asked after a total loss only, and as a peer:
        the operator's own user need not read locks at any other time."""
        learnt, cursor = Learnt(), "0"
        link = self._link(node, users.PEER, self.passwords.peer)
        try:
            while True:
                reply = await link.fcall("lk1_dump", cursor)
                learnt, cursor = learnt.with_page(reply), reply[1]
                if cursor == "0":
                    return max(learnt.fences.values(), default=0)
        finally:
            await link.close()

    async def birth(self, node: str, arguments: tuple[str, ...]) -> None:
        reply = await self._links[node].fcall("lk1_birth", *arguments)
        if reply[0] != "OK":
            raise NodeError(f"lk1_birth: {' '.join(reply)}")

    async def request(self, node: str, lock: str, request: Request) -> None:
        reply = await self._links[node].fcall(*requests.call(lock, request))
        if reply[0] != "OK":
            raise NodeError(f"lk1_request: {' '.join(reply)}")

    async def forget(self, node: str, lock: str, largest: int) -> None:
        """A lock that is gone: its key goes, and its F goes into the node's floor."""
        reply = await self._links[node].fcall("lk1_forget", lock, str(largest))
        if reply[0] != "OK":
            raise NodeError(f"lk1_forget: {' '.join(reply)}")

    async def users(self, node: str) -> dict[str, str]:
        """Users of locks that the node has: the lock, and the digest of its password."""
        lines = await self._links[node].call("ACL", "LIST")
        return dict(filter(None, map(parse_user, lines)))

    @property
    def ids(self) -> list[str]:
        return [*self._links]

    async def admin_digests(self, node: str) -> dict[str, frozenset[str]]:
        """Of agent, peer and operator: the digests of the passwords that the node takes."""
        lines = [line.split() for line in await self._links[node].call("ACL", "LIST")]
        return {
            words[1]: frozenset(word[1:] for word in words if word.startswith("#"))
            for words in lines
            if len(words) > 1 and words[1] in USERS
        }

    async def set_digests(
        self, node: str, user: str, wanted: frozenset[str], known: frozenset[str]
    ) -> None:
        """Connections that stand are not touched."""
        rules = [*(f"#{d}" for d in wanted - known), *(f"!{d}" for d in known - wanted)]
        await self._links[node].call("ACL", "SETUSER", user, *rules)

    async def set_user(self, node: str, lock: str, digest: str) -> None:
        rules = users.lock_rules(lock, digest)
        await self._links[node].call("ACL", "SETUSER", users.lock_user(lock), *rules)

    async def delete_user(self, node: str, lock: str) -> None:
        """Cuts its connections, too."""
        await self._links[node].call("ACL", "DELUSER", users.lock_user(lock))

    async def close(self) -> None:
        await asyncio.gather(*(link.close() for link in self._links.values()))


def parse_entries(fields: Sequence[str]) -> dict[str, Entry]:
    """lock, owner, F, request, and so on."""
    quadruples = zip(*(fields[i::4] for i in range(4)), strict=True)
    return {lock: Entry(owner, int(fence), wish) for lock, owner, fence, wish in quadruples}


def parse_user(line: str) -> tuple[str, str] | None:
    """One line of ACL LIST, if it is the user of a lock: `user lock:NS/NAME on #DIGEST …`."""
    words = line.split()
    if len(words) < 2 or not words[1].startswith(users.lock_user("")):
        return None
    digest = next((word[1:] for word in words if word.startswith("#")), "")
    return words[1].removeprefix(users.lock_user("")), digest


def sight_of_error(node: str, error: str) -> Sight:
    # The server answers, but nobody has loaded the functions: it is there, and does not vote.
    if "Function not found" in error:
        return Sight(node, CLOSED, None, "its agent has not begun yet")
    return Sight(node, UNREACHABLE, None, error[:1000])


def without_ghosts(record: Record | None, sights: Mapping[str, Sight]) -> dict[str, Sight]:
    """An open node of an older generation than the record's: the others count its votes no more."""
    return {id: _judged(record, sight) for id, sight in sights.items()}


def _judged(record: Record | None, sight: Sight) -> Sight:
    view = sight.view
    if record is None or view is None or not view.open:
        return sight
    if not 0 < view.generation < record.generation:
        return sight
    if record.lives.get(sight.id) == view.life:
        return replace(sight, state=CLOSED, message="it is being told of the total loss")
    return replace(sight, state=CLOSED, message=LEFT_BEHIND)


def why_closed(view: NodeView) -> str:
    if not view.life:
        return "its agent has not begun yet"
    if not view.rested:
        return "it has no memory and is in quarantine"
    return "its quarantine is over; it is learning from the others"
