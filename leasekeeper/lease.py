"""The lease, over any store: what is asked of a store, and every answer that it can give.

"Lost" and "cannot tell" are different outcomes with different types, because they have different
consequences: a lost lease ends now, an unknown one ends at its deadline and not before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Protocol, Self

from leasekeeper.clock import Deadline, Drift, Instant

LONGEST = 1e6
"""Seconds, some eleven days. No lock needs more, and microseconds of it stay exact on the nodes."""


class LeaseError(Exception):
    """Base of this library's errors. Outcomes of a protocol step are values, not errors."""


class ConfigurationError(LeaseError):
    """What a person wrote cannot work. The message names the setting and says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """The timings of one lock, in seconds, under the names that the field uses.

        round start                                        deadline       lease end     nodes forget
        |--------------- renew_deadline ------------------->|              |             |
        |--------------- lease_duration, less the drift allowance -------->|             |
        |--------------- lease_duration + lock_delay, in ticks of each node ------------>|

    The holder calls itself leader until the deadline; the space up to the lease end is the app's
    time to stop."""

    lease_duration: float = 15.0
    """How long the nodes keep the holder's entry after its last renewal."""
    renew_deadline: float = 10.0
    """How long after the start of its last good renewal the holder still calls itself leader."""
    retry_period: float = 2.0
    """How often the holder renews, and how often a candidate tries again when it cannot tell."""
    lock_delay: float = 0.0
    """How much longer the nodes keep the entry after an unclean loss, so that work in flight
    drains."""
    drift: Drift = field(default_factory=Drift)

    def __post_init__(self) -> None:
        self._insist_on_numbers()
        if self.retry_period <= 0:
            raise ConfigurationError("retryPeriodSeconds must be greater than 0")
        if self.lock_delay < 0:
            raise ConfigurationError("lockDelaySeconds must not be negative")
        if self.renew_deadline <= self.retry_period * 1.2:
            raise ConfigurationError(
                f"renewDeadlineSeconds ({self.renew_deadline:g}) must be greater than"
                f" 1.2 × retryPeriodSeconds ({self.retry_period:g}),"
                " or one slow renewal would end the tenure"
            )
        if self.lease_end <= self.renew_deadline:
            raise ConfigurationError(
                f"leaseDurationSeconds ({self.lease_duration:g}), less the drift allowance,"
                f" must be greater than renewDeadlineSeconds ({self.renew_deadline:g})"
            )

    def _insist_on_numbers(self) -> None:
        """NaN is neither too small nor too large: no comparison below would find it."""
        for name, value in (
            ("leaseDurationSeconds", self.lease_duration),
            ("renewDeadlineSeconds", self.renew_deadline),
            ("retryPeriodSeconds", self.retry_period),
            ("lockDelaySeconds", self.lock_delay),
        ):
            if not isfinite(value) or value > LONGEST:
                raise ConfigurationError(
                    f"{name} ({value:g}) must be a number of seconds, at most {LONGEST:.0f}"
                )

    @property
    def lease_end(self) -> float:
        """From the start of a round that was won: how long the nodes guarantee that nobody else
        wins."""
        return self.lease_duration - self.drift.allowance(self.lease_duration)

    @property
    def time_to_stop(self) -> float:
        """What the app has between its deadline and the first moment at which another may win."""
        return self.lease_end - self.renew_deadline

    @property
    def ttl(self) -> float:
        """How long, in its own time, a node keeps the entry."""
        return self.lease_duration + self.lock_delay


@dataclass(frozen=True, slots=True)
class Candidate:
    """One process that wants the lock. The nonce is fresh for every process: a name alone proves
    nothing.
    """

    name: str
    """What people see as the holder: in a cluster, the name of the pod."""
    uid: str
    nonce: str

    @property
    def id(self) -> str:
        return f"{self.name}/{self.uid}/{self.nonce}"


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease: the lock is ours until the deadline. Held means `not grant.deadline.passed(now)`,
    nothing else.
    """

    lock: str
    id: str
    """What the store knows the holder by: the candidate's id and the number of the attempt."""
    token: int
    deadline: Deadline
    """Until when the holder may call itself leader."""
    lease_end: Deadline
    """Until when the store lets nobody else win; always later than the deadline."""
    request: Request | None = None
    """What somebody outside asks of the holder; it arrives with the answer to a renewal."""

    @classmethod
    def counted_from(
        cls,
        began: Instant,
        timings: Timings,
        *,
        lock: str,
        id: str,
        token: int,
        request: Request | None = None,
    ) -> Self:
        """The lease that a request gave whose first byte was sent after `began`."""
        return cls(
            lock=lock,
            id=id,
            token=token,
            deadline=Deadline(began, timings.renew_deadline),
            lease_end=Deadline(began, timings.lease_end),
            request=request,
        )


@dataclass(frozen=True, slots=True)
class Request:
    """A wish of the operator, written to the store and brought back by a renewal."""

    sequence: int
    kind: str
    """`pause`: nobody may hold the lock until `resume`. `step-down`: the named holder gives up."""
    target: str = ""
    """Of a step-down: the holder's id, so that it means one tenure and no later one."""
    seconds: float = 0.0
    """Of a step-down: for how long it stays out of the race then."""


Causes = Mapping[str, str]
"""What each node (or the one server) said instead of a useful answer; the keys are the nodes'
names.
"""


@dataclass(frozen=True, slots=True)
class Held:
    """Somebody else has the lock. `free_in` is when it may become free, as far as the store can
    tell.
    """

    by: str
    free_in: float
    causes: Causes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unavailable:
    """No lease, and nobody in particular has it: no quorum, a split vote, or the lock is paused."""

    causes: Causes
    retry_in: float | None = None
    """How soon a further attempt makes sense; none: the caller's retry period."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The store says that the lease is not ours. It is over now."""

    why: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The store could not be asked. The lease goes on until its deadline."""

    causes: Causes

    def __str__(self) -> str:
        return "cannot tell: " + "; ".join(f"{node}: {why}" for node, why in self.causes.items())


@dataclass(frozen=True, slots=True)
class Released:
    """The lock is free for others."""


@dataclass(frozen=True, slots=True)
class AlreadyGone:
    """There was nothing of ours left to release. Not an error."""


Acquired = Grant | Held | Unavailable
Renewed = Grant | Lost | Unknown
ReleaseOutcome = Released | AlreadyGone | Unknown


@dataclass(frozen=True, slots=True)
class Observation:
    """Who holds the lock as far as the store can tell, for people and tools; no decision of the
    election rests on it.
    """

    holder: str | None
    token: int
    left: float
    nodes: Mapping[str, str]
    """One line for each node: what it says."""


class LeaseStore(Protocol):
    """Where a lock is kept. Each call ends by itself within what its deadline leaves; none raises
    for a bad network.
    """

    async def ready(self) -> None:
        """Returns when the store can be asked. For the start; an attempt never waits for it."""

    async def acquire(self) -> Acquired:
        """One attempt. Whatever does not end in a Grant leaves nothing behind, as far as the store
        can be reached.
        """

    async def renew(self, grant: Grant) -> Renewed:
        """Moves the deadline on, if the lease is still ours and the old deadline has not passed."""

    async def release(self, grant: Grant) -> ReleaseOutcome:
        """Gives the lease back. Bounded, and finished even if the caller is cancelled."""

    async def freed(self) -> None:
        """Returns when the lock *may* be free. A hint: always to be backed by a timed look."""

    async def observe(self) -> Observation: ...

    async def close(self) -> None: ...
