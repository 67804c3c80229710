"""Locks that left an ensemble and may still have a leader there, and when that is over."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from leasekeeper.redlock.membership import Membership


@dataclass(slots=True)
class Departing:
    cut_off_on: set[str] = field(default_factory=set)
    """Nodes that were seen without its user."""
    since: float | None = None
    """When the rest of the nodes was no quorum any more."""


class Departures(dict[str, Departing]):
    """By lock, of one ensemble."""

    def over(self, longest: float, now: float) -> set[str]:
        """Those that can have no leader here any more."""
        return {
            lock
            for lock, departing in self.items()
            if departing.since is not None and now - departing.since >= longest
        }

    def time(self, membership: Membership, now: float) -> None:
        enough = len(membership.nodes) - membership.quorum + 1
        for departing in self.values():
            if departing.since is None and len(departing.cut_off_on) >= enough:
                departing.since = now

    def cut_off(self, node: str, before: Container[str]) -> None:
        """On that node all are now; `before`: the users that it had until then."""
        for lock, departing in self.items():
            departing.cut_off_on.add(node)
            if lock in before:  # until now it could vote for it: an old file, maybe
                departing.since = None
