"""The network between candidates and nodes: a TCP proxy before each server.

It is where a candidate is cut off, and where votes can be seen as they happen: it reads along in
both directions, and changes nothing. Nodes keep one address while their servers come and go, and
the port is bound once, so nobody else can get it in between.

A candidate is known by what it says first on each connection: it subscribes to a channel that has
its name. What it sends while it is cut off is not lost but late, as on a real network.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import hiredis

PIECE = 16 * 1024
_FUNCTIONS = {
    b"lk1_grant": "grant",
    b"lk1_commit": "commit",
    b"lk1_renew": "renew",
    b"lk1_adopt": "adopt",
    b"lk1_release": "release",
}


@dataclass(frozen=True, slots=True)
class Vote:
    """One question of a candidate to a node, and the first word of the answer."""

    candidate: str
    node: str
    asked: str
    answer: str

    @property
    def given(self) -> bool:
        return self.answer in ("GRANTED", "COMMITTED", "OK")


class Cuts:
    """Which candidates are cut off. `passable` blocks whoever is, until it is healed."""

    def __init__(self) -> None:
        self._cut: dict[str, asyncio.Event] = {}

    def __contains__(self, candidate: str) -> bool:
        return candidate in self._cut

    def cut(self, candidate: str) -> None:
        self._cut.setdefault(candidate, asyncio.Event())

    def heal(self, candidate: str) -> None:
        healed = self._cut.pop(candidate, None)
        if healed is not None:
            healed.set()

    async def passable(self, candidate: str | None) -> None:
        while candidate is not None and (cut := self._cut.get(candidate)) is not None:
            await cut.wait()


class Proxy:
    """Everything that goes to one node over TCP goes through here."""

    def __init__(
        self, node: str, server: Path, prefix: str, cuts: Cuts, on_vote: Callable[[Vote], None]
    ) -> None:
        self._node = node
        self._server = server
        self._prefix = prefix.encode()
        self._cuts = cuts
        self._on_vote = on_vote
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._accepting: asyncio.Server | None = None

    async def start(self) -> None:
        self._accepting = await asyncio.start_server(self._accept, sock=self._listener)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._accepting is not None:
            self._accepting.close()
        self._listener.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, on = await asyncio.open_unix_connection(str(self._server))
        except OSError:  # the server is down: whoever asks is told so at once
            writer.close()
            return
        tap = _Tap(self._prefix, lambda *said: self._on_vote(Vote(said[0], self._node, *said[1:])))
        ways = [
            asyncio.ensure_future(self._requests(reader, on, tap)),
            asyncio.ensure_future(self._answers(back, writer, tap)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for end in (on, writer):
                end.close()

    async def _requests(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, tap: _Tap
    ) -> None:
        with contextlib.suppress(OSError, hiredis.ProtocolError):
            while data := await source.read(PIECE):
                tap.request(data)  # first: it may say who this is
                await self._cuts.passable(tap.candidate)
                sink.write(data)
                await sink.drain()

    async def _answers(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, tap: _Tap
    ) -> None:
        with contextlib.suppress(OSError, hiredis.ProtocolError):
            while data := await source.read(PIECE):
                await self._cuts.passable(tap.candidate)
                tap.answer(data)  # last: a vote counts when it arrives
                sink.write(data)
                await sink.drain()


class _Tap:
    """Reads along on one connection; answers belong to questions by their order."""

    def __init__(self, prefix: bytes, on_vote: Callable[[str, str, str], None]) -> None:
        self.candidate: str | None = None
        self._prefix = prefix
        self._on_vote = on_vote
        self._questions = hiredis.Reader()
        self._answers = hiredis.Reader()
        self._open: deque[str] = deque()

    def request(self, data: bytes) -> None:
        self._questions.feed(data)
        while (message := self._questions.gets()) is not False:
            if not isinstance(message, list) or not message:
                continue
            if message[0] == b"SUBSCRIBE" and message[1].startswith(self._prefix):
                self.candidate = message[1][len(self._prefix) :].decode().partition("/")[0]
            self._open.append(_FUNCTIONS.get(message[1], "") if len(message) > 1 else "")

    def answer(self, data: bytes) -> None:
        self._answers.feed(data)
        while (message := self._answers.gets()) is not False:
            if isinstance(message, hiredis.PushNotification) and message[0] == b"message":
                continue
            asked = self._open.popleft() if self._open else ""
            if asked and self.candidate is not None:
                self._on_vote(self.candidate, asked, _first_word(message))


def _first_word(message: object) -> str:
    if isinstance(message, list) and message and isinstance(message[0], bytes):
        return message[0].decode("ascii", "replace")
    return "REFUSED"
