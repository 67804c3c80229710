"""The agent's status page: /status, /readyz and /healthz, on a thread of its own.

The standard library's HTTP server would be a third of the agent's memory for three GET requests.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from leasekeeper.lease import ConfigurationError

LONGEST_TURN = 15.0
"""How long the loop may be in one turn and still be healthy. The slowest asks every peer in vain:
at most eight of them, half a second to connect and half a second for each of two calls."""

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
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ConfigurationError(f"--http {text!r} is not an address; write [HOST]:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def serve(address: tuple[str, int], status: Status) -> Callable[[], None]:
    """Starts the page; the function that ends it."""
    try:
        listener = socket.create_server(
            address, family=socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        )
    except OSError as wrong:
        raise ConfigurationError(
            f"--http {address[0]}:{address[1]}: {wrong.strerror}; choose another port"
        ) from None
    threading.Thread(target=_loop, args=(listener, status), daemon=True).start()
    return listener.close


def _loop(listener: socket.socket, status: Status) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return  # closed
        with client:
            try:
                _answer(client, status)
            except OSError:
                continue  # the visitor left; no business of ours


def _answer(client: socket.socket, status: Status) -> None:
    client.settimeout(1.0)  # one visitor at a time: a silent one must not keep out the kubelet
    request = b""
    while b"\r\n\r\n" not in request and len(request) < 8192:
        data = client.recv(4096)
        if not data:
            return
        request += data
    line = request.split(b"\r\n", 1)[0].decode("latin-1")
    code, body = respond(status, line)
    text = json.dumps(body).encode() + b"\n"
    head = (
        f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    )
    client.sendall(head.encode() + (b"" if line.startswith("HEAD") else text))
