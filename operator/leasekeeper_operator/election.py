"""Several replicas, one acts: elected by the Kubernetes Lease store of our own library.

What must not happen is that a replica that was cut off or frozen writes after another has begun.
Three things keep it from that, from the kindest to the hardest:

- the elector ends a tenure at its deadline, seconds before the Lease can pass to another;
- every write goes through the `Gate`, which looks at the clock when the request is handed to its
  connection, not when it was thought of;
- each turn of the event loop begins with a look at the clock (`Deadman`): a process that wakes up
  after its deadline ends before any of its callbacks has run.

A replica that lost the Lease ends with exit code 1, and the kubelet starts it again as a standby.
Nothing has to be stopped in the right order then, and nothing half-stopped can act.

A graceful stop hands over in the time of a few requests: no new writes, those on their way are
waited for, and the Lease is given back while the rest of the process still ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import selectors
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, NoReturn
from urllib.parse import urlsplit

import aiohttp

from leasekeeper.clock import Clock, Deadline, SystemClock
from leasekeeper.elector import Elector
from leasekeeper.kubernetes.api import ApiServer, Credentials
from leasekeeper.kubernetes.store import KubernetesStore
from leasekeeper.lease import Candidate, Grant, Renewed, Timings
from leasekeeper_operator.api import Api, ApiError, Object, client_configuration

log = logging.getLogger(__name__)

DRAIN_SECONDS = 1.0
"""For writes that are on their way when we are told to stop; the API server answers in a few
milliseconds. If it does not, the Lease is not given back: it runs out, and they with it."""

STANDSTILL_SECONDS = 30.0
"""By how much the elector may be late before the kubelet is told: longer than any busy machine."""

READS = ("GET",)


def timings(lease_seconds: float) -> Timings:
    """In the proportions of client-go's 15, 10 and 2."""
    return Timings(
        lease_duration=lease_seconds,
        renew_deadline=lease_seconds * 2 / 3,
        retry_period=lease_seconds * 2 / 15,
    )


class NotLeading(ApiError):
    """This replica may not write, or not any more."""

    def __init__(self) -> None:
        super().__init__(0, "this replica does not lead: nothing was written")


class Gate:
    """What only the elected replica may do passes here."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: Deadline | None = None
        self._inside = 0
        self.passed = 0
        """How many writes went through, for the metrics: at rest, none."""
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def open(self) -> bool:
        return self._until is not None and not self._until.passed(self._clock.now())

    @property
    def overstayed(self) -> bool:
        """It was open, nobody closed it, and its time is up."""
        return self._until is not None and self._until.passed(self._clock.now())

    def open_until(self, deadline: Deadline) -> None:
        self._until = deadline

    def close(self) -> None:
        self._until = None

    def check(self) -> None:
        if not self.open:
            raise NotLeading

    @contextlib.asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        self.check()
        self.passed += 1
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    async def emptied(self) -> None:
        await self._empty.wait()


class LeaderApi(Api):
    """The API server, for what only the elected replica does. Everybody may read."""

    gate: Gate

    @classmethod
    async def behind(cls, gate: Gate) -> LeaderApi:
        from kubernetes.aio.client.api_client import ApiClient

        trace = aiohttp.TraceConfig()

        async def before_its_bytes(_: Any, __: Any, request: Any) -> None:
            # Waiting for a connection may have taken long: the process may have been frozen.
            if request.method not in READS:
                gate.check()

        trace.on_request_headers_sent.append(before_its_bytes)
        # What has a body goes out with it, and maybe a turn of the loop later: a freeze between
        # that turn's look at the clock and this write is noticed by nobody else.
        trace.on_request_chunk_sent.append(before_its_bytes)
        configuration = await client_configuration()
        configuration.trace_configs = [trace]
        api = cls(ApiClient(configuration))
        api.gate = gate
        return api

    async def _request(self, method: str, *args: Any, **kwargs: Any) -> Object:
        if method in READS:
            return await super()._request(method, *args, **kwargs)
        # A worker that is cancelled leaves, but its write goes on to its answer: only then is it
        # known that nothing of ours comes after the Lease was given back.
        write = asyncio.ensure_future(self._write(super()._request(method, *args, **kwargs)))
        write.add_done_callback(_heard)  # its worker may have left
        return await asyncio.shield(write)

    async def _write(self, request: Coroutine[Any, Any, Object]) -> Object:
        try:
            async with self.gate.passing():
                return await request
        finally:
            request.close()


class Deadman(selectors.DefaultSelector):
    """An event loop's selector that looks at the clock before the loop runs anything."""

    def __init__(self) -> None:
        super().__init__()
        self.each_turn: Callable[[], None] = lambda: None

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(timeout)
        self.each_turn()
        return ready


class Election:
    """One candidate for the operator's Lease. `run` is the life of this process."""

    def __init__(self, store: KubernetesStore, timings: Timings, clock: Clock) -> None:
        self.gate = Gate(clock)
        self._clock = clock
        self._store = store
        self._elector = Elector(store=store, timings=timings, clock=clock, audience=self)
        self._elected = asyncio.Event()
        self._stop = asyncio.Event()
        self._stopping = False
        self._begun = False
        self.knows = asyncio.Event()
        """Somebody leads: we, or another."""

    @classmethod
    async def join(
        cls, namespace: str, lease: str, lease_seconds: float, deadman: Deadman | None = None
    ) -> Election:
        clock, times = SystemClock(), timings(lease_seconds)
        store = KubernetesStore(
            api=await _own_connection(),
            namespace=namespace,
            name=lease,
            candidate=Candidate(socket.gethostname(), str(os.getpid()), secrets.token_hex(8)),
            timings=times,
            clock=clock,
        )
        election = cls(store, times, clock)
        if deadman is not None:
            deadman.each_turn = election.end_if_overstayed
        return election

    @property
    def leads(self) -> bool:
        return self.gate.open

    @property
    def alive(self) -> bool:
        """The elector's loop turns. Before it began there is nothing to turn: a process that waits
        for the API server must not be killed for it."""
        return not self._begun or self._elector.overdue(self._clock.now()) < STANDSTILL_SECONDS

    # -- told by the elector ---------------------------------------------------------------------

    def leading(self, grant: Grant) -> None:
        if self._stopping:
            return
        self.gate.open_until(grant.deadline)
        if not self._elected.is_set():
            log.info("elected token=%d", grant.token)
        self._elected.set()
        self.knows.set()

    def not_leading(self, why: str) -> None:
        if not self._stopping:
            _end(why)
        self.gate.close()

    def standing_by(self, holder: str | None) -> None:
        if holder is not None and not self.knows.is_set():
            log.info("standing-by holder=%s", holder)
            self.knows.set()

    def renewal(self, outcome: Renewed) -> None:
        pass

    def end_if_overstayed(self) -> None:
        if self.gate.overstayed:
            _end("the deadline passed, by a freeze or without an answer of the API server")

    # -- the life of a replica -------------------------------------------------------------------

    def listen(self) -> None:
        """Takes SIGTERM and SIGINT for `stop`."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)

    async def run(
        self, act: Callable[[], Awaitable[None]], rest: Callable[[], Awaitable[None]]
    ) -> None:
        """Calls `act` once elected. When told to stop, calls `rest`, which ends what `act` does on
        its own account, gives the Lease back, and returns; `act` is still ending then.
        """
        self.listen()
        self._begun = True
        candidate = asyncio.create_task(self._elector.run(), name="elector")
        try:
            if not await self._first(self._elected, candidate):
                acting = asyncio.ensure_future(act())
                await self._first(None, candidate, acting)
                await self._hand_over(rest)
            self._elector.stop()
            await candidate
        finally:
            await self._store.close()

    async def _first(self, event: asyncio.Event | None, *tasks: asyncio.Future[Any]) -> bool:
        """Waits for the event, or the end of a task, whose error is raised. Whether `stop` came."""
        events = [asyncio.create_task(e.wait()) for e in (self._stop, event) if e is not None]
        try:
            done, _ = await asyncio.wait({*events, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            return self._stop.is_set()
        finally:
            for waiting in events:
                waiting.cancel()

    async def _hand_over(self, rest: Callable[[], Awaitable[None]]) -> None:
        self._stopping = True
        self.gate.close()
        await rest()
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self.gate.emptied()
        except TimeoutError:
            _end("a write was not answered in time: the Lease is left to run out")


def _heard(write: asyncio.Future[Object]) -> None:
    if not write.cancelled():
        write.exception()


def _end(why: str) -> NoReturn:
    """At once, and nothing after it: an orderly end would be one more thing that can act."""
    log.error('leadership-lost why="%s"', why)
    logging.shutdown()
    os._exit(1)


async def _own_connection() -> ApiServer:
    """Not the pool of the reconcilers: a renewal does not wait behind a thousand locks."""
    configuration = await client_configuration()
    address = urlsplit(configuration.host)
    secure = address.scheme == "https"

    def tls() -> ssl.SSLContext | None:
        if not secure:
            return None
        context = ssl.create_default_context(
            cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data
        )
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
        if not configuration.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    async def credentials() -> Credentials:
        key = await configuration.get_api_key_with_prefix("BearerToken")
        return Credentials(key or "", tls)

    port = address.port or (443 if secure else 80)
    return ApiServer(address.hostname or "", port, credentials, user_agent="leasekeeper-operator")
