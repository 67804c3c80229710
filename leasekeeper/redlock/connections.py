"""Whose connections they are: a store's own, or one to each node for all the locks of a process.

    connections = SharedLinks(membership, username=…, password=…, patience=timings.retry_period)
    store = RedlockStore(…, links=connections.borrow)

Each lock of a cluster has an ACL user of its own, so sharing is for programs that use the library
with a user who has the rights of all their locks (`users.lock_rules` takes several). What a hundred
tasks ask for within one turn of the loop goes out in one write to each node then, and their answers
come back in one read: most of what a request costs is that.
"""

from __future__ import annotations

from collections.abc import Mapping

from leasekeeper.redlock.membership import Membership
from leasekeeper.redlock.tls import Tls
from leasekeeper.redlock.transport import (
    Answer,
    Failure,
    Link,
    MakeLinks,
    OnAnswer,
    OnPush,
    TcpLink,
    ignore,
)


def own_links(
    membership: Membership,
    *,
    username: str,
    password: str,
    patience: float,
    tls: Tls | None = None,
) -> MakeLinks:
    """Connections that belong to one store, and end with it."""

    def links(channel: str, on_push: OnPush) -> Mapping[str, Link]:
        found = {
            node.id: TcpLink(node, username=username, password=password, patience=patience, tls=tls)
            for node in membership.nodes
        }
        for link in found.values():
            link.listen(channel, on_push, ignore)
        return found

    return links


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
        password: str,
        patience: float,
        tls: Tls | None = None,
    ) -> None:
        self._links = {
            node.id: TcpLink(
                node, username=username, password=password, patience=patience, tls=tls, shared=True
            )
            for node in membership.nodes
        }

    def borrow(self, channel: str, on_push: OnPush) -> Mapping[str, Link]:
        """As `links` of a store."""
        return {id: _Borrowed(link, channel, on_push) for id, link in self._links.items()}

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
