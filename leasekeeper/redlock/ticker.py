"""A node's time: a counter that its agent moves on, never faster than true time.

        S0                 S1        A1              S2           counted by tick 2:
        |------------------|---------|---------------|            S2 − ref, ref = max(S1, A1 − C)
        tick 0 sent        1 sent    1 answered      2 sent       and never more than C

A lease is written as expires = tick + ttl + 2C. Why it cannot end early: let a grant at true time
*a* read the counter after tick k, so that *a* is before tick k+1 is carried out, hence before its
answer A. Whatever ends the lease was counted, beyond the two caps, from ref ≥ A − C on; so it was
sent after A + ttl, which is after *a* + ttl. The two caps pay for tick k+1 itself (at most C, of a
time before the grant) and for the C by which ref may lie before A. In quiet times nothing is lost;
what a pause takes beyond C is lost for good, and the lease ends later. docs/protocol.md has more.

Three things make this true, and none of them may be taken away: the cap is applied by the node's
function (a tick may arrive as late as it likes); one tick is in flight at a time; and the nonce is
fresh for every connection, so that a tick that was given up is refused when it arrives after all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from leasekeeper.redlock.blocking import Reply

Nanoseconds = int


def raw_clock() -> Nanoseconds:
    """Not slewed by NTP, set by nobody. It stands still in a suspend: ticks are then late."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


def fresh_nonce() -> str:
    return os.urandom(8).hex()


class TickRule:
    """The arithmetic, and nothing else. All readings are of one clock, in nanoseconds."""

    __slots__ = ("_cap", "_ref", "_sent")

    def __init__(self, *, cap: float, registered: Nanoseconds) -> None:
        """`registered`: when the registration was *answered*; before that, time was not ours."""
        self._cap = int(cap * 1e9)
        self._ref = registered
        self._sent: Nanoseconds | None = None

    def send(self, now: Nanoseconds) -> int:
        """To be called right before the tick is sent: by how many microseconds, rounded down.
        It is the node's function that never adds more than the cap, in one place for all agents.
        """
        assert self._sent is None, "a tick is in flight"
        self._sent = now
        return (now - self._ref) // 1000

    def answered(self, now: Nanoseconds) -> None:
        """To be called right after its answer came. There is no call for "it did not come":
        the connection is dropped then, and this rule with it.
        """
        assert self._sent is not None, "no tick is in flight"
        self._ref = max(self._sent, now - self._cap)
        self._sent = None


class Caller(Protocol):
    def call(self, *command: str, timeout: float | None = None) -> Reply: ...


class Ticked(Enum):
    OK = auto()
    SUPERSEDED = auto()
    """Another nonce is registered: another agent has taken over, or the memory is another one."""
    CLOSED = auto()
    """The node counts, and is not open: somebody closed it, or it lost its memory."""


class Ticker:
    """The ticks of one connection, from its registration on."""

    def __init__(
        self,
        connection: Caller,
        *,
        cap: float,
        timeout: float,
        clock: Callable[[], Nanoseconds] = raw_clock,
    ) -> None:
        self._connection = connection
        self._cap = cap
        self._timeout = timeout
        self._clock = clock
        self._nonce = fresh_nonce()
        self._rule: TickRule | None = None
        self.value = 0
        """The node's counter, in microseconds, as of the last answer."""

    def register(self, life: str) -> bool:
        """Whether this memory still is the one we mean; from now on only our ticks count."""
        reply = self._connection.call("FCALL", "lk1_register", "0", life, self._nonce)
        answered = self._clock()
        if reply[0] != "OK":
            return False
        self._rule = TickRule(cap=self._cap, registered=answered)
        return True

    def tick(self) -> Ticked:
        """One tick. Raises Broken if no answer comes: then this ticker must not be used again."""
        assert self._rule is not None, "not registered"
        delta = self._rule.send(self._clock())
        reply = self._connection.call(
            "FCALL", "lk1_tick", "0", self._nonce, str(delta), timeout=self._timeout
        )
        self._rule.answered(self._clock())
        if reply[0] != "OK":
            return Ticked.SUPERSEDED
        self.value = int(reply[1])
        return Ticked.OK if reply[2] == "1" else Ticked.CLOSED
