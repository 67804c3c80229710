"""A world that tries to end one node's leases early: the real arithmetic of the agent, the real
functions of the node, and a schedule that delays, drops and doubles what it likes.

True time is a number that only the schedule moves. A connection keeps the order of its requests;
one that was given up still delivers what is on its way, whenever the schedule wants.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from lua_node import LuaNode

from leasekeeper.redlock import functions
from leasekeeper.redlock.ticker import TickRule

CAP = 100_000  # microseconds, as in a membership
EPOCH = "1-world"
MOST_AGENTS = 4


@dataclass
class Connection:
    """What is on its way to the node, and back."""

    nonce: str
    requests: deque[list[str]] = field(default_factory=deque)
    replies: deque[list[str]] = field(default_factory=deque)


@dataclass(frozen=True)
class Lease:
    granted: int
    ttl: int
    expires: int

    def ended_early(self, tick: int, now: int) -> bool:
        return tick >= self.expires and now < self.granted + self.ttl


class SimulatedAgent:
    """The agent's loop, cut into the steps between which anything may happen."""

    def __init__(self, world: World, rule: type[TickRule]) -> None:
        self.world = world
        self._rule_type = rule
        self.connect()

    def connect(self) -> None:
        """A new connection and a registration; the old one, if any, is left to itself."""
        self.connection = self.world.connect(self.nonce())
        self.rule: TickRule | None = None
        self.busy = True
        self.registered_from = self.world.now
        self.connection.requests.append(["lk1_register", "life", self.connection.nonce])

    def nonce(self) -> str:
        return self.world.fresh_nonce()

    def first_ref(self) -> int:
        """When the registration was answered: now."""
        return self.world.now

    def tick(self) -> None:
        assert self.rule is not None
        delta = self.rule.send(self.world.now * 1000)
        self.busy = True
        self.connection.requests.append(["lk1_tick", self.connection.nonce, str(delta)])

    def receive(self) -> None:
        self.connection.replies.popleft()
        self.busy = False
        if self.rule is None:
            self.rule = self._rule_type(cap=CAP / 1e6, registered=self.first_ref() * 1000)
        else:
            self.rule.answered(self.world.now * 1000)

    def give_up(self) -> None:
        """No answer came in time, or a new process took the agent's place."""
        self.connect()


class World:
    """One node, its agents, its leases."""

    def __init__(
        self,
        seed: int,
        *,
        sources: dict[str, str] | None = None,
        rule: type[TickRule] = TickRule,
        agent: type[SimulatedAgent] = SimulatedAgent,
    ) -> None:
        self._random = random.Random(seed)
        self._rule, self._agent = rule, agent
        self.now = 0
        # Multiples and fractions of the cap, because that is where the arithmetic has its edges.
        spans = [1, CAP // 10, CAP // 2, CAP - 1, CAP, 2 * CAP, 5 * CAP]
        self._spans = self._random.sample(spans, 3)
        self.node = LuaNode(sources)
        self.node.load(functions.VOTE)
        self.node.fcall("lk1_enter", "life", CAP, "run", "0")
        self.node.fcall("lk1_open", "life", EPOCH, "[]", 100 * CAP, 1)
        self._connections: list[Connection] = []
        self._nonces = 0
        self._leases: list[Lease] = []
        self._granted = 0
        self.agents = [agent(self, rule)]
        self.trace: list[str] = []

    def fresh_nonce(self) -> str:
        self._nonces += 1
        return f"nonce-{self._nonces}"

    def connect(self, nonce: str) -> Connection:
        connection = Connection(nonce)
        self._connections.append(connection)
        return connection

    def run(self, steps: int) -> str | None:
        """The trace of a schedule that ended a lease early; none: it did not succeed."""
        actions = [self._pass_time, self._grant, self._tick, self._deliver, self._receive]
        actions += [self._deliver_late, self._give_up, self._further_agent]
        actions += [
            self._quiet_turn,
            self._turn,
            self._late_tick,
            self._lost_tick,
            self._settle_one,
        ]
        weights: list[float] = []
        for _ in range(steps):
            # A taste of its own for every stretch of a schedule: late messages pile up in one of
            # them and arrive in the next, time stands still in one and flies in another.
            if not weights or self._random.random() < 0.1:
                weights = [self._random.choice([0, 0.2, 1, 4]) for _ in actions]
            self._random.choices(actions, weights)[0]()
            if early := self._early():
                return "\n".join([*self.trace, early])
        return None

    # Sequences of the steps below that are common in life, and rare in a random walk.

    def _settle_one(self) -> None:
        self._settle(self._random.choice(self.agents))

    def _settle(self, agent: SimulatedAgent) -> None:
        """All that an agent waits for is answered at once."""
        while agent.connection.requests:
            self._process([agent.connection])
        while agent.connection.replies:
            agent.receive()

    def _turn(self) -> None:
        agent = self._random.choice(self.agents)
        self._settle(agent)
        agent.tick()
        self._settle(agent)

    def _quiet_turn(self) -> None:
        self._pass_time()
        self._turn()

    def _late_tick(self) -> None:
        self._pass_time()
        self._tick()

    def _lost_tick(self) -> None:
        agent = self._random.choice(self.agents)
        self._settle(agent)
        self._pass_time()
        agent.tick()
        agent.give_up()
        self._settle(agent)

    # Single steps.

    def _pass_time(self) -> None:
        span = self._random.choice(self._spans)
        self.now += span
        self.trace.append(f"{self.now}: {span} later")

    def _tick(self) -> None:
        if able := [agent for agent in self.agents if agent.rule and not agent.busy]:
            agent = self._random.choice(able)
            agent.tick()
            self.trace.append(f"{self.now}: {agent.connection.nonce} sends its tick")

    def _deliver(self) -> None:
        """What an agent still waits for."""
        self._process([agent.connection for agent in self.agents])

    def _deliver_late(self) -> None:
        """What was given up."""
        awaited = [agent.connection for agent in self.agents]
        self._process([one for one in self._connections if all(one is not a for a in awaited)])

    def _process(self, connections: list[Connection]) -> None:
        if waiting := [connection for connection in connections if connection.requests]:
            connection = self._random.choice(waiting)
            request = connection.requests.popleft()
            reply = self.node.fcall(*request)
            connection.replies.append(reply)
            self.trace.append(f"{self.now}: node does {request}: {reply[:2]}")

    def _receive(self) -> None:
        if able := [agent for agent in self.agents if agent.connection.replies]:
            agent = self._random.choice(able)
            agent.receive()
            self.trace.append(f"{self.now}: {agent.connection.nonce} has its answer")

    def _grant(self) -> None:
        ttl = self._random.choice([1, CAP // 2, CAP, 2 * CAP, 5 * CAP])
        self._granted += 1
        key = f"lk:lock:ns/{self._granted}"
        reply = self.node.fcall("lk1_grant", EPOCH, f"x/{self._granted}", ttl, 0, key=key)
        assert reply[0] == "GRANTED"
        expires = int(self.node.get(key, "expires") or 0)
        self._leases.append(Lease(self.now, ttl, expires))
        self.trace.append(f"{self.now}: granted for {ttl}, expires at tick {expires}")

    def _give_up(self) -> None:
        agent = self._random.choice(self.agents)
        old = agent.connection.nonce
        agent.give_up()
        self.trace.append(f"{self.now}: {old} gives up, {agent.connection.nonce} connects")

    def _further_agent(self) -> None:
        if len(self.agents) < MOST_AGENTS:
            self.agents.append(self._agent(self, self._rule))
            self.trace.append(f"{self.now}: a further agent by mistake")

    def _early(self) -> str | None:
        tick = int(self.node.get("lk:node", "tick") or 0)
        for lease in self._leases:
            if lease.ended_early(tick, self.now):
                return f"{self.now}: tick {tick}: {lease} ended early"
        self._leases = [lease for lease in self._leases if tick < lease.expires]
        return None


def search(
    schedules: int, steps: int = 150, *, first: int = 0, **substitutions: Any
) -> tuple[int, str] | None:
    """The first seed whose schedule ends a lease early, with its trace; none in so many."""
    for seed in range(first, first + schedules):
        trace = World(seed, **substitutions).run(steps)
        if trace is not None:
            return seed, trace
    return None
