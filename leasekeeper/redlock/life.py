"""A node's life, as decisions: from what was seen, and when, to the next step. No I/O.

    empty memory seen (t0) ──▶ announce incarnation + 1 to others ──▶ Q accepted it (t1) ──▶ become
        │                                                                                    │
        │ listed in a birth                      quarantine until max(t0, t1) + D on the raw clock
        ▼                                                                                    ▼
      open ◀── write data, mark, library, users ◀── learn from the same Q: same life, open ──┘

A node that lost its memory must not vote while a lease that it granted, and forgot, may live: that
is the quarantine. It announces itself *before* it, because an old server of the same identity may
still answer somewhere (a force-deleted pod on a lost machine): from the announcement on, votes of
that ghost do not count, so the quarantine covers them too.

While the list of nodes changes (`change.py`), a node that lost its memory must decide which list it
will vote by: the newest of which Q others are open in its epoch, and it learns from those. "The
highest epoch that anybody knows" is not enough: a token could come twice (spec/README.md, 3).

"The same life" stands for the protocol's "the same incarnation": a life names a peer's memory from
its first moment on, an incarnation only once it is announced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from leasekeeper.redlock.membership import DRIFT, Membership, handed_over, number_of
from leasekeeper.redlock.registry import NodeView, Record


class Memory(Enum):
    """What the memory beside an agent is, at first sight."""

    OPEN = auto()
    """It votes, and has not forgotten anything: go on ticking."""
    CLOSED = auto()
    """It has a life and does not vote yet."""
    LOST = auto()
    """Empty, flushed, or not what this process of the server has lived through."""
    STRANGE = auto()
    """It is another node's."""


def judge_memory(view: NodeView, *, node: str, run_id: str) -> Memory:
    """The run_id tells a memory that was loaded from a disk (or a replica's) from one's own."""
    if not view.life or view.run_id != run_id:
        return Memory.LOST
    if view.id != node:
        return Memory.STRANGE
    return Memory.OPEN if view.open else Memory.CLOSED


@dataclass(frozen=True, slots=True)
class Announced:
    """A peer that accepted our number: which memory of it, and when (seconds, raw clock)."""

    life: str
    at: float


@dataclass(frozen=True, slots=True)
class Life:
    """One memory of the node, and how far it has come on its way to be open."""

    name: str
    first_seen: float
    """t0, on the agent's raw clock; never taken from the server's uptime (a wall clock)."""
    number: int = 0
    """The incarnation that is being announced; 0: none chosen yet."""
    announced: Mapping[str, Announced] = field(default_factory=dict)
    longest_ttl: float = 0.0
    """The longest lease that any peer says it may have granted."""

    def accepted(self, peer: str, life: str, at: float, max_ttl: float) -> Life:
        return replace(
            self,
            announced={**self.announced, peer: Announced(life, at)},
            longest_ttl=max(self.longest_ttl, max_ttl),
        )

    def outranked(self, known: int) -> Life:
        """A peer knows this number already, perhaps from a ghost. Only a number that Q others
        accepted from *us* is ours alone, so all of them are asked again, with a larger one.
        """
        return replace(self, number=max(self.number, known) + 1, announced={})


@dataclass(frozen=True, slots=True)
class Announce:
    number: int
    peers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Become:
    """Q others know the number: it is this node's incarnation."""

    number: int


@dataclass(frozen=True, slots=True)
class TakeBirth:
    """The registry's record lists this life."""

    record: Record


@dataclass(frozen=True, slots=True)
class Rest:
    """The quarantine; nothing shortens it."""

    until: float


@dataclass(frozen=True, slots=True)
class Rested:
    """The quarantine is over, and there is nobody to learn from: say so, for a total loss."""


@dataclass(frozen=True, slots=True)
class Recover:
    """Learn from these, by id, as long as each still has this life; open in their generation, and
    joined if one of them is.
    """

    helpers: Mapping[str, str]
    generation: int
    joined: bool = True


@dataclass(frozen=True, slots=True)
class Open:
    """Born: nothing to learn."""

    generation: int


@dataclass(frozen=True, slots=True)
class Wait:
    why: str


Step = Announce | Become | TakeBirth | Rest | Rested | Recover | Open | Wait


def quarantine(life: Life, membership: Membership) -> float:
    """D, and longer if a peer may have granted longer leases than our own list of members says."""
    excess = max(0.0, life.longest_ttl - membership.max_ttl)
    return membership.quarantine + excess * (1 + DRIFT)


def list_to_vote_by(
    own: NodeView,
    peers: Mapping[str, NodeView],
    lists: Sequence[Membership],
    record: Record | None,
) -> Membership:
    """Of the lists that a closed node knows, the newest first, the one that it goes by. While a
    change has not got far, that is the old one, even if the new one does not have this node.
    """
    ours = [membership for membership in lists if own.id in membership.ids]
    for membership in ours:
        if len(_open_in(membership, own, peers)) >= membership.quorum:
            return membership
    for membership in ours:
        if record is not None and record.epoch == membership.epoch:
            return membership
    return lists[0]


def _open_in(membership: Membership, own: NodeView, peers: Mapping[str, NodeView]) -> list[str]:
    """Which of the others remember, and are in the epoch of this list."""
    others = membership.ids - {own.id}
    epoch = membership.epoch
    return [id for id, view in peers.items() if id in others and view.open and view.epoch == epoch]


def next_step(
    life: Life,
    own: NodeView,
    peers: Mapping[str, NodeView],
    membership: Membership,
    record: Record | None,
    now: float,
) -> Step:
    """What a closed node does next. `peers` holds the other nodes that could be asked just now, and
    `membership` is the list that it will vote by.
    """
    if own.id not in membership.ids:
        return Wait(
            f"no longer a member: epoch {membership.epoch} does not list node {own.id}; end this"
            " server and its agent"
        )
    unaware = tuple(
        id
        for id, view in peers.items()
        if view.life and (id not in life.announced or life.announced[id].life != view.life)
    )
    if unaware:
        known = max(view.vector.get(own.id, 0) for view in (own, *peers.values()))
        return Announce(life.number or known + 1, unaware)
    if record is not None and listed_anew(record, own):
        return TakeBirth(record)
    # Those who are no members any more, or not yet, were told, and count for nothing.
    announced = {id: told for id, told in life.announced.items() if id in membership.ids}
    life = replace(life, announced=announced)
    born = _born(own, membership, record)
    if own.incarnation < life.number and (born or len(life.announced) >= membership.quorum):
        return Become(life.number)
    if born == 1:
        return Open(born)  # the first start: there was never a lease that could be forgotten
    return _after_quarantine(life, own, peers, membership, now, born)


def _born(own: NodeView, membership: Membership, record: Record | None) -> int:
    """The generation in which the node may open without asking others; 0: none. A birth is into one
    list. Once that has changed, others have voted, and there is something to learn.
    """
    if record is None:
        return own.birth  # somebody else keeps the record, and calls `lk1_birth` for our list
    listed = record.lives.get(own.id) == own.life
    return own.birth if listed and record.epoch in ("", membership.epoch) else 0


def listed_anew(record: Record, own: NodeView) -> bool:
    """Whether the record lists this life, in a generation that the node has not been told of."""
    return record.lives.get(own.id) == own.life and own.birth < record.generation


def outranked(own: NodeView) -> bool:
    """Whether a later server of the same name has announced itself, so that this one's votes do not
    count. If that one is gone, only a new life brings the node back.
    """
    return own.incarnation < own.vector.get(own.id, 0)


def left_behind(record: Record, own: NodeView) -> bool:
    """Whether an open node slept through a total loss: the others count its votes no more, and it
    must begin a new life to be one of them again.
    """
    return 0 < own.generation < record.generation and record.lives.get(own.id) != own.life


class Standing(Enum):
    """What an open node is in its list, and what to say of it."""

    MEMBER = ""
    RAISED = "a change of membership is under way: this node votes again when it is joined"
    REMOVED = (
        "no longer a member, and votes no more; end this server and its agent when the change of"
        " membership is through"
    )
    OVERDUE = "a change of membership is through, and this node was not joined"
    BEHIND = "the other nodes have gone on to a newer list"


def standing(
    own: NodeView,
    others: Mapping[str, NodeView],
    lists: Sequence[Membership],
    record: Record | None,
) -> Standing:
    """`others` are asked only if a list is known that the node does not vote by. A node gives its
    memory up only when the change is through: before that, it can still be joined.
    """
    number, newest = number_of(own.epoch), lists[0]
    if record is not None:
        through = number_of(record.epoch) >= newest.number
    else:
        voting = [id for id in _open_in(newest, own, others) if others[id].joined]
        through = len(voting) >= newest.quorum
    if newest.number > number and through:
        return Standing.BEHIND
    if own.joined:
        return Standing.MEMBER
    ours = handed_over(own.epoch, own.members)
    if ours is not None and own.id not in ours.ids:
        return Standing.REMOVED
    return Standing.OVERDUE if newest.epoch == own.epoch and through else Standing.RAISED


def _after_quarantine(
    life: Life,
    own: NodeView,
    peers: Mapping[str, NodeView],
    membership: Membership,
    now: float,
    born: int,
) -> Step:
    helpers = _helpers(life, own, peers, membership)[: membership.quorum]
    others = helpers if len(helpers) == membership.quorum else _earliest(life, membership.quorum)
    last = max((life.announced[id].at for id in others), default=life.first_seen)
    until = max(life.first_seen, last) + quarantine(life, membership)
    if now < until:
        return Rest(until)
    known = max(view.vector.get(own.id, 0) for view in (own, *peers.values()))
    if life.number > 0 and max(life.number, own.incarnation) < known:
        # Another server of this node's name announced itself after us: our votes would not count.
        # It is left the time to open; if it was a ghost, this one takes its place when it is gone.
        # A number that a birth gave to this very life is ours, though we announced a smaller one.
        again = until + quarantine(life, membership)
        if now < again:
            return Wait(f"a server of the same name announced itself later, as number {known}")
        return Announce(known + 1, tuple(peers))
    if born:
        return Open(born)  # reborn after a total loss
    if len(helpers) < membership.quorum:
        if not own.rested:
            return Rested()
        return Wait(_too_few(len(helpers), own, peers, membership))
    generation = max(peers[id].generation for id in helpers)
    joined = any(peers[id].joined for id in helpers)
    return Recover({id: peers[id].life for id in helpers}, generation, joined)


def _too_few(
    helpers: int, own: NodeView, peers: Mapping[str, NodeView], membership: Membership
) -> str:
    epoch = membership.epoch
    why = f"{helpers} of the {membership.quorum} other nodes it needs are open in epoch {epoch}"
    for id, view in peers.items():
        if view.open and view.epoch != epoch:
            why += f"; node {id} is open in epoch {view.epoch}"
    return why


def _helpers(
    life: Life, own: NodeView, peers: Mapping[str, NodeView], membership: Membership
) -> list[str]:
    """Who may be learnt from: open in the epoch of our list, still with the memory that accepted
    the announcement, and not a ghost: what a server does not know that another one has replaced,
    its successor may have voted for since. One of the others knows, because the successor announced
    itself to Q of them; or we do, if it announced itself to us.
    """
    ghosts = outranked_peers({**peers, own.id: own})
    fit = _open_in(membership, own, peers)
    return [id for id in _earliest(life, None) if id in fit and id not in ghosts]


def outranked_peers(views: Mapping[str, NodeView]) -> dict[str, int]:
    """By id: the number of the later life that another one has heard of."""
    latest = {id: max(view.vector.get(id, 0) for view in views.values()) for id in views}
    return {id: latest[id] for id, view in views.items() if view.incarnation < latest[id]}


def _earliest(life: Life, count: int | None) -> list[str]:
    return sorted(life.announced, key=lambda id: life.announced[id].at)[:count]
