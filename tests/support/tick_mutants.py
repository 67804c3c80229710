"""Mutants of a node's time alone, in a world that has nothing else in it (tick_world)."""

from __future__ import annotations

from typing import Any

from tick_world import CAP, SimulatedAgent

from leasekeeper.redlock import functions
from leasekeeper.redlock.ticker import TickRule


def substituted(library: str, old: str, new: str) -> dict[str, str]:
    source = functions.library(library)
    assert source.count(old) == 1, f"{old!r} must stand once in {library}"
    return {library: source.replace(old, new)}


NO_CAP = substituted(
    functions.ADMIN,
    "math.max(0, math.min(math.floor(delta), tonumber(values[3])))",
    "math.floor(delta)",
)
ONE_CAP = substituted(functions.VOTE, "ttl + 2 * node.cap", "ttl + node.cap")
NO_EXTRA_CAP = substituted(functions.VOTE, "ttl + 2 * node.cap", "ttl")
NO_CHECK = substituted(functions.ADMIN, "if values[1] ~= nonce then", "if false then")


class SameNonce(SimulatedAgent):
    """Keeps its nonce when it connects again, so that a tick that was given up still counts."""

    _own: str | None = None

    def nonce(self) -> str:
        self._own = self._own or super().nonce()
        return self._own


class CountsFromRegistration(SimulatedAgent):
    """Takes the time since before its registration was answered for its own."""

    def first_ref(self) -> int:
        return self.registered_from


class TicksInFlight(SimulatedAgent):
    """Does not wait for an answer before the next tick."""

    def tick(self) -> None:
        super().tick()
        self.busy = False


class Forgiving(TickRule):
    """As TickRule, without the assertion that one tick is in flight."""

    def send(self, now: int) -> int:
        if self._sent is not None:
            self._ref, self._sent = self._sent, None
        return super().send(now)

    def answered(self, now: int) -> None:
        if self._sent is not None:
            super().answered(now)


class OtherCap(SimulatedAgent):
    """A restarted agent brings another C to a node that is open: now a larger one, now the old."""

    def give_up(self) -> None:
        node = self.world.node
        cap = 4 * CAP if node.get("lk:node", "cap") == str(CAP) else CAP
        node.call("HSET", "lk:node", "cap", str(cap))
        super().give_up()


BUDGET = 2500  # schedules in which a control must be caught; the baseline runs more than twice that

CONTROLS: dict[str, dict[str, Any]] = {  # with the first seed that caught it, when it was written
    "no cap in the function": {"sources": NO_CAP},  # 22
    "one extra cap only": {"sources": ONE_CAP},  # 16
    "no extra cap": {"sources": NO_EXTRA_CAP},  # 1
    "no registration check": {"sources": NO_CHECK},  # 1
    "same nonce after a time-out": {"agent": SameNonce},  # 89
    "counted from before the registration's answer": {"agent": CountsFromRegistration},  # 16
    "more than one tick in flight": {"agent": TicksInFlight, "rule": Forgiving},  # 79
    "another cap while open": {"agent": OtherCap},  # 486
}
