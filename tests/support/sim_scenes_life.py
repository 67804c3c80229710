"""Scenes of a node's life and of its time (docs/protocol.md, "Mutants"), with three nodes."""

from __future__ import annotations

from sim_candidate import Seat
from sim_net import Pod
from sim_stage import Called, Scene, Stage
from sim_world import LiesAboutItsEpoch, timings_for


class LifeScenes(Stage):
    def _won_without(self, x: Seat, y: Seat, c: Pod) -> Scene:
        """Y has led on all nodes; X wins the next token without C, and is gone."""
        y.start()
        yield self._leads(y)
        yield Called("lk1_renew", c, y, "OK")
        self._stop(y)
        yield lambda: not self._leads(y)()
        self._cut(x, c)
        x.start()
        yield self._leads(x)
        self._kill(x)

    def _loses_its_network(self, x: Seat, b: Pod, c: Pod) -> Scene:
        """X leads without C, and is cut off when B has renewed."""
        self._cut(x, c)
        x.start()
        yield self._leads(x)
        yield Called("lk1_renew", b, x, "OK")
        yield 0.01  # so that X hears of it
        self._cut(x, None)

    def _recovers(self, node: Pod) -> Scene:
        self.crash(node, 0.01)
        yield 0.05
        yield self._is_open(node)

    def forgotten_token(self) -> Scene:
        """X wins on A and B only. A loses its memory and recovers, and votes with C, which has
        never heard of X's token; of those who help A it is the one that is asked first.
        """
        (a, *helpers), (x, y, *_) = self._nodes(), self._seats()
        c, b = sorted(helpers, key=lambda pod: pod.node)
        yield from self._won_without(x, y, c)
        yield from self._recovers(a)
        self._cut(y, b)
        y.start()
        yield self._leads(y)

    def flushed_nodes(self) -> Scene:
        """Somebody flushes A and C, and their agents do not see it for a while. (One alone would
        not be enough: the others know a later incarnation of it than it does.)
        """
        (a, b, c), (x, y, *_) = self._nodes(), self._seats()
        x.start()
        yield self._leads(x)
        for pod in (a, c):
            for agent in pod.agents:
                agent.pause(self._lease)
            self.flush(pod)
        self._cut(y, b)
        y.start()
        yield 0.3

    def forgotten_lease(self) -> Scene:
        """X leads on A and B and loses its network; A loses its memory. Y comes when A is open."""
        (a, b, c), (x, y, *_) = self._nodes(), self._seats()
        yield from self._loses_its_network(x, b, c)
        yield from self._recovers(a)
        self._cut(y, b)
        y.start()
        yield self._leads(y)

    def lowered_ttl(self) -> Scene:
        """The same, but A's agent has a file in which leases are half as long, and so is the
        quarantine; Y is content with such a lease.
        """
        (a, b, c), (x, y, *_) = self._nodes(), self._seats()
        half = self._sim.membership.max_ttl / 2
        self._sim.files[a.node] = LiesAboutItsEpoch.of(self._sim.membership, half)
        y.timings = timings_for(half, tight=True)
        for agent in list(a.agents):
            agent.die()
        self._sim.start_agent(a)
        yield from self._loses_its_network(x, b, c)
        yield from self._recovers(a)
        self._cut(y, b)
        y.start()
        yield self._leads(y)

    def ghost_votes(self) -> Scene:
        """X leads on A and B. A is replaced, but X goes on with the old server; the new one votes
        with C for Y.
        """
        (a, b, c), (x, y, *_) = self._nodes(), self._seats()
        self._cut(x, c)
        x.start()
        yield self._leads(x)
        self._astray(x.name)
        self.replace(1000.0, a)
        yield self._is_open(self._network.pods[a.node])
        self._cut(y, b)
        y.start()
        yield self._leads(y)

    def _astray(self, *hosts: str) -> None:
        """From now on these find ghosts, and nobody else does."""
        everybody = [pod.host for pod in self._network.pods.values()]
        everybody += [seat.name for seat in self._sim.seats]
        self._network.led_astray = {host: float(host in hosts) for host in (*everybody, *hosts)}

    def rivals(self) -> Scene:
        """The old server of A loses its memory, too, so that two begin a life as A at the same
        moment. X finds one of them, and B; Y finds the other, and C.
        """
        (a, b, c), (x, y, *_) = self._nodes(), self._seats()
        self._astray(y.name)
        for agent in list(a.agents):
            agent.die()
        self.replace(1000.0, a)
        new = self._network.pods[a.node]
        for agent in list(new.agents):
            agent.die()
        self._new_life(a)
        for agent in list(a.agents):
            agent.die()
        for pod in (a, new):
            self._sim.start_agent(pod, within=0.002)
        yield lambda: self._is_open(a)() or self._is_open(new)()
        yield 0.3
        self._cut(x, c)
        self._cut(y, b)
        x.start()
        y.start()
        yield 0.3

    def ghost_helps(self) -> Scene:
        """A was replaced and is open. X wins on A and B only; B loses its memory, and asks the old
        server of A, and C.
        """
        (a, b, c), (x, y, *_) = self._nodes(), self._seats()
        y.start()
        yield self._leads(y)
        yield Called("lk1_renew", c, y, "OK")
        self._astray(b.host)
        self.replace(1000.0, a)
        yield self._is_open(self._network.pods[a.node])
        yield from self._won_without(x, y, c)
        self.crash(b, 0.01)
        yield 1.6
        self._cut(y, self._network.pods[a.node])
        y.start()
        yield 0.3

    def forgotten_floor(self) -> Scene:
        """Before there was any token, two nodes lost their memory, one after the other."""
        (a, b, c), (x, *_) = self._nodes(), self._seats()
        yield from self._recovers(a)
        yield from self._recovers(b)
        self._cut(x, c)
        x.start()
        yield self._leads(x)

    def late_ticks(self) -> Scene:
        """All agents stand still between two renewals of X, and count that time after the second.
        Then X loses its network.
        """
        x, y, *_ = self._seats()
        x.start()
        yield self._leads(x)
        yield 0.3
        yield Called("lk1_renew", seat=x, said="OK")
        for pod in self._network.pods.values():
            for agent in pod.agents:
                agent.pause(0.27 * self._lease)
        yield 0.15
        yield Called("lk1_renew", seat=x, said="OK")
        yield 0.01
        self._cut(x, None)
        yield 0.8
        y.start()
        yield 0.4

    def wall_clocks_jump(self) -> Scene:
        """X loses its network; then the nodes' wall clocks jump ahead."""
        x, y, *_ = self._seats()
        x.start()
        yield self._leads(x)
        self._cut(x, None)
        for pod in self._network.pods.values():
            pod.clocks.wall_offset += 3 * self._lease
        y.start()
        yield 0.3
