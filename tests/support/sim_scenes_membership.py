"""Scenes of a change of membership (spec/README.md, "Membership"): from A, B, C to others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sim_candidate import Seat
from sim_membership import MembershipFaults
from sim_net import Pod
from sim_stage import Called, Scene, Stage

from leasekeeper.redlock.membership import Membership, Node


class MembershipScenes(Stage, MembershipFaults):
    # -- what they are made of -------------------------------------------------------------------

    def _change_to(self, keep: Sequence[Pod], count: int = 0) -> list[Pod]:
        """The list will be these nodes, and so many new ones: they are returned. No coordinator
        runs yet.
        """
        old = self._sim.membership
        stay = [node for node in old.nodes if node.id in {pod.node for pod in keep}]
        come = self._new_nodes(count)
        self._prepare(replace(old, number=old.number + 1, nodes=(*stay, *come)))
        return [self._network.pods[node.id] for node in come]

    def _rested(self, nodes: Sequence[Pod]) -> Scene:
        for pod in nodes:
            yield (
                lambda pod=pod: (
                    pod.server is not None
                    and bool(  # type: ignore[misc]
                        pod.server.memory.get("lk:node", "rested")
                    )
                )
            )

    def _coordinate(self, *deaf: Pod) -> None:
        """A coordinator, for whom these nodes are cut off."""
        self._start_coordinator()
        self._deaf_to(*deaf)

    def _deaf_to(self, *deaf: Pod) -> None:
        host = self._coordinators[-1].host
        for pod in self._network.pods.values():
            self._network.cut(host, pod.node, 1000.0 if pod in deaf else 0.0)

    def _comes_with_the_new_list(self, seat: Seat) -> None:
        assert self._change is not None
        seat.membership = self._change.new
        seat.start()

    def _leads_without(self, seat: Seat, *nodes: Pod) -> Scene:
        for pod in nodes:
            self._cut(seat, pod)
        seat.start()
        yield self._leads(seat)
        yield Called("lk1_renew", None, seat, "OK")
        yield 0.01

    # -- scenes ----------------------------------------------------------------------------------

    def lease_of_the_old_list(self, killed: bool = False) -> Scene:
        """X leads on A and B, and loses its network. The list becomes C, D, E, which know nothing
        of it. Y comes with the new list.
        """
        (_a, _b, c), (x, y, *_) = self._nodes(), self._seats()
        new = self._change_to([c], 2)
        yield from self._rested(new)
        yield from self._leads_without(x, c)
        self._cut(x, None)
        self._coordinate()
        if killed:
            for _ in range(2):
                yield Called("lk1_raise")
            yield 0.01
            self._coordinators[-1].die()
            self._coordinate()
        self._comes_with_the_new_list(y)
        yield self._leads(y)

    def lease_of_the_old_list_and_a_kill(self) -> Scene:
        """The same, and the coordinator is killed in its wait, and started again."""
        return self.lease_of_the_old_list(killed=True)

    def token_of_the_old_list(self) -> Scene:
        """X wins on A and B, and is gone. D and E know nothing of its token, and C neither."""
        (_a, _b, c), (x, y, *_) = self._nodes(), self._seats()
        new = self._change_to([c], 2)
        yield from self._rested(new)
        yield from self._leads_without(x, c)
        self._kill(x)
        self._coordinate()
        self._comes_with_the_new_list(y)
        yield self._leads(y)

    def raised_and_forgotten(self) -> Scene:
        """A is raised, loses its memory and recovers from B and C, which the coordinator does not
        reach. Then it reaches B, too. X leads on A and C by the old list.
        """
        (a, b, c), (x, y, *_) = self._nodes(), self._seats()
        new = self._change_to([b], 2)
        yield from self._rested(new)
        self._coordinate(b, c)
        yield Called("lk1_raise", a)
        self.crash(a, 0.01)
        yield 0.05
        yield self._is_open(a)
        self._deaf_to(c)
        yield from self._leads_without(x, b)
        self._comes_with_the_new_list(y)
        yield self._leads(y)

    def forgotten_after_the_dump(self) -> Scene:
        """A and B are raised; A loses its memory when the new list votes. C heard of nothing."""
        (a, b, c), (x, y, *_) = self._nodes(), self._seats()
        new = self._change_to([b], 2)
        yield from self._rested(new)
        self._coordinate(c)
        for agent in c.agents:
            agent.pause(1000.0)  # or it would find out, and close the node
        yield Called("lk1_dump", a)
        yield lambda: self._change is None
        self.crash(a, 0.01)
        yield 0.05
        y.membership = self._sim.membership
        y.start()
        yield self._leads(y)
        x.membership = next(iter(self._sim.referee.lists.values()))
        self._cut(x, b)
        x.start()
        yield 3.0

    def old_nodes_help(self) -> Scene:
        """X wins on B and D by the new list. B loses its memory, and finds E, and A, which was
        raised, and is no member any more; D does not hear it. Y votes with B and E.
        """
        (_a, b, c), (x, y, *_) = self._nodes(), self._seats()
        d, e = self._change_to([b], 2)
        yield from self._rested([d, e])
        self._coordinate()
        yield lambda: self._change is None
        for pod in (b, d, e):
            yield self._is_open(pod)
        x.membership = y.membership = self._sim.membership
        yield from self._leads_without(x, e)
        self._kill(x)
        for pod in (c, d):
            self._network.cut(b.host, pod.node, 1000.0)
        self.crash(b, 0.01)
        yield 0.05
        self._cut(y, d)
        y.start()
        yield 2.5

    def joined_and_forgotten(self) -> Scene:
        """D and E are joined, X wins on them, and the coordinator is killed before it says so. D
        loses its memory; it is empty, and new to the next coordinator. Y votes with C and D.
        """
        (_a, _b, c), (x, y, *_) = self._nodes(), self._seats()
        d, e = self._change_to([c], 2)
        yield from self._rested([d, e])
        self._coordinate(c)
        x.membership = y.membership = self._change.new if self._change else None
        yield Called("lk1_join")
        yield Called("lk1_join")
        self._coordinators[-1].die()
        x.start()
        yield self._leads(x)
        self._kill(x)
        if self._change is None:
            return  # it was quicker
        Stage.crash(self, d, 0.01)
        yield Called("lk1_become", d)
        self._network.cut(d.host, e.node, 1000.0)  # or it would learn there
        yield from self._rested([d])
        self._coordinate()
        self._cut(y, e)
        y.start()
        yield 4.0

    def new_nodes_pass_for_lost_ones(self) -> Scene:
        """D and E have rested, and nobody has begun the change. X leads on A and B."""
        (_a, _b, c), (x, y, *_) = self._nodes(), self._seats()
        yield from self._leads_without(x, c)
        new = self._change_to([c], 2)
        self._comes_with_the_new_list(y)
        yield from self._rested(new)
        yield 3.0
        yield 3.0

    def raised_nodes(self) -> Scene:
        """Five nodes become three. X leads on A, B and C, and loses its network; C, D and E are
        raised.
        """
        (_a, _b, c, d, e), (x, y, *_) = self._nodes(), self._seats()
        yield from self._leads_without(x, d, e)
        self._cut(x, None)
        self._change_to([c, d, e])
        self._coordinate()
        self._comes_with_the_new_list(y)
        yield self._leads(y)

    def edited_list(self) -> Scene:
        """Somebody adds D and E to the file of some, and leaves its number as it is."""
        (a, b, c), (x, y, *_) = self._nodes(), self._seats()
        yield from self._leads_without(x, c)
        old = self._sim.membership
        edited: Membership = replace(old, nodes=(*old.nodes, *self._new_nodes(2)))
        for node in edited.nodes[3:]:
            self._stranger(node, edited)
        yield 2.5
        for pod in (a, b):
            self._cut(y, pod)
        y.membership = edited
        y.start()
        yield 2.0

    def _stranger(self, node: Node, file: Membership) -> None:
        self._sim.files[node.id] = file
        self._network.pods[node.id] = pod = self._sim.new_pod(node.id)
        self._sim.start_server(pod)
        self._sim.start_agent(pod)
