"""What this pod knows about leadership: told by the elector, kept on the disk, computed anew for
every question.

There is no boolean to go stale. File, HTTP and metrics derive from one claim with a deadline,
judged by the same rule at the moment of the read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from leasekeeper.clock import Clock, Instant
from leasekeeper.lease import Grant, Renewed, Timings, Unknown
from leasekeeper_sidecar.claim import (
    Claim,
    holder_name,
    judge,
    leading_claim,
    standby_claim,
)
from leasekeeper_sidecar.diagnosis import as_text
from leasekeeper_sidecar.host import Host
from leasekeeper_sidecar.leader_file import LeaderFile
from leasekeeper_sidecar.log import Log
from leasekeeper_sidecar.metrics import Counters
from leasekeeper_sidecar.resume import Resumable, ResumeState


@dataclass(frozen=True, slots=True)
class Tenure:
    """One unbroken time of holding, as far as it has come."""

    grant: Grant
    acquired: float
    claim: Claim


@dataclass(frozen=True, slots=True)
class Hearsay:
    """What a standby was told about the holder, and when."""

    holder: str
    at: Instant
    wall: float


OnTenure = Callable[[Tenure | None], None]
OnLost = Callable[[Grant, str], None]


class Leadership:
    """The elector's audience. Called in its loop: nothing here waits for anything but two small
    files.
    """

    def __init__(
        self,
        *,
        lock: str,
        pod_name: str,
        timings: Timings,
        clock: Clock,
        host: Host,
        file: LeaderFile,
        resume: ResumeState,
        counters: Counters,
        log: Log,
    ) -> None:
        self.lock = lock
        self._name = pod_name
        self._timings = timings
        self._clock = clock
        self._host = host
        self._file = file
        self._resume = resume
        self._counters = counters
        self._log = log
        self._tenure: Tenure | None = None
        self._hearsay: Hearsay | None = None
        self._said_holder: Hearsay | None = None  # what stands in the file
        self._unsure = False
        self.on_tenure: OnTenure = lambda _: None
        """Told when a tenure begins (or was resumed) and when it ends; the mirror listens. Must not
        block.
        """
        self.on_lost: OnLost = lambda *_: None
        """Told which tenure is over, and why: also if the file cannot be taken back. Must not
        block.
        """
        self.version = 0
        """Goes up with everything that is said anew."""
        self._changed = asyncio.Event()

    # -- start -----------------------------------------------------------------------------------

    def start(self) -> Grant | None:
        """The lease of a killed predecessor, if it can still be kept; otherwise the file says no
        from here on.

        With a lease to keep, the old file stays as it is: it carries its own end, and it is still
        true.
        """
        found = self._resume.load()
        if isinstance(found, Resumable):
            claim = self._claim(found.grant, found.acquired)
            self._tenure = Tenure(found.grant, found.acquired, claim)
            left = found.grant.deadline.left(self._clock.now())
            self._event("resuming", token=found.grant.token, left=left)
            return found.grant
        self._file.say_no(standby_claim(self.lock, boot=self._host.boot_id()))
        self._resume.erase()
        self._event("started", earlier=found)
        return None

    # -- told by the elector ---------------------------------------------------------------------

    def leading(self, grant: Grant) -> None:
        """Raises if the app cannot be told that it leads: this process then ends, the lease runs
        out, and somebody may win it whose app can be told.
        """
        before = self._tenure
        same = before is not None and before.grant.id == grant.id
        new = before is None or not same or not self._counters.leading
        acquired = before.acquired if before is not None and same else self._host.wall()
        try:
            self._resume.save(grant, acquired)
        except OSError as wrong:
            # Safe: a successor finds an older state or none, and does less than it might have done.
            self._counters.write_failures += 1
            self._event("resume-state-not-written", why=wrong)
        claim = self._claim(grant, acquired)
        try:
            self._file.say(claim)
        except OSError as wrong:
            self._counters.write_failures += 1
            self._event("leader-file-not-written", token=grant.token, why=wrong)
            if new or before is None or not self._can_wait(before):
                raise
            return
        self._tenure = Tenure(grant, acquired, claim)
        self._counters.leading = True
        if new:
            self._counters.tenures += 1
            self._hearsay = self._said_holder = None
            self._event("leading", holder=self._name, token=grant.token, resumed=same or None)
            self.on_tenure(self._tenure)
        self._publish()

    def not_leading(self, why: str) -> None:
        """Raises if the file cannot be taken back: then nothing may be released, and both run out
        by themselves.
        """
        ended, self._tenure = self._tenure, None
        if ended is not None:
            self.on_lost(ended.grant, why)
        self._counters.leading = False
        self._unsure = False
        self._hearsay = self._said_holder = None
        self._file.say_no(standby_claim(self.lock, boot=self._host.boot_id()))
        self._resume.erase()
        self._event("not-leading", token=ended.grant.token if ended else None, why=why)
        self._publish()
        self.on_tenure(None)

    def standing_by(self, holder: str | None) -> None:
        name = holder_name(holder)
        known = self._hearsay
        self._hearsay = Hearsay(name, self._clock.now(), self._host.wall())
        if known is None or known.holder != name:
            self._event("standing-by", holder=name or "unknown")
            self._publish()
        self._say_hearsay(self._hearsay)

    def renewal(self, outcome: Renewed) -> None:
        self._counters.count_renewal(outcome)
        unsure = isinstance(outcome, Unknown)
        if isinstance(outcome, Unknown) and not self._unsure:
            self._event("unsure", left=self.seconds_left(), causes=as_text(outcome.causes))
        elif self._unsure and isinstance(outcome, Grant):
            self._event("sure-again", token=outcome.token)
        self._unsure = unsure

    # -- asked by file, HTTP and metrics ---------------------------------------------------------

    def current(self) -> Claim:
        """What is true now. A deadline that has passed is over, whoever has noticed it or not."""
        tenure = self._tenure
        if tenure is not None and not tenure.grant.deadline.passed(self._clock.now()):
            if self._by_the_rule(tenure.claim):
                return tenure.claim
            return standby_claim(self.lock, boot=self._host.boot_id())
        known = self._hearsay
        if known is None or not self._fresh(known):
            return standby_claim(self.lock, boot=self._host.boot_id())
        return standby_claim(
            self.lock, boot=self._host.boot_id(), holder=known.holder, seen=known.wall
        )

    def seconds_left(self) -> float:
        """Until the deadline; 0: not leading."""
        tenure = self._tenure
        return max(0.0, tenure.grant.deadline.left(self._clock.now())) if tenure else 0.0

    async def change(self, known: int) -> None:
        """Returns when there is something newer than version `known`."""
        while self.version == known:
            await self._changed.wait()

    # -- inside ----------------------------------------------------------------------------------

    def _claim(self, grant: Grant, acquired: float) -> Claim:
        return leading_claim(
            grant, name=self._name, acquired=acquired, clock=self._clock, host=self._host
        )

    def _by_the_rule(self, claim: Claim) -> bool:
        return judge(
            claim.to_json(),
            uptime_cs=self._host.uptime_cs(),
            boot=self._host.boot_id(),
            wall=self._host.wall(),
        ).leader

    def _can_wait(self, before: Tenure) -> bool:
        """Whether one more renewal comes before what the file says runs out."""
        return before.grant.deadline.left(self._clock.now()) > 2 * self._timings.retry_period

    def _fresh(self, known: Hearsay) -> bool:
        """A holder that was not seen for a whole lease may be gone: better say unknown."""
        return self._clock.now().elapsed_since(known.at) <= self._timings.lease_duration

    def _say_hearsay(self, known: Hearsay) -> None:
        said = self._said_holder
        if (
            said is not None
            and said.holder == known.holder
            and known.at.elapsed_since(said.at) < self._timings.lease_duration / 2
        ):
            return  # a look at a held lock can come a hundred times a second, a write need not
        self._said_holder = known
        claim = standby_claim(
            self.lock, boot=self._host.boot_id(), holder=known.holder, seen=known.wall
        )
        try:
            self._file.say_no(claim)
        except OSError as wrong:
            self._counters.write_failures += 1
            self._event("leader-file-not-written", why=wrong)

    def _publish(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def _event(self, name: str, **fields: object) -> None:
        self._log.event(name, lock=self.lock, **fields)
