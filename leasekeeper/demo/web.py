"""`leasekeeper demo --web`: the page, on loopback.

Its buttons kill processes, so whoever asks must have been given the address that the demo printed:

- it listens on 127.0.0.1 only, and answers only to its own name (`Host`): a name of somebody else's
  that suddenly points here (DNS rebinding) is not it;
- a request that another page makes (`Origin`, `Sec-Fetch-Site`) is refused;
- everything but the static page needs the token of this run. It is in the part of the address
  behind `#`, which browsers send to nobody, and comes in a header of its own, which another page
  cannot send without asking; nobody answers that question.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from leasekeeper.demo.engine import Demo, Event
from leasekeeper.demo.faults import KINDS
from leasekeeper.demo.snapshot import snapshot
from leasekeeper.lease import ConfigurationError

PAGE = Path(__file__).with_name("page")
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/drawing.js": ("drawing.js", "text/javascript; charset=utf-8"),
}
TOKEN_HEADER = "x-leasekeeper-token"
FRAME = 0.1  # seconds between two pieces of the stream
PATIENCE = 5.0  # seconds for a request to come in, and for a piece to be taken
LONGEST_BODY = 1024
VISITORS = 32
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Connection": "close",
}
_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
}


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


def refusal(request: Request, *, port: int, token: str) -> tuple[int, str] | None:
    """Why this request is not answered: a code and a sentence. Pure."""
    names = {f"127.0.0.1:{port}", f"localhost:{port}"}
    host = request.headers.get("host", "")
    if host not in names:
        return 403, f"this is the demo at 127.0.0.1:{port}, and not {host!r}"
    origin = request.headers.get("origin")
    if origin is not None and origin != f"http://{host}":
        return 403, f"a page of {origin!r} has no business here"
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return 403, "another page has no business here"
    if request.path in FILES:
        return None if request.method == "GET" else (405, "only GET")
    given = request.headers.get(TOKEN_HEADER, "")
    if not secrets.compare_digest(given.encode(), token.encode()):
        return 401, "open the whole address that the demo printed, with what is behind the #"
    return None


class Web:
    """The server of one demo."""

    def __init__(self, also_tell: Callable[[Event], None], port: int = 0) -> None:
        try:
            self._socket = socket.create_server(("127.0.0.1", port))
        except (OSError, OverflowError) as wrong:
            why = str(wrong).rstrip(".")
            raise ConfigurationError(
                f"--port {port}: {why}; choose another, or leave it out for a free one"
            ) from None
        self.port: int = self._socket.getsockname()[1]
        self.token = secrets.token_urlsafe(24)
        self._also_tell = also_tell
        self._events: deque[tuple[int, Event]] = deque(maxlen=100)
        self._told = 0
        self._visits: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/#{self.token}"

    def tell(self, event: Event) -> None:
        self._told += 1
        self._events.append((self._told, event))
        self._also_tell(event)

    async def run(self, demo: Demo) -> None:
        def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if len(self._visits) >= VISITORS:
                writer.close()
                return
            task = asyncio.ensure_future(self._receive(demo, reader, writer))
            self._visits.add(task)
            task.add_done_callback(self._visits.discard)

        self._also_tell(
            {
                "at": round(demo.at, 3),
                "event": "page",
                "sentence": f"open {self.address} (Ctrl-C ends the demo)",
                "address": self.address,
            }
        )
        server = await asyncio.start_server(visit, sock=self._socket, limit=16 * 1024)
        try:
            await asyncio.Event().wait()
        finally:
            # Before the world ends: a page shows what was, and not how it was taken down. Not by
            # `serve_forever`, which from Python 3.12 on waits for the visitors to leave.
            server.close()
            visits = list(self._visits)
            for task in visits:
                task.cancel()
            await asyncio.gather(*visits, return_exceptions=True)

    async def _receive(
        self, demo: Demo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            await self._visit(demo, reader, writer)
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
            pass  # a visitor that left, dawdled or talked nonsense: its own affair
        finally:
            writer.close()

    async def _visit(
        self, demo: Demo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        async with asyncio.timeout(PATIENCE):
            request = await _read(reader)
        refused = refusal(request, port=self.port, token=self.token)
        if refused is not None:
            await _send(writer, refused[0], {"complaint": refused[1]})
        elif request.path in FILES:
            name, kind = FILES[request.path]
            await _write(writer, _head(200, kind), (PAGE / name).read_bytes())
        elif (request.method, request.path) == ("GET", "/api/stream"):
            await self._stream(demo, writer)
        elif (request.method, request.path) == ("POST", "/api/do"):
            await _send(writer, *await _do(demo, request.body))
        else:
            await _send(writer, 404, {"complaint": "there is no such page"})

    async def _stream(self, demo: Demo, writer: asyncio.StreamWriter) -> None:
        """One JSON object a line: what is, and what happened since the last one."""
        kinds = [asdict(kind) for kind in KINDS]
        await _write(writer, _head(200, "application/x-ndjson"), _line({"kinds": kinds}))
        told, votes = 0, demo.feed.number
        while True:
            piece = {
                "state": snapshot(demo),
                "events": [event for number, event in self._events if number > told],
                "votes": [
                    [v.candidate, v.node, v.asked, v.given]
                    for number, v in demo.feed.votes
                    if number > votes
                ],
            }
            told, votes = self._told, demo.feed.number
            await _write(writer, _line(piece))
            await asyncio.sleep(FRAME)


async def _do(demo: Demo, body: bytes) -> tuple[int, dict[str, str]]:
    try:
        wish = json.loads(body)
        what, target = str(wish["what"]), str(wish.get("target", ""))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return 400, {"complaint": 'send {"what": …, "target": …}'}
    if what == "chaos":
        demo.switch_chaos()
        return 200, {}
    complaint = await demo.faults.cause(what, target)
    return 200, {"complaint": complaint} if complaint else {}


async def _read(reader: asyncio.StreamReader) -> Request:
    """Raises ValueError for what is no HTTP request."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.LimitOverrunError as long:
        raise ValueError("too long") from long
    first, *lines = head.split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers: dict[str, str] = {}
    for line in filter(None, lines):
        name, colon, value = line.partition(":")
        if not colon or name.lower() in headers:  # two hosts: which one was checked?
            raise ValueError("a header that cannot be")
        headers[name.lower()] = value.strip()
    length = int(headers.get("content-length", "0"))
    if not 0 <= length <= LONGEST_BODY:
        raise ValueError("too long")
    return Request(method, target.partition("?")[0], headers, await reader.readexactly(length))


def _head(status: int, kind: str) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS[status]}", f"Content-Type: {kind}"]
    lines += [f"{name}: {value}" for name, value in _HEADERS.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _line(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


async def _send(writer: asyncio.StreamWriter, status: int, content: Mapping[str, str]) -> None:
    await _write(writer, _head(status, "application/json"), _line(content))


async def _write(writer: asyncio.StreamWriter, *parts: bytes) -> None:
    writer.writelines(parts)
    async with asyncio.timeout(PATIENCE):
        await writer.drain()
    if writer.is_closing():
        raise ConnectionError
