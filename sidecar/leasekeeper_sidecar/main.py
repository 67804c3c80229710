"""`leasekeeper-sidecar`: wires the parts together and ends them in the right order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import NoReturn

from leasekeeper.clock import Instant, SystemClock
from leasekeeper.lease import ConfigurationError
from leasekeeper.tenure import State
from leasekeeper_sidecar import config as configuration
from leasekeeper_sidecar import health, http, metrics, pages
from leasekeeper_sidecar.candidacy import Candidacy
from leasekeeper_sidecar.config import Config
from leasekeeper_sidecar.host import Proc
from leasekeeper_sidecar.leader_file import LeaderFile
from leasekeeper_sidecar.log import Log
from leasekeeper_sidecar.resume import OF_THE_FILE, OF_THE_STATE, Occupied, occupy

EXIT_FAILED, EXIT_USAGE = 1, 2
STOPS = (signal.SIGTERM, signal.SIGINT)


class Sidecar:
    """One pod, and the locks that it is a candidate of. `run` returns the exit status."""

    def __init__(self, config: Config, log: Log) -> None:
        self.config = config
        self.log = log
        self.clock = SystemClock()
        self.nonce = os.urandom(8).hex()
        self.failed = False

    async def run(self) -> int:
        host = Proc()
        candidacies = [
            Candidacy(
                self.config, lock, nonce=self.nonce, clock=self.clock, host=host, log=self.log
            )
            for lock in self.config.locks
        ]
        if len(self.config.locks) > 1:
            # When the folders of the locks are there, in which they look.
            LeaderFile(self.config.leader_dir).install_programs()

        def stop() -> None:
            for candidacy in candidacies:
                candidacy.elector.stop()

        loop = asyncio.get_running_loop()
        for number in STOPS:
            loop.add_signal_handler(number, stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)  # what came since __main__ comes now

        async def take_part(candidacy: Candidacy) -> None:
            try:
                await candidacy.run()
            except Exception as wrong:  # noqa: BLE001  the root of the process
                # Whatever the file says carries its own end; nothing was released that still
                # stands. The others end in order: one that is healthy and out of the race for ever
                # would be worse than a restart.
                self.failed = True
                self.log.event("failed", lock=candidacy.leadership.lock, why=repr(wrong))
                stop()

        async with self._serving(candidacies), self._looking(candidacies):
            # What is here now stays to the end; no later collection need look at it.
            gc.collect()
            gc.freeze()
            await asyncio.gather(*map(take_part, candidacies))
        if self.failed:
            return EXIT_FAILED
        for lock in self.config.locks:
            self.log.event("stopped", lock=lock.name)
        return 0

    @contextlib.asynccontextmanager
    async def _looking(self, candidacies: list[Candidacy]) -> AsyncIterator[None]:
        """At the app's health: once for all locks, because there is one app."""
        if self.config.health is None:
            yield
            return

        def told(why: str, now: Instant) -> None:
            for candidacy in candidacies:
                candidacy.looked(why, now)

        task = asyncio.create_task(self._look(health.Probe(self.config.health), told))
        try:
            yield
        finally:
            task.cancel()

    async def _look(self, probe: health.Probe, told: Callable[[str, Instant], None]) -> None:
        while True:
            try:
                why = await probe.look()
            except Exception as wrong:  # noqa: BLE001  the root of a task; an unknown health is bad
                why = repr(wrong)
            try:
                told(why, self.clock.now())
            except Exception as wrong:  # noqa: BLE001  the next look tells again; no look would not
                self.log.event("health-not-told", why=repr(wrong))
            await asyncio.sleep(probe.period)

    @contextlib.asynccontextmanager
    async def _serving(self, candidacies: list[Candidacy]) -> AsyncIterator[None]:
        config, budget = self.config, http.Budget()
        servers: list[http.Server] = []
        electors = [candidacy.elector for candidacy in candidacies]

        def serve(routes: dict[str, http.Route], host: str, port: int) -> None:
            server = http.Server(routes, budget=budget)
            server.listen(host, port)
            servers.append(server)

        if config.local_port:
            locks = {
                lock.short_name: candidacy.leadership
                for lock, candidacy in zip(config.locks, candidacies, strict=True)
            }
            routes = pages.local_pages(locks, stream_name=self.nonce)
            with _naming("LEASEKEEPER_LOCAL_PORT"):
                serve(routes, "127.0.0.1", config.local_port)
        if config.http_port:
            routes = pages.pod_pages(
                overdue=lambda: max(e.overdue(self.clock.now()) for e in electors),
                ready=lambda: all(e.state is not State.STOPPED for e in electors),
                patience=max(1.0, *(lock.timings.retry_period for lock in config.locks)),
                page=lambda: metrics.page(
                    [candidacy.reading() for candidacy in candidacies],
                    sum(server.refused for server in servers),
                ),
            )
            with _naming("LEASEKEEPER_HTTP_PORT"):
                serve(routes, "", config.http_port)
        try:
            yield
        finally:
            for server in servers:
                await server.close()


@contextlib.contextmanager
def _naming(key: str) -> Iterator[None]:
    """What a person can mend names its setting, as the mistakes of a configuration do."""
    try:
        yield
    except OSError as wrong:
        raise OSError(f"{key}: {wrong}") from wrong


def main(argv: Sequence[str] | None = None) -> int:
    try:
        config = configuration.load(sys.argv[1:] if argv is None else argv, os.environ)
    except configuration.HelpWanted:
        from leasekeeper_sidecar import manual  # its text belongs into no pod's memory

        sys.stdout.write(manual.usage())
        return 0
    except ConfigurationError as wrong:
        sys.stderr.write(f"the configuration cannot work:\n{wrong}\n")
        return EXIT_USAGE
    try:
        # Both, because both have one writer; they stay open, and so locked, while we live.
        with _naming("LEASEKEEPER_STATE_DIR"):
            occupy(config.state_dir, OF_THE_STATE)
        with _naming("LEASEKEEPER_LEADER_DIR"):
            occupy(config.leader_dir, OF_THE_FILE)
        asyncio.run(_run_and_exit(Sidecar(config, Log(as_json=config.log_json))))
    except Occupied as wrong:
        sys.stderr.write(f"{wrong}\n")
        return EXIT_FAILED
    except OSError as wrong:
        sys.stderr.write(f"a volume or a port cannot be used: {wrong}\n")
        return EXIT_FAILED


async def _run_and_exit(sidecar: Sidecar) -> NoReturn:
    """All that has to end in order has ended then. What is left are threads that look up a name:
    asyncio and the interpreter would wait for them, beyond the pod's grace if the name service
    hangs. And a second SIGTERM would no longer find anybody who listens.
    """
    os._exit(await sidecar.run())
