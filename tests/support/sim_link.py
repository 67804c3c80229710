"""A candidate's way to one node: what `TcpLink` is, on the simulated network."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from sim_net import Channel, Error, Network, Reply, Server

from leasekeeper.redlock.transport import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    Failure,
    OnAnswer,
    OnPush,
)

if TYPE_CHECKING:
    from sim_candidate import CandidateProcess


class SimLink:
    """Sends now or fails now; lets go of a connection on which an answer is overdue; connects again
    in the background.
    """

    def __init__(
        self,
        network: Network,
        process: CandidateProcess,
        node: str,
        topic: str,
        on_push: OnPush,
        patience: float,
    ) -> None:
        self._network = network
        self._process = process
        self._node = node
        self._topic = topic
        self._on_push = on_push
        self._patience = patience
        self._channel: Channel | None = None
        self._waiting: deque[tuple[float, OnAnswer]] = deque()
        self._checking = False
        self._pause = FIRST_PAUSE
        self._up = asyncio.Event()
        self._try()

    def call(self, command: tuple[str, ...], on_answer: OnAnswer) -> None:
        process, channel = self._process, self._channel
        process.step()
        if channel is None or not process.alive:
            on_answer(Failure("not connected"))
            return
        self._waiting.append((process.clocks.raw(), on_answer))
        round_ = process.renewals

        def replied(reply: Reply) -> None:
            if channel is self._channel:
                if isinstance(reply, list):
                    process.heard(round_, channel.server, command, reply)
                self._waiting.popleft()[1](_answer(reply))

        channel.send(command, replied)
        if not self._checking:
            self._checking = True
            process.loop.call_later(self._patience, self._check_overdue)

    async def up(self) -> None:
        await self._up.wait()

    async def close(self) -> None:
        self._drop("closed")

    def _check_overdue(self) -> None:
        self._checking = False
        if not self._waiting or self._channel is None:
            return
        left = self._waiting[0][0] + self._patience - self._process.clocks.raw()
        if left <= 1e-6:  # no clock of a computer is finer
            channel = self._channel
            channel.close()
            self._drop("no answer in time")
        else:
            self._checking = True
            self._process.loop.call_later(left, self._check_overdue)

    def _drop(self, why: str) -> None:
        if self._channel is None:
            return
        self._channel = None
        self._up.clear()
        waiting, self._waiting = self._waiting, deque()
        for _, on_answer in waiting:
            on_answer(Failure(why))
        if self._process.alive:
            self._process.loop.call_later(0.0, self._try)

    def _try(self) -> None:
        host = self._process.host
        pod = self._network.route(self._node, host)
        cut = self._network.cut_until(host, self._node) > self._process.kernel.now
        if pod is None or not pod.reachable or cut:
            self._again()
            return
        when = max(self._network.arrival(host, self._node) for _ in range(2))
        self._process.kernel.at(when, self._process.deliver, self._connected, pod.server)

    def _again(self) -> None:
        pause = self._pause * self._process.kernel.dice.uniform(0.5, 1.0)
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        self._process.loop.call_later(pause, self._try)

    def _connected(self, server: Server) -> None:
        if not server.alive:
            self._again()
            return
        self._pause = FIRST_PAUSE
        channel = self._network.connect(self._process, server, lambda: self._drop("reset"))
        channel.topic = self._topic
        channel.on_push = lambda message: self._on_push(self._node, message.encode())
        self._channel = channel
        self._up.set()


def _answer(reply: Reply) -> list[bytes] | Failure:
    if isinstance(reply, Error):
        return Failure(reply.text)
    return [text.encode() for text in reply]
