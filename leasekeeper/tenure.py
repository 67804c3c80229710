"""What the outcomes of a lease mean for the candidate's tenure. Pure: no clock is read here, and
nobody is asked.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from leasekeeper.clock import Instant
from leasekeeper.lease import Grant, Held, Lost, Renewed, Timings, Unavailable, Unknown

SHORTEST_WAIT = 0.000_1
"""Less than this is left of a lease: it is over. No timer can wait for less with any meaning."""

SHORTEST_LOOK = 0.010
"""Between two looks at a held lock. A node's time stands still while its agent does, and the time
left that it reports then does not fall; a hundred looks a second can be afforded, no busy loop."""


class State(enum.Enum):
    STANDBY = "standby"
    LEADING = "leading"
    UNSURE = "unsure"  # leading, but the last renewal could not tell; ends at the deadline
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Continue:
    """Still leading. Renew again in `renew_in` seconds."""

    grant: Grant
    state: State
    renew_in: float
    doubt: Unknown | None = None
    """Why the last renewal could not tell."""


@dataclass(frozen=True, slots=True)
class End:
    """The tenure is over. Stay out of the race for `stay_out` seconds.

    `release_after`: when the lease is given back, counted from the moment everybody here was told.
    None: never, it runs out by itself. The space between the deadline and the end of the lease (and
    the lock delay after it) is the app's time to stop; giving the lease back takes it away. So only
    a stop gives it back at once: in a pod, the app has ended by then.
    """

    why: str
    release_after: float | None = None
    stay_out: float = 0.0


def after_renewal(grant: Grant, outcome: Renewed, now: Instant, timings: Timings) -> Continue | End:
    """What a renewal means for the tenure. Every branch of consequence is here, and pure."""
    if isinstance(outcome, Lost):
        return End(f"lost: {outcome.why}")
    if isinstance(outcome, Unknown):
        left = grant.deadline.left(now)
        if left <= SHORTEST_WAIT:
            return End(f"deadline passed: {outcome}")
        # A quarter of the period: a blip costs nothing, and four tries a period load nobody.
        return Continue(grant, State.UNSURE, min(timings.retry_period / 4, left), outcome)
    request = outcome.request
    if request is not None and request.kind == "pause":
        return End("paused by request", release_after=timings.time_to_stop)
    if request is not None and request.kind == "step-down" and request.target == outcome.id:
        # One period is longer than anybody who waits needs to take the lock.
        return End(
            "stepped down by request",
            release_after=timings.time_to_stop,
            stay_out=max(timings.retry_period, request.seconds),
        )
    if outcome.deadline.passed(now):
        return End("the renewal came too late: its deadline has passed")
    spent = now.elapsed_since(outcome.deadline.start)
    return Continue(outcome, State.LEADING, max(0.0, timings.retry_period - spent))


def next_attempt_in(outcome: Held | Unavailable, timings: Timings) -> float:
    """How long to wait before the next attempt, if no wake-up comes."""
    if isinstance(outcome, Held):
        return min(max(outcome.free_in, SHORTEST_LOOK), timings.lease_duration)
    return timings.retry_period if outcome.retry_in is None else outcome.retry_in
