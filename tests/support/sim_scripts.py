"""Faults that go together: schedules that are known to hurt when a protection is missing. Chance
alone finds them too, but after hours.
"""

from __future__ import annotations

from functools import partial

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
            self._happens("replace_in_the_dark")
            span = self._lease * self._dice.uniform(1.0, 1.6)
            self._network.cut(agent.host, "*", span)
            leading = self._sim.referee.leading()
            for seat in self._sim.seats:
                if seat.process is not None and seat.name in leading:
                    self._network.cut(seat.name, self._pod().node, span + self._lease)
                elif seat.process is not None:
                    self._break_channels_of(seat.process)

    def _break_channels_of(self, process: CandidateProcess) -> None:
        for channel in self._network.channels:
            if channel.client is process:
                channel.break_off()

    def late_repair(self) -> None:
        """The leader's entry is missing on one node, and its repair is on the way for long. By the
        time it arrives another one has won there, and has given the lock back.
        """
        leading = self._sim.referee.leading()
        old = [seat for seat in self._sim.seats if seat.name in leading and seat.process]
        if not self._sim.wild or not old or old[0].process is None:
            return
        self._happens("late_repair")
        leader, pod = old[0].process, self._pod()
        unit = self._lease * self._dice.uniform(0.1, 0.2)
        self.early(pod)
        # The renewal that is under way has arrived by then, and what it finds is repaired later.
        self._kernel.after(0.004, self._network.cut, leader.host, pod.node, 4 * unit)
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
            self._happens("long_suspend")
            process.pause(self._lease * self._dice.uniform(0.6, 1.1), suspend=True)

    def slow_then_dead(self) -> None:
        """The leader sees the answers to its renewal late, and dies with what it made of them."""
        if process := self._candidate():
            self._happens("slow_then_dead")
            span = self._lease * self._dice.uniform(0.1, 0.22)
            process.pause(span)
            self._kernel.after(span * 1.05, process.kill)
            self._kernel.after(2 * self._lease, process.seat.start)

    def usurper(self) -> None:
        """An old server begins a new life when its successor is open, and is gone soon after; then
        another node needs the successor's help.
        """
        before = dict(self._network.pods)
        self.replace(longest=1000.0)
        for node, ghost in before.items():
            if self._network.pods[node] is not ghost:
                self._happens("usurper")
                other = next(pod for id, pod in before.items() if id != node)
                recovered = self._sim.membership.quarantine * 1.1 + 1.2
                for later, what, pod in (
                    (0.0, self._new_life, ghost),
                    (0.8, self._end_of, ghost),
                    (1.0, self.crash, other),
                ):  # none of it when the faults have ended, and with them the ghost
                    step = partial(what, pod)
                    self._kernel.after(recovered + later, self._if_time_is_left, step)

    def _new_life(self, pod: Pod) -> None:
        if pod.server is not None:
            pod.server.die()
            self._sim.start_server(pod)
            if not pod.agents:
                self._sim.start_agent(pod)
