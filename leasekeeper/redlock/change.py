"""A change of membership, as decisions: from one list of nodes (epoch e) to the next. No I/O.

    registry: pending ──▶ raise on the old nodes ──▶ D from the Q-th on ──▶ dump from these same Q
                                  ▲                                           │          │
                                  └──── one is not what it was ───────────────┘          ▼
    registry: published ◀── Q′ of the new list joined ◀── learn, join ◀── registry: joining

A node that was raised votes for nobody until it is joined. When Q nodes of the old list are raised
at one time, nobody can win by it any more, and no node can recover into it: it is over for good.
Whoever had won before has a lease that ends within D. What these Q know of tokens, all tokens of
the old list are in; the nodes of the new one learn it before they vote. At no time can both lists
elect (spec/Membership.tla).

Each of Q nodes must have been raised for D with the same memory, which one process sees on its own
clock: a coordinator that was restarted has not seen it, and raises and waits again. Everything it
does can be done twice, and by two at a time; the registry's compare-and-swap orders the two steps
that cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from leasekeeper.lease import ConfigurationError
from leasekeeper.redlock.life import outranked_peers
from leasekeeper.redlock.membership import Membership, micros, number_of
from leasekeeper.redlock.registry import NodeView, Pending, Record


class Refused(ConfigurationError):
    """The registry does not allow this change; the message says why, and what to do."""


def begun(record: Record | None, old: Membership, new: Membership) -> Record:
    """The record with this change pending, or already published: as it is, if it says so."""
    if new.number != old.number + 1:
        raise Refused(
            f"the new list has the number {new.number}, and the old one {old.number}: it must be"
            f" {old.number + 1}"
        )
    before = {node.id: node for node in old.nodes}
    for node in new.nodes:
        if before.get(node.id, node) != node:
            # Two servers of one name would each take the other for their ghost.
            raise Refused(
                f"node {node.id} has the address {before[node.id].address} in the old list, and"
                f" {node.address} in the new one: give a node at another address another id"
            )
    if record is None or record.generation == 0:
        raise Refused("the ensemble was never born: give its nodes the new list before they start")
    if record.epoch == new.epoch:
        return record
    if record.epoch not in ("", old.epoch):
        raise Refused(
            f"the ensemble is in epoch {record.epoch}, and the old list is {old.epoch}: name the"
            " list that is in use"
        )
    if record.pending is None:
        # With the old list: an agent whose file is the new one, without this node, needs it still.
        return replace(record, epoch=old.epoch, membership=old, pending=Pending(new))
    if record.pending.membership != new:
        raise Refused(
            f"another change is under way, to epoch {record.pending.membership.epoch}, and the new"
            f" list is {new.epoch}: bring that one to its end first"
        )
    return record


@dataclass(frozen=True, slots=True)
class Raised:
    """A memory of an old node that is in the new epoch, and since when we know (seconds, raw)."""

    life: str
    at: float


def still_raised(
    raised: Mapping[str, Raised], views: Mapping[str, NodeView], new: Membership
) -> dict[str, Raised]:
    """Those who are what they were, as far as one can see: not restarted, and no ghosts. Who does
    not answer just now may still be.
    """
    ghosts = outranked_peers(views)
    return {
        id: one
        for id, one in raised.items()
        if id not in ghosts and (id not in views or _as_it_was(one, views[id], new))
    }


def _as_it_was(one: Raised, view: NodeView, new: Membership) -> bool:
    return view.open and view.life == one.life and view.epoch == new.epoch


def to_raise(
    raised: Mapping[str, Raised], views: Mapping[str, NodeView], old: Membership, new: Membership
) -> dict[str, str]:
    """By id, the memories that are still to be raised. More than Q are welcome: one may restart,
    and candidates hear of the new list from them. Nodes of any other list are not touched.
    """
    ghosts = outranked_peers(views)
    epochs = (old.epoch, new.epoch)
    return {
        id: view.life
        for id, view in views.items()
        if view.open and view.epoch in epochs and id not in raised and id not in ghosts
    }


@dataclass(frozen=True, slots=True)
class Wait:
    """D is not over yet for Q of them."""

    until: float


@dataclass(frozen=True, slots=True)
class Dump:
    """Learn from these, by id, as long as each still has this life and the new epoch."""

    lives: Mapping[str, str]


def after_raising(
    raised: Mapping[str, Raised], views: Mapping[str, NodeView], old: Membership, now: float
) -> Wait | Dump | None:
    """None: too few are raised, and answer. The Q of them who were raised first are the ones who
    count: by the time the last of them was, all of them were.
    """
    answering = [id for id in raised if id in views]
    first = sorted(answering, key=lambda id: raised[id].at)[: old.quorum]
    if len(first) < old.quorum:
        return None
    until = raised[first[-1]].at + old.quarantine
    return Wait(until) if now < until else Dump({id: raised[id].life for id in first})


def joining(record: Record, views: Mapping[str, NodeView]) -> Record:
    """The old list is over. Memories that never voted are written down, so that nobody joins a
    later one of the same node, which may have been joined, and have forgotten it. Births into the
    old list are void: whoever has not opened by one has something to learn now.
    """
    assert record.pending is not None
    empty = {id: view.life for id, view in views.items() if not view.open and view.life}
    pending = replace(record.pending, joining=True, lives=empty)
    return replace(record, lives={}, pending=pending)


def why_not_joinable(view: NodeView, pending: Pending) -> str:
    """Empty: it may be joined. Otherwise what it waits for."""
    if view.open:
        return ""
    if not view.rested or not view.incarnation:
        return "its memory is empty, and it is in quarantine"
    if pending.joining and pending.lives.get(view.id) != view.life:
        return "it has restarted meanwhile, and opens when it has learnt from the others"
    return ""


def joined(views: Mapping[str, NodeView], new: Membership) -> list[str]:
    """Who votes in the new epoch; a ghost's vote would not count."""
    ghosts = outranked_peers(views)
    epoch = new.epoch
    return [
        id
        for id, view in views.items()
        if view.open and view.joined and view.epoch == epoch and id not in ghosts
    ]


def join_arguments(life: str, new: Membership, generation: int) -> tuple[str, ...]:
    epoch, members, longest = new.to_arguments()
    return life, epoch, members, longest, micros(new.cap), str(generation)


def published(record: Record, new: Membership) -> Record:
    lives = {id: life for id, life in record.lives.items() if id in new.ids}
    return replace(record, epoch=new.epoch, membership=new, pending=None, lives=lives)


def is_published(record: Record, new: Membership) -> bool:
    """Also if a later change followed."""
    return number_of(record.epoch) > new.number or record.epoch == new.epoch
