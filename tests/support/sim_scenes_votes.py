"""Scenes of votes, attempts, deadlines and the order on the disk: the shortest schedules known that
break a protocol without one of its protections (docs/protocol.md, "Mutants"), with three nodes.
"""

from __future__ import annotations

from sim_stage import Called, Scene, Stage


class VoteScenes(Stage):
    def late_grant(self) -> Scene:
        """X wins without C, A is early, Y wins on A and C, C is early, and X's grant arrives there
        at last: X's next renewal finds its own entry on B and on C.
        """
        (a, b, c), (x, y, *_) = self._nodes(), self._seats()
        y.start()
        yield self._leads(y)
        x.start()
        yield lambda: len(self._channels(x, c)) > 0
        yield 0.05
        late = self._network.hold(x.name, c.node)
        self._stop(y)
        yield self._leads(x)
        self.early(a)
        self._cut(y, b)
        y.start()
        yield self._leads(y)
        self.early(c)
        late.let_go()
        yield 0.6

    def lost_again(self) -> Scene:
        """A and C are early, Y wins there and dies, A is early again: nobody has an entry there."""
        (a, b, c), (x, y, *_) = self._nodes(), self._seats()
        x.start()
        yield self._leads(x)
        yield Called("lk1_renew", b, x)
        yield 0.01
        self.early(a)
        self.early(c)
        self._cut(y, b)
        y.start()
        yield self._leads(y)
        self._kill(y)
        self.early(a)
        yield 0.6

    def late_commit(self) -> Scene:
        """B is early between X's grant and X's commit; Z wins the same token on B and C; C is
        early, and now X's grant and commit arrive there.
        """
        (a, b, c), (x, y, z, *_) = self._nodes(), self._seats()
        y.start()
        yield self._leads(y)
        x.start()
        yield 0.1
        late = self._network.hold(x.name, c.node)
        self._kill(y)
        for pod in self._network.pods.values():
            self.early(pod)
        yield Called("lk1_grant", b, x, "GRANTED")
        self.early(b)
        self._cut(z, a)
        z.start()
        yield self._leads(z)
        self.early(c)
        late.let_go()
        yield 0.2

    def called_twice(self) -> Scene:
        """Two who wait are told of the same release; when the first has won, all nodes are early,
        and the second comes with the same guess.
        """
        z, *others = self._seats()
        z.start()
        yield self._leads(z)
        for seat in others:
            seat.start()
        yield 0.2
        self._stop(z)
        yield lambda: any(self._leads(seat)() for seat in others)
        for pod in self._network.pods.values():
            self.early(pod)
        yield 0.1

    def older_attempt(self) -> Scene:
        """A grant of X's first attempt arrives when X leads by its second."""
        (_, _, c), (x, y, *_) = self._nodes(), self._seats()
        y.start()
        yield self._leads(y)
        late = self._network.hold(x.name, c.node)
        x.start()
        yield lambda: late.has("lk1_release")
        late.stop()
        for channel in self._channels(x, c):
            channel.reset()
        yield lambda: len(self._channels(x, c)) > 0
        self._stop(y)
        yield self._leads(x)
        yield Called("lk1_renew", c, x, "OK")
        late.let_go(1)
        yield 0.4

    def unsure(self) -> Scene:
        """X leads on A and B, and cannot reach B any more. Would it try anew, it would take its own
        entry on A, and give it back: for Y, who gets C as well.
        """
        (_, b, c), (x, y, *_) = self._nodes(), self._seats()
        self._cut(x, c)
        x.start()
        yield self._leads(x)
        yield Called("lk1_renew", b, x, "OK")
        self._cut(x, b, 1.0)
        yield 0.6
        self._cut(y, b)
        y.start()
        yield 0.5

    def broken_off(self) -> Scene:
        """X sleeps past its deadline, tries anew, and is stopped in the middle of it: its app still
        has the time up to the lease end. Y comes.
        """
        x, y, *_ = self._seats()
        x.start()
        yield self._leads(x)
        yield Called("lk1_renew", None, x, "OK")
        assert x.process is not None
        x.process.pause(0.75 * self._lease)
        yield Called("lk1_grant", None, x, "GRANTED")
        self._stop(x)
        yield 0.02
        y.start()
        yield 0.5

    def back_from_the_dead(self) -> Scene:
        """X is killed when its release is on its way, comes back at once, and would go on with its
        lease; then the release arrives.
        """
        x, y, *_ = self._seats()
        x.start()
        yield self._leads(x)
        y.start()
        yield 0.3
        late = [self._network.hold(x.name, node) for node in self._network.pods]
        self._stop(x)
        yield lambda: all(held.has("lk1_release") for held in late)
        self._kill(x)
        for held in late:
            held.stop()
        x.start()
        yield 0.1
        for held in late:
            held.let_go()
        yield 0.2

    def longer_than_the_nodes(self) -> Scene:
        """The first candidate believes in a lease of twice the length, and loses its network."""
        x, y, *_ = self._sim.seats
        x.start()
        yield 0.3
        self._cut(x, None, 3.0)
        yield 1.3
        y.start()
        yield 0.5

    def late_release(self) -> Scene:
        """X's release arrives when its lease has run out and Y leads."""
        x, y, *_ = self._seats()
        x.start()
        yield self._leads(x)
        late = [self._network.hold(x.name, node) for node in self._network.pods]
        self._stop(x)
        y.start()
        yield self._leads(y)
        for held in late:
            held.let_go()
        self._cut(y, None, 1.0)
        yield 0.1
        x.start()
        yield 0.3
