"""Mutants of a node's time and a node's life (protocol §2, §5, §9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from sim_mutant import Mutant, Part, Text
from sim_net import Server
from sim_world import LONGER

from leasekeeper.redlock import agent, functions, learnt, life, peers, quorum, registry, serving
from leasekeeper.redlock.learnt import Learnt
from leasekeeper.redlock.life import Life
from leasekeeper.redlock.local_server import LocalServer
from leasekeeper.redlock.membership import Membership
from leasekeeper.redlock.peers import Peers
from leasekeeper.redlock.registry import NodeView, Record
from leasekeeper.redlock.transport import Failure

ADMIN, VOTE = functions.ADMIN, functions.VOTE

# Nodes lose their memory while candidates come and go.
CRASHES = replace(
    LONGER,
    nodes=(3,),
    candidates=(3,),
    wild=0.0,
    tight=1.0,
    caps=(0.02, 0.1),
    faults=(6, 20),
    weights={
        "crash": 6,
        "flush": 1,
        "kill_candidate": 3,
        "pause_candidate": 3,
        "cut": 4,
        "reset": 1,
    },
)
# One story, and sometimes a fault that gets in its way.
SCENE = replace(
    CRASHES,
    candidates=(2, 3),
    leases=(2.0,),
    caps=(0.02, 0.1),
    seconds=(12.0, 12.0),
    faults=(0, 1),
    weights={"reset": 1, "kill_agent": 1, "pause_candidate": 1, "wall_step": 1},
)
IN_THE_DARK = replace(
    CRASHES, faults=(2, 6), weights={"replace_in_the_dark": 6, "reset": 1, "step_down": 1}
)
USURPED = replace(CRASHES, seconds=(8.0, 12.0), faults=(1, 2), weights={"usurper": 1})
TOTAL_LOSSES = replace(
    CRASHES,
    weights={"total_loss": 3, "crash": 3, "wall_step": 3, "replace": 1, "step_down": 3, "cut": 1},
)
FORGETTING = replace(
    CRASHES, wild=0.5, weights={"forget": 5, "crash": 5, "step_down": 3, "stop_candidate": 3}
)


def _no_quarantine(life: Life, membership: Membership) -> float:
    return 0.0


def _own_quarantine(life: Life, membership: Membership) -> float:
    """Whatever others have granted."""
    return membership.quarantine


def _half_quarantine(life: Life, membership: Membership) -> float:
    return membership.quarantine / 2


def _everybody_counts(self: quorum.Votes, node: str, reply: quorum.Reply | Failure) -> None:
    """What replies say of incarnations is not kept."""
    _add_vote(self, node, reply)
    self._latest.clear()


def _known_since_first_sight(self: Life, peer: str, name: str, at: float, max_ttl: float) -> Life:
    return _accepted(self, peer, name, self.first_seen, max_ttl)


def _write_no_fences(self: LocalServer, name: str, learnt: Learnt) -> None:
    _write(self, name, Learnt(floor=learnt.floor, vector=learnt.vector))


def _write_no_floor(self: LocalServer, name: str, learnt: Learnt) -> None:
    _write(self, name, replace(learnt, floor=0))


def _learn_from_ghosts(self: Peers, helpers: Mapping[str, str], epoch: str) -> Learnt | None:
    """Nobody asks whether a helper was replaced."""
    with patch.object(peers, "merge", _merge_without_vector):
        return _learn(self, helpers, epoch)


def _merge_without_vector(known: Sequence[Learnt]) -> Learnt:
    return replace(_merge(known), vector={})


def _write_half_of_the_fences(self: Peers, helpers: Any, epoch: str) -> Learnt | None:
    """Asks one helper only."""
    return _learn(self, dict(list(helpers.items())[:1]), epoch)


def _reborn_at_the_wall_clock(record: Record, views: Any, wall_ms: int) -> Record:
    return replace(_reborn(record, views, wall_ms), floor=wall_ms)


def _born_unrested(record: Any, views: Any, *rest: Any, **more: Any) -> Record | None:
    return _decide_birth(record, {i: _rested(v) for i, v in views.items()}, *rest, **more)


def _rested(view: NodeView) -> NodeView:
    return replace(view, rested=True)


def _always_a_birth(record: Any, views: Any, *rest: Any, **more: Any) -> Record | None:
    """A total loss passes for a first start."""
    empty = all(not view.open for view in views.values())
    return _decide_birth(None if empty else record, views, *rest, **more)


def _by_the_wall_clock(self: Server, command: Sequence[str]) -> Any:
    """As if keys expired: the server's own wall clock decides."""
    if self.memory.get("lk:node", "life"):
        self.memory.put("lk:node", "tick", str(int(self.clocks.wall() * 1e6)))
    return _fcall(self, command)


_add_vote = quorum.Votes.add
_accepted = Life.accepted
_write = LocalServer.write
_learn = Peers.learn
_merge = learnt.merge
_reborn = registry._reborn
_decide_birth = registry.decide_birth
_fcall = Server._fcall

_CLOSED = """  if not node.open then
    return reply(node, 'CLOSED')
  end
  if node.epoch ~= epoch then
    return reply(node, 'EPOCH', node.epoch or '', redis.call('HMGET', NODE, 'members')[1] or '')
  end
  if not node.joined then
    return reply(node, 'CLOSED')
  end
"""

MUTANTS = [
    Mutant(
        "no recovery of F",
        replace(SCENE, scene="forgotten_token"),
        (Part(LocalServer, "write", _write_no_fences),),
    ),
    Mutant(
        "recovery of F from one helper",
        replace(SCENE, scene="forgotten_token"),
        (Part(Peers, "learn", _write_half_of_the_fences),),
    ),
    Mutant(
        "recovery without quarantine nor incarnations",
        replace(SCENE, scene="forgotten_lease"),
        (
            Part(life, "quarantine", _no_quarantine),
            Part(quorum.Votes, "add", _everybody_counts),
        ),
    ),
    Mutant(
        "quarantine shorter than the lease",
        replace(SCENE, scene="forgotten_lease"),
        (Part(life, "quarantine", _half_quarantine),),
    ),
    Mutant(
        "incarnations but no quarantine",
        replace(SCENE, scene="forgotten_lease"),
        (Part(life, "quarantine", _no_quarantine),),
    ),
    Mutant(
        "max_ttl lowered live",
        replace(SCENE, scene="lowered_ttl"),
        (Part(life, "quarantine", _own_quarantine),),
    ),
    Mutant(
        "old server alive, no incarnations",
        replace(SCENE, scene="ghost_votes"),
        (Part(quorum.Votes, "add", _everybody_counts),),
    ),
    Mutant(
        "announced after the quarantine",
        IN_THE_DARK,
        (Part(Life, "accepted", _known_since_first_sight),),
    ),
    Mutant(
        "a ghost helps to recover",
        replace(SCENE, scene="ghost_helps"),
        (
            Part(life, "outranked_peers", lambda views: {}),
            Part(Peers, "learn", _learn_from_ghosts),
        ),
    ),
    Mutant(
        "an outranked node stays as it is",
        USURPED,
        (Part(serving, "outranked", lambda own: False),),
    ),
    Mutant(
        "the same incarnation announced twice",
        replace(SCENE, scene="rivals"),
        (Text(ADMIN, "if incarnation <= known then", "if incarnation < known then"),),
    ),
    Mutant(
        "a node without memory votes",
        replace(SCENE, scene="flushed_nodes"),
        (Text(VOTE, _CLOSED, ""), Text(VOTE, "ttl <= node.max_ttl", "true")),
    ),
    Mutant(
        "no extra cap",
        replace(SCENE, scene="late_ticks", caps=(0.3, 0.5)),
        (Text(VOTE, "ttl + 2 * node.cap", "ttl"),),
    ),
    Mutant(
        "Redis TTL instead of ticks",
        replace(SCENE, scene="wall_clocks_jump"),
        (Part(Server, "_fcall", _by_the_wall_clock),),
    ),
    Mutant(
        "floor not recovered",
        replace(SCENE, scene="forgotten_floor"),
        (Part(LocalServer, "write", _write_no_floor),),
    ),
    Mutant(
        "floor not kept by forget",
        FORGETTING,
        (
            Text(
                ADMIN,
                "redis.call('HSET', NODE, 'floor', int(math.max(node.floor, lock.fence)))",
                "",
            ),
        ),
    ),
    Mutant(
        "after a total loss the wall clock is the floor",
        TOTAL_LOSSES,
        (Part(registry, "_reborn", _reborn_at_the_wall_clock),),
    ),
    Mutant(
        "a total loss is mended by nodes that did not rest",
        TOTAL_LOSSES,
        (Part(agent, "decide_birth", _born_unrested), Part(life, "quarantine", _no_quarantine)),
    ),
    Mutant(
        "a total loss passes for a first start",
        TOTAL_LOSSES,
        (Part(agent, "decide_birth", _always_a_birth),),
    ),
]
