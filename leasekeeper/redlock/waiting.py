"""The queue, as one who waits sees it: when its turn has come, and when it must not push in.

Each node keeps in the lock's hash who waits, in the order in which they came; whoever asks for a
held lock is in it from then on. A release calls the first one by name, on a channel of its own. So
one candidate wakes up, however many wait, and no vote is split:

    release at n  ──called, rank 0──▶  the first one sends its grant to n, and to each node as the
                                       release gets there: no gate, and nobody waits for a slow node
                  ──called, rank r──▶  a substitute looks after r × 10 ms: the first may be frozen
                  ──successor──▶       whoever gave the lock back stands at the end of the queue

Two who come at the same moment may stand in different orders on different nodes. So the word of one
node, the first in the order of the gate, counts at once; the others' only after a moment without
it. Whoever is called by nobody has the timer of its last look, as if there were no queue.

No safety rests on any of this: a call is a hint, and all that it causes is an attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from leasekeeper.redlock.quorum import LARGEST_TOKEN

SUBSTITUTES = 2
"""Who are called behind the first. One may be frozen together with it (a machine that stands still
has several candidates); three that are, are left to the timers."""

CALLERS = 2
"""How many nodes call substitutes, too. One may hang; each further call wakes a process up on the
way of the one that matters."""

SUBSTITUTE_PAUSE = 0.010
"""Seconds that a substitute leaves to the one before it: several hand-overs within a data
centre."""

COURTESY = 0.25
"""Seconds after which whoever gave the lock back looks whether somebody took it: far longer than a
hand-over with all substitutes, and short against a lease."""


@dataclass(frozen=True, slots=True)
class Call:
    """A node says that the lock is free there, and how many were called before us."""

    token: int
    """F of that node."""
    rank: int


def parse_call(message: bytes) -> Call | None:
    """None: nonsense; whoever has the lock's password may publish what it likes."""
    token, _, rank = message.partition(b" ")
    if not (token.isdigit() and rank.isdigit() and len(token) <= 16 and len(rank) <= 2):
        return None
    return Call(int(token), int(rank)) if int(token) < LARGEST_TOKEN else None


def look_in(call: Call, *, first_node: bool, patience: float) -> float:
    """How many seconds to leave to others before an attempt."""
    if call.rank > 0:
        return patience + SUBSTITUTE_PAUSE * call.rank
    return 0.0 if first_node else patience


@dataclass(frozen=True, slots=True)
class Chance:
    """What an attempt begins with."""

    woken: bool
    """By a call; otherwise by a timer."""
    free_at: int | None
    """The highest token with which the lock was given back, if that is known."""
    free_nodes: tuple[str, ...]
    """If we were called first somewhere: all nodes that called us. Nobody has their entry."""


class Waiting:
    """What one candidate was told since its last attempt."""

    def __init__(self, first_node: str, patience: float) -> None:
        self.first_node = first_node
        """In the order of the gate: its word counts at once."""
        self.patience = patience
        """Seconds until a silent node is left aside."""
        self.freed = asyncio.Event()
        self.follow: Callable[[str], None] | None = None
        """An attempt that goes from node to node, as they become free."""
        self._own = 0
        self._free_at: int | None = None
        self._calls: dict[str, int] = {}
        """The rank with which each node called us."""
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def on_push(self, node: str, message: bytes) -> None:
        call = parse_call(message)
        if call is None or call.token <= self._own:
            return  # a call of a tenure before our own is answered
        self._free_at = max(self._free_at or 0, call.token)
        if self.follow is not None:
            self.follow(node)
            return
        self._calls[node] = call.rank
        first_node = node == self.first_node
        self._wake_in(look_in(call, first_node=first_node, patience=self.patience))

    def _wake_in(self, seconds: float) -> None:
        if self.freed.is_set():
            return
        if seconds <= 0:
            self.freed.set()
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = loop.call_later(seconds, self.freed.set)

    def begin(self) -> Chance:
        """For the next attempt; calls from now on are for the one after it, or to be followed."""
        first = 0 in self._calls.values()
        free_nodes = tuple(self._calls) if first else ()
        chance = Chance(self.freed.is_set(), self._free_at, free_nodes)
        self.forget()
        return chance

    def won(self, token: int) -> None:
        self._own = token
        self.forget()

    def gave_back(self, token: int) -> None:
        self._own = token
        self._free_at = token

    def forget(self) -> None:
        self.freed.clear()
        self._free_at = None
        self._calls.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
