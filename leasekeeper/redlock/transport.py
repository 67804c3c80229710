"""One pipelined connection to each node, with no retries of its own.

A request either goes out now, on the connection that stands, or fails now. Answers come back in the
order of the requests, so a request whose caller stopped waiting keeps its place in the queue. There
are no time-outs in here for a single request: how long an answer is worth waiting for is known to
the caller, who has the lease. Wake-ups (`freed`) arrive as RESP3 pushes on the same connection.

    connecting ──HELLO 3 AUTH, SUBSCRIBE──▶ up ──broken, or an answer overdue──▶ down, and again

A store has a connection of its own to each node. A process with many locks, and one user who may
use them all, can share one (`connections.py`): requests of one turn of its loop then go out in one
write.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import hiredis

from leasekeeper.redlock.membership import Node
from leasekeeper.redlock.tls import (
    PLAIN_PATIENCE,
    PLAIN_WORD,
    SPEAKS_NO_TLS,
    SPEAKS_TLS,
    TLS_ALERT,
    Tls,
    cut_short,
    is_plain,
)

FIRST_PAUSE = 0.05  # between two tries to connect; a server that restarts is back within a second
LONGEST_PAUSE = 1.0  # a node that reopens after its quarantine is found again within this time
BUFFER = 16 * 1024  # what one read takes: a hundred answers; asyncio's own takes 256 KiB each time


@dataclass(frozen=True, slots=True)
class Failure:
    """No answer, and why. Never a "no"."""

    why: str


Answer = list[bytes] | Failure
OnAnswer = Callable[[Answer], None]
OnPush = Callable[[str, bytes], None]
"""Called with the node that a message came from, and the message."""
InWords = Callable[[Exception | None], str]
Password = str | Callable[[], str]
"""A function is asked for each new connection: passwords are replaced while a candidate runs."""


class Link(Protocol):
    """A way to one node. The simulation has its own; this module's goes over TCP."""

    def call(self, command: tuple[str, ...], on_answer: OnAnswer) -> None:
        """Sends now, or fails now. `on_answer` is called once, maybe before this returns."""

    async def up(self) -> None:
        """Returns when requests can be sent."""

    async def close(self) -> None: ...


MakeLinks = Callable[[Sequence[Node], str, OnPush], Mapping[str, Link]]
"""A store's links to these nodes, by id: they listen on this channel, and pass on what comes."""

_packed: tuple[tuple[str, ...], bytes] = ((), b"")


def _pack(command: tuple[str, ...]) -> bytes:
    """A round sends one command to all nodes: the last one packed is most often the next, too."""
    global _packed
    if _packed[0] is not command:
        _packed = (command, hiredis.pack_command(command))  # type: ignore[arg-type]  # wrong stub
    return _packed[1]


class _Wire(asyncio.BufferedProtocol):
    """One established TCP connection: RESP in and out, answers matched to requests by order.

    `in_turns`: what is sent within one turn of the loop goes out in one write at its end. For one
    lock that is a turn too late, for a hundred it saves most of the cost.
    """

    def __init__(
        self,
        on_push: Callable[[str, bytes], None],
        patience: float,
        in_words: InWords,
        *,
        in_turns: bool = False,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[str] = self._loop.create_future()
        self._on_push = on_push
        self._patience = patience
        self._in_words = in_words
        self._overdue_check: asyncio.TimerHandle | None = None
        self._waiting: deque[tuple[float, OnAnswer]] = deque()
        self._reader = hiredis.Reader(protocolError=hiredis.ProtocolError)
        self._transport: asyncio.Transport | None = None
        self._in_turns = in_turns
        self._out: list[bytes] = []
        self._buffer = memoryview(bytearray(BUFFER))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self, command: tuple[str, ...], on_answer: OnAnswer) -> None:
        if self._transport is None or self._transport.is_closing():
            on_answer(Failure("connection lost"))
            return
        self._waiting.append((self._loop.time(), on_answer))
        if not self._in_turns:
            self._transport.write(_pack(command))
        else:
            if not self._out:
                self._loop.call_soon(self._flush)
            self._out.append(_pack(command))
        if self._overdue_check is None:
            self._overdue_check = self._loop.call_later(self._patience, self._check_overdue)

    async def ask(self, command: tuple[str, ...]) -> Answer:
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self.send(command, partial(_resolve, answer))
        return await answer

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(out))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._reader.feed(self._buffer, 0, nbytes)  # type: ignore[arg-type]  # wrong stub
            while (message := self._reader.gets()) is not False:
                self._deliver(message)
        except hiredis.ProtocolError as nonsense:
            tls = self._buffer[: len(TLS_ALERT)] == TLS_ALERT
            self.drop(SPEAKS_TLS if tls else f"not a Redis server: {nonsense}")

    def _deliver(self, message: Any) -> None:
        if isinstance(message, hiredis.PushNotification):
            if len(message) == 3 and message[0] == b"message":
                self._on_push(message[1].decode(), message[2])
            elif message[0] in (b"subscribe", b"unsubscribe") and self._waiting:
                self._waiting.popleft()[1](list(message))
        elif not self._waiting:
            self.drop("an answer that nobody asked for")
        else:
            self._waiting.popleft()[1](_as_answer(message))

    def connection_lost(self, error: Exception | None) -> None:
        self.drop(self._in_words(error))

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
    """Keeps one connection to a node, and makes a new one in the background when it breaks.

    `shared`: by several stores. Then a channel that is refused is one store's concern, and not the
    end of the connection.
    """

    def __init__(
        self,
        node: Node,
        *,
        username: str,
        password: Password,
        patience: float,
        tls: Tls | None = None,
        shared: bool = False,
    ) -> None:
        self.node = node
        self._username = username
        self._password = password
        self._listeners: dict[str, tuple[OnPush, OnAnswer]] = {}
        self._patience = patience
        self._tls = tls
        self._shared = shared
        self._wire: _Wire | None = None
        self._down = f"not connected to {node.address} yet"
        self._up = asyncio.Event()
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    def call(self, command: tuple[str, ...], on_answer: OnAnswer) -> None:
        if self._wire is None:
            on_answer(Failure(self._down))
        else:
            self._wire.send(command, on_answer)

    def listen(self, channel: str, on_push: OnPush, on_answer: OnAnswer) -> None:
        """From now on, and again on each new connection. `on_answer`: what the node says to it."""
        self._listeners[channel] = (on_push, on_answer)
        if self._wire is not None:
            self._wire.send(("SUBSCRIBE", channel), on_answer)

    def forget(self, channel: str) -> None:
        if self._listeners.pop(channel, None) and self._wire is not None:
            self._wire.send(("UNSUBSCRIBE", channel), ignore)

    def _heard(self, channel: str, message: bytes) -> None:
        if listener := self._listeners.get(channel):
            listener[0](self.node.id, message)

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
            except (OSError, ValueError) as error:  # ValueError: a host's name that is none
                why = self._in_words(error)
                silent = self._tls is not None and isinstance(error, TimeoutError)
                if silent and await self._speaks_plainly():
                    why = SPEAKS_NO_TLS
                self._down = f"{self.node.address}: {why}"
                pause = await _rest(pause)
                continue
            since = asyncio.get_running_loop().time()
            self._wire = wire
            self._up.set()
            try:
                why = await wire.closed
            finally:
                self._wire = None
                self._up.clear()
                wire.drop("closed")
            self._down = f"{self.node.address}: {why}"
            if asyncio.get_running_loop().time() - since >= LONGEST_PAUSE:
                pause = FIRST_PAUSE
            else:  # a node that lets everybody in, and cuts them off, is not to be run against
                pause = await _rest(pause)

    async def _connect(self) -> _Wire:
        tls, host = self._tls, self.node.host
        async with asyncio.timeout(self._patience):
            loop = asyncio.get_running_loop()
            _, wire = await loop.create_connection(
                lambda: _Wire(self._heard, self._patience, self._in_words, in_turns=self._shared),
                host,
                self.node.port,
                ssl=None if tls is None else tls.context(),
                server_hostname=None if tls is None else tls.name_of(host),
            )
            try:
                password = self._password if isinstance(self._password, str) else self._password()
                got = await wire.ask(("HELLO", "3", "AUTH", self._username, password))
                if isinstance(got, Failure):
                    raise ConnectionError(_explain_greeting(got.why))
                await self._subscribe(wire)
            except BaseException:
                wire.drop("closed")
                raise
            return wire

    async def _subscribe(self, wire: _Wire) -> None:
        """To all channels at a time: for a thousand locks, one after the other would take longer
        than a connection may. And to those that somebody asks for meanwhile.
        """
        asked: set[str] = set()
        while new := {name: one for name, one in self._listeners.items() if name not in asked}:
            asked |= new.keys()
            answers = await asyncio.gather(*(wire.ask(("SUBSCRIBE", name)) for name in new))
            for (_, on_answer), got in zip(new.values(), answers, strict=True):
                if isinstance(got, Failure) and not self._shared:
                    raise ConnectionError(_explain_greeting(got.why))
                on_answer(got)

    def _in_words(self, error: Exception | None) -> str:
        if error is None or isinstance(
            error, ConnectionResetError | BrokenPipeError | ssl.SSLEOFError
        ):
            up = self._wire is not None
            return "connection closed by the node" if up else cut_short(self._tls)
        if self._tls is not None and isinstance(error, ssl.SSLError):
            return self._tls.explain(error, self.node.host)
        return str(error) or "no answer while connecting"

    async def _speaks_plainly(self) -> bool:
        """Asked when nothing came back to a handshake; see PLAIN_WORD."""
        try:
            async with asyncio.timeout(PLAIN_PATIENCE):
                reader, writer = await asyncio.open_connection(self.node.host, self.node.port)
                try:
                    writer.write(PLAIN_WORD)
                    return is_plain(await reader.read(1))
                finally:
                    writer.transport.abort()
        except (OSError, TimeoutError):
            return False


async def _rest(pause: float) -> float:
    """The next pause. Jitter, so that the sidecars of a whole cluster do not come back in one
    wave.
    """
    await asyncio.sleep(pause * random.uniform(0.5, 1.0))
    return min(pause * 2, LONGEST_PAUSE)


def ignore(_: Answer) -> None:
    """For requests whose answer changes nothing."""


def _explain_greeting(why: str) -> str:
    """A closed node has no users of locks: a wrong password and a quarantine look alike."""
    if "WRONGPASS" in why or "NOAUTH" in why:
        return (
            "refused user and password; the node is closed (in quarantine after a restart),"
            " or the lock's credentials are wrong or not there yet"
        )
    return why
