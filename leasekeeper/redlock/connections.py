"""Whose connections they are: a store's own, or one to each node for all the locks of a process.

    connections = SharedLinks(membership, username=…, password=…, patience=timings.retry_period)
    store = RedlockStore(…, links=connections.borrow)

Each lock of a cluster has an ACL user of its own, so sharing is for programs that use the library
with a user who has the rights of all their locks (`users.lock_rules` takes several). What a hundred
tasks ask for within one turn of the loop goes out in one write to each node then, and their answers
come back in one read: most of what a request costs is that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from leasekeeper.redlock.membership import Membership, Node
from leasekeeper.redlock.tls import Tls
from leasekeeper.redlock.transport import (
    Answer,
    Failure,
    Link,
    MakeLinks,
    OnAnswer,
    OnPush,
    Password,
    TcpLink,
    ignore,
)


def own_links(
    *,
    username: str,
    password: Password,
    patience: float,
    tls: Tls | None = None,
) -> MakeLinks:
    """Connections that belong to one store, and end with it."""

    def links(nodes: Sequence[Node], channel: str, on_push: OnPush) -> Mapping[str, Link]:
        found = {
            node.id: TcpLink(node, username=username, password=password, patience=patience, tls=tls)
            for node in nodes
        }
        for link in found.values():
            link.listen(channel, on_push, ignore)
        return found

    return links


class StoreLinks:
    """The links of one store, to the nodes of its list as that changes."""

    def __init__(self, make: MakeLinks, channel: str, on_push: OnPush) -> None:
        self._make = make
        self._channel = channel
        self._on_push = on_push
        self._links: dict[Node, Link] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def to(self, nodes: Sequence[Node]) -> Mapping[str, Link]:
        """By id. Those to nodes that stay are kept."""
        come = [node for node in nodes if node not in self._links]
        made = self._make(come, self._channel, self._on_push)
        for node in [node for node in self._links if node not in nodes]:
            leaving = asyncio.ensure_future(self._links.pop(node).close())
            self._leaving.add(leaving)  # a loop keeps no task that nobody else has
            leaving.add_done_callback(self._leaving.discard)
        self._links |= {node: made[node.id] for node in come}
        return {node.id: self._links[node] for node in nodes}

    async def close(self) -> None:
        for link in self._links.values():
            await link.close()
        for leaving in list(self._leaving):
            await leaving


class SharedLinks:
    """One connection to each node. `patience`: how long an answer may be overdue before the
    connection is given up; the shortest retry period of the locks is right.

    It outlives the stores that borrow from it: close them first.
    """

    def __init__(
        self,
        membership: Membership,
        *,
        username: str,
        password: Password,
        patience: float,
        tls: Tls | None = None,
    ) -> None:
        self._connect = partial(
            TcpLink, username=username, password=password, patience=patience, tls=tls, shared=True
        )
        self._links = {node: self._connect(node) for node in membership.nodes}

    def borrow(self, nodes: Sequence[Node], channel: str, on_push: OnPush) -> Mapping[str, Link]:
        """As `links` of a store. A node that is new after a change of membership is connected to;
        one that is gone is let go of at the end only: another store may still use it.
        """
        for node in nodes:
            if node not in self._links:
                self._links[node] = self._connect(node)
        return {node.id: _Borrowed(self._links[node], channel, on_push) for node in nodes}

    async def close(self) -> None:
        for link in self._links.values():
            await link.close()


class _Borrowed:
    """One store's use of a shared connection."""

    def __init__(self, link: TcpLink, channel: str, on_push: OnPush) -> None:
        self._link = link
        self._channel = channel
        self._refusal: Failure | None = None
        self.up = link.up
        link.listen(channel, on_push, self._on_listening)

    def call(self, command: tuple[str, ...], on_answer: OnAnswer) -> None:
        if self._refusal is None:
            self._link.call(command, on_answer)
        else:
            on_answer(self._refusal)

    def _on_listening(self, answer: Answer) -> None:
        """A user without the right to this lock's channel has no right to the lock: say so, at each
        call, until a later connection finds it otherwise.
        """
        self._refusal = None
        if isinstance(answer, Failure) and answer.why.startswith("NOPERM"):
            self._refusal = Failure(f"{self._link.node.address}: {answer.why}")

    async def close(self) -> None:
        self._link.forget(self._channel)
