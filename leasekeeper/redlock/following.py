"""How a candidate comes from one list of nodes to the next: it follows what its own nodes say.

A node that was raised to a newer epoch answers EPOCH, with the list. One node's word is not enough:
it could lead a candidate away to servers of its own. Q nodes of the list that the candidate goes by
must say the same, with a larger number, and the list must be what its epoch says (a hash). That is
also the moment from which nobody can win by the old list any more: nothing is lost by leaving it.

A round goes by one list, from its first request to the count of its votes.
"""

from __future__ import annotations

from collections import Counter

from leasekeeper.redlock.membership import Membership, handed_over
from leasekeeper.redlock.quorum import Reply, Votes, parse
from leasekeeper.redlock.transport import Answer, Failure


class Following:
    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._said: dict[str, Membership] = {}
        """By node: the newer list that it is in, by its last word."""

    def hear(self, votes: Votes) -> None:
        """What a round has shown. Replies of servers that were replaced do not count here, too."""
        for node, reply in votes.counting():
            self._hear_one(node, reply)

    def hear_late(self, votes: Votes, node: str, answer: Answer) -> None:
        """After the round was decided. With two of five nodes down the first word of a newer list
        decides it: nobody can win. The others' words would never be heard.
        """
        if not isinstance(answer, Failure) and answer[:1] == [b"EPOCH"]:
            reply = parse(answer)
            if isinstance(reply, Reply) and votes.counts(node, reply):
                self._hear_one(node, reply)

    def _hear_one(self, node: str, reply: Reply) -> None:
        newer = handed_over(*reply.fields) if reply.status == "EPOCH" else None
        if newer is not None and newer.number > self._membership.number:
            self._said[node] = newer
        else:
            self._said.pop(node, None)

    def confirmed(self) -> Membership | None:
        """The list to go on with; none: the one that is in use."""
        for epoch, count in Counter(newer.epoch for newer in self._said.values()).most_common(1):
            if count >= self._membership.quorum:
                return next(newer for newer in self._said.values() if newer.epoch == epoch)
        return None
