"""Changes of membership at any moment, with all the other faults: the real coordinator, in a
process of its own, that is killed, paused, started again, and runs twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sim_agent import AgentProcess
from sim_faults import Faults
from sim_net import Pod
from sim_world import Simulation

from leasekeeper.redlock.coordinator import Change, Coordinator
from leasekeeper.redlock.membership import DRIFT, LARGEST, Membership, Node
from leasekeeper.redlock.registry import Record

FOR_EVER = 1e9


class CoordinatorProcess(AgentProcess):
    """`leasekeeper change-membership`, on a machine of its own."""

    def __init__(self, simulation: Simulation, wanted: Change) -> None:
        self._wanted = wanted
        super().__init__(
            simulation.kernel,
            simulation.network,
            simulation.new_pod("coordinator"),
            wanted.old,
            simulation.registry,
        )

    def _main(self, *_: object) -> None:
        try:
            Coordinator(self._wanted, lambda line: self.kernel.say(self.name, line)).run()
            self.kernel.say(self.name, "the change is through")
        except Exception as error:  # noqa: BLE001  the root of a process
            self.error = error
        self.alive = False


class MembershipFaults(Faults):
    _change: Change | None = None
    _coordinators: list[CoordinatorProcess]
    _next_node = 100

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self._coordinators = []
        simulation.registry.on_swap = self._on_swap

    # -- faults ----------------------------------------------------------------------------------

    def change_membership(self) -> None:
        """One at a time; a second one begins only when the first is through."""
        record = self._sim.registry.record
        if self._change is not None or record is None or record.generation == 0:
            return
        self._happens("change_membership")
        kinds: list[Callable[[Membership], Membership]] = [
            self._replaced,
            self._replaced,
            self._mostly_replaced,
            self._grown,
            self._shrunk,
            self._retimed,
        ]
        old = self._sim.membership
        new = replace(self._dice.choice(kinds)(old), number=old.number + 1)
        self._prepare(new)
        if self._dice.random() < 0.5:  # somebody hands out the new file first
            self._sim.files |= {node.id: new for node in old.nodes}
        self._kernel.after(self._span(1.0), self._start_coordinator)

    def kill_coordinator(self) -> None:
        if self._joining() and self._too_few_remember(self._sim.membership):
            return  # see `_would_be_total`
        for process in self._coordinating():
            self._happens("kill_coordinator")
            process.die()
            self._kernel.after(self._span(0.5), self._see_to_the_change)

    def pause_coordinator(self) -> None:
        for process in self._coordinating():
            self._happens("pause_coordinator")
            process.pause(self._span(1.5))

    def second_coordinator(self) -> None:
        if self._coordinating():
            self._happens("second_coordinator")
            self._start_coordinator()

    # -- the new list ----------------------------------------------------------------------------

    def _replaced(self, old: Membership, count: int = 1) -> Membership:
        out = self._dice.sample(old.nodes, count)
        stay = [node for node in old.nodes if node not in out]
        return replace(old, nodes=(*stay, *self._new_nodes(count)))

    def _mostly_replaced(self, old: Membership) -> Membership:
        """A quorum of the new list is new: it has nobody to learn from."""
        return self._replaced(old, old.quorum)

    def _grown(self, old: Membership) -> Membership:
        if len(old.nodes) + 2 > LARGEST:
            return self._shrunk(old)
        return replace(old, nodes=(*old.nodes, *self._new_nodes(2)))

    def _shrunk(self, old: Membership) -> Membership:
        if len(old.nodes) < 5:
            return self._grown(old)
        return replace(old, nodes=tuple(self._dice.sample(old.nodes, len(old.nodes) - 2)))

    def _retimed(self, old: Membership) -> Membership:
        """Longer leases or shorter ones (never shorter than the candidates'), another C."""
        longest = self._dice.choice([self._lease, self._lease * 1.5, self._lease * 2])
        cap = self._dice.choice([old.cap, round(self._lease * 0.2, 6), round(self._lease * 0.4, 6)])
        return replace(old, max_ttl=longest, quarantine=longest * (1 + DRIFT) + 0.001, cap=cap)

    def _new_nodes(self, count: int) -> list[Node]:
        """The coordinator's own names are not used twice: a node that is out stays out."""
        found = []
        for _ in range(count):
            self._next_node += 1
            found.append(Node(str(self._next_node), str(self._next_node), 1))
        return found

    # -- how it goes on --------------------------------------------------------------------------

    def _prepare(self, new: Membership) -> None:
        """What is to be done, and the nodes that come to it; nobody does it yet."""
        old = self._sim.membership
        self._kernel.say("FAULTS", f"from {sorted(old.ids)} to {sorted(new.ids)}")
        self._change = Change(
            old=old, new=new, registry=self._sim.registry, password=str, patience=FOR_EVER
        )
        self._sim.referee.lists[new.epoch] = new
        for node in new.nodes:
            if node.id not in self._network.pods:
                self._sim.files[node.id] = new
                pod = self._sim.new_pod(node.id)
                self._network.pods[node.id] = pod
                self._sim.start_server(pod)
                self._sim.start_agent(pod)

    def _start_coordinator(self) -> None:
        if self._change is not None:
            process = CoordinatorProcess(self._sim, self._change)
            self._coordinators.append(process)
            self._sim.agents.append(process)  # ended with the others, and asked for errors

    def _coordinating(self) -> list[CoordinatorProcess]:
        return [process for process in self._coordinators if process.alive]

    def _see_to_the_change(self) -> None:
        if not self._coordinating():
            self._start_coordinator()

    def _on_swap(self, record: Record) -> None:
        self._sim.referee.on_event("swap")
        change = self._change
        if change is None or record.epoch != change.new.epoch:
            return
        self._kernel.seen["change of membership"] += 1
        self._sim.membership = change.new
        self._sim.slowest = max(self._sim.slowest, change.new.quarantine)
        self._change = None
        self._kernel.after(4 * self._lease, self._hand_out_the_list)
        for node in change.new.nodes:
            self._sim.files.pop(node.id, None)
        if self._dice.random() < 0.5:
            self._sim.world.membership = change.new  # candidates that start now have it

    # -- what the protocol assumes ---------------------------------------------------------------

    def _joining(self) -> bool:
        record = self._sim.registry.record
        return record is not None and record.pending is not None and record.pending.joining

    def _would_be_total(self) -> bool:
        """From `joining` until the change is through, a total loss of either list would leave
        nobody who can tell who has voted: that needs a person (docs/protocol.md, §6).
        """
        lists = [self._sim.membership]
        if self._change is not None and self._joining():
            lists.append(self._change.new)
        return any(self._too_few_remember(one, 1) for one in lists)

    def _too_few_remember(self, membership: Membership, more: int = 0) -> bool:
        """Whether fewer than Q remember, or would if so many more forgot."""
        servers = [self._network.pods[id].server for id in membership.ids]
        without = sum(server is None or not server.open for server in servers)
        return without + more > len(membership.nodes) - membership.quorum

    def _may_lose_memory(self) -> bool:
        return not (self._joining() and self._would_be_total()) and super()._may_lose_memory()

    def crash(self, pod: Pod | None = None, down: float | None = None) -> None:
        if not (self._joining() and self._would_be_total()):
            super().crash(pod, down)

    def _heal(self) -> None:
        super()._heal()
        self._see_to_the_change()

    def _hand_out_the_list(self) -> None:
        """Whoever has not followed, because too many of its nodes are gone, is given the new list
        by people, and started with it.
        """
        current = self._sim.membership
        self._sim.world.membership = current
        for seat in self._sim.seats:
            process = seat.process
            if process is not None and process.alive and process.membership != current:
                self._kernel.seen["candidate: was given the new list"] += 1
                process.kill()
                self._kernel.after(self._span(), seat.start)
