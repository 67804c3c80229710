"""A TCP proxy that a test can cut, freeze and heal: what lies between a candidate and its store."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from servers import free_port


class TcpProxy:
    """Passes bytes on, in a thread of its own, so that a busy test does not slow it down.

    cut      connections end and new ones are refused: a network that says no;
    freeze   everything stays open and nothing arrives: a network that says nothing;
    swallow  connections that stand stay open and nothing arrives, for ever; new ones pass;
    heal     as before. Bytes that came while it was frozen arrive then, late.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.target = port
        self._target = (host, port)
        self.port = free_port()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._passing = asyncio.Event()
        self._passing.set()

    def cut(self) -> None:
        self._run(self._stop_listening)

    def freeze(self) -> None:
        self._loop.call_soon_threadsafe(self._passing.clear)

    def swallow(self) -> None:
        self._run(self._swallow)

    def heal(self) -> None:
        self._run(self._listen)

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._listen)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run(self._end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, step: Callable[[], object]) -> None:
        asyncio.run_coroutine_threadsafe(step(), self._loop).result(10)  # type: ignore[arg-type]

    async def _swallow(self) -> None:
        self._passing.clear()
        self._passing = asyncio.Event()  # those that stand go on waiting for the one before
        self._passing.set()

    async def _listen(self) -> None:
        self._passing.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _stop_listening(self) -> None:
        self._passing.set()
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._writers:
            writer.transport.abort()

    async def _end(self) -> None:
        await self._stop_listening()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        onward: asyncio.StreamWriter | None = None
        passing = self._passing
        try:
            await passing.wait()
            back, onward = await asyncio.open_connection(*self._target)
            self._writers.add(onward)
            pumps = [self._pump(reader, onward, passing), self._pump(back, writer, passing)]
            await asyncio.gather(*pumps)
        except (OSError, asyncio.CancelledError):
            pass  # cancelled only at the end; asyncio's streams would log it as an error
        finally:
            for end in (writer, onward):
                if end is not None:
                    self._writers.discard(end)
                    end.transport.abort()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, passing: asyncio.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                await passing.wait()
                sink.write(data)
                await sink.drain()
        sink.transport.abort()
