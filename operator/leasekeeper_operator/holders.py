"""Who holds each lock, from the operator's own look at the nodes: pure functions.

The status of a lock is written by pods and can be forged; what routes traffic or decides on a
restart rests on what a quorum of nodes says. Three answers: somebody holds it, nobody does, and
"cannot tell", when the nodes that were not seen could make the difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from leasekeeper.lease import Request
from leasekeeper.redlock import requests
from leasekeeper_operator.nodes import OPEN, Sight


@dataclass(frozen=True, slots=True)
class Holder:
    """Of one lock: a quorum of nodes has its entry."""

    id: str
    """As nodes have it: pod/uid/nonce/attempt."""
    token: int
    nodes: frozenset[str] = field(compare=False)

    @property
    def pod(self) -> str:
        return self.id.partition("/")[0]

    @property
    def uid(self) -> str:
        return self.id.split("/")[1] if "/" in self.id else ""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What one look at an ensemble's nodes tells of its locks."""

    quorum: int
    unseen: int
    """Nodes whose entries are not known."""
    holders: Mapping[str, Holder]
    most: Mapping[str, int]
    """Of locks that nobody holds at a quorum: how many nodes agree on an owner."""
    asked: Mapping[str, Request] = field(default_factory=dict)
    """By lock: the last thing that was asked of its holder."""

    @classmethod
    def of(cls, sights: Mapping[str, Sight], quorum: int) -> Outlook:
        owners: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
        counting = _counting(sights.values())
        for sight in counting:
            for lock, entry in (sight.entries or {}).items():
                if entry.owner:
                    owners[lock][entry.owner][sight.id] = entry.fence
        holders, most = {}, {}
        for lock, claims in owners.items():
            owner, fences = max(claims.items(), key=lambda claim: len(claim[1]))
            most[lock] = len(fences)
            if len(fences) >= quorum:
                # F of a node may be larger than the holder's token where somebody else was refused;
                # at least a quorum has the token itself, or more.
                token = sorted(fences.values(), reverse=True)[quorum - 1]
                holders[lock] = Holder(owner, token, frozenset(fences))
        return cls(quorum, len(sights) - len(counting), holders, most, _asked(counting))

    def doubtful(self, lock: str) -> bool:
        """Nobody is seen to hold it, and somebody may."""
        return lock not in self.holders and self.most.get(lock, 0) + self.unseen >= self.quorum

    def needing(self, node: str) -> str:
        """A lock whose holder would not have a quorum without this node; empty: none."""
        rest = ((lock, holder.nodes - {node}) for lock, holder in self.holders.items())
        return min((lock for lock, nodes in rest if len(nodes) < self.quorum), default="")

    def changed(self, before: Outlook | None) -> set[str]:
        """Locks of which this says something else than an earlier one."""
        if before is None:
            return {*self.holders}
        known = {*self.holders, *before.holders, *self.most, *before.most}
        return {
            lock
            for lock in known
            if self.holders.get(lock) != before.holders.get(lock)
            or self.doubtful(lock) != before.doubtful(lock)
        }


def _asked(sights: Iterable[Sight]) -> dict[str, Request]:
    texts: dict[str, list[str]] = defaultdict(list)
    for sight in sights:
        for lock, entry in (sight.entries or {}).items():
            if entry.request:
                texts[lock].append(entry.request)
    found = ((lock, requests.latest(said)) for lock, said in texts.items())
    return {lock: request for lock, request in found if request is not None}


def _counting(sights: Iterable[Sight]) -> list[Sight]:
    """As candidates count votes: not those of a node of which any other knows a later life."""
    known = [sight for sight in sights if sight.state == OPEN and sight.entries is not None]
    views = [sight.view for sight in known if sight.view is not None]
    return [
        sight
        for sight in known
        if sight.view is not None
        and all(view.vector.get(sight.id, 0) <= sight.view.incarnation for view in views)
    ]
