"""The lists of nodes that one agent has heard of: from its file, its own node, the others, and the
registry.

Which of them it goes by is not for its file to say: the file may be older than what the ensemble
has come to, or newer than a change that nobody has made yet. What the nodes do decides
(`life.list_to_vote_by`, `life.standing`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from leasekeeper.lease import ConfigurationError
from leasekeeper.redlock.membership import Membership, Node, handed_over
from leasekeeper.redlock.registry import NodeView, Record
from leasekeeper.redlock.watched_file import WatchedFile

MOST = 4
"""The newest ones are kept. Two are in use during a change; an agent that slept through some needs
the last one only."""


def parse_membership(text: str, source: str) -> Membership:
    try:
        return Membership.from_json(json.loads(text))
    except (ValueError, RecursionError) as wrong:
        raise ConfigurationError(f"{source}: not JSON: {wrong}") from None
    except ConfigurationError as wrong:
        raise ConfigurationError(f"{source}: {wrong}") from None


class KnownLists:
    def __init__(self, first: Membership, file: WatchedFile | None = None) -> None:
        self.file = first
        """What the agent was given; the last version of it that could be used."""
        self._file = file
        self._known: list[Membership] = [first]

    @property
    def newest_first(self) -> Sequence[Membership]:
        return self._known

    def hear(self, *views: NodeView) -> None:
        """What nodes hand over; nonsense is left out."""
        for view in views:
            if all(view.epoch != known.epoch for known in self._known):
                membership = handed_over(view.epoch, view.members)
                if membership is not None:
                    self._add(membership)

    def read(self, record: Record | None) -> None:
        """What the registry knows. After a total loss it is the only one, beside the file."""
        if record is not None:
            pending = record.pending.membership if record.pending is not None else None
            for membership in filter(None, (record.membership, pending)):
                self._add(membership)

    def look_at_file(self) -> bool:
        """Whether it is a new one. Raises ConfigurationError, once for each version of the file;
        then the last one stays.
        """
        text = self._file.read_if_changed() if self._file is not None else None
        if self._file is None or text is None:
            return False
        found = parse_membership(text, f"membership file {self._file.path}")
        if found == self.file:
            return False
        self.file = found
        self._add(found)
        return True

    def others(self, node: str) -> list[Node]:
        """Every other node, at the address that it has in the newest list."""
        found: dict[str, Node] = {}
        for membership in self._known:
            for other in membership.nodes:
                if other.id != node:
                    found.setdefault(other.id, other)
        return list(found.values())

    def _add(self, membership: Membership) -> None:
        known = {known.epoch: known for known in (*self._known, membership)}
        newest = sorted(known.values(), key=lambda one: one.number, reverse=True)
        self._known = newest[:MOST]
