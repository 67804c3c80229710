"""A small HTTP server, on asyncio and h11, that cannot be made to hold up a renewal.

It shares the loop with the election, so everything that a client can stretch is bounded: the number
of connections, the size of the headers, the time for a request and for taking the answer, and the
share of the loop's time that all answers together may take. When all places are taken, the
longest-waiting connection goes, not the new one: otherwise a hundred idle connections would lock
out the kubelet, which would then kill a healthy sidecar.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass

import h11

_HEADERS_AT_MOST = (
    8192  # browsers and proxies send 1 to 4 kB; nobody who asks for these pages sends more
)
_REQUEST_WITHIN = 5.0  # seconds, also the idle time between two requests of one connection
_ANSWER_TAKEN_WITHIN = 5.0
_BUFFER_AT_MOST = 65536  # unsent bytes of one connection
# Seconds between two new connections, and between two pieces of one request. Without the first, a
# flood of connections takes the whole loop; the kernel keeps the others waiting meanwhile. Honest
# clients send a request in one piece, so the second costs them nothing.
_ACCEPT_EVERY = 0.002
_PIECE_EVERY = 0.05


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer without an end: server-sent events."""

    parts: AsyncIterator[bytes]
    content_type: str = "text/event-stream"


Route = Callable[[], Awaitable[Answer | Stream]]


class _Cut(Exception):
    """This connection is not worth going on with."""


class Budget:
    """The share of the loop's time that answers may take, for all servers of this process.

    One answer at a time; whoever comes next waits `1/share - 1` times as long as the last one took.
    An answer takes 0.1 ms (`/leader`) to 0.5 ms (`/metrics`): nobody honest notices.
    """

    def __init__(self, share: float = 0.2) -> None:
        self._rest = 1 / share - 1
        self._turn = asyncio.Lock()
        self._began = 0.0

    async def __aenter__(self) -> None:
        await self._turn.acquire()
        self._began = time.thread_time()

    async def __aexit__(self, *_: object) -> None:
        pause = (time.thread_time() - self._began) * self._rest
        asyncio.get_running_loop().call_later(pause, self._turn.release)


class Server:
    """Answers GET and HEAD on a fixed set of paths."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        *,
        budget: Budget,
        connections: int = 64,
        streams: int = 16,
    ) -> None:
        self._routes = routes
        self.refused = 0
        """Connections that were cut to make room for others."""
        self._budget = budget
        self._connections = connections
        self._streams_left = streams
        self._waiting: dict[asyncio.StreamWriter, None] = {}  # no whole request yet, oldest first
        self._serving: dict[asyncio.StreamWriter, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sockets: list[socket.socket] = []

    def listen(self, host: str, port: int) -> int:
        """`""`: all addresses of the pod, of both families. Returns the port."""
        both = not host and socket.has_dualstack_ipv6()
        listener = socket.create_server(
            (host, port),
            family=socket.AF_INET6 if both else socket.AF_INET,
            dualstack_ipv6=both,
            backlog=128,
        )
        listener.setblocking(False)
        self._sockets.append(listener)
        self._start(self._accept(listener))
        chosen: int = listener.getsockname()[1]
        return chosen

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=0.2)
        for listener in self._sockets:
            listener.close()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
                reader = asyncio.StreamReader(limit=_HEADERS_AT_MOST)
                transport, protocol = await loop.connect_accepted_socket(
                    functools.partial(asyncio.StreamReaderProtocol, reader), accepted
                )
            except OSError:
                await asyncio.sleep(1)  # out of descriptors, or a client that is gone already
                continue
            self._connected(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
            await asyncio.sleep(_ACCEPT_EVERY)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._waiting) + len(self._serving) >= self._connections:
            longest = next(iter(self._waiting or self._serving))
            longest.transport.abort()
            self._forget(longest)
            self.refused += 1
        self._waiting[writer] = None
        writer.transport.set_write_buffer_limits(high=_BUFFER_AT_MOST)
        self._start(self._serve(reader, writer))

    def _forget(self, writer: asyncio.StreamWriter) -> None:
        self._waiting.pop(writer, None)
        self._serving.pop(writer, None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEADERS_AT_MOST)
        try:
            while True:
                async with asyncio.timeout(_REQUEST_WITHIN):
                    request = await _next_request(connection, reader)
                if writer in self._waiting:
                    self._serving[writer] = self._waiting.pop(writer)
                await self._respond(connection, writer, request)
                if connection.our_state is h11.MUST_CLOSE:
                    break
                connection.start_next_cycle()
                if writer in self._serving:
                    self._waiting[writer] = self._serving.pop(writer)
        except h11.RemoteProtocolError as wrong:
            if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                answer = Answer(wrong.error_status_hint, b"", "text/plain")
                with contextlib.suppress(OSError, TimeoutError, h11.LocalProtocolError, _Cut):
                    await _write(writer, _whole(connection, answer))
        except (_Cut, OSError, TimeoutError, h11.LocalProtocolError):
            pass  # a client that went away, or that is too slow: its own affair
        finally:
            self._forget(writer)
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _respond(
        self, connection: h11.Connection, writer: asyncio.StreamWriter, request: h11.Request
    ) -> None:
        async with self._budget:
            answer = await self._answer(request)
            if not isinstance(answer, Stream):
                data = _whole(connection, answer, head=request.method == b"HEAD")
        if isinstance(answer, Stream):
            await self._stream(connection, writer, answer)
        else:
            await _write(writer, data)

    async def _answer(self, request: h11.Request) -> Answer | Stream:
        route = self._routes.get(request.target.partition(b"?")[0].decode("ascii", "replace"))
        if request.method not in (b"GET", b"HEAD"):
            return Answer(405, b"", "text/plain")
        if route is None:
            return Answer(404, f"here are {' '.join(self._routes)}\n".encode(), "text/plain")
        answer = await route()
        if isinstance(answer, Stream) and (self._streams_left <= 0 or request.method == b"HEAD"):
            return Answer(503, b"too many streams\n", "text/plain")
        return answer

    async def _stream(
        self, connection: h11.Connection, writer: asyncio.StreamWriter, stream: Stream
    ) -> None:
        self._streams_left -= 1
        try:
            headers = [("content-type", stream.content_type), ("cache-control", "no-store")]
            start = connection.send(h11.Response(status_code=200, headers=headers)) or b""
            await _write(writer, start)
            async for part in stream.parts:
                await _write(writer, connection.send(h11.Data(data=part)) or b"")
        finally:
            self._streams_left += 1


def _whole(connection: h11.Connection, answer: Answer, *, head: bool = False) -> bytes:
    headers = [
        ("content-type", answer.content_type),
        ("content-length", str(len(answer.body))),
        ("cache-control", "no-store"),
    ]
    data = connection.send(h11.Response(status_code=answer.status, headers=headers)) or b""
    if not head:
        data += connection.send(h11.Data(data=answer.body)) or b""
    return data + (connection.send(h11.EndOfMessage()) or b"")


async def _next_request(connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Request:
    """A whole request without a body: none of our pages takes one."""
    request: h11.Request | None = None
    pieces = 0
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            if pieces:
                await asyncio.sleep(_PIECE_EVERY)
            connection.receive_data(await reader.read(4096))
            pieces += 1
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.EndOfMessage) and request is not None:
            return request
        else:  # a body, or the end of the connection
            raise _Cut


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    async with asyncio.timeout(_ANSWER_TAKEN_WITHIN):
        await writer.drain()
    if writer.transport.is_closing():
        raise _Cut
