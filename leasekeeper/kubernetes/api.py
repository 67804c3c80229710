"""A small client of the Kubernetes API: JSON requests, and watches.

No client library: it would cost more memory than the rest of the sidecar, and its hidden retries
and time-outs of minutes are no use to a lease. What is here: a deadline for every call, no retries,
and "no answer" (`Failed`, `TimeoutError`) told apart from every answer, refusals included.

Credentials are asked for again for every request and the authorities for every connection, so that
a rotated token or CA is used at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import h11

PATIENCE = 10.0  # seconds for a patch that nobody waits for: connecting, asking, being answered
_BODY_AT_MOST = 2 * 1024 * 1024  # etcd takes 1.5 MB; more is not an object
_ONE_READ = 65536

Object = dict[str, Any]


class Failed(Exception):
    """No answer that could be understood."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    message: str = ""
    """What the API server says about a refusal, for the log."""
    body: bytes = b""

    @property
    def object(self) -> Object:
        """Raises Failed, if it is none."""
        return _decode(self.body)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who we are to the API server, and whom we take for it."""

    authorization: str
    """The header, such as `Bearer …`; empty: a client certificate says it."""
    tls: Callable[[], ssl.SSLContext | None]
    """Made for each new connection. None: plain HTTP (`kubectl proxy`)."""


class ServiceAccount:
    """The credentials of the pod that this process runs in."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    async def __call__(self) -> Credentials:
        token = _read(os.path.join(self._folder, "token")).strip()
        return Credentials(f"Bearer {token}", self._tls)

    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=os.path.join(self._folder, "ca.crt"))


class ApiServer:
    """Where the API server is. For one event loop; one request at a time, others wait in line."""

    def __init__(
        self,
        host: str,
        port: int,
        credentials: Callable[[], Awaitable[Credentials]],
        *,
        user_agent: str = "leasekeeper",
    ) -> None:
        self._host = host
        self._port = port
        self._credentials = credentials
        self._user_agent = user_agent
        self._line = asyncio.Lock()
        self._kept: _Connection | None = None

    @classmethod
    def in_cluster(
        cls, environ: Mapping[str, str], account: str, *, user_agent: str = "leasekeeper"
    ) -> ApiServer:
        return cls(
            environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc"),
            int(environ.get("KUBERNETES_SERVICE_PORT", "443")),
            ServiceAccount(account),
            user_agent=user_agent,
        )

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        timeout: float,
        content_type: str = "application/json",
        keep: bool = False,
    ) -> Reply:
        """One request, answered within `timeout` seconds in all. Raises Failed or TimeoutError.

        It is sent once. If that fails, nobody here knows whether the server has acted on it.
        `keep`: the next one comes soon, so the connection stays open for it.
        """
        async with _errors(), asyncio.timeout(timeout), self._line:
            credentials = await self._credentials()
            connection, self._kept = self._kept, None
            if connection is not None and connection.ended:
                connection.abort()
                connection = None
            if connection is None:
                connection = await self._connect(credentials)
            try:
                headers = self._headers(credentials, len(body), content_type)
                reply = await connection.ask(method, path, headers, body)
                if keep and connection.ready_for_next():
                    self._kept, connection = connection, None
                return reply
            finally:
                # No goodbye: a server that does not answer one must not be waited for.
                if connection is not None:
                    connection.abort()

    async def merge_patch(self, path: str, body: bytes) -> Reply:
        kind = "application/merge-patch+json"
        return await self.request("PATCH", path, body, timeout=PATIENCE, content_type=kind)

    async def watch(self, path: str, *, timeout: float) -> AsyncIterator[Object]:
        """The events of a watch (`path` has `watch=1`), until the server ends it.

        `timeout` is for the connection and the head of the answer; after that the caller decides
        how long to listen. Raises Failed, also for a refusal, or TimeoutError.
        """
        connection: _Connection | None = None
        try:
            async with _errors(), asyncio.timeout(timeout):
                credentials = await self._credentials()
                connection = await self._connect(credentials)
                headers = self._headers(credentials, 0, "")
                status = await connection.begin("GET", path, headers, b"")
                if status != 200:
                    body = b"".join([part async for part in connection.body()])
                    raise Failed(f"{status} {_message(body)}".strip())
            async with _errors():
                async for line in connection.lines():
                    yield _decode(line)
        finally:
            if connection is not None:
                connection.abort()

    def close(self) -> None:
        if self._kept is not None:
            self._kept.abort()
            self._kept = None

    async def _connect(self, credentials: Credentials) -> _Connection:
        reader, writer = await asyncio.open_connection(
            self._host, self._port, ssl=credentials.tls(), limit=_ONE_READ
        )
        return _Connection(reader, writer)

    def _headers(
        self, credentials: Credentials, length: int, content_type: str
    ) -> list[tuple[str, str]]:
        host = f"[{self._host}]" if ":" in self._host else self._host
        headers = [
            ("host", f"{host}:{self._port}"),
            ("accept", "application/json"),
            ("user-agent", self._user_agent),
        ]
        if credentials.authorization:
            headers.append(("authorization", credentials.authorization))
        if length:
            headers += [("content-type", content_type), ("content-length", str(length))]
        return headers


class _Connection:
    """HTTP/1.1 on one connection, one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=65536)

    @property
    def ended(self) -> bool:
        """The server hung up while nothing was asked: a request would be lost on its way."""
        return self._reader.at_eof() or self._writer.is_closing()

    def abort(self) -> None:
        self._writer.transport.abort()

    def ready_for_next(self) -> bool:
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False

    async def ask(
        self, method: str, path: str, headers: list[tuple[str, str]], body: bytes
    ) -> Reply:
        status = await self.begin(method, path, headers, body)
        said = b""
        async for part in self.body():
            said += part
            if len(said) > _BODY_AT_MOST:
                raise Failed("the answer is too long")
        return Reply(status, _message(said) if status >= 300 else "", said)

    async def begin(
        self, method: str, path: str, headers: list[tuple[str, str]], body: bytes
    ) -> int:
        """Sends a request; the status of the answer."""
        events: list[h11.Event] = [h11.Request(method=method, target=path, headers=headers)]
        if body:
            events.append(h11.Data(data=body))
        events.append(h11.EndOfMessage())
        self._writer.write(b"".join(self._http.send(event) or b"" for event in events))
        while not isinstance(event := await self._next(), h11.Response):
            if not isinstance(event, h11.InformationalResponse):
                raise Failed("the connection ended before the answer did")
        return event.status_code

    async def body(self) -> AsyncIterator[bytes]:
        while not isinstance(event := await self._next(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise Failed("the connection ended before the answer did")
            yield bytes(event.data)

    async def lines(self) -> AsyncIterator[bytes]:
        rest = b""
        async for part in self.body():
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                if line:
                    yield line
            if len(rest) > _BODY_AT_MOST:
                raise Failed("an event of the watch is too long")

    async def _next(self) -> h11.Event:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(_ONE_READ))
        assert not isinstance(event, type), "PAUSED: a second answer is never read"
        return event


@contextlib.asynccontextmanager
async def _errors() -> AsyncIterator[None]:
    """What goes wrong on the way has one name. A time that is up keeps its own."""
    try:
        yield
    except TimeoutError:
        raise
    except (OSError, ssl.SSLError, h11.ProtocolError, ValueError) as wrong:
        raise Failed(f"{type(wrong).__name__}: {wrong}") from wrong


def _decode(text: bytes) -> Object:
    try:
        decoded = json.loads(text)
    except (ValueError, RecursionError) as wrong:
        raise Failed(f"not JSON: {wrong}") from wrong
    if not isinstance(decoded, dict):
        raise Failed("not a JSON object")
    return decoded


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body).get("message", ""))[:500]
    except (ValueError, AttributeError, RecursionError):
        return body[:200].decode("utf-8", "replace")


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read(65536)
