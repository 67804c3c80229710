"""What can go wrong, and when: each kind by its name, so that a schedule can be made of some.

Faults come in clusters, because what breaks a protocol is one fault in the middle of another; half
of them wait for a moment of the protocol (an attempt, a vote, a release) instead of a time.
"""

from __future__ import annotations

from collections.abc import Callable

from sim_candidate import CandidateProcess
from sim_net import Pod
from sim_world import LOCK, Simulation

from leasekeeper.redlock.registry import NOT_A_TOKEN

USUAL_WEIGHTS = {
    "crash": 3,
    "flush": 0.5,
    "replace": 2,
    "total_loss": 0.4,
    "pause_server": 1.5,
    "pause_agent": 2,
    "pause_candidate": 3,
    "suspend_candidate": 1,
    "reset": 2,
    "cut": 2,
    "storm": 2,
    "kill_agent": 1,
    "twin": 1,
    "kill_candidate": 3,
    "stop_candidate": 2,
    "step_down": 4,
    "wall_step": 1,
    "forget": 0.5,
    "early": 2,
    "change_membership": 1.5,
    "kill_coordinator": 0.7,
    "pause_coordinator": 0.4,
    "second_coordinator": 0.2,
}
MOMENTS = ("acquire", "lk1_grant", "lk1_commit", "won", "renew", "release", "lk1_release")
OTHER = "ns/other"
LIFE_MOMENTS = ("lk1_announce", "lk1_dump", "lk1_open", "lk1_raise", "lk1_join", "swap")


class Faults:
    def __init__(self, simulation: Simulation) -> None:
        self._sim = simulation
        self._kernel = simulation.kernel
        self._dice = simulation.dice
        self._network = simulation.network
        self._lease = simulation.lease
        self._aimed: dict[str, list[tuple[int, Callable[[], None]]]] = {}
        self._requests = 0
        self._end = 0.0

    def run(self) -> None:
        sim, dice, profile = self._sim, self._dice, self._sim.profile
        self._end = self._lease * dice.uniform(*profile.seconds)
        weights = profile.weights or USUAL_WEIGHTS
        kinds, numbers = list(weights), list(weights.values())
        centres = [dice.uniform(0.5, self._end) for _ in range(dice.randint(1, 4))]
        for _ in range(dice.randint(*profile.faults)):
            fault = getattr(self, dice.choices(kinds, numbers)[0])
            if dice.random() < 0.5:
                usual = LIFE_MOMENTS if dice.random() < 0.25 else MOMENTS
                moments = profile.moments or usual
                aimed = self._aimed.setdefault(dice.choice(moments), [])
                aimed.append((dice.choice([0, 1, 2, 3, 5, 8, 13, 30]), fault))
            else:
                spread = self._lease * dice.choice([0.02, 0.2, 1.0])
                when = abs(dice.choice(centres) + dice.gauss(0, spread))
                self._kernel.at(min(when, self._end), self._if_time_is_left, fault)
        sim.referee.on_event = self._on_event
        self._play()
        self._kernel.run(self._end)
        sim.referee.on_event = lambda _: None
        if not sim.referee.violations:
            self._kernel.stopped = False
            self._heal()

    def _play(self) -> None:
        """What goes on beside the faults (sim_scenes)."""

    def _on_event(self, moment: str) -> None:
        aimed = self._aimed.get(moment)
        if not aimed:
            return
        later = []
        for countdown, fault in aimed:
            if countdown:
                later.append((countdown - 1, fault))
            else:  # not at once: whoever is at work here finishes its step
                delay = self._dice.choice([0.0, 0.0, 0.001, 0.003, 0.02])
                self._kernel.after(delay, self._if_time_is_left, fault)
        self._aimed[moment] = later

    def _if_time_is_left(self, fault: Callable[[], None]) -> None:
        if self._kernel.now < self._end:
            fault()

    def _happens(self, fault: str) -> None:
        """Called where a fault has an effect: many find nobody whom they could hurt."""
        self._kernel.seen[f"fault: {fault}"] += 1

    def _span(self, longest: float = 1.0) -> float:
        """Some time, in leases, up to `longest`; no fault lasts longer than the time for faults."""
        scale = self._dice.choice([0.01, 0.1, 0.5, 1.0, 1.0])
        span = self._lease * longest * scale * self._dice.random()
        return min(span, max(0.0, self._end - self._kernel.now))

    def _heal(self) -> None:
        """Whatever still goes wrong, ends; who is dead, comes back."""
        self._kernel.say("FAULTS", "end")
        self._network.heal()
        for ghosts in self._network.ghosts.values():
            for ghost in list(ghosts):
                self._end_of(ghost)
        for pod in self._network.pods.values():
            if pod.server is None or not pod.server.alive:
                self._sim.start_server(pod)
            if not pod.agents:
                self._sim.start_agent(pod)
        for seat in self._sim.seats:
            if seat.process is not None:
                seat.process.fuse = None
            seat.start()

    # -- nodes -----------------------------------------------------------------------------------

    def _pod(self) -> Pod:
        return self._dice.choice(list(self._network.pods.values()))

    def _may_lose_memory(self) -> bool:
        """Without clocks, the promise is that at most N − Q nodes are without memory at a time."""
        return not self._sim.wild or not self._would_be_total()

    def _would_be_total(self) -> bool:
        pods = self._network.pods.values()
        without = sum(1 for pod in pods if pod.server is None or not pod.server.open)
        members = self._sim.membership
        return without >= len(members.nodes) - members.quorum

    def _exorcise(self) -> None:
        """After a total loss old servers are really gone: that is an assumption of the protocol."""
        if self._would_be_total():
            for ghosts in self._network.ghosts.values():
                for ghost in list(ghosts):
                    self._end_of(ghost)

    def crash(self, pod: Pod | None = None, down: float | None = None) -> None:
        """`down`: seconds until it is started again; some time, where nothing is said."""
        if pod is not None or self._may_lose_memory():
            pod = pod or self._pod()
            if pod.server is not None:
                self._happens("crash")
                self._exorcise()
                self._kernel.say(pod.server.name, "crashes")
                pod.server.die()
                pod.server = None
                seconds = self._span(0.3) if down is None else down
                self._kernel.after(seconds, self._restart, pod)

    def _restart(self, pod: Pod) -> None:
        if pod.server is None:
            self._sim.start_server(pod)

    def total_loss(self) -> None:
        if not self._sim.wild:
            self._happens("total_loss")
            for pod in self._network.pods.values():
                self._kernel.after(self._span(0.2), self.crash, pod)

    def flush(self, pod: Pod | None = None) -> None:
        pod = pod or self._pod()
        if pod.server is not None and self._may_lose_memory():
            self._happens("flush")
            self._exorcise()
            self._kernel.say(pod.server.name, "FLUSHALL")
            pod.server.memory.flush()
            pod.server.highest = 0

    def replace(self, longest: float = 5.0, ghost: Pod | None = None) -> None:
        """A new pod takes the node's name; the old one still runs, and some still find it."""
        members = self._sim.membership
        haunted = {node for node, ghosts in self._network.ghosts.items() if ghosts}
        ghost = ghost or self._pod()
        # With a quorum of old servers there would be two ensembles, and nobody could tell.
        too_many = len(haunted | {ghost.node}) > len(members.nodes) - members.quorum
        if too_many or self._would_be_total():
            return
        self._happens("replace")
        self._kernel.say("FAULTS", f"node {ghost.node} is replaced; its old server still answers")
        self._network.ghosts.setdefault(ghost.node, []).append(ghost)
        if self._dice.random() < 0.4:
            for agent in list(ghost.agents):
                agent.die()
        pod = self._sim.new_pod(ghost.node)
        self._network.pods[ghost.node] = pod
        self._sim.start_server(pod)
        self._sim.start_agent(pod)
        self._kernel.after(self._span(longest), self._end_of, ghost)

    def _end_of(self, ghost: Pod) -> None:
        if ghost in self._network.ghosts[ghost.node]:
            self._network.ghosts[ghost.node].remove(ghost)
            for agent in list(ghost.agents):
                agent.die()
            if ghost.server is not None:
                self._kernel.say(ghost.server.name, "the ghost is gone")
                ghost.server.die()

    def pause_server(self) -> None:
        pod = self._pod()
        if pod.server is not None:
            self._happens("pause_server")
            pod.server.pause(self._span(1.5))

    def early(self, pod: Pod | None = None) -> None:
        """A node whose time runs ahead: what tokens must survive without any help of clocks."""
        pod = pod or self._pod()
        if self._sim.wild and pod.server is not None:
            self._happens("early")
            memory = pod.server.memory
            tick = int(memory.get("lk:node", "tick") or 0)
            memory.put("lk:node", "tick", str(tick + int(self._lease * 10e6)))
            self._kernel.say(pod.server.name, "its time jumps ahead")

    def forget(self) -> None:
        pods = list(self._network.pods.values())
        some = pods if self._dice.random() < 0.5 else [self._dice.choice(pods)]
        lock = self._dice.choice([LOCK, OTHER])
        for pod in some:
            if pod.reachable and pod.server is not None:
                self._happens("forget")
                if lock == OTHER:  # it has had more leaders than ours
                    above = pod.server.fence(LOCK) + self._dice.randint(1, 9)
                    pod.server.memory.put(f"lk:lock:{OTHER}", "fence", str(above))
                pod.server.execute(("FCALL", "lk1_forget", "0", lock, str(NOT_A_TOKEN)))

    # -- agents ----------------------------------------------------------------------------------

    def pause_agent(self) -> None:
        for agent in self._pod().agents:
            self._happens("pause_agent")
            agent.pause(self._span(1.5))

    def kill_agent(self) -> None:
        pod = self._pod()
        for agent in list(pod.agents):
            self._happens("kill_agent")
            agent.die()
        self._kernel.after(self._span(), self._sim.start_agent, pod)

    def twin(self) -> None:
        self._happens("twin")
        agent = self._sim.start_agent(self._pod())
        self._kernel.after(self._span(3.0), agent.die)

    def wall_step(self) -> None:
        machines = [pod.clocks for pod in self._network.pods.values()]
        machines += [seat.clocks for seat in self._sim.seats]
        self._happens("wall_step")
        clocks = self._dice.choice(machines)
        step = self._dice.choice([-1e6, -50, -1, 1, self._lease, 50, 1e6])
        clocks.wall_offset = max(1 - self._kernel.now, clocks.wall_offset + step)
        self._kernel.say("FAULTS", f"a wall clock steps by {step}")

    # -- the network -----------------------------------------------------------------------------

    def reset(self) -> None:
        channels = self._network.channels
        if channels:
            self._happens("reset")
            one = self._dice.choice(channels)
            scope = self._dice.random()
            for channel in list(channels):
                same = channel.client is one.client if scope < 0.5 else channel.server is one.server
                if channel is one or (scope < 0.8 and same):
                    channel.break_off()
            self._kernel.say("FAULTS", f"connections break, like {one.client.name}'s")

    def cut(self) -> None:
        self._happens("cut")
        node = self._pod().node
        host = self._dice.choice([*(seat.name for seat in self._sim.seats), self._pod().host])
        pair = self._dice.choice([(host, node), (host, "*"), ("*", node)])
        seconds = self._span()
        self._network.cut(*pair, seconds)
        self._kernel.say("FAULTS", f"{pair} cut off for {seconds:.3f}")

    def storm(self) -> None:
        """Messages are late for a while."""
        self._happens("storm")
        before = self._network.late, self._network.latest
        self._network.late = self._dice.choice([0.1, 0.5, 1.0])
        self._network.latest = self._lease * self._dice.choice([0.05, 0.3, 1.0])
        self._kernel.after(self._span(), self._calm, before)

    def _calm(self, before: tuple[float, float]) -> None:
        if self._kernel.now < self._end:
            self._network.late, self._network.latest = before

    # -- candidates ------------------------------------------------------------------------------

    def _candidate(self) -> CandidateProcess | None:
        """More often than not the one who leads."""
        leading = self._sim.referee.leading()
        seats = [seat for seat in self._sim.seats if seat.name in leading]
        if not seats or self._dice.random() < 0.4:
            seats = self._sim.seats
        process = self._dice.choice(seats).process
        return process if process is not None and process.alive else None

    def pause_candidate(self) -> None:
        if process := self._candidate():
            self._happens("pause_candidate")
            process.pause(self._span(1.5))

    def suspend_candidate(self) -> None:
        if process := self._candidate():
            self._happens("suspend_candidate")
            process.pause(self._span(1.5), suspend=True)

    def kill_candidate(self) -> None:
        if process := self._candidate():
            self._happens("kill_candidate")
            if self._dice.random() < 0.5:
                process.fuse = self._dice.randint(0, 9)
                self._kernel.after(self._span(), process.kill)
            else:
                process.kill()
            self._kernel.after(self._span(), process.seat.start)

    def stop_candidate(self) -> None:
        if process := self._candidate():
            self._happens("stop_candidate")
            self._kernel.say(process.name, "is asked to stop")
            process.stop()
            if self._dice.random() < 0.5:
                process.fuse = self._dice.randint(0, 6)
            self._kernel.after(self._span(), process.seat.start)

    def step_down(self) -> None:
        """The operator asks the holder to give up, on all nodes that it reaches."""
        self._requests += 1
        for pod in self._network.pods.values():
            if pod.server is not None and pod.server.alive and self._dice.random() < 0.8:
                memory = pod.server.memory
                if owner := memory.get(f"lk:lock:{LOCK}", "owner"):
                    self._happens("step_down")
                    request = f"{self._requests} step-down {owner}"
                    memory.put(f"lk:lock:{LOCK}", "request", request)
