"""A small HTTP server, on asyncio and h11, that cannot be made to hold up a renewal.

Everything that a client can stretch is bounded: the number of connections, the size of the headers,
the time for a request, the time to take the answer. When all places are taken, the longest-waiting
connection goes, not the new one: otherwise a hundred idle connections would lock out the kubelet,
which would then kill a healthy sidecar.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass

import h11

from leasekeeper_sidecar.metrics import Counters

_HEADERS_AT_MOST = (
    8192  # browsers and proxies send 1 to 4 kB; nobody who asks for these pages sends more
)
_REQUEST_WITHIN = 5.0  # seconds, also the idle time between two requests of one connection
_ANSWER_TAKEN_WITHIN = 5.0
_BUFFER_AT_MOST = 65536  # unsent bytes of one connection


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


class Server:
    """Answers GET and HEAD on a fixed set of paths."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        *,
        counters: Counters,
        connections: int = 64,
        streams: int = 16,
    ) -> None:
        self._routes = routes
        self._counters = counters
        self._connections = connections
        self._streams_left = streams
        self._waiting: dict[asyncio.StreamWriter, None] = {}  # no whole request yet, oldest first
        self._serving: dict[asyncio.StreamWriter, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, hosts: str | list[str] | None, port: int) -> None:
        self._server = await asyncio.start_server(
            self._connected, hosts, port, limit=_HEADERS_AT_MOST, backlog=128
        )

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=0.2)

    # A plain function, not a coroutine: the limit holds before any task is made.
    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._waiting) + len(self._serving) >= self._connections:
            longest = next(iter(self._waiting or self._serving))
            longest.transport.abort()
            self._forget(longest)
            self._counters.http_refused += 1
        self._waiting[writer] = None
        writer.transport.set_write_buffer_limits(high=_BUFFER_AT_MOST)
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
                with contextlib.suppress(OSError, TimeoutError, h11.LocalProtocolError):
                    await self._send(connection, writer, answer)
        except (_Cut, OSError, TimeoutError, h11.LocalProtocolError):
            pass  # a client that went away, or that is too slow: its own affair
        finally:
            self._forget(writer)
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _respond(
        self, connection: h11.Connection, writer: asyncio.StreamWriter, request: h11.Request
    ) -> None:
        route = self._routes.get(request.target.partition(b"?")[0].decode("ascii", "replace"))
        if request.method not in (b"GET", b"HEAD"):
            answer: Answer | Stream = Answer(405, b"", "text/plain")
        elif route is None:
            known = ", ".join(self._routes)
            answer = Answer(404, f"here are {known}\n".encode(), "text/plain")
        else:
            answer = await route()
        if isinstance(answer, Stream):
            await self._stream(connection, writer, answer)
        else:
            await self._send(connection, writer, answer, head=request.method == b"HEAD")

    async def _send(
        self,
        connection: h11.Connection,
        writer: asyncio.StreamWriter,
        answer: Answer,
        *,
        head: bool = False,
    ) -> None:
        headers = [
            ("content-type", answer.content_type),
            ("content-length", str(len(answer.body))),
            ("cache-control", "no-store"),
        ]
        data = connection.send(h11.Response(status_code=answer.status, headers=headers)) or b""
        if not head:
            data += connection.send(h11.Data(data=answer.body)) or b""
        data += connection.send(h11.EndOfMessage()) or b""
        await _write(writer, data)

    async def _stream(
        self, connection: h11.Connection, writer: asyncio.StreamWriter, stream: Stream
    ) -> None:
        if self._streams_left <= 0:
            await self._send(connection, writer, Answer(503, b"too many streams\n", "text/plain"))
            return
        self._streams_left -= 1
        try:
            headers = [("content-type", stream.content_type), ("cache-control", "no-store")]
            start = connection.send(h11.Response(status_code=200, headers=headers)) or b""
            await _write(writer, start)
            async for part in stream.parts:
                await _write(writer, connection.send(h11.Data(data=part)) or b"")
        finally:
            self._streams_left += 1


async def _next_request(connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Request:
    """A whole request without a body: none of our pages takes one."""
    request: h11.Request | None = None
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(4096))
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
