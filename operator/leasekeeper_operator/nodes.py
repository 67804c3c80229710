"""The operator's own look at the nodes, and what it tells them: births, and users of locks.

Nothing here decides. Deadlines are short, because a node that hangs must not hold up what concerns
the others; whoever did not answer is `Unreachable` in the status, and asked again at the next look.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from leasekeeper.lease import Request
from leasekeeper.redlock import requests, users
from leasekeeper.redlock.learnt import Learnt, learn_arguments
from leasekeeper.redlock.membership import Membership, Node
from leasekeeper.redlock.registry import NodeView, Record, parse_vector
from leasekeeper_operator.link import Link, NodeError, Unreachable, fields, tls_context

log = logging.getLogger(__name__)

TICK = 7
"""The place of a node's time in the answer of `lk1_state`."""

AT_ONCE = 50
"""Users that are told together: a thousand take few round trips, each of which a node answers in a
millisecond or two."""

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


@dataclass(frozen=True, slots=True)
class NewUser:
    """How the candidates of a lock are let in."""

    digests: frozenset[str]
    """Of the passwords."""
    anew: bool = False
    """Connections that stand are cut, and the user is there again before anybody can come back."""

    def commands(self, lock: str) -> Iterator[Sequence[str]]:
        user = users.lock_user(lock)
        if self.anew:
            yield "ACL", "DELUSER", user
        yield "ACL", "SETUSER", user, *users.lock_rules(lock, self.digests)


@dataclass(frozen=True, slots=True)
class Answered:
    """By whose memory took what it was told."""

    node: str
    incarnation: int
    vector: Mapping[str, int]
    """The incarnation of every node, as far as this one knows."""


Resolve = Callable[[Node], tuple[str, int]]


def by_name(node: Node) -> tuple[str, int]:
    return node.host, node.port


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
        self._seen: dict[str, tuple[list[Any], Sight]] = {}
        """By node: its answers at the last look, and what they say."""
        self._users: dict[str, tuple[int, dict[str, frozenset[str]], int]] = {}
        """By node: the hash of its ACL LIST, which is long, and what it says."""
        self._links = {
            node: self._link(node, users.OPERATOR, passwords.operator) for node in self._nodes
        }

    def _link(self, node: str, user: str, password: str) -> Link:
        tls = (self._context, self._nodes[node].host) if self._context else None
        return Link(*self._places[node], user, password, tls)

    async def look(self) -> dict[str, Sight]:
        """Of all of them, in parallel. Of a node that answers as it did the last time, it is the
        very same object."""
        sights = await asyncio.gather(*(self._look(node) for node in self._links))
        return {sight.id: sight for sight in sights}

    async def _look(self, node: str) -> Sight:
        try:
            state, entries = await self._links[node].calls(
                ("FCALL", "lk1_state", "0"), ("FCALL", "lk1_entries", "0", "0")
            )
            # Its time goes on; nothing of ours asks for it.
            answer = [state[:TICK] + state[TICK + 1 :], entries] if _both(state, entries) else None
            known = self._seen.get(node)
            if known is not None and answer is not None and known[0] == answer:
                return known[1]
            sight = await self._sight(node, fields("lk1_state", state), entries)
        except NodeError as error:
            if isinstance(error, Unreachable):
                log.debug('unreachable node=%s error="%s"', node, error.details)
            return sight_of_error(node, str(error))
        except ValueError as error:
            # Not "closed": who has not begun has no memory, and may be replaced at any time.
            return Sight(node, UNREACHABLE, None, f"it speaks another version: {error}")
        self._seen.pop(node, None)
        if answer is not None and entries[1] == "0":  # what has one page only
            self._seen[node] = (answer, sight)
        return sight

    async def _sight(self, node: str, state: list[str], entries: Any) -> Sight:
        view = NodeView.from_reply(state)
        if not view.open:
            return Sight(node, CLOSED, view, why_closed(view))
        try:
            first = fields("lk1_entries", entries)
            return Sight(node, OPEN, view, entries=await self._entries(node, first))
        except Unreachable:
            raise
        except NodeError as error:
            # An agent of the version before has loaded no such function: it votes all the same.
            log.debug('entries-not-read node=%s error="%s"', node, error)
            return Sight(node, OPEN, view)

    async def _entries(self, node: str, page: list[str]) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        while True:
            _, cursor, *fields = page
            found |= parse_entries(fields[:-2])  # the last two are of the node itself
            if cursor == "0":
                return found
            page = await self._links[node].fcall("lk1_entries", cursor)

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

    async def users(self, node: str) -> dict[str, frozenset[str]]:
        """Users of locks that the node has: the lock, and the digests of its passwords."""
        lines = await self._links[node].call("ACL", "LIST")
        said = hash(tuple(lines))
        if node not in self._users or self._users[node][0] != said:
            found = dict(filter(None, map(parse_user, lines)))
            self._users[node] = said, found, max(map(parse_edition, lines), default=0)
        return self._users[node][1]

    def edition(self, node: str) -> int:
        """Of ENSEMBLE-users: the one that the agent of that node had read when `users` was asked;
        0: it did not say."""
        return self._users[node][2]

    @property
    def ids(self) -> list[str]:
        return [*self._links]

    @contextlib.asynccontextmanager
    async def coming_by(self, node: str, passwords: Passwords) -> AsyncIterator[None]:
        """For what is asked of that node inside."""
        usual = self._links[node]
        self._links[node] = self._link(node, users.OPERATOR, passwords.operator)
        try:
            yield
        finally:
            await self._links[node].close()
            self._links[node] = usual

    async def admin_digests(self, node: str) -> dict[str, frozenset[str]]:
        """Of agent, peer and operator: the digests of the passwords that the node takes."""
        lines = [line.split() for line in await self._links[node].call("ACL", "LIST")]
        return {
            words[1]: _digests(words) for words in lines if len(words) > 1 and words[1] in USERS
        }

    async def set_digests(
        self, node: str, user: str, wanted: frozenset[str], known: frozenset[str]
    ) -> None:
        """Connections that stand are not touched."""
        rules = [*(f"#{d}" for d in wanted - known), *(f"!{d}" for d in known - wanted)]
        await self._links[node].call("ACL", "SETUSER", user, *rules)

    async def teach(self, node: str, life: str, least: Mapping[str, int]) -> Answered:
        """By lock, what its tokens begin above. `life`: of the node's memory."""
        for arguments in learn_arguments(life, Learnt(fences=least)):
            reply = await self._links[node].fcall("lk1_learn", *arguments)
            if reply[0] != "OK":
                raise NodeError(f"lk1_learn: {' '.join(reply)}")
        return Answered(node, int(reply[-2]), parse_vector(reply[-1]))

    async def set_users(self, node: str, new: Mapping[str, NewUser]) -> None:
        """By lock. Connections that stand are not touched, unless it says so."""
        locks = [[*user.commands(lock)] for lock, user in new.items()]
        for first in range(0, len(locks), AT_ONCE):
            commands = [command for lock in locks[first : first + AT_ONCE] for command in lock]
            for answer in await self._links[node].calls(*commands):
                if isinstance(answer, NodeError):
                    raise answer

    async def delete_user(self, node: str, lock: str) -> None:
        """Cuts its connections, too."""
        await self._links[node].call("ACL", "DELUSER", users.lock_user(lock))

    async def close(self) -> None:
        await asyncio.gather(*(link.close() for link in self._links.values()))


def _both(state: Any, entries: Any) -> bool:
    return isinstance(state, list) and isinstance(entries, list) and len(entries) > 1


def parse_entries(fields: Sequence[str]) -> dict[str, Entry]:
    """lock, owner, F, request, and so on."""
    quadruples = zip(*(fields[i::4] for i in range(4)), strict=True)
    return {lock: Entry(owner, _fence(fence), wish) for lock, owner, fence, wish in quadruples}


def _fence(text: str) -> int:
    """Tenants write the field, and Lua takes "nan" for a number."""
    return int(text) if text.isdecimal() and len(text) <= 16 else 0


def parse_user(line: str) -> tuple[str, frozenset[str]] | None:
    """One line of ACL LIST, if it is the user of a lock: `user lock:NS/NAME on #DIGEST …`."""
    words = line.split()
    if len(words) < 2 or not words[1].startswith(users.lock_user("")):
        return None
    return words[1].removeprefix(users.lock_user("")), _digests(words)


def parse_edition(line: str) -> int:
    """One line of ACL LIST, if it is an agent's word: `user edition:N off …`."""
    words = line.split()
    name = words[1] if len(words) > 1 else ""
    text = name.removeprefix(users.EDITION)
    return int(text) if name != text and text.isdecimal() and len(text) <= 16 else 0


def _digests(words: Sequence[str]) -> frozenset[str]:
    return frozenset(word[1:] for word in words if word.startswith("#"))


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
