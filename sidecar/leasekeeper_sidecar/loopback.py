"""One HTTP request to the app, on the pod's loopback.

Only there: an address elsewhere would let whoever writes a pod's environment make this process ask
anything of anybody, and the answer of another machine says nothing about this pod's app.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import dataclass
from typing import Self

import h11

_ADDRESS = re.compile(r"http://(127\.0\.0\.1|localhost|\[::1\])(?::(\d{1,5}))?(/[!-~]*)?")
# Looked up nowhere: a pod's hosts file (`hostAliases`) may call any address `localhost`.
_MEANT = {"localhost": ("127.0.0.1", "::1")}
_ANSWER_AT_MOST = 65536  # bytes that are looked at for the status; nobody reads the body


class NoAnswer(Exception):
    """Nobody listens, or what listens does not speak HTTP."""


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    target: str

    @classmethod
    def parse(cls, text: str) -> Self:
        found = _ADDRESS.fullmatch(text)
        if found is None or not 0 < int(found[2] or 80) < 65536:
            raise ValueError(f"{text!r} is not http://127.0.0.1:PORT/PATH")
        return cls(found[1].strip("[]"), int(found[2] or 80), found[3] or "/")

    async def ask(self, method: str, body: bytes, within: float) -> int:
        """The status of the answer. Raises NoAnswer, or TimeoutError after `within` seconds."""
        try:
            async with asyncio.timeout(within):
                reader, writer = await self._connect()
                try:
                    writer.write(self._request(method, body))
                    return await _status(reader)
                finally:
                    writer.transport.abort()  # no goodbye to wait for
        except TimeoutError:
            raise
        except (OSError, h11.ProtocolError) as wrong:
            raise NoAnswer(str(wrong) or type(wrong).__name__) from wrong

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        first, *more = _MEANT.get(self.host, (self.host,))
        try:
            return await asyncio.open_connection(first, self.port)
        except OSError:
            for other in more:
                with contextlib.suppress(OSError):
                    return await asyncio.open_connection(other, self.port)
            raise

    def _request(self, method: str, body: bytes) -> bytes:
        connection = h11.Connection(h11.CLIENT)
        headers = [
            ("host", f"{self.host}:{self.port}"),
            ("user-agent", "leasekeeper-sidecar"),
            ("connection", "close"),
        ]
        if body:
            headers += [("content-type", "application/json"), ("content-length", str(len(body)))]
        head = h11.Request(method=method, target=self.target, headers=headers)
        parts = [head, *([h11.Data(data=body)] if body else []), h11.EndOfMessage()]
        return b"".join(connection.send(part) or b"" for part in parts)


async def _status(reader: asyncio.StreamReader) -> int:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_ANSWER_AT_MOST)
    connection.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    connection.send(h11.EndOfMessage())
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(4096))
        elif isinstance(event, h11.Response):
            return event.status_code
        elif isinstance(event, h11.ConnectionClosed):
            raise NoAnswer("the connection ended before the answer did")
