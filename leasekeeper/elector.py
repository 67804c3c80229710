"""The candidate's state machine, over any store. (Interface; the loop follows in the next commit.)"""

from __future__ import annotations

import enum
from typing import Protocol

from leasekeeper.lease import Grant


class State(enum.Enum):
    STANDBY = "standby"
    LEADING = "leading"
    UNSURE = "unsure"  # leading, but the last renewal could not tell; ends at the deadline
    STOPPED = "stopped"


class Audience(Protocol):
    """Who is told of the election. Called in the loop, so each call must be quick and must not raise.

    The order is part of the protocol: `leading` comes only after the store granted; `not_leading` comes before the first
    byte of the release, so that everybody here has stopped before anyone else can win.
    """

    def leading(self, grant: Grant) -> None:
        """The lease is ours until `grant.deadline`: once when it was won (or resumed), and again after each renewal."""

    def not_leading(self, why: str) -> None:
        """It is over; `why` is a sentence for people."""

    def standing_by(self, holder: str | None) -> None:
        """Somebody else holds it (the candidate id), or nobody can be named."""
