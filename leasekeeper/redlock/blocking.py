"""A blocking connection to one server, as small as the agent needs it.

The agent's loop is a single blocking thread, because an event loop costs four times the CPU for a
wake-up every 50 ms. Every call has a deadline. A call without an answer breaks the connection for
good: what comes back on it later belongs to nobody, and the caller must make a new one.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import Any

import hiredis

from leasekeeper.lease import ConfigurationError, LeaseError

Reply = Any
"""str, int, None, or a list of replies."""


class Broken(LeaseError):
    """No answer: unreachable, timed out or cut. Whether the call was carried out is unknown."""


class Refusal(LeaseError):
    """The server answered with an error. The connection is still good."""


class BadCredentials(Refusal):
    """The server knows the user and not the password, or not the user."""


def parse_server(text: str) -> str | tuple[str, int]:
    """`unix:///path` as a path, `HOST:PORT` as a pair."""
    if text.startswith("unix://"):
        path = text.removeprefix("unix://")
        if path.startswith("/"):
            return path
    else:
        host, colon, port = text.rpartition(":")
        if colon and host and port.isdigit() and 0 < int(port) < 65536:
            return host.removeprefix("[").removesuffix("]"), int(port)
    raise ConfigurationError(
        f"{text!r} is not a server's address; write unix:///path/to/socket or HOST:PORT"
    )


class Connection:
    """One authenticated connection. Times are seconds on `time.monotonic`, for I/O only."""

    def __init__(
        self, address: str | tuple[str, int], user: str, password: str, *, timeout: float
    ) -> None:
        self._timeout = timeout
        self._reader = hiredis.Reader(encoding="utf-8", errors="replace")
        self._socket = _connect(address, timeout)
        try:
            self.call("AUTH", user, password)
        except Refusal as refused:
            self.close()
            raise BadCredentials(
                f"the server at {_name(address)} refused the user {user!r}: {refused}"
            ) from None
        except Broken:
            self.close()
            raise

    def call(self, *command: str, timeout: float | None = None) -> Reply:
        """The answer; Refusal if it is an error, Broken if there is none in time."""
        end = time.monotonic() + (timeout or self._timeout)
        try:
            self._socket.settimeout(timeout or self._timeout)
            self._socket.sendall(hiredis.pack_command(command))  # type: ignore[arg-type]
            reply = self._reader.gets()
            while reply is False:
                left = end - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                self._socket.settimeout(left)
                data = self._socket.recv(65536)
                if not data:
                    raise ConnectionError("closed by the server")
                self._reader.feed(data)
                reply = self._reader.gets()
        except (OSError, hiredis.ProtocolError) as cause:
            self.close()
            raise Broken(_why(cause)) from None
        except BaseException:
            self.close()  # interrupted between question and answer: the next answer is not ours
            raise
        if isinstance(reply, hiredis.ReplyError):
            raise Refusal(str(reply))
        return reply

    def fcall(self, function: str, *args: str) -> Sequence[str]:
        """An admin function; none of them takes keys."""
        reply: Sequence[str] = self.call("FCALL", function, "0", *args)
        return reply

    def close(self) -> None:
        self._socket.close()


def _connect(address: str | tuple[str, int], timeout: float) -> socket.socket:
    try:
        if isinstance(address, str):
            made = socket.socket(socket.AF_UNIX)
            made.settimeout(timeout)
            try:
                made.connect(address)
            except BaseException:
                made.close()
                raise
            return made
        made = socket.create_connection(address, timeout)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made
    except OSError as cause:
        raise Broken(f"cannot connect to {_name(address)}: {_why(cause)}") from None


def _name(address: str | tuple[str, int]) -> str:
    return f"unix://{address}" if isinstance(address, str) else f"{address[0]}:{address[1]}"


def _why(cause: Exception) -> str:
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    return (isinstance(cause, OSError) and cause.strerror) or str(cause)
