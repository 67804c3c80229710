"""One kind of request to the Kubernetes API: a merge patch, with the pod's own service account.

No client library: it would cost more memory than the rest of the sidecar. A connection is made for
each patch, because there are as many as changes of leadership; token and CA are read for each, so
that a rotated one is used at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

import h11

PATIENCE = 10.0  # seconds for connecting, asking and being answered, all together
_BODY_AT_MOST = 256 * 1024  # a status with its managed fields is a few kB; etcd takes 1.5 MB


class Failed(Exception):
    """No answer that could be understood."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    message: str
    """What the API server says about a refusal, for the log."""


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Where the API server is, and who we are to it."""

    host: str
    port: int
    account: str
    """The folder with the files `token` and `ca.crt`."""

    @classmethod
    def in_cluster(cls, environ: Mapping[str, str], account: str) -> ApiServer:
        return cls(
            environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc"),
            int(environ.get("KUBERNETES_SERVICE_PORT", "443")),
            account,
        )

    async def merge_patch(self, path: str, body: bytes) -> Reply:
        """Raises Failed or TimeoutError."""
        try:
            async with asyncio.timeout(PATIENCE):
                token = _read(os.path.join(self.account, "token")).strip()
                context = ssl.create_default_context(cafile=os.path.join(self.account, "ca.crt"))
                reader, writer = await asyncio.open_connection(
                    self.host, self.port, ssl=context, limit=65536
                )
                try:
                    writer.write(self._request(path, body, token))
                    return await _reply(reader)
                finally:
                    # No goodbye: a server that does not answer one must not be waited for.
                    writer.transport.abort()
        except TimeoutError:
            raise
        except (OSError, ssl.SSLError, h11.ProtocolError, ValueError) as wrong:
            raise Failed(f"{type(wrong).__name__}: {wrong}") from wrong

    def _request(self, path: str, body: bytes, token: str) -> bytes:
        connection = h11.Connection(h11.CLIENT)
        host = f"[{self.host}]" if ":" in self.host else self.host
        head = h11.Request(
            method="PATCH",
            target=path,
            headers=[
                ("host", f"{host}:{self.port}"),
                ("authorization", f"Bearer {token}"),
                ("content-type", "application/merge-patch+json"),
                ("accept", "application/json"),
                ("user-agent", "leasekeeper-sidecar"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ],
        )
        parts = (head, h11.Data(data=body), h11.EndOfMessage())
        return b"".join(connection.send(part) or b"" for part in parts)


async def _reply(reader: asyncio.StreamReader) -> Reply:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=65536)
    connection.send(h11.Request(method="PATCH", target="/", headers=[("host", "x")]))
    connection.send(h11.EndOfMessage())
    status, body = 0, b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(16384))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
            if len(body) > _BODY_AT_MOST:
                raise Failed("the answer is too long")
        elif isinstance(event, h11.EndOfMessage):
            return Reply(status, _message(body) if status >= 300 else "")
        elif isinstance(event, h11.ConnectionClosed):
            raise Failed("the connection ended before the answer did")


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body).get("message", ""))[:500]
    except (ValueError, AttributeError):
        return body[:200].decode("utf-8", "replace")


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read(65536)
