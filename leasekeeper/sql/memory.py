"""What a candidate remembers of a lock, to notice a database that went back in time.

A database that was restored from a backup, or that failed over to a replica without the last
writes, cannot know it. Its clients can, as far as they remember:

- the largest token that they saw: a row with a smaller one is an older row;
- what the database's clock said, and how much time has passed here since: a clock that says
  anything else was set, and what has "expired" by it may not have;
- a lease that they saw, and that has not ended by their own clock: its row cannot be missing, and
  not be an older one, in which that lease was not renewed yet and has ended.

A process that has just started remembers nothing, and detects nothing. `docs/stores.md` says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from leasekeeper.clock import Deadline, Drift, Instant
from leasekeeper.sql.database import EVER, Look


@dataclass(frozen=True, slots=True)
class Lease:
    """Of somebody, as it was seen; by our own clock it has ended after `end` at the latest."""

    holder: str
    token: int
    end: Deadline

    def is_of(self, look: Look) -> bool:
        return (self.holder, self.token) == (look.holder, look.token)


@dataclass(frozen=True, slots=True)
class Reading:
    """The database's clock, read at some instant between the sending and the answer."""

    sent: Instant
    answered: Instant
    clock: float


def jump(last: Reading, this: Reading, drift: Drift, tolerance: float) -> float:
    """By how much the database's clock was set between two readings, at the least; 0: not, as far
    as one can tell. Positive: forward.
    """
    shortest = this.sent.elapsed_since(last.answered)
    longest = this.answered.elapsed_since(last.sent)
    passed = this.clock - last.clock
    if passed > longest * (1 + drift.rate) + tolerance:
        return passed - longest
    if passed < shortest * (1 - drift.rate) - tolerance:
        return passed - shortest
    return 0.0


class Memory:
    """Of one candidate and one lock. `tolerance` is half of the app's time to stop, so that what
    goes unnoticed cannot end a lease before its holder's deadline. Steps of a clock add up, so it
    is held against a reading that is as old as a lease, too; one lease meets two of these at most.
    """

    def __init__(self, *, drift: Drift, tolerance: float, ttl: float) -> None:
        self._drift = drift
        self._tolerance = tolerance
        self._ttl = ttl
        self._last: Reading | None = None
        self._older: Reading | None = None  # the first since a lease ago, or since a jump
        self._distrust: Deadline | None = None
        self._lease: Lease | None = None
        self.token = 0
        """The largest that was seen."""
        self.doubt = ""
        """Why the database's clock is not believed; empty: it is."""

    def saw(self, look: Look, sent: Instant, answered: Instant) -> str:
        """Takes an answer in. What is wrong with it, as a sentence; empty: nothing."""
        this = Reading(sent, answered, look.now)
        set_by = self._jump(this)
        older, self._last = self._older, this
        if set_by or older is None or sent.elapsed_since(older.answered) > self._ttl:
            self._older = this
        if set_by:
            # Whatever was granted before ends by then on every clock that nobody set, and what is
            # granted from now on is dated by the clock as it is now.
            self._distrust = Deadline(answered, self._ttl + self._drift.allowance(self._ttl))
            way = "forward" if set_by > 0 else "back"
            self.doubt = (
                f"the database's clock went {way} by {abs(set_by):.1f} s: it was set, or another"
                " server took over; an expired lease is not taken over before a whole lease has"
                " passed here"
            )
        wrong = self._wrong_row(look, answered)
        if not wrong:
            self.token = max(self.token, look.token)
            self._lease = self._seen(look, answered)
        return wrong

    def _seen(self, look: Look, now: Instant) -> Lease | None:
        """The end of one lease only moves on: a row in which it is earlier may be an older one. But
        no lease is longer than a whole one (of ours: all candidates should have the same timings).
        A row says more if the clock was set back and its holder has not written it anew; believed
        to the end, that would keep everybody out for the whole step after the holder died.
        """
        if not look.held:
            return None
        left = min(look.left, self._ttl)
        new, old = Lease(look.holder, look.token, Deadline(now, left)), self._lease
        later = old is not None and old.is_of(look) and old.end.left(now) > left
        return old if later else new

    def _jump(self, this: Reading) -> float:
        known = [reading for reading in (self._last, self._older) if reading is not None]
        found = [jump(reading, this, self._drift, self._tolerance) for reading in known]
        return max(found, key=abs, default=0.0)

    def _wrong_row(self, look: Look, now: Instant) -> str:
        if look.exists and look.token < self.token:
            return (
                f"the token went back from {self.token} to {look.token}: the database was restored"
                " or failed over without its last writes, and tokens would repeat; set the lock's"
                f" token to {self.token} or more when no old leader is left"
            )
        if not look.exists and (left := self.lease_left(now)) > 0:
            holder = self._lease.holder if self._lease else ""
            return (
                f"the lock's record is gone, but {holder} has a lease for another {left:.1f} s: it"
                " was deleted, or the server lost its memory; waiting for that lease to end"
            )
        if self._ended_early(look, now):
            return (
                f"the end of the lease of {look.holder} went back, and it has one for another"
                f" {self.lease_left(now):.1f} s: the database failed over without its last writes,"
                " or was restored; waiting for that lease to end"
            )
        return ""

    def _ended_early(self, look: Look, now: Instant) -> bool:
        """Where it was the clock that went forward, no expiry is believed anyway."""
        if look.held or self._lease is None or not self._lease.is_of(look):
            return False
        jumped = self._distrust is not None and not self._distrust.passed(now)
        return not jumped and self.lease_left(now) > self._tolerance

    def lease_left(self, now: Instant) -> float:
        """How long a lease that was seen may still last, by our own clock."""
        return self._lease.end.left(now) if self._lease else 0.0

    def given_back(self, token: int | None) -> None:
        """A release was heard of. It is a hint, and whoever may notify can make one up: it may only
        clear a lease that is remembered. A token counts when it was seen in the row.
        """
        if token is not None and token >= self.token:
            self._lease = None

    def bounds(self, now: Instant) -> tuple[float, float]:
        """Between which times the database's clock must be for its word on an expiry to count."""
        if self._distrust is not None:
            if not self._distrust.passed(now):
                return EVER, -EVER
            self._distrust, self.doubt = None, ""
        known = [reading for reading in (self._last, self._older) if reading is not None]
        both = [self._expected(reading, now) for reading in known]
        earliest, latest = zip(*both, strict=True) if both else ((-EVER,), (EVER,))
        return max(earliest), min(latest)

    def _expected(self, last: Reading, now: Instant) -> tuple[float, float]:
        """Between which times the database's clock is by now, if nobody set it since."""
        shortest = now.elapsed_since(last.answered) * (1 - self._drift.rate)
        longest = now.elapsed_since(last.sent) * (1 + self._drift.rate)
        return last.clock + shortest - self._tolerance, last.clock + longest + self._tolerance
