"""Who holds each lock, from the operator's own look at the nodes: pure functions.

The status of a lock is written by pods and can be forged; what routes traffic or decides on a
restart rests on what a quorum of nodes says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from leasekeeper_operator.nodes import OPEN, Sight


@dataclass(frozen=True, slots=True)
class Holder:
    """Of one lock: a quorum of nodes has its entry."""

    id: str
    """As nodes have it: pod/uid/nonce/attempt."""
    token: int
    nodes: frozenset[str]

    @property
    def pod(self) -> str:
        return self.id.partition("/")[0]

    @property
    def uid(self) -> str:
        return self.id.split("/")[1] if "/" in self.id else ""


def holders(sights: Mapping[str, Sight], quorum: int) -> dict[str, Holder]:
    """By lock. Locks that nobody holds are not there."""
    owners: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for sight in _counting(sights.values()):
        for lock, entry in sight.entries.items():
            if entry.owner:
                owners[lock, entry.owner][sight.id] = entry.fence
    return {
        # F of a node where somebody else was refused a moment ago may be larger: the token is the
        # one that a quorum has, so at least that many nodes have it or more.
        lock: Holder(owner, sorted(fences.values(), reverse=True)[quorum - 1], frozenset(fences))
        for (lock, owner), fences in owners.items()
        if len(fences) >= quorum
    }


def _counting(sights: Iterable[Sight]) -> list[Sight]:
    """As candidates count votes: not those of a node of which any other knows a later life."""
    views = [sight.view for sight in sights if sight.view is not None and sight.state == OPEN]
    return [
        sight
        for sight in sights
        if sight.state == OPEN
        and sight.view is not None
        and all(view.vector.get(sight.id, 0) <= sight.view.incarnation for view in views)
    ]


def needing(node: str, found: Mapping[str, Holder], quorum: int) -> str:
    """A lock whose holder would not have a quorum without this node; empty: none."""
    needy = (lock for lock, holder in found.items() if len(holder.nodes - {node}) < quorum)
    return min(needy, default="")
