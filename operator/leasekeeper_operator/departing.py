"""Locks that left an ensemble and may still have a leader there, and when that is over.

    ENSEMBLE-users names it no more ──▶ cut off on the nodes ──▶ agents have read that file too
                                                                  └ the longest lease ──▶ over

An agent that begins again lets in whom its mounted copy names, and the kubelet brings a newer one
when it can: in a minute, or much later, if it does not reach the API server. So it is not the time
that counts, but that agents say (`users.EDITION`) that they have read the file: from then on they
read no earlier one. A new pod of a node may: then its agent says so, and is waited for again. Those
of the version before say nothing, and are waited for until they are rolled.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from leasekeeper.redlock.membership import Membership


@dataclass(slots=True)
class Departing:
    edition: int
    """Of ENSEMBLE-users, the first that does not let it in."""
    cut_off_on: set[str] = field(default_factory=set)
    """Nodes without its user, whose agents have read of it and will not let it in again."""
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
            if len(departing.cut_off_on) < enough:
                departing.since = None
            elif departing.since is None:
                departing.since = now

    def cut_off(self, node: str, before: Container[str], edition: int) -> None:
        """On that node all are now; `before`: the users that it had until then; `edition`: of the
        file that its agent had read by then."""
        for lock, departing in self.items():
            if edition >= departing.edition:
                departing.cut_off_on.add(node)
            else:
                departing.cut_off_on.discard(node)
            if lock in before:  # until now it could vote for it: an old file, maybe
                departing.since = None
