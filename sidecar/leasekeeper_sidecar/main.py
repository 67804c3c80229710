"""`leasekeeper-sidecar`: wires the parts together and ends them in the right order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence

from leasekeeper.clock import SystemClock
from leasekeeper.elector import Elector, State
from leasekeeper.kubernetes.api import ApiServer
from leasekeeper.lease import Candidate, ConfigurationError, LeaseStore
from leasekeeper_sidecar import config as configuration
from leasekeeper_sidecar import http, pages
from leasekeeper_sidecar.claim import flicker
from leasekeeper_sidecar.config import Config
from leasekeeper_sidecar.diagnosis import Explaining
from leasekeeper_sidecar.host import Proc
from leasekeeper_sidecar.leader_file import LeaderFile
from leasekeeper_sidecar.leadership import Leadership
from leasekeeper_sidecar.log import Log
from leasekeeper_sidecar.metrics import Counters, Page, Reading
from leasekeeper_sidecar.mirror import Mirror
from leasekeeper_sidecar.resume import Occupied, ResumeState, occupy

EXIT_FAILED, EXIT_USAGE = 1, 2


class Sidecar:
    """One lock, one pod. Built when the volumes are ours; `run` returns the exit status."""

    def __init__(self, config: Config, log: Log) -> None:
        self.config = config
        self.log = log
        self.clock = SystemClock()
        self.counters = Counters()
        self.nonce = os.urandom(8).hex()
        self.file = LeaderFile(config.leader_dir)
        host = Proc()
        self.leadership = Leadership(
            lock=config.lock,
            pod_name=config.pod_name,
            timings=config.timings,
            clock=self.clock,
            host=host,
            file=self.file,
            resume=ResumeState(
                config.state_dir,
                lock=config.lock,
                pod_uid=config.pod_uid,
                clock=self.clock,
                host=host,
            ),
            counters=self.counters,
            log=log,
        )
        self.mirror: Mirror | None = None

    async def run(self) -> int:
        if warning := flicker(self.config.timings):
            self.log.event("timings-too-close", lock=self.config.lock, why=warning)
        resume = self.leadership.start()
        self.file.install_programs()
        store = self._store()
        elector = Elector(
            store=store,
            timings=self.config.timings,
            clock=self.clock,
            audience=self.leadership,
            resume=resume,
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, elector.stop)
        try:
            async with self._mirroring(store), self._serving(elector):
                # What is here now stays to the end; no later collection need look at it.
                gc.collect()
                gc.freeze()
                await elector.run()
        except Exception as wrong:  # noqa: BLE001  the root of the process
            # Whatever the file says carries its own end; nothing was released that still stands.
            self.log.event("failed", lock=self.config.lock, why=repr(wrong))
            return EXIT_FAILED
        finally:
            await store.close()
        self.log.event("stopped", lock=self.config.lock)
        return 0

    def _store(self) -> LeaseStore:
        config = self.config
        store = config.store.make(
            lock=config.lock,
            candidate=Candidate(config.pod_name, config.pod_uid, self.nonce),
            timings=config.timings,
            clock=self.clock,
        )
        return Explaining(
            store,
            lock=config.lock,
            every=config.timings.lease_duration,
            clock=self.clock,
            log=self.log,
        )

    @contextlib.asynccontextmanager
    async def _mirroring(self, store: LeaseStore) -> AsyncIterator[None]:
        if not self.config.mirror:
            yield
            return

        async def look() -> str:
            seen = await store.observe()
            return f"holder {seen.holder or 'none'}, token {seen.token}"

        self.mirror = mirror = Mirror(
            lock=self.config.lock,
            patch=ApiServer.in_cluster(
                os.environ, self.config.account_dir, user_agent="leasekeeper-sidecar"
            ).merge_patch,
            counters=self.counters,
            log=self.log,
            on_refused=look,
        )
        self.leadership.on_tenure = mirror.tenure
        task = asyncio.create_task(self._guard(mirror))
        try:
            yield
            # Here the lease is released already: the API can hold up nobody but this process.
            await mirror.farewell()
        finally:
            task.cancel()

    async def _guard(self, mirror: Mirror) -> None:
        """A bug in the mirror must be seen, and must not touch the election."""
        while True:
            try:
                await mirror.run()
            except Exception as wrong:  # noqa: BLE001  the root of a task
                self.log.event("mirror-failed", lock=self.config.lock, why=repr(wrong))
                await asyncio.sleep(self.config.timings.lease_duration)

    @contextlib.asynccontextmanager
    async def _serving(self, elector: Elector) -> AsyncIterator[None]:
        config, servers, budget = self.config, [], http.Budget()
        if config.local_port:
            routes = pages.local_pages(self.leadership, stream_name=self.nonce)
            server = http.Server(routes, counters=self.counters, budget=budget)
            server.listen("127.0.0.1", config.local_port)
            servers.append(server)
        if config.http_port:
            routes = pages.pod_pages(
                overdue=lambda: elector.overdue(self.clock.now()),
                ready=lambda: elector.state is not State.STOPPED,
                patience=max(1.0, config.timings.retry_period),
                page=Page(self.counters, lambda: self._reading(elector)),
            )
            server = http.Server(routes, counters=self.counters, budget=budget)
            server.listen("", config.http_port)
            servers.append(server)
        try:
            yield
        finally:
            for server in servers:
                await server.close()

    def _reading(self, elector: Elector) -> Reading:
        claim = self.leadership.current()
        return Reading(
            lock=self.config.lock,
            name=self.config.lock.partition("/")[2],  # client-go's label is the lock's name, too
            leading=claim.leader,
            token=claim.token,
            deadline_seconds=self.leadership.seconds_left(),
            loop_age_seconds=self.clock.now().elapsed_since(elector.last_turn),
            mirror_pending=self.mirror is not None and self.mirror.pending,
        )


def main(argv: Sequence[str] | None = None) -> int:
    try:
        config = configuration.load(sys.argv[1:] if argv is None else argv, os.environ)
    except configuration.HelpWanted:
        sys.stdout.write(configuration.usage())
        return 0
    except ConfigurationError as wrong:
        sys.stderr.write(f"the configuration cannot work:\n{wrong}\n")
        return EXIT_USAGE
    try:
        # Both, because both have one writer; they stay open, and so locked, while we live.
        locks = [
            occupy(config.state_dir, "sidecar.lock"),
            occupy(config.leader_dir, ".sidecar.lock"),
        ]
        status = asyncio.run(Sidecar(config, Log(as_json=config.log_json)).run())
    except Occupied as wrong:
        sys.stderr.write(f"{wrong}\n")
        return EXIT_FAILED
    except OSError as wrong:
        sys.stderr.write(f"a volume or a port cannot be used: {wrong}\n")
        return EXIT_FAILED
    for fd in locks:
        os.close(fd)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
