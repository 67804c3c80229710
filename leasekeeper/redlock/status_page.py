"""The agent's status page: /status, /readyz and /healthz, on a thread of its own.

The standard library's HTTP server would be a third of the agent's memory for three GET requests.
"""

from __future__ import annotations

import errno
import json
import selectors
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from leasekeeper.lease import ConfigurationError
from leasekeeper.redlock.membership import parse_port

LONGEST_TURN = 15.0
"""How long the loop may be in one turn and still be healthy. The slowest asks every peer in vain:
at most eight of them, half a second to connect and half a second for each of two calls."""

PATIENCE = 1.0
"""From a visitor's first step to the last byte of the answer, and it is over; as long as a kubelet
waits for its probe."""

ROOM = 16
"""Visitors at once. One more, and the oldest must leave: who only wants to stay, in silence or byte
by byte, cannot keep out the kubelet, which is answered within a millisecond."""

LONGEST_REQUEST = 8192

_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class Status:
    """What the loop last said of itself; written by the loop, read by the page's thread."""

    def __init__(self, node: str) -> None:
        self._facts: dict[str, Any] = {"node": node, "stage": "starting", "open": False}
        self._turned = time.monotonic()

    def update(self, **facts: Any) -> None:
        # A new dictionary each time, so that a reader never sees one that is being changed.
        self._facts = {**self._facts, **facts}

    def turn(self) -> None:
        """The loop is alive."""
        self._turned = time.monotonic()

    @property
    def open(self) -> bool:
        return bool(self._facts["open"])

    @property
    def healthy(self) -> bool:
        return time.monotonic() - self._turned < LONGEST_TURN

    def to_json(self) -> dict[str, Any]:
        return self._facts


def respond(status: Status, request: str) -> tuple[int, Any]:
    """The answer to a request line."""
    method, _, rest = request.partition(" ")
    path = rest.partition(" ")[0].partition("?")[0]
    if method not in ("GET", "HEAD"):
        return 405, {"error": "only GET"}
    if path == "/status":
        return 200, status.to_json()
    if path == "/readyz":
        return (200 if status.open else 503), {"open": status.open}
    if path == "/healthz":
        return (200 if status.healthy else 503), {"healthy": status.healthy}
    return 404, {"error": "try /status, /readyz or /healthz"}


def parse_http(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    number = parse_port(port)
    if not colon or number is None:
        raise ConfigurationError(f"--http {text!r} is not an address; write [HOST]:PORT")
    return host.removeprefix("[").removesuffix("]"), number


def serve(address: tuple[str, int], status: Status) -> Callable[[], None]:
    """Starts the page; the function that ends it."""
    try:
        listener = socket.create_server(
            address, family=socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        )
    except OSError as wrong:
        raise ConfigurationError(
            f"--http {address[0]}:{address[1]}: {wrong.strerror}; choose another address or port"
        ) from None
    listener.setblocking(False)
    threading.Thread(target=_loop, args=(listener, status), daemon=True).start()
    return partial(listener.shutdown, socket.SHUT_RDWR)  # wakes the thread, as close() would not


class _Visitor:
    """One connection: a request comes in, bit by bit, and then an answer goes out."""

    def __init__(self, client: socket.socket) -> None:
        client.setblocking(False)
        self.client = client
        self.until = time.monotonic() + PATIENCE
        self.request = b""
        self.answer = b""

    def advance(self, status: Status) -> bool:
        """As far as it goes without waiting. False: it is over."""
        try:
            if not self.answer:
                data = self.client.recv(4096)
                self.request += data
                if b"\r\n\r\n" not in self.request and len(self.request) < LONGEST_REQUEST:
                    return bool(data)
                self.answer = _answer(status, self.request)
            self.answer = self.answer[self.client.send(self.answer) :]
        except BlockingIOError:
            return True
        except OSError:
            return False  # the visitor left; no business of ours
        return bool(self.answer)


def _loop(listener: socket.socket, status: Status) -> None:
    visitors: list[_Visitor] = []  # the oldest first, who is also the first whose time is up
    with listener, selectors.DefaultSelector() as selector:

        def leave(visitor: _Visitor) -> None:
            visitors.remove(visitor)
            selector.unregister(visitor.client)
            visitor.client.close()

        selector.register(listener, selectors.EVENT_READ)
        while True:
            left = max(0.0, visitors[0].until - time.monotonic()) if visitors else None
            ready = [key.data for key, _ in selector.select(left)]
            for visitor in filter(None, ready):
                if not visitor.advance(status):
                    leave(visitor)
                elif visitor.answer:
                    selector.modify(visitor.client, selectors.EVENT_WRITE, visitor)
            while visitors and visitors[0].until <= time.monotonic():
                leave(visitors[0])
            if None in ready:  # somebody knocks, or the page is to end
                try:
                    newcomer = _Visitor(listener.accept()[0])
                except OSError as wrong:
                    if wrong.errno == errno.EINVAL:
                        break  # shut down
                    time.sleep(0.01)  # gone before we came to the door; or no more files
                    continue
                if len(visitors) == ROOM:
                    leave(visitors[0])
                visitors.append(newcomer)
                selector.register(newcomer.client, selectors.EVENT_READ, newcomer)
        while visitors:
            leave(visitors[0])


def _answer(status: Status, request: bytes) -> bytes:
    line = request.split(b"\r\n", 1)[0].decode("latin-1")
    code, body = respond(status, line)
    text = json.dumps(body).encode() + b"\n"
    head = (
        f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if line.startswith("HEAD") else text)
