"""Scenes: one story with its roles given out, told from top to bottom as a generator. It yields
what it waits for:

    0.5             so much time, in leases
    a function      until it says yes
    Called(...)     until a node has carried out such a call

Chance alone finds these stories too, but after hours, and after every change of the dice in another
schedule. What remains to chance is who plays which part, how clocks run, how long messages take,
and the faults beside it. On the real core a scene comes to its end as well, and nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sim_candidate import Seat
from sim_net import Channel, Pod, Server
from sim_scripts import ScriptedFaults

LOOK = 0.001  # seconds between two looks at a condition
PATIENCE = 3.0  # seconds and leases after which a scene is given up: some fault was in its way


@dataclass(frozen=True)
class Called:
    """A node function was called, by this seat, and the node said so."""

    function: str
    node: Pod | None = None
    seat: Seat | None = None
    said: str = ""

    def fits(self, server: Server, name: str, args: Sequence[str], reply: Sequence[str]) -> bool:
        return (
            name == self.function
            and (self.node is None or server is self.node.server)
            and (self.seat is None or args[1].startswith(f"{self.seat.name}/"))
            and (not self.said or reply[0] == self.said)
        )


Step = float | Callable[[], bool] | Called
Scene = Iterator[Step]


class Stage(ScriptedFaults):
    _scene: Scene
    _step = 0
    _over = False

    def _play(self) -> None:
        if name := self._sim.profile.scene:
            self._scene = getattr(self, name)()
            self._kernel.after(0.01, self._go_on)

    def _go_on(self) -> None:
        if self._over:
            return
        self._step += 1
        self._sim.on_execute = lambda *_: None
        step = next(self._scene, None)
        if step is None:
            self._happens(self._sim.profile.scene)
            self._curtain()
            return
        given_up = PATIENCE * (1 + self._lease)
        self._kernel.after(given_up, self._give_up, self._step)
        if isinstance(step, Called):
            self._sim.on_execute = lambda *call: self._look_at_call(step, *call)
        elif isinstance(step, float | int):
            self._kernel.after(step * self._lease, self._go_on)
        else:
            self._look(step)

    def _look(self, condition: Callable[[], bool]) -> None:
        if self._over or condition():
            self._go_on()
        else:
            self._kernel.after(LOOK, self._look, condition)

    def _look_at_call(
        self, step: Called, server: Server, name: str, args: Sequence[str], reply: Sequence[str]
    ) -> None:
        if step.fits(server, name, args, reply):
            self._sim.on_execute = lambda *_: None
            self._kernel.after(0.0, self._go_on)

    def _give_up(self, step: int) -> None:
        if step == self._step and not self._over:
            self._kernel.say("FAULTS", "the scene is given up")
            self._curtain()

    def _curtain(self) -> None:
        self._over = True
        self._end = self._kernel.now
        self._kernel.stopped = True

    def _heal(self) -> None:
        self._over = True
        super()._heal()

    # -- what scenes are made of -----------------------------------------------------------------

    def _nodes(self) -> list[Pod]:
        return self._dice.sample(list(self._network.pods.values()), len(self._network.pods))

    def _seats(self) -> list[Seat]:
        return self._dice.sample(self._sim.seats, len(self._sim.seats))

    def _leads(self, seat: Seat) -> Callable[[], bool]:
        return lambda: seat.name in self._sim.referee.leading()

    def _is_open(self, node: Pod) -> Callable[[], bool]:
        return lambda: node.server is not None and node.server.open

    def _cut(self, seat: Seat, node: Pod | None, leases: float = 1000.0) -> None:
        self._network.cut(seat.name, node.node if node else "*", leases * self._lease)

    def _kill(self, seat: Seat) -> None:
        if seat.process is not None:
            seat.process.kill()

    def _channels(self, seat: Seat, node: Pod) -> list[Channel]:
        return [
            channel
            for channel in self._network.channels
            if channel.open and channel.client is seat.process and channel.server is node.server
        ]
