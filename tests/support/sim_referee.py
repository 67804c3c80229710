"""What must be true in every schedule, checked on true time when it could become false.

*Always*, whatever clocks do: tokens are distinct, and larger than every token that was returned
before the attempt began; a renewal that began after a larger token was returned is not good; no
quorum of nodes forgets a token; nobody is deposed by fewer noes than it takes, nor by itself.

*While clocks keep to their allowance*: the claims of two candidates do not overlap, nobody wins
before the lease end that another was told, unless that one gave its lease back (from its deadline
on, this is its app's time to stop), and tokens are in the order of leading.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sim_kernel import Kernel, MachineClocks
from sim_net import Network, Server

from leasekeeper.lease import Grant
from leasekeeper.redlock.membership import Membership


@dataclass
class Claim:
    """What a leader file says, in true time; `end` is moved by renewals, and by taking it back."""

    token: int
    end: float


class Referee:
    def __init__(self, kernel: Kernel, network: Network, lock: str, membership: Membership) -> None:
        self._kernel = kernel
        self._network = network
        self._lock = lock
        self.lists = {membership.epoch: membership}
        """All that there have been, by epoch."""
        self.timed = True
        """Whether clocks keep to their allowance in this schedule."""
        self.violations: list[str] = []
        self.claims: dict[str, Claim] = {}
        self.protected: dict[str, tuple[Grant, MachineClocks]] = {}
        """By seat: the last lease that it was told of, until it gives it back, and its clocks."""
        self.returned: dict[int, str] = {}
        self.highest_returned = 0
        self.highest_led = 0
        self.on_event: Callable[[str], None] = lambda _: None
        """Told of the moments that a schedule can aim at."""
        self.floor: Callable[[], int] = lambda: 0
        """Every token is above what the registry has recorded."""
        self.tenures = 0

    def violation(self, what: str) -> None:
        self._kernel.say("REFEREE", what)
        self._kernel.stopped = True
        self.violations.append(f"at {self._kernel.now:.4f}: {what}")

    # -- tokens ----------------------------------------------------------------------------------

    def granted(self, who: str, token: int, before: int, *, late: bool) -> None:
        """An attempt ended in a lease; `before` is the largest token when it began."""
        if token in self.returned:
            self.violation(f"token {token} of {who} was already {self.returned[token]}'s")
        elif token <= before:
            self.violation(
                f"token {token} of {who} is not above {before}, returned before it tried"
            )
        elif token <= self.floor():
            self.violation(f"token {token} of {who} is not above the floor {self.floor()}")
        if late:
            self.violation(f"{who} was granted {token} after its own deadline")
        self._look_at_lease_ends(who, token)
        self.returned[token] = who
        self.highest_returned = max(self.highest_returned, token)
        self.tenures += 1
        self.look_at_fences()
        self.on_event("won")

    def _look_at_lease_ends(self, who: str, token: int) -> None:
        for seat, (grant, clocks) in self.protected.items():
            left = grant.lease_end.left(clocks.now())
            if self.timed and left > 0 and not who.startswith(f"{seat}/"):
                self.violation(
                    f"{who} won {token} in {seat}'s time to stop: {left:.4f} before the lease end"
                    f" of {grant.token}"
                )

    def renewed(self, who: str, token: int, before: int, *, late: bool) -> None:
        if before > token:
            self.violation(f"{who} renewed {token} in a round that began after {before} was won")
        if late:
            self.violation(f"{who} renewed {token} after its deadline: a tenure with a gap")

    def deposed(self, who: str, why: str, noes: int, needed: int) -> None:
        if noes < needed:
            self.violation(f"{who} was deposed by {noes} noes, it takes {needed}: {why}")

    def displaced(self, who: str, by: str, node: str) -> None:
        if self.timed:
            self.violation(f"the entry of {who} on node {node} was taken by its own attempt {by}")

    def look_at_fence(self, server: Server) -> None:
        """A memory that was not lost forgets no token."""
        fence = server.fence(self._lock)
        if fence < server.highest:
            self.violation(f"F of {server.name} went down from {server.highest} to {fence}")
        server.highest = fence

    def look_at_fences(self) -> None:
        """Every quorum must have a node that knows the largest token: then none below is won."""
        servers = [pod.server for pod in self._network.pods.values() if pod.server is not None]
        ignorant = [
            server
            for server in servers
            if server.open and server.fence(self._lock) < self.highest_returned
        ]
        if len(ignorant) > 1:
            for membership in self.lists.values():
                self._look_at_ignorant(membership, ignorant)

    def _look_at_ignorant(self, membership: Membership, servers: Sequence[Server]) -> None:
        ignorant = [server for server in servers if server.votes_by(membership)]
        if len(ignorant) < membership.quorum:
            return
        latest: dict[str, int] = {}
        for server in ignorant:
            for node, number in server.vector.items():
                latest[node] = max(latest.get(node, 0), number)
        counting = [s.node for s in ignorant if s.incarnation >= latest.get(s.node, 0)]
        if len(counting) >= membership.quorum:
            self.violation(f"nodes {counting} would vote, not knowing {self.highest_returned}")

    # -- claims ----------------------------------------------------------------------------------

    def claims_until(self, seat: str, token: int, end: float) -> None:
        """The leader file of a seat says yes, until `end`."""
        now = self._kernel.now
        if self._kernel.trace is not None:
            self._kernel.say(seat, f"LEADS with {token} until {end:.4f}")
        if self.timed:
            for other, claim in self.claims.items():
                if other != seat and claim.end > now and end > now:
                    self.violation(
                        f"{seat} leads with {token} until {end:.4f} while {other} leads with"
                        f" {claim.token} until {claim.end:.4f}"
                    )
            if token < self.highest_led:
                self.violation(f"{seat} leads with {token} after {self.highest_led} has led")
        self.highest_led = max(self.highest_led, token)
        self.claims[seat] = Claim(token, end)

    def told(self, seat: str, grant: Grant, clocks: MachineClocks) -> None:
        """A lease was announced, with its end."""
        self.protected[seat] = (grant, clocks)

    def gives_back(self, seat: str) -> None:
        """Its app has stopped: whoever gets the lock now does so by its leave."""
        self.protected.pop(seat, None)

    def claims_no_more(self, seat: str) -> None:
        claim = self.claims.get(seat)
        if claim is not None:
            claim.end = min(claim.end, self._kernel.now)

    def leading(self) -> list[str]:
        return [seat for seat, claim in self.claims.items() if claim.end > self._kernel.now]
