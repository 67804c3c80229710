"""Faults that go together: schedules that are known to hurt when a protection is missing. Chance
alone finds them too, but after hours.
"""

from __future__ import annotations

from sim_candidate import CandidateProcess, Seat
from sim_faults import Faults
from sim_net import Pod


class ScriptedFaults(Faults):
    def replace_in_the_dark(self) -> None:
        """The new agent reaches its peers only after longer than a quarantine, and the leader has
        the votes of the old server and of too few others to do without it.
        """
        before = len(self._sim.agents)
        self.replace()
        for agent in self._sim.agents[before:]:
            span = self._lease * self._dice.uniform(1.0, 1.6)
            self._network.cut(agent.name, "*", span)
            leading = self._sim.referee.leading()
            for seat in self._sim.seats:
                if seat.process is not None and seat.name in leading:
                    self._network.cut(seat.process.name, self._pod().node, span + self._lease)
                elif seat.process is not None:
                    self._break_channels_of(seat.process)

    def _break_channels_of(self, process: CandidateProcess) -> None:
        for channel in self._network.channels:
            if channel.client is process:
                channel.break_off()

    def rivals(self) -> None:
        """Both the old server and the new one begin a new life at the same time."""
        before = dict(self._network.pods)
        self.replace()
        for node, pod in before.items():
            if self._network.pods[node] is not pod:
                self._new_life(pod)

    def late_vote(self) -> None:
        """One candidate's requests to one node are on their way for long; nodes are early."""
        process = self._candidate()
        if process is not None and self._sim.wild:
            span = self._lease * self._dice.uniform(0.1, 1.0)
            self._network.cut(process.name, self._pod().node, span)
            for _ in range(self._dice.randint(1, 5)):
                self._kernel.after(span * self._dice.random(), self.early)

    def slow_winner(self) -> None:
        """The leader is gone; whoever wins next has not heard of one node, whose time, and that of
        a second one, runs ahead. Another wins on those two, and then the request arrives.
        """
        leading = self._sim.referee.leading()
        old = [seat for seat in self._sim.seats if seat.name in leading and seat.process]
        rest = [seat for seat in self._sim.seats if seat not in old and seat.process]
        if not self._sim.wild or not old or not rest:
            return
        winner, *others = self._dice.sample(rest, len(rest))
        deaf, hasty = self._dice.sample(list(self._network.pods.values()), 2)
        unit = self._lease * self._dice.uniform(0.02, 0.2)
        assert winner.process is not None
        self._network.cut(winner.process.name, deaf.node, 4 * unit)
        for seat in others:
            assert seat.process is not None
            seat.process.kill()
        for seat in old:
            assert seat.process is not None
            seat.process.stop()
        self._kernel.after(unit, self.early, hasty)
        self._kernel.after(unit * self._dice.uniform(2, 4), self.early, deaf)
        for seat in (*others, *old):
            self._kernel.after(unit * 1.1, seat.start)

    def late_repair(self) -> None:
        """The leader's entry is missing on one node, and its repair is on the way for long. By the
        time it arrives another one has won there, and has given the lock back.
        """
        leading = self._sim.referee.leading()
        old = [seat for seat in self._sim.seats if seat.name in leading and seat.process]
        if not self._sim.wild or not old or old[0].process is None:
            return
        leader, pod = old[0].process, self._pod()
        unit = self._lease * self._dice.uniform(0.1, 0.2)
        self.early(pod)
        # The renewal that is under way has arrived by then, and what it finds is repaired later.
        self._kernel.after(0.004, self._network.cut, leader.name, pod.node, 4 * unit)
        self._kernel.after(0.02, leader.pause, 6 * unit)
        for each in self._network.pods.values():
            self._kernel.after(unit, self.early, each)
        for seat in self._sim.seats:
            if seat is not old[0] and seat.process is not None:
                seat.process.kill()
                self._kernel.after(unit * 1.1, seat.start)
                self._kernel.after(unit * 2.5, self._stop, seat)

    def _stop(self, seat: Seat) -> None:
        if seat.process is not None:
            seat.process.stop()

    def long_suspend(self) -> None:
        """About as long as a lease: its owner wakes up when others may have taken over."""
        if process := self._candidate():
            process.pause(self._lease * self._dice.uniform(0.6, 1.1), suspend=True)

    def die_while_releasing(self) -> None:
        if process := self._candidate():
            process.stop()
            # The file says no, and all nodes but the last were told.
            process.fuse = len(self._network.pods)
            self._kernel.after(self._lease * 0.01, process.kill)
            self._kernel.after(self._lease * self._dice.uniform(0.01, 0.1), process.seat.start)

    def lonely(self) -> None:
        """The leader has lost one node for longer than a lease; a second one loses its memory, and
        the leader hears of nobody any more.
        """
        for seat in self._sim.seats:
            if seat.process is not None and seat.name in self._sim.referee.leading():
                lost, crashed = self._dice.sample(list(self._network.pods.values()), 2)
                name = seat.process.name
                self._network.cut(name, lost.node, 3 * self._lease)
                later = self._lease * self._dice.uniform(1.1, 1.5)
                self._kernel.after(later, self.crash, crashed)
                self._kernel.after(later, self._network.cut, name, "*", 2 * self._lease)

    def one_after_the_other(self) -> None:
        """Two nodes lose their memory, the second when the first has recovered."""
        first, second = self._dice.sample(list(self._network.pods.values()), 2)
        self.crash(first)
        recovered = self._sim.membership.quarantine * 1.1 + 1.2
        self._kernel.after(recovered, self.crash, second)

    def slow_then_dead(self) -> None:
        """The leader sees the answers to its renewal late, and dies with what it made of them."""
        if process := self._candidate():
            span = self._lease * self._dice.uniform(0.1, 0.22)
            process.pause(span)
            self._kernel.after(span * 1.05, process.kill)
            self._kernel.after(2 * self._lease, process.seat.start)

    def haunt(self) -> None:
        """A node is replaced and recovers; a token is won on it and on a second node, which then
        loses its memory, and may ask the old server what it has forgotten.
        """
        before = dict(self._network.pods)
        self.replace(longest=1000.0)
        rest = [pod for node, pod in before.items() if self._network.pods[node] is pod]
        if len(rest) == len(before):
            return
        second, third = self._dice.sample(rest, 2)
        recovered = self._sim.membership.quarantine * 1.1 + 1.2
        for channel in self._network.channels:
            self._kernel.after(recovered, channel.break_off)
        self._kernel.after(recovered, self._network.cut, "*", third.node, self._lease)
        self._kernel.after(recovered + 0.2 * self._lease, self.step_down)
        self._kernel.after(recovered + 0.8 * self._lease, self.crash, second)

    def usurper(self) -> None:
        """An old server begins a new life when its successor is open, and is gone soon after; then
        another node needs the successor's help.
        """
        before = dict(self._network.pods)
        self.replace(longest=1000.0)
        for node, ghost in before.items():
            if self._network.pods[node] is not ghost:
                other = next(pod for id, pod in before.items() if id != node)
                recovered = self._sim.membership.quarantine * 1.1 + 1.2
                self._kernel.after(recovered, self._new_life, ghost)
                self._kernel.after(recovered + 0.8, self._end_of, ghost)
                self._kernel.after(recovered + 1.0, self.crash, other)

    def _new_life(self, pod: Pod) -> None:
        if pod.server is not None:
            pod.server.die()
            self._sim.start_server(pod)
            if not pod.agents:
                self._sim.start_agent(pod)
