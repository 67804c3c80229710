"""A whole ensemble with its agents and its candidates, made from a seed, and one schedule of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from sim_agent import AgentProcess, MemoryRegistry, substituted
from sim_candidate import Seat, World
from sim_kernel import RATE_SPREAD, Kernel, MachineClocks
from sim_lua import machine
from sim_net import Network, OnExecute, Pod, Server
from sim_referee import Referee

from leasekeeper.lease import Timings
from leasekeeper.redlock import functions
from leasekeeper.redlock.membership import DRIFT, Membership, Node
from leasekeeper.redlock.registry import Record, birth_arguments
from leasekeeper.redlock.serving import LOOK
from leasekeeper.redlock.transport import LONGEST_PAUSE

LOCK = "ns/lock"


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What kind of schedules are made. A mutant has one of its own, which looks for it where it
    hurts.
    """

    nodes: Sequence[int] = (3, 3, 3, 5)
    candidates: Sequence[int] = (2, 2, 3)
    leases: Sequence[float] = (1.0, 1.0, 2.0)
    caps: Sequence[float] = (0.12, 0.25, 0.5)
    """C, in leases."""
    tight: float = 0.7
    """How often the deadline is as near to the lease's end as it may be."""
    seconds: tuple[float, float] = (2.0, 7.0)
    """How long faults happen, in leases: a node that loses its memory at once is back after two or
    three, and can be asked for help by the next."""
    faults: tuple[int, int] = (3, 12)
    weights: Mapping[str, float] = field(default_factory=dict)
    """Of the faults; none: the usual ones (sim_faults)."""
    moments: Sequence[str] = ()
    """Of the protocol, at which faults aim; none: all of them (sim_faults)."""
    scene: str = ""
    """What is played beside the faults (sim_scenes); it begins with nobody on the stage."""
    wild: float = 0.15
    """How often clocks run as they like: then only what rests on no clock is checked."""
    born: float = 0.9
    """How often the ensemble is open at the start; otherwise it has its birth before it."""
    late: float = 0.3
    """How often messages are late all the time, and not only when a fault makes them so."""
    long_leases: float = 0.0
    """How often one candidate wants a longer lease than the nodes keep."""


USUAL = Profile()
LONGER = replace(USUAL, seconds=(3.0, 9.0))
LARGE = replace(
    USUAL, nodes=(3, 5, 5, 7), candidates=(3, 4, 5), seconds=(10.0, 30.0), faults=(6, 25)
)


@dataclass(frozen=True)
class Outcome:
    seed: str
    violations: Sequence[str]
    tenures: int
    seconds: float
    trace: Sequence[str]
    seen: Counter[str]
    """What happened, and how often."""


class Simulation:
    def __init__(
        self,
        seed: str,
        profile: Profile,
        *,
        sources: Mapping[str, str] | None = None,
        traced: bool = False,
    ) -> None:
        self.kernel = kernel = Kernel(seed, traced=traced)
        self.dice = dice = kernel.dice
        random.seed(seed)  # the product's own jitter
        self.profile = profile
        self.wild = dice.random() < profile.wild
        self.lease = dice.choice(profile.leases)
        self.machine = machine(sources or {})
        self.network = Network(kernel)
        self.network.straggle = self.lease * dice.choice([0.2, 1.0, 2.0])
        if dice.random() < profile.late:
            self.base_late = (dice.choice([0.05, 0.3]), self.lease * dice.choice([0.1, 0.5]))
            self.network.late, self.network.latest = self.base_late
        self.membership = _membership(
            dice.choice(profile.nodes), self.lease, round(dice.choice(profile.caps), 3)
        )
        self.registry = MemoryRegistry(kernel.seen)
        self.referee = Referee(kernel, self.network, LOCK, self.membership)
        self.referee.timed = not self.wild
        self.referee.floor = lambda: self.registry.record.floor if self.registry.record else 0
        self.world = World(kernel, self.network, self.referee, self.membership, LOCK)
        self.agents: list[AgentProcess] = []
        self.on_execute: OnExecute = lambda *_: None
        """Told of what a node function was asked, and what it said."""
        self.files: dict[str, Membership] = {}
        """By node: the list that its agent is started with, if it is not the one in use."""
        self.slowest = self.membership.quarantine
        """The longest quarantine of any list that there was."""
        for node in self.membership.nodes:
            self.network.pods[node.id] = self.new_pod(node.id)
        if dice.random() < profile.born:
            self._open_all()
        for pod in self.network.pods.values():
            if pod.server is None:
                self.start_server(pod)
            self.start_agent(pod)
        self.seats = [self._seat(n) for n in range(dice.choice(profile.candidates))]
        if not profile.scene:
            for seat in self.seats:
                kernel.after(dice.random() * 0.3, seat.start)

    def clocks(self) -> MachineClocks:
        clocks = MachineClocks(self.kernel, RATE_SPREAD)
        if self.wild:
            clocks.rate = clocks.boot_rate = self.dice.choice([0.3, 0.8, 1.0, 1.0, 1.5, 4.0])
        return clocks

    def new_pod(self, node: str) -> Pod:
        return Pod(node, self.kernel.fresh(f"host{node}."), self.clocks())

    def start_server(self, pod: Pod) -> None:
        pod.server = Server(self.kernel, pod, self.machine, self._executed)
        self.kernel.say(pod.server.name, f"started, {pod.server.run_id}")

    def start_agent(self, pod: Pod, within: float = 0.05) -> AgentProcess:
        known = self.files.get(pod.node, self.membership)
        agent = AgentProcess(self.kernel, self.network, pod, known, self.registry, within)
        self.agents.append(agent)
        self.kernel.say(agent.name, "started")
        return agent

    def _seat(self, number: int) -> Seat:
        dice, lease, membership = self.dice, self.lease, None
        if number == 0 and dice.random() < self.profile.long_leases:
            lease *= 2
            membership = LiesAboutItsEpoch.of(self.membership, lease)
        timings = timings_for(lease, tight=dice.random() < self.profile.tight)
        return Seat(self.world, f"c{number}", self.clocks(), timings, membership=membership)

    def _open_all(self) -> None:
        """As a birth leaves them, without the time that it takes."""
        lives = {}
        for pod in self.network.pods.values():
            self.start_server(pod)
            assert pod.server is not None
            lives[pod.node] = self.kernel.fresh("life")
            memory, cap = pod.server.memory, str(round(self.membership.cap * 1e6))
            memory.load(functions.ADMIN)
            memory.load(functions.VOTE)
            memory.fcall("lk1_enter", None, lives[pod.node], cap, pod.server.run_id, pod.node)
        epoch, *members = self.membership.to_arguments()
        record = Record(1, int(self.clocks().wall() * 1000), 0, lives, epoch)
        self.registry.record = record
        for pod in self.network.pods.values():
            assert pod.server is not None
            memory = pod.server.memory
            arguments = birth_arguments(record, self.membership, pod.node)
            memory.fcall("lk1_birth", None, *arguments)
            memory.fcall("lk1_open", None, lives[pod.node], epoch, *members, "1")

    def _executed(
        self, server: Server, name: str, args: Sequence[str], reply: Sequence[str]
    ) -> None:
        if name == "lk1_open":
            self.referee.look_at_fences()
        if name == "lk1_enter" and reply[0] == "OK":
            server.highest = 0  # a new life
        self.referee.look_at_fence(server)
        self.referee.on_event(name)
        self.on_execute(server, name, args, reply)

    # -- the end ---------------------------------------------------------------------------------

    def settled(self) -> bool:
        return (
            bool(self.referee.leading())
            and self.registry.record is not None
            and self.registry.record.pending is None
            and all(self._votes(node.id) for node in self.membership.nodes)
            and all(seat.process and seat.process.settled for seat in self.seats)
        )

    def _votes(self, node: str) -> bool:
        server = self.network.pods[node].server
        return server is not None and server.votes_by(self.membership)

    def patience(self) -> float:
        """How long after the last fault somebody must lead, at the latest, on the slowest clock."""
        life = self.slowest + 2.0  # looks at the peers, a call that times out
        look = LOOK + life  # a survivor of a total loss learns of it, and begins a new life
        if len(self.referee.lists) > 1:
            look += 2 * life + 2 * LOOK  # a change to its end; who is overdue looks twice
        expiry = self.lease + 2.5 * self.membership.cap
        return (look + life + expiry + 3 * LONGEST_PAUSE + self.lease) / (1 - RATE_SPREAD)

    def wait_until_settled(self) -> None:
        end = self.kernel.now + self.patience() * (4 if self.wild else 1)
        while not self.settled():
            if self.kernel.now >= end:
                self.referee.violation(self._unsettled())
                return
            if self.referee.violations:
                return
            for seat in self.seats:
                seat.start()  # if it was about to stop when the faults ended
            self.kernel.run(self.kernel.now + 0.1)

    def _unsettled(self) -> str:
        states = [
            f"{seat.name}: {seat.process.elector.state.value}"
            for seat in self.seats
            if seat.process and seat.process.elector
        ]
        opened = [pod.node for pod in self.network.pods.values() if pod.server and pod.server.open]
        return f"starved: leading {self.referee.leading()}, nodes open {opened}, {states}"

    def tear_down(self) -> None:
        for seat in self.seats:
            if seat.process is not None:
                seat.process.kill()
        for agent in self.agents:
            agent.die()
        self.kernel.forget()


class LiesAboutItsEpoch(Membership):
    """Believes in longer or shorter leases than the others, and names their epoch."""

    __slots__ = ()

    @classmethod
    def of(cls, membership: Membership, max_ttl: float) -> Membership:
        liar = type("Liar", (cls,), {"epoch": membership.epoch, "__slots__": ()})
        made: Membership = liar(
            nodes=membership.nodes,
            max_ttl=max_ttl,
            quarantine=max_ttl * (1 + DRIFT) + 0.001,
            cap=membership.cap,
        )
        return made


@lru_cache(maxsize=64)
def _membership(nodes: int, lease: float, cap: float) -> Membership:
    return Membership(
        nodes=tuple(Node(str(i), str(i), 1) for i in range(nodes)),
        max_ttl=lease,
        quarantine=lease * (1 + DRIFT) + 0.001,
        cap=round(lease * cap, 6),
    )


@lru_cache(maxsize=16)
def timings_for(lease: float, *, tight: bool) -> Timings:
    end = Timings(lease_duration=lease, renew_deadline=lease / 2, retry_period=lease / 4).lease_end
    return Timings(
        lease_duration=lease,
        renew_deadline=end - 0.001 if tight else lease * 0.7,
        retry_period=lease / 4,
    )


def run_schedule(
    seed: str,
    profile: Profile = USUAL,
    *,
    sources: Mapping[str, str] | None = None,
    traced: bool = False,
) -> Outcome:
    from sim_scenes import Scenes

    with substituted():
        simulation = Simulation(seed, profile, sources=sources, traced=traced)
        try:
            Scenes(simulation).run()
            if not simulation.referee.violations:
                simulation.wait_until_settled()
            for agent in simulation.agents:
                if agent.error is not None:
                    simulation.referee.violation(f"{agent.name} ended: {agent.error!r}")
        finally:
            simulation.referee.on_event = lambda _: None
            simulation.tear_down()
    kernel, referee = simulation.kernel, simulation.referee
    return Outcome(
        seed, referee.violations, referee.tenures, kernel.now, kernel.trace or [], kernel.seen
    )
