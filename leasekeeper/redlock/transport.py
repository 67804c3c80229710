"""One pipelined connection to each node, with no retries of its own.

A request either goes out now, on the connection that stands, or fails now. Answers come back in the
order of the requests, so a request whose caller stopped waiting keeps its place in the queue. There
are no time-outs in here for a single request: how long an answer is worth waiting for is known to
the caller, who has the lease. Wake-ups (`freed`) arrive as RESP3 pushes on the same connection.

    connecting ──HELLO 3 AUTH, SUBSCRIBE──▶ up ──broken, or an answer overdue──▶ down, and again
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import hiredis

from leasekeeper.redlock.membership import Node

FIRST_PAUSE = 0.05  # between two tries to connect; a server that restarts is back within a second
LONGEST_PAUSE = 1.0  # a node that reopens after its quarantine is found again within this time


@dataclass(frozen=True, slots=True)
class Failure:
    """No answer, and why. Never a "no"."""

    why: str


Answer = list[bytes] | Failure
OnAnswer = Callable[[Answer], None]
OnPush = Callable[[str, bytes], None]


class Link(Protocol):
    """A way to one node. The simulation has its own; this module's goes over TCP."""

    def call(self, command: tuple[str, ...], on_answer: OnAnswer) -> None:
        """Sends now, or fails now. `on_answer` is called once, maybe before this returns."""

    async def up(self) -> None:
        """Returns when requests can be sent."""

    async def close(self) -> None: ...


class _Wire(asyncio.Protocol):
    """One established TCP connection: RESP in and out, answers matched to requests by order."""

    def __init__(self, on_push: OnPush, patience: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[str] = self._loop.create_future()
        self._on_push = on_push
        self._patience = patience
        self._overdue_check: asyncio.TimerHandle | None = None
        self._waiting: deque[tuple[float, OnAnswer]] = deque()
        self._reader = hiredis.Reader(protocolError=hiredis.ProtocolError)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self, command: tuple[str, ...], on_answer: OnAnswer) -> None:
        if self._transport is None or self._transport.is_closing():
            on_answer(Failure("connection lost"))
            return
        self._waiting.append((self._loop.time(), on_answer))
        self._transport.write(hiredis.pack_command(command))  # type: ignore[arg-type]  # wrong stub
        if self._overdue_check is None:
            self._overdue_check = self._loop.call_later(self._patience, self._check_overdue)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (message := self._reader.gets()) is not False:
                self._deliver(message)
        except hiredis.ProtocolError as nonsense:
            self.drop(f"not a Redis server: {nonsense}")

    def _deliver(self, message: Any) -> None:
        if isinstance(message, hiredis.PushNotification):
            if len(message) == 3 and message[0] == b"message":
                self._on_push(message[1].decode(), message[2])
            elif message[0] == b"subscribe" and self._waiting:
                self._waiting.popleft()[1](list(message))
        elif not self._waiting:
            self.drop("an answer that nobody asked for")
        else:
            self._waiting.popleft()[1](_as_answer(message))

    def connection_lost(self, error: Exception | None) -> None:
        self.drop(str(error) if error else "connection closed by the node")

    def drop(self, why: str) -> None:
        """Ends the connection and fails whatever waits. Requests on their way may still be run."""
        if self._transport is not None:
            self._transport.abort()
        if self._overdue_check is not None:
            self._overdue_check.cancel()
            self._overdue_check = None
        if not self.closed.done():
            self.closed.set_result(why)
        waiting, self._waiting = self._waiting, deque()
        for _, on_answer in waiting:
            on_answer(Failure(why))

    def _check_overdue(self) -> None:
        """A server that stands still keeps its connections open for hours; only by letting go of
        them does a candidate find the server that took its place.
        """
        self._overdue_check = None
        if not self._waiting:
            return  # armed again by the next request: an idle connection costs no wake-ups
        left = self._waiting[0][0] + self._patience - self._loop.time()
        if left <= 0:
            self.drop(f"no answer for {self._patience:g} s")
        else:
            self._overdue_check = self._loop.call_later(left, self._check_overdue)


def _resolve(future: asyncio.Future[Answer], answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)


def _as_answer(message: Any) -> Answer:
    if isinstance(message, list):
        return message
    if isinstance(message, hiredis.ReplyError):
        return Failure(str(message))
    if isinstance(message, dict):  # the greeting of HELLO 3
        return [b"HELLO"]
    return Failure(f"an answer of an unknown form: {message!r}")


class TcpLink:
    """Keeps one connection to a node, and makes a new one in the background when it breaks."""

    def __init__(
        self,
        node: Node,
        *,
        username: str,
        password: str,
        channel: str,
        on_push: OnPush,
        patience: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.node = node
        self._hello = ("HELLO", "3", "AUTH", username, password)
        self._subscribe = ("SUBSCRIBE", channel)
        self._on_push = on_push
        self._patience = patience
        self._tls = tls
        self._wire: _Wire | None = None
        self._down = f"not connected to {node.address} yet"
        self._up = asyncio.Event()
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    def call(self, command: tuple[str, ...], on_answer: OnAnswer) -> None:
        if self._wire is None:
            on_answer(Failure(self._down))
        else:
            self._wire.send(command, on_answer)

    async def up(self) -> None:
        await self._up.wait()

    async def close(self) -> None:
        self._keeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._keeper

    async def _keep(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                wire = await self._connect()
            except (OSError, TimeoutError, ConnectionError) as error:
                self._down = f"{self.node.address}: {str(error) or 'no answer while connecting'}"
                # Jitter, so that the sidecars of a whole cluster do not come back in one wave.
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            self._wire = wire
            self._up.set()
            try:
                why = await wire.closed
            finally:
                self._wire = None
                self._up.clear()
                wire.drop("closed")
            self._down = f"{self.node.address}: {why}"

    async def _connect(self) -> _Wire:
        async with asyncio.timeout(self._patience):
            loop = asyncio.get_running_loop()
            _, wire = await loop.create_connection(
                lambda: _Wire(self._on_push, self._patience),
                self.node.host,
                self.node.port,
                ssl=self._tls,
            )
            try:
                for command in (self._hello, self._subscribe):
                    answer: asyncio.Future[Answer] = loop.create_future()
                    wire.send(command, partial(_resolve, answer))
                    got = await answer
                    if isinstance(got, Failure):
                        raise ConnectionError(_explain_greeting(got.why))
            except BaseException:
                wire.drop("closed")
                raise
            return wire


def _explain_greeting(why: str) -> str:
    """A closed node has no users of locks: a wrong password and a quarantine look alike."""
    if "WRONGPASS" in why or "NOAUTH" in why:
        return (
            "refused user and password; the node is closed (in quarantine after a restart),"
            " or the lock's credentials are wrong or not there yet"
        )
    return why
