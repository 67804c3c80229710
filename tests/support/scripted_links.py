"""The Redlock store in virtual time, over links that answer when and what the test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from virtual_time import VirtualClock

from leasekeeper.lease import (
    Candidate,
    Grant,
    Timings,
)
from leasekeeper.redlock.membership import Membership, Node
from leasekeeper.redlock.store import RedlockStore
from leasekeeper.redlock.transport import Answer, Link, OnAnswer, OnPush

TIMINGS = Timings(lease_duration=15, renew_deadline=10, retry_period=2)
MEMBERSHIP = Membership(
    nodes=tuple(Node(str(i), "host", 6379) for i in range(5)), max_ttl=30, quarantine=31
)

Says = Callable[[tuple[str, ...]], Answer | None]


class ScriptedLink:
    """Answers after `delay` seconds with what `says` returns; none: never."""

    def __init__(self, says: Says, delay: float) -> None:
        self.says = says
        self.delay = delay
        self.log: list[tuple[float, str, str]] = []

    def call(self, command: tuple[str, ...], on_answer: OnAnswer) -> None:
        loop = asyncio.get_running_loop()
        self.log.append((loop.time(), command[1], "".join(command[5:6])))
        answer = self.says(command)
        if answer is not None:
            loop.call_later(self.delay, on_answer, answer)

    def calls(self, function: str) -> list[str]:
        """The ids that were named in calls of this function."""
        return [id for _, name, id in self.log if name == function]

    async def up(self) -> None: ...
    async def close(self) -> None: ...


def yes(command: tuple[str, ...]) -> Answer:
    """A node that agrees to everything."""
    said = {"lk1_grant": [b"GRANTED", b"7"]}.get(command[1], [b"OK"])
    return [*said, b"1", b""]


class Bench:
    def __init__(self, says: Says = yes, delay: float = 0.001) -> None:
        self.clock = VirtualClock()
        self.links = {str(i): ScriptedLink(says, delay) for i in range(5)}
        self.push: OnPush

        def links(nodes: Sequence[Node], _: str, on_push: OnPush) -> Mapping[str, Link]:
            self.push = on_push
            for node in nodes:
                self.links.setdefault(node.id, ScriptedLink(says, delay))
            return {node.id: self.links[node.id] for node in nodes}

        self.store = RedlockStore(
            membership=MEMBERSHIP,
            lock="shop/orders",
            candidate=Candidate("me", "uid", "nonce"),
            timings=TIMINGS,
            clock=self.clock,
            links=links,
        )

    async def won(self) -> Grant:
        outcome = await self.store.acquire()
        assert isinstance(outcome, Grant), outcome
        return outcome
