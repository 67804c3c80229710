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

"The same life" stands for the protocol's "the same incarnation": a life names a peer's memory from
its first moment on, an incarnation only once it is announced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from leasekeeper.redlock.membership import DRIFT, Membership
from leasekeeper.redlock.registry import NOT_A_TOKEN, NodeView, Record, parse_vector


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
    """Learn from these, by id, as long as each still has this life; open in their generation."""

    helpers: Mapping[str, str]
    generation: int


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


def next_step(
    life: Life,
    own: NodeView,
    peers: Mapping[str, NodeView],
    membership: Membership,
    record: Record | None,
    now: float,
) -> Step:
    """What a closed node does next. `peers` holds the other nodes that could be asked just now."""
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
    if own.incarnation < life.number and (own.birth or len(life.announced) >= membership.quorum):
        return Become(life.number)
    if own.birth == 1:
        return Open(own.birth)  # the first start: there was never a lease that could be forgotten
    return _after_quarantine(life, own, peers, membership, now)


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


def _after_quarantine(
    life: Life,
    own: NodeView,
    peers: Mapping[str, NodeView],
    membership: Membership,
    now: float,
) -> Step:
    helpers = _helpers(life, peers)[: membership.quorum]
    others = helpers if len(helpers) == membership.quorum else _earliest(life, membership.quorum)
    last = max((life.announced[id].at for id in others), default=life.first_seen)
    until = max(life.first_seen, last) + quarantine(life, membership)
    if now < until:
        return Rest(until)
    known = max(view.vector.get(own.id, 0) for view in (own, *peers.values()))
    if 0 < life.number < known:
        # Another server of this node's name announced itself after us: our votes would not count.
        # It is left the time to open; if it was a ghost, this one takes its place when it is gone.
        again = until + quarantine(life, membership)
        if now < again:
            return Wait(f"a server of the same name announced itself later, as number {known}")
        return Announce(known + 1, tuple(peers))
    if own.birth:
        return Open(own.birth)  # reborn after a total loss
    if len(helpers) < membership.quorum:
        if not own.rested:
            return Rested()
        return Wait(f"{len(helpers)} of the {membership.quorum} other nodes it needs are open")
    for id in helpers:
        if peers[id].epoch != membership.epoch:
            return Wait(
                f"node {id} is open in epoch {peers[id].epoch}, but the membership file here"
                f" is epoch {membership.epoch}; give all nodes the same file"
            )
    generation = max(peers[id].generation for id in helpers)
    return Recover({id: peers[id].life for id in helpers}, generation)


def _helpers(life: Life, peers: Mapping[str, NodeView]) -> list[str]:
    """Who may be learnt from: open, still with the memory that accepted the announcement, and not
    a ghost: what a server does not know that another one has replaced, its successor may have voted
    for since. One of the others knows, because the successor announced itself to Q of them.
    """
    ghosts = outranked_peers(peers)
    return [
        id for id in _earliest(life, None) if id in peers and peers[id].open and id not in ghosts
    ]


def outranked_peers(peers: Mapping[str, NodeView]) -> dict[str, int]:
    """By id: the number of the later life that another one has heard of."""
    latest = {id: max(view.vector.get(id, 0) for view in peers.values()) for id in peers}
    return {id: latest[id] for id, view in peers.items() if view.incarnation < latest[id]}


def _earliest(life: Life, count: int | None) -> list[str]:
    return sorted(life.announced, key=lambda id: life.announced[id].at)[:count]


@dataclass(frozen=True, slots=True)
class Learnt:
    """What one of the others knows, or (see `merge`) Q of them."""

    floor: int = 0
    vector: Mapping[str, int] = field(default_factory=dict)
    fences: Mapping[str, int] = field(default_factory=dict)
    nonsense: tuple[str, ...] = ()
    """Locks whose counter cannot be the protocol's: a tenant may have written it. Not adopted."""

    def with_page(self, page: list[str]) -> Learnt:
        """Adds one reply of `lk1_dump`."""
        fences, nonsense = dict(self.fences), list(self.nonsense)
        pairs = page[6:-2]
        for lock, text in zip(pairs[::2], pairs[1::2], strict=True):
            if plausible_token(text):
                fences[lock] = max(fences.get(lock, 0), int(text))
            else:
                nonsense.append(lock)
        vector = dict(self.vector)
        for id, incarnation in parse_vector(page[-1]).items():
            vector[id] = max(vector.get(id, 0), incarnation)
        return Learnt(max(self.floor, int(page[4])), vector, fences, tuple(nonsense))


def plausible_token(text: str) -> bool:
    """A tenant can write what it likes into its own lock; 5,000 digits are no number for Python."""
    return len(text) <= 16 and text.isascii() and text.isdigit() and int(text) < NOT_A_TOKEN


def merge(helpers: Sequence[Learnt]) -> Learnt:
    """What all of them know together. A helper that knows nothing of a lock knows that its next
    token there is above its floor: so that counts for it.
    """
    locks = {lock for helper in helpers for lock in helper.fences}
    ids = {id for helper in helpers for id in helper.vector}
    return Learnt(
        floor=max((helper.floor for helper in helpers), default=0),
        vector={id: max(helper.vector.get(id, 0) for helper in helpers) for id in sorted(ids)},
        fences={
            lock: max(helper.fences.get(lock, helper.floor) for helper in helpers)
            for lock in sorted(locks)
        },
        nonsense=tuple(dict.fromkeys(lock for helper in helpers for lock in helper.nonsense)),
    )
