"""How a new password follows an old one: a pure function of what is known of both.

    next: made ──▶ every node knows it ──▶ it is in use ──SETTLE──▶ the old one is taken away
                                             └ its users read their files for each new connection

Nobody is without a password that the nodes take, at any step; and each step stands in a Secret
before the nodes are told, so an operator that is killed in between is followed by one that goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Generic, TypeVar

from leasekeeper_operator.api import Object
from leasekeeper_operator.status import timestamp

SETTLE = timedelta(minutes=10)
"""The kubelet brings a changed Secret to a mounted volume within about two minutes."""
ANNOTATION_GENERATION = "leasekeeper.dev/password-generation"
ANNOTATION_SINCE = "leasekeeper.dev/passwords-since"


P = TypeVar("P")
"""One password, or a set of them that go together."""


@dataclass(frozen=True)  # no slots: they break what is generic, before Python 3.12
class Rotating(Generic[P]):
    current: P
    generation: int = 1
    next: P | None = None
    old: P | None = None
    since: datetime | None = None
    """When `current` became that."""

    @property
    def valid(self) -> tuple[P, ...]:
        """The one in use first."""
        return (self.current, *(one for one in (self.next, self.old) if one is not None))

    def advance(self, wanted: int, told: bool, now: datetime, make: Callable[[], P]) -> Rotating[P]:
        """One step towards generation `wanted`. `told`: every node knows `next`."""
        if self.next is not None:
            if not told:
                return self
            return Rotating(self.next, max(wanted, self.generation), None, self.current, now)
        if self.old is not None:
            settled = self.since is not None and now - self.since >= SETTLE
            return replace(self, old=None, since=None) if settled else self
        return replace(self, next=make()) if wanted > self.generation else self

    @property
    def notes(self) -> dict[str, str]:
        """As annotations of the Secret that has the passwords."""
        notes = {ANNOTATION_GENERATION: str(self.generation)}
        return notes | ({ANNOTATION_SINCE: timestamp(self.since)} if self.since else {})


def noted(secret: Object) -> tuple[int, datetime]:
    """The generation, and since when it is in use."""
    notes = secret["metadata"].get("annotations") or {}
    generation = notes.get(ANNOTATION_GENERATION, "1")
    try:
        since = datetime.strptime(notes.get(ANNOTATION_SINCE, ""), "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        since = datetime.now(UTC)  # somebody took it away: wait anew
    # Tenants can write it: a number of 5,000 digits raises.
    sound = generation.isdecimal() and len(generation) < 11
    return int(generation) if sound else 1, since.replace(tzinfo=UTC)
