"""One lock that this pod is a candidate of: its election, its files, its mirror."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

from leasekeeper.clock import Clock, Instant
from leasekeeper.elector import Elector
from leasekeeper.kubernetes.api import ApiServer
from leasekeeper.lease import Candidate
from leasekeeper_sidecar import health
from leasekeeper_sidecar.busy import Busy
from leasekeeper_sidecar.claim import flicker
from leasekeeper_sidecar.config import Config, LockConfig
from leasekeeper_sidecar.diagnosis import Explaining
from leasekeeper_sidecar.host import Host
from leasekeeper_sidecar.leader_file import LeaderFile
from leasekeeper_sidecar.leadership import Leadership
from leasekeeper_sidecar.log import Log
from leasekeeper_sidecar.loopback import Address
from leasekeeper_sidecar.loss import LossCall
from leasekeeper_sidecar.metrics import Counters, Reading
from leasekeeper_sidecar.mirror import Mirror
from leasekeeper_sidecar.resume import ResumeState


class Candidacy:
    """Built when the volumes are ours; nothing is connected before `run`."""

    def __init__(
        self, config: Config, lock: LockConfig, *, nonce: str, clock: Clock, host: Host, log: Log
    ) -> None:
        self._config, self._lock, self._clock, self._log = config, lock, clock, log
        self.counters = Counters()
        leader_dir = config.folder(config.leader_dir, lock)
        state_dir = config.folder(config.state_dir, lock)
        for folder, mode in ((leader_dir, 0o755), (state_dir, 0o700)):
            os.makedirs(folder, mode, exist_ok=True)
        self._file, self._busy = LeaderFile(leader_dir), Busy(leader_dir)
        self.leadership = Leadership(
            lock=lock.name,
            pod_name=config.pod_name,
            timings=lock.timings,
            clock=clock,
            host=host,
            file=self._file,
            resume=ResumeState(
                state_dir, lock=lock.name, pod_uid=config.pod_uid, clock=clock, host=host
            ),
            counters=self.counters,
            log=log,
        )
        self._store = Explaining(
            lock.store.make(
                lock=lock.name,
                candidate=Candidate(config.pod_name, config.pod_uid, nonce),
                timings=lock.timings,
                clock=clock,
            ),
            lock=lock.name,
            every=lock.timings.lease_duration,
            clock=clock,
            log=log,
            counters=self.counters,
        )
        self._mirror: Mirror | None = None
        self._loss: LossCall | None = None
        self._gate: health.Gate | None = None
        if config.on_lost:
            self._loss = LossCall(
                Address.parse(config.on_lost), clock=clock, counters=self.counters, log=log
            )
            self.leadership.on_lost = self._loss
        self.elector = self._begin()

    def _begin(self) -> Elector:
        """The file is true from here on: what a killed predecessor left, or no."""
        if warning := flicker(self._lock.timings):
            self._log.event("timings-too-close", lock=self._lock.name, why=warning)
        resume = self.leadership.start()
        # Before the programs that look for them: an app may wait for nothing but a program.
        self._busy.install()
        self._file.say_time_to_stop(self._lock.timings.time_to_stop)
        self._file.install_programs()
        elector = Elector(
            store=self._store,
            timings=self._lock.timings,
            clock=self._clock,
            audience=self.leadership,
            resume=resume,
            drain=self._drain,
        )
        if (told := self._config.health) is not None:
            lease = self._lock.timings.lease_duration
            self._gate = health.Gate(told.failures, told.escape, encore=lease)
            if resume is None:
                elector.withdraw("the app has not been well yet")
        return elector

    async def run(self) -> None:
        """Until it is stopped. What it raises is a bug, or a volume that cannot be written."""
        try:
            async with self._mirroring():
                await self.elector.run()
        finally:
            await self._store.close()

    async def _drain(self) -> None:
        """What was done as leader has stopped: as far as the app says so, and for as long as was
        configured.
        """
        began = self._clock.now()
        await self._busy.over()
        if self._loss is not None:
            await self._loss.answered()
        left = self._config.drain - self._clock.now().elapsed_since(began)
        if left > 0:
            await asyncio.sleep(left)

    # -- health ----------------------------------------------------------------------------------

    def looked(self, why: str, now: Instant) -> None:
        """What a look at the app found: nothing, or what is wrong."""
        gate, before = self._gate, self._gate.healthy if self._gate else None
        if gate is None:
            return
        claim, escaped = self.leadership.current(), gate.escaped
        may = gate.look(
            not why, leading=claim.leader, somebody=bool(claim.holder) and not claim.leader, now=now
        )
        if gate.healthy != before:
            name = "healthy" if gate.healthy else "unhealthy"
            self._log.event(name, lock=self._lock.name, why=why)
        if gate.escaped and not escaped:
            self._log.event("leading-though-unhealthy", lock=self._lock.name, why=why)
        if may:
            self.elector.rejoin()
        else:
            self.elector.withdraw(f"the app is not well: {why}")

    # -- mirror ----------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _mirroring(self) -> AsyncIterator[None]:
        if not self._config.mirror:
            yield
            return

        async def look() -> str:
            seen = await self._store.observe()
            return f"holder {seen.holder or 'none'}, token {seen.token}"

        self._mirror = mirror = Mirror(
            lock=self._lock.name,
            patch=ApiServer.in_cluster(os.environ, self._config.account_dir).merge_patch,
            counters=self.counters,
            log=self._log,
            on_refused=look,
        )
        self.leadership.on_tenure = mirror.tenure
        self._store.on_released = mirror.released
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
                self._log.event("mirror-failed", lock=self._lock.name, why=repr(wrong))
                await asyncio.sleep(self._lock.timings.lease_duration)

    # -- metrics ---------------------------------------------------------------------------------

    def reading(self) -> Reading:
        claim, elector = self.leadership.current(), self.elector
        lately = 2 * self._lock.timings.retry_period
        return Reading(
            lock=self._lock.name,
            name=self._lock.short_name,  # client-go's label is the lock's name, too
            leading=claim.leader,
            token=claim.token,
            deadline_seconds=self.leadership.seconds_left(),
            loop_age_seconds=self._clock.now().elapsed_since(elector.last_turn),
            mirror_pending=self._mirror is not None and self._mirror.pending,
            counters=self.counters,
            quorum_margin=self._store.quorum_margin(lately) if elector.grant else None,
            healthy=self._gate.healthy if self._gate else None,
        )
