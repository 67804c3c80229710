"""A proposal, measured: many locks of one process over one connection to each node.

Each store has connections of its own today, because each lock has an ACL user of its own. A process
with many locks (and one user who may use them all) could share them: requests of all its tasks then
go out in one write a node and turn of the loop. This module does it from outside, through the seam
`links`; in the library it would be `RedlockStore(links=ensemble_connections.for_lock(lock))`.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import hiredis

from leasekeeper.clock import SystemClock
from leasekeeper.lease import Candidate, Timings
from leasekeeper.redlock.membership import Membership
from leasekeeper.redlock.store import RedlockStore
from leasekeeper.redlock.transport import Failure, OnAnswer, TcpLink, _Wire


class BatchedLink(TcpLink):
    """What was asked for within one turn of the loop goes out in one write."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._loop = asyncio.get_running_loop()
        self._out: list[bytes] = []

    def call(self, command: tuple[str, ...], on_answer: OnAnswer) -> None:
        wire = self._wire
        if wire is None:
            on_answer(Failure(self._down))
            return
        if not self._out:
            self._loop.call_soon(self._flush, wire)
        self._out.append(hiredis.pack_command(command))  # type: ignore[arg-type]
        wire._waiting.append((self._loop.time(), on_answer))

    def _flush(self, wire: _Wire) -> None:
        out, self._out = self._out, []
        if self._wire is wire:
            transport: Any = wire._transport
            transport.write(b"".join(out))


class Borrowed:
    """A store closes its links; these belong to all of them."""

    def __init__(self, link: BatchedLink) -> None:
        self.call = link.call
        self.up = link.up

    async def close(self) -> None: ...


def stores_over_shared_links(job: dict[str, Any]) -> tuple[list[RedlockStore], list[TcpLink]]:
    membership = Membership.from_json(job["membership"])
    timings = Timings(**job["timings"])
    links = {
        node.id: BatchedLink(
            node,
            username=job["shared_user"],
            password=job["password"],
            channel=f"lk:freed:{job['lock']}",
            on_push=lambda _channel, _message: None,
            patience=timings.retry_period,
        )
        for node in membership.nodes
    }
    made = [
        RedlockStore(
            membership=membership,
            lock=f"{job['lock']}-{number}",
            candidate=Candidate("one", "uid", secrets.token_hex(4)),
            timings=timings,
            clock=SystemClock(),
            links=lambda _: {node: Borrowed(link) for node, link in links.items()},
        )
        for number in range(job["tasks"])
    ]
    return made, list(links.values())
