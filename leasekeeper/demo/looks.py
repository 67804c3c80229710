"""What each node says of itself: whether it votes, for whom, and until when."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from leasekeeper.demo.world import LOCK, LocalNode, World
from leasekeeper.lease import Request
from leasekeeper.redlock import requests, users
from leasekeeper.redlock.blocking import Broken, Connection, Refusal
from leasekeeper.redlock.registry import NodeView

TIMEOUT = 0.5  # seconds; a server on this machine answers in a millisecond


@dataclass(frozen=True, slots=True)
class Look:
    """One node, just now."""

    node: str
    state: str
    """`down`, `starting`, `quarantine`, `recovering` or `open`."""
    owner: str = ""
    """The full id of the attempt that has this node's vote; empty: nobody."""
    left: float = 0.0
    fence: int = 0

    @property
    def holder(self) -> str:
        return self.owner.partition("/")[0]


class Looks:
    """Asks all nodes in turn, as the operator's user. One thread at a time: the answers on a
    connection come in the order of the questions, and a key is pressed while the nodes are asked.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._password = world.passwords[users.OPERATOR]
        self._connections: dict[str, Connection] = {}
        self._turn = threading.Lock()

    def all(self) -> list[Look]:
        with self._turn:
            return self._all()

    def _all(self) -> list[Look]:
        return [self._one(node) for node in self._world.nodes]

    def ask_to_step_down(self, holder: str) -> int:
        """Written to the nodes, as the operator does; the holder hears of it at its next renewal.
        How many nodes took it; none, if it has no majority: then it does not lead.
        """
        with self._turn:
            votes = [look for look in self._all() if look.holder == holder]
            if len(votes) < self._world.membership.quorum:
                return 0
            # The token as the number of the wish: it only grows.
            number = max((look.fence for look in votes), default=0)
            return sum(self._tell(look, number) for look in votes)

    def _tell(self, look: Look, number: int) -> bool:
        wish = Request(number, requests.STEP_DOWN, look.owner, self._world.lease)
        try:
            reply = self._connections[look.node].fcall(*requests.call(LOCK, wish))
        except (Broken, Refusal):
            return False
        return reply[0] == "OK"

    def close(self) -> None:
        with self._turn:
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()

    def _one(self, node: LocalNode) -> Look:
        if not node.server.running:
            self._forget(node.name)
            return Look(node.name, "down")
        try:
            try:
                return self._ask(node.name, self._connection(node))
            except Broken:
                # Once more: a server closes idle connections, and does so by its wall clock.
                self._forget(node.name)
                return self._ask(node.name, self._connection(node))
        except Refusal:  # no functions yet: the agent has not seen this server
            return Look(node.name, "starting")
        except Broken:
            self._forget(node.name)
            return Look(node.name, "starting")

    def _connection(self, node: LocalNode) -> Connection:
        known = self._connections.get(node.name)
        if known is None:
            known = Connection(str(node.socket), users.OPERATOR, self._password, timeout=TIMEOUT)
            self._connections[node.name] = known
        return known

    def _ask(self, name: str, connection: Connection) -> Look:
        view = NodeView.from_reply(connection.fcall("lk1_state"))
        if not view.open:
            return Look(name, "recovering" if view.rested else "quarantine")
        epoch = self._world.membership.epoch
        reply = connection.call("FCALL", "lk1_observe", "1", f"lk:lock:{LOCK}", epoch)
        if reply[0] != "LOCK":
            return Look(name, "recovering")
        return Look(name, "open", reply[1], int(reply[2]) / 1e6, int(reply[3]))

    def _forget(self, name: str) -> None:
        stale = self._connections.pop(name, None)
        if stale is not None:
            stale.close()
