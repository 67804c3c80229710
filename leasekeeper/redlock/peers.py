"""Nodes of an ensemble, as one agent asks the others, or whoever changes their list all of them. An
agent does so only while its own node is closed, so a slow peer costs it nothing but time that it
spends waiting anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from leasekeeper.redlock import users
from leasekeeper.redlock.blocking import Broken, Connection, Refusal
from leasekeeper.redlock.learnt import Learnt, merge
from leasekeeper.redlock.life import Life, outranked_peers
from leasekeeper.redlock.membership import Node
from leasekeeper.redlock.registry import NodeView
from leasekeeper.redlock.tls import Tls

TIMEOUT = 0.5  # a healthy node answers in a millisecond; a hung one must not hold up the others
RETRY = 0.3  # how long a peer that did not answer is left alone, so that the others get a turn

UNREADABLE = (ValueError, IndexError, OverflowError)
"""What comes of an answer that is not one of ours: another version's, or another program's."""


class Peers:
    def __init__(
        self,
        nodes: Iterable[Node],
        password: Callable[[], str],
        tls: Tls | None = None,
        *,
        user: str = users.PEER,
    ) -> None:
        self._others = {other.id: other for other in nodes}
        self._user = user
        self._password = password
        self._tls = tls
        self._connections: dict[str, Connection] = {}
        self._retry_at: dict[str, float] = {}
        self.problems: dict[str, str] = {}
        """By node id: why it could not be asked, a sentence for people."""

    def are_now(self, nodes: Iterable[Node]) -> None:
        """Another list of nodes to ask; connections to those that stay are kept."""
        others = {other.id: other for other in nodes}
        for id, other in self._others.items():
            if others.get(id) != other:
                self._set_aside(id, "")
                del self._retry_at[id], self.problems[id]
        self._others = others

    def views(self) -> Mapping[str, NodeView]:
        """What each of them says of itself; who does not answer is missing."""
        found = {}
        for id, other in self._others.items():
            reply = self.ask(id, "lk1_state")
            if reply is None:
                continue
            try:
                view = NodeView.from_reply(reply)
            except UNREADABLE as wrong:
                self._set_aside_unreadable(id, wrong)
                continue
            if view.id and view.id != id:
                self._set_aside(id, f"the server at {other.address} says that it is node {view.id}")
            elif view.life:
                found[id] = view
                self.problems.pop(id, None)
            else:
                self.problems[id] = "its agent has not seen it yet"
        return found

    def announce(self, life: Life, node: str, peer: str, now: Callable[[], float]) -> Life:
        """Asks one peer to know `node` by the number of its life; what follows from the answer.
        The clock is read after the answer: the quarantine begins when the peer knows, not before.
        """
        reply = self.ask(peer, "lk1_announce", node, str(life.number))
        if reply is None or reply[0] == "VOID":
            return life
        try:
            if reply[0] == "LOW":
                return life.outranked(int(reply[1]))
            return life.accepted(peer, reply[2], now(), int(reply[1]) / 1e6)
        except UNREADABLE as wrong:
            self._set_aside_unreadable(peer, wrong)
            return life

    def tell_outranked(self, views: Mapping[str, NodeView]) -> None:
        """An open node asks nobody: if a server of its name announced itself later, and is gone,
        its votes would never count again. It is told, and begins a new life.
        """
        for id, number in outranked_peers(views).items():
            if views[id].open and views[id].vector.get(id, 0) < number:
                self.ask(id, "lk1_announce", id, str(number))

    def learn(self, helpers: Mapping[str, str], epoch: str) -> Learnt | None:
        """The maximum of what these know. None: one of them is not what it was (its memory, or its
        epoch), or is a ghost by now, as another one of them knows; begin again.
        """
        known, incarnations = [], {}
        for peer, life in helpers.items():
            learnt, cursor, key = Learnt(), "", (life, epoch)
            while cursor != "0":
                page = self.ask(peer, "lk1_dump", cursor or "0")
                try:
                    if page is None or page[0] != "OPEN" or (page[2], page[3]) != key:
                        return None
                    cursor = page[1]
                    learnt = learnt.with_page(page)
                    incarnations[peer] = int(page[-2])
                except UNREADABLE as wrong:
                    self._set_aside_unreadable(peer, wrong)
                    return None
            known.append(learnt)
        learnt = merge(known)
        outranked = any(number < learnt.vector.get(id, 0) for id, number in incarnations.items())
        return None if outranked else learnt

    def with_highest(self, views: Mapping[str, NodeView]) -> Mapping[str, NodeView]:
        """The views with the largest F of each open node filled in: a total loss begins above it.
        A node that cannot say is left out, and then there is nothing to decide yet.
        """
        known = {}
        for id, view in views.items():
            if not view.open:
                known[id] = view
            elif learnt := self.learn({id: view.life}, view.epoch):
                known[id] = replace(view, highest=max(learnt.fences.values(), default=0))
        return known

    def close(self) -> None:
        while self._connections:
            self._connections.popitem()[1].close()

    def ask(self, id: str, function: str, *args: str) -> list[str] | None:
        """An admin function of one node. None: no answer, and `problems` says why."""
        if time.monotonic() < self._retry_at.get(id, 0):
            return None
        try:
            reply = self._connection(self._others[id]).fcall(function, *args)
        except (Broken, Refusal) as cause:
            self._set_aside(id, str(cause))
            return None
        if not reply or not isinstance(reply, list) or any(type(part) is not str for part in reply):
            self._set_aside_unreadable(id, ValueError(f"{function} is not a list of texts"))
            return None
        return reply

    def _connection(self, other: Node) -> Connection:
        connection = self._connections.get(other.id)
        if connection is None:
            connection = Connection(
                (other.host, other.port),
                self._user,
                self._password(),
                timeout=TIMEOUT,
                tls=self._tls,
            )
            self._connections[other.id] = connection
        return connection

    def _set_aside_unreadable(self, id: str, wrong: Exception) -> None:
        self._set_aside(id, f"its answer cannot be read ({wrong}); is it of another version?")

    def _set_aside(self, id: str, why: str) -> None:
        if connection := self._connections.pop(id, None):
            connection.close()
        self._retry_at[id] = time.monotonic() + RETRY
        self.problems[id] = why
