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
from leasekeeper.redlock.membership import parse_port
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

Reply = Any
"""str, int, None, or a list of replies."""


class Broken(LeaseError):
    """No answer: unreachable, timed out or cut. Whether the call was carried out is unknown."""


class Untrusted(Broken):
    """No TLS with that server: it is not the one that it should be, or our files are wrong."""


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
        if colon and host and "/" not in host and (number := parse_port(port)):
            return host.removeprefix("[").removesuffix("]"), number
    raise ConfigurationError(
        f"{text!r} is not a server's address; write unix:///path/to/socket or HOST:PORT"
    )


class Connection:
    """One authenticated connection. Times are seconds on `time.monotonic`, for I/O only.

    With `tls`, everything that goes over TCP is encrypted; a unix socket is not.
    """

    def __init__(
        self,
        address: str | tuple[str, int],
        user: str,
        password: str,
        *,
        timeout: float,
        tls: Tls | None = None,
    ) -> None:
        self._timeout = timeout
        self._tls = None if isinstance(address, str) else tls
        self._address = address
        self._greeted = False
        self._reader = hiredis.Reader(encoding="utf-8", errors="replace")
        self._socket = _connect(address, timeout, tls)
        try:
            self.call("AUTH", user, password)
        except Refusal as refused:
            self.close()
            if "WRONGPASS" not in str(refused):
                # Too many clients, say: that passes, and the caller must not end for it.
                raise Broken(f"{_name(address)} lets nobody in: {refused}") from None
            raise BadCredentials(
                f"the server at {_name(address)} refused the user {user!r}: {refused}"
            ) from None
        except Broken as broken:
            self.close()
            raise type(broken)(f"the server at {_name(address)}: {broken}") from None
        self._greeted = True

    def call(self, *command: str, timeout: float | None = None) -> Reply:
        """The answer; Refusal if it is an error, Broken if there is none in time."""
        end = time.monotonic() + (timeout or self._timeout)
        data = b""
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
            raise self._broken(cause, data) from None
        except BaseException:
            self.close()  # interrupted between question and answer: the next answer is not ours
            raise
        if isinstance(reply, hiredis.ReplyError):
            raise Refusal(str(reply))
        return reply

    def _broken(self, cause: Exception, data: bytes) -> Broken:
        if isinstance(self._address, str):
            return Broken(_why(cause))
        if self._tls is not None:
            import ssl  # see tls.py

            if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
                return Untrusted(self._tls.explain(cause, self._address[0]))
        if data.startswith(TLS_ALERT) and isinstance(cause, hiredis.ProtocolError):
            return Untrusted(SPEAKS_TLS)
        if isinstance(cause, OSError) and not isinstance(cause, TimeoutError):
            return Broken("closed by the server" if self._greeted else cut_short(self._tls))
        return Broken(_why(cause))

    def fcall(self, function: str, *args: str) -> Sequence[str]:
        """An admin function; none of them takes keys."""
        reply: Sequence[str] = self.call("FCALL", function, "0", *args)
        return reply

    def close(self) -> None:
        self._socket.close()


def _connect(address: str | tuple[str, int], timeout: float, tls: Tls | None) -> socket.socket:
    end = time.monotonic() + timeout
    try:
        if isinstance(address, str):
            made = socket.socket(socket.AF_UNIX)
        else:
            made = socket.create_connection(address, timeout)
        try:
            made.settimeout(max(end - time.monotonic(), 0.001))
            if isinstance(address, str):
                made.connect(address)
                return made
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made if tls is None else _shake_hands(made, address, tls)
        except BaseException:
            made.close()
            raise
    except OSError as cause:
        raise Broken(f"cannot connect to {_name(address)}: {_why(cause)}") from None
    except Broken as cause:
        raise type(cause)(f"cannot connect to {_name(address)}: {cause}") from None


def _shake_hands(made: socket.socket, address: tuple[str, int], tls: Tls) -> socket.socket:
    context = tls.context()
    import ssl  # the context has imported it; see tls.py

    try:
        return context.wrap_socket(made, server_hostname=tls.name_of(address[0]))
    except (ConnectionError, ssl.SSLEOFError):
        raise Broken(cut_short(tls)) from None
    except ssl.SSLError as wrong:
        raise Untrusted(tls.explain(wrong, address[0])) from None
    except TimeoutError:
        if _speaks_plainly(address):
            raise Untrusted(SPEAKS_NO_TLS) from None
        raise


def _speaks_plainly(address: tuple[str, int]) -> bool:
    """Asked when nothing came back to a handshake; see PLAIN_WORD."""
    try:
        with socket.create_connection(address, PLAIN_PATIENCE) as probe:
            probe.sendall(PLAIN_WORD)
            return is_plain(probe.recv(1))
    except OSError:
        return False


def _name(address: str | tuple[str, int]) -> str:
    return f"unix://{address}" if isinstance(address, str) else f"{address[0]}:{address[1]}"


def _why(cause: Exception) -> str:
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    return (isinstance(cause, OSError) and cause.strerror) or str(cause)
