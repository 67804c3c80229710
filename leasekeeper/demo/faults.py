"""Everything that can be done to the world by hand or by chaos, each with a sentence that explains
it. What a cluster would mend by itself (a killed process) is mended after a while; the rest stays
until it is undone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from leasekeeper.demo.looks import Looks
from leasekeeper.demo.world import LocalCandidate, LocalNode, World

HOUR = 3600


@dataclass(frozen=True, slots=True)
class Kind:
    """One thing that can be done, as keys and buttons offer it."""

    name: str
    key: str
    label: str
    target: str
    """`candidate`, `node`, or nothing."""


KINDS = (
    Kind("kill", "k", "kill", "candidate"),
    Kind("freeze", "f", "freeze", "candidate"),
    Kind("thaw", "t", "thaw", "candidate"),
    Kind("cut", "c", "cut off", "candidate"),
    Kind("heal", "h", "heal", "candidate"),
    Kind("step-down", "s", "step down", "candidate"),
    Kind("kill-node", "n", "kill node", "node"),
    Kind("clock", "w", "wall clock", "node"),
    Kind("kill-all-nodes", "a", "kill all nodes", ""),
)
BY_NAME = {kind.name: kind for kind in KINDS}
REPAIRS = {"thaw", "heal"}

# What chaos does, and how often in relation to the others. All memory lost is the rarest in life.
CHANCES = {
    "kill": 4,
    "freeze": 4,
    "cut": 4,
    "step-down": 2,
    "kill-node": 4,
    "clock": 2,
    "kill-all-nodes": 1,
}


class Stage(Protocol):
    """Who tells people, keeps the time, and knows who leads."""

    def say(self, event: str, sentence: str, **fields: object) -> None: ...

    def later(self, seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None: ...

    @property
    def leader(self) -> str: ...


class Faults:
    def __init__(self, world: World, looks: Looks, stage: Stage) -> None:
        self._world = world
        self.looks = looks
        self._stage = stage
        self._next_node = 0
        self.count = 0

    async def cause(self, name: str, target: str = "") -> str:
        """Does it, and says so. The target may be left out: the leader, or the next node; for
        repairs everybody. The answer is a complaint, or nothing.
        """
        kind = BY_NAME.get(name)
        if kind is None:
            return f"there is no {name!r}; there are: {', '.join(BY_NAME)}"
        if kind.target == "node":
            found = self._node(target)
            return await self._to_node(name, found) if found else f"there is no node {target!r}"
        if kind.target == "candidate":
            return await self._to_candidates(name, target)
        self._fault(name, "", _all_nodes_sentence(self._stage.leader))
        for node in self._world.nodes:
            self._kill_server(node)
        return ""

    async def by_chance(self, dice: random.Random) -> None:
        """One fault on whoever leads, or on a node; what does not mend itself is undone later."""
        possible = [n for n in CHANCES if n != "clock" or self.clocks_can_be_stepped]
        name = dice.choices(possible, [CHANCES[n] for n in possible])[0]
        node = dice.choice(self._world.nodes).name
        leader = self._stage.leader
        target = {"node": node, "candidate": leader, "": ""}[BY_NAME[name].target]
        await self.cause(name, target)
        undo = {"freeze": "thaw", "cut": "heal"}.get(name)
        if undo is not None:
            self._stage.later(2 * self._world.lease, lambda: self._undo(undo, leader))

    @property
    def clocks_can_be_stepped(self) -> bool:
        return self._world.nodes[0].wall_clock.can_be_stepped

    # -- candidates ------------------------------------------------------------------------------

    async def _to_candidates(self, name: str, target: str) -> str:
        if not target and name in REPAIRS:
            for candidate in self._world.candidates:
                if candidate.frozen if name == "thaw" else candidate.name in self._world.cuts:
                    await self._undo(name, candidate.name)
            return ""
        wanted = target or self._stage.leader
        if not wanted:
            return "nobody leads just now; choose a candidate"
        found = [c for c in self._world.candidates if c.name == wanted]
        if not found:
            return f"there is no candidate {wanted!r}"
        if name in REPAIRS:
            await self._undo(name, wanted)
        elif not found[0].sidecar.running:
            return f"{wanted} is not running; its replacement comes soon"
        elif name == "step-down":
            return await self._step_down(wanted)
        else:
            {"kill": self._kill, "freeze": self._freeze, "cut": self._cut}[name](found[0])
        return ""

    def _kill(self, candidate: LocalCandidate) -> None:
        name, lease = candidate.name, self._world.lease
        leads = name == self._stage.leader
        candidate.kill()
        why = (
            f"nobody else can win before its lease of {lease:g} s has run out at the nodes"
            if leads
            else "it did not lead, so nothing else happens"
        )
        self._fault("kill", name, f"{name} is killed: {why}")
        self._stage.later(2 * lease, lambda: self._replace(candidate))

    async def _replace(self, candidate: LocalCandidate) -> None:
        if not candidate.sidecar.running:
            candidate.start()
            self._stage.say(
                "replaced", f"{candidate.name} is back, as a new pod", target=candidate.name
            )

    def _freeze(self, candidate: LocalCandidate) -> None:
        candidate.freeze()
        name = candidate.name
        leads = name == self._stage.leader
        why = "its file says yes until its deadline, and no longer: that is written in the file"
        self._fault("freeze", name, f"{name} is frozen: {why if leads else 'it did not lead'}")

    def _cut(self, candidate: LocalCandidate) -> None:
        name = candidate.name
        self._world.cuts.cut(name)
        why = (
            "it cannot renew, so it stops at its deadline, before anybody else can win"
            if name == self._stage.leader
            else "it can win nothing until that is healed"
        )
        self._fault("cut", name, f"{name} is cut off from all nodes: {why}")

    async def _step_down(self, name: str) -> str:
        told = await asyncio.to_thread(self.looks.ask_to_step_down, name)
        if not told:
            return f"{name} does not lead: there is nothing to step down from"
        sentence = (
            f"{name} is asked to step down, by a word at {told} nodes: it hears of it at its next"
            " renewal, stops, and gives the lock to the first who waits"
        )
        self._fault("step-down", name, sentence)
        return ""

    async def _undo(self, name: str, target: str) -> None:
        candidate = next(c for c in self._world.candidates if c.name == target)
        # By its file, and before it can write another one.
        leads = any(reading.pod == target for reading in self._world.readings())
        if name == "thaw" and candidate.frozen:
            candidate.thaw()
            then = (
                "its deadline is still ahead, and it leads on"
                if leads
                else "its file says no by now, and it stands by"
            )
            sentence = f"{target} goes on where it was frozen: {then}"
        elif name == "heal" and target in self._world.cuts:
            self._world.cuts.heal(target)
            then = (
                "its deadline is still ahead, and it leads on"
                if leads
                else "what it sent meanwhile arrives now, too late, and it stands by"
            )
            sentence = f"{target} is connected again: {then}"
        else:
            return
        self._stage.say("repair", sentence, repair=name, target=target)

    @property
    def _survivor(self) -> str:
        """Whom the loss of a node does not concern: who leads, if nothing else is wrong with it."""
        leader = self._stage.leader
        for candidate in self._world.candidates:
            if candidate.name == leader and candidate.sidecar.running and not candidate.frozen:
                return leader if leader not in self._world.cuts else "the election"
        return "the election"

    # -- nodes -----------------------------------------------------------------------------------

    def _node(self, name: str) -> LocalNode | None:
        if name:
            return next((n for n in self._world.nodes if n.name == name), None)
        self._next_node += 1
        return self._world.nodes[(self._next_node - 1) % len(self._world.nodes)]

    async def _to_node(self, name: str, node: LocalNode) -> str:
        if name == "clock":
            return self._step_clock(node)
        if not node.server.running:
            return f"node {node.name} is down already; it restarts soon"
        self._kill_server(node)
        others = sum(n.server.running for n in self._world.nodes)
        enough = others >= self._world.membership.quorum
        goes_on = (
            f"{others} others are left, a majority, so {self._survivor} goes on"
            if enough
            else f"only {others} are left: no majority, nobody can renew or win"
        )
        sentence = f"node {node.name} is killed, and its memory with it: {goes_on}"
        self._fault("kill-node", node.name, sentence)
        return ""

    def _kill_server(self, node: LocalNode) -> None:
        if node.server.running:
            node.server.kill()
            self._stage.later(self._world.lease / 3, lambda: _restart(node))

    def _step_clock(self, node: LocalNode) -> str:
        if not node.wall_clock.can_be_stepped:
            return "a wall clock is stepped by a small C library, and here is no C compiler"
        step = 0 if node.wall_clock.step else HOUR
        node.wall_clock.set(step)
        where = "an hour ahead" if step else "back to the present"
        sentence = (
            f"the wall clock of node {node.name} jumps {where}: nothing happens, because nodes"
            " count leases in ticks of their own, and no wall clock has a say"
        )
        self._fault("clock", node.name, sentence)
        return ""

    def _fault(self, name: str, target: str, sentence: str) -> None:
        self.count += 1
        self._stage.say("fault", sentence, fault=name, target=target)


async def _restart(node: LocalNode) -> None:
    if not node.server.running:
        node.server.start()


def _all_nodes_sentence(leader: str) -> str:
    who = f"{leader} leads on until its deadline" if leader else "nobody leads"
    return (
        f"all nodes are killed, and every memory of the lock with them: {who}, and nobody can win"
        " before the nodes have waited out the longest lease they may have granted"
    )
