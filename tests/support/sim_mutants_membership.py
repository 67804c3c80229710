"""Mutants of a change of membership (protocol §6, §9; spec/Membership.mutant-*.cfg)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sim_mutant import Mutant, Part, Text
from sim_mutants_life import SCENE
from sim_world import Profile

from leasekeeper.redlock import agent, change, coordinator, functions, life, registry, serving
from leasekeeper.redlock.change import Raised
from leasekeeper.redlock.learnt import Learnt, merge
from leasekeeper.redlock.life import Life
from leasekeeper.redlock.membership import Membership
from leasekeeper.redlock.peers import Peers
from leasekeeper.redlock.registry import NodeView, Pending, Record

_after_raising = change.after_raising
_still_raised = change.still_raised
_learn = Peers.learn
_next_step = life.next_step


def scene(name: str, **more: Any) -> Profile:
    return replace(SCENE, scene=name, born=1.0, late=0.0, **more)


def _at_once(raised: Any, views: Any, old: Membership, now: float) -> Any:
    return _after_raising(raised, views, old, now + old.quarantine)


def _after_half_of_it(raised: Any, views: Any, old: Membership, now: float) -> Any:
    return _after_raising(raised, views, old, now + old.quarantine / 2)


def _as_if_it_had_waited(
    raised: Mapping[str, Raised], views: Mapping[str, NodeView], new: Membership
) -> dict[str, Raised]:
    """Who is in the new epoch already was raised by the one before us: long ago, it is believed."""
    found = {
        id: Raised(view.life, -1e9)
        for id, view in views.items()
        if view.open and view.epoch == new.epoch
    }
    return found | _still_raised(raised, views, new)


def _believes_what_it_was(
    raised: Mapping[str, Raised], views: Mapping[str, NodeView], new: Membership
) -> dict[str, Raised]:
    return dict(raised)


def _learn_from_whatever_is_there(
    self: Peers, helpers: Mapping[str, str], epoch: str
) -> Learnt | None:
    views = self.views()
    if not helpers.keys() <= views.keys():
        return None
    known = [
        _learn(self, {id: views[id].life}, views[id].epoch) for id in helpers if views[id].open
    ]
    found = [learnt for learnt in known if learnt is not None]
    return merge(found) if len(found) == len(helpers) else None


def _its_own_file(
    own: NodeView, peers: Any, lists: Sequence[Membership], record: Any
) -> Membership:
    return next((one for one in reversed(lists) if own.id in one.ids), lists[0])


def _open_in_any_epoch(membership: Membership, own: NodeView, peers: Any) -> list[str]:
    return [id for id, view in peers.items() if id in membership.ids and view.open]


def _learns_from_anybody(
    known: Life,
    own: NodeView,
    peers: Mapping[str, NodeView],
    membership: Membership,
    record: Record | None,
    now: float,
) -> life.Step:
    """Whoever is in the epoch passes for a member."""
    kind = type("Liar", (Membership,), {"__slots__": (), "ids": frozenset({own.id, *peers})})
    facts = {name: getattr(membership, name) for name in ("number", "nodes", "cap")}
    liar = kind(max_ttl=membership.max_ttl, quarantine=membership.quarantine, **facts)
    return _next_step(known, own, peers, liar, record, now)


def _by_number(self: Membership) -> str:
    return f"{self.number}-x"


def _any_memory(view: NodeView, pending: Pending) -> str:
    return "" if view.open or (view.rested and view.incarnation) else "in quarantine"


def _any_list(record: Record, membership: Membership) -> bool:
    return True


MUTANTS = [
    Mutant(
        "change: no wait",
        scene("lease_of_the_old_list"),
        (Part(change, "after_raising", _at_once),),
    ),
    Mutant(
        "change: short wait",
        scene("lease_of_the_old_list"),
        (Part(change, "after_raising", _after_half_of_it),),
    ),
    Mutant(
        "change: a restarted coordinator does not wait again",
        scene("lease_of_the_old_list_and_a_kill"),
        (Part(change, "still_raised", _as_if_it_had_waited),),
    ),
    Mutant(
        "change: join without F",
        scene("token_of_the_old_list"),
        (Part(coordinator, "learn_arguments", lambda life, learnt: iter(())),),
    ),
    Mutant(
        "change: no second look",
        scene("raised_and_forgotten"),
        (
            Part(change, "still_raised", _believes_what_it_was),
            Part(Peers, "learn", _learn_from_whatever_is_there),
        ),
    ),
    Mutant(
        "change: epoch not recovered, nor looked at later",
        scene("forgotten_after_the_dump"),
        (
            Part(agent, "list_to_vote_by", _its_own_file),
            Part(serving, "standing", lambda *_: life.Standing.MEMBER),
            Part(life, "_open_in", _open_in_any_epoch),
            Part(Peers, "learn", _learn_from_whatever_is_there),
        ),
    ),
    Mutant(
        "change: nodes of the old list help to recover",
        scene("old_nodes_help"),
        (Part(agent, "next_step", _learns_from_anybody),),
    ),
    Mutant(
        "change: a memory that was joined before is joined again",
        scene("joined_and_forgotten"),
        (Part(change, "why_not_joinable", _any_memory),),
    ),
    Mutant(
        "change: new nodes pass for a total loss",
        scene("new_nodes_pass_for_lost_ones"),
        (Part(registry, "_decides", _any_list),),
    ),
    Mutant(
        "change: a raised node goes on voting",
        scene("raised_nodes", nodes=(5,)),
        (Text(functions.ADMIN, "redis.call('HDEL', NODE, 'joined')", ""),),
    ),
    Mutant(
        "change: no hash",
        scene("edited_list"),
        (Part(Membership, "epoch", property(_by_number)),),
    ),
]
