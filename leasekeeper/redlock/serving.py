"""The agent's room for an open node: it ticks, and now and then looks whether all is as it was.

What is done to a closed node is in `agent.py`. Each way out of here leads back there: the memory is
looked at, and judged anew.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from leasekeeper.lease import ConfigurationError
from leasekeeper.redlock.blocking import Refusal
from leasekeeper.redlock.known_lists import KnownLists
from leasekeeper.redlock.life import Standing, left_behind, listed_anew, outranked, standing
from leasekeeper.redlock.local_server import LocalServer, Unfit
from leasekeeper.redlock.log import log
from leasekeeper.redlock.membership import number_of
from leasekeeper.redlock.peers import Peers
from leasekeeper.redlock.registry import NodeView, Record, Registry, birth_arguments
from leasekeeper.redlock.server_certificate import ServerCertificate
from leasekeeper.redlock.status_page import Status
from leasekeeper.redlock.ticker import Ticked, Ticker
from leasekeeper.redlock.users_file import UsersFile

TIMEOUT = 1.0  # of a call to the server beside us; a longer silence costs a new registration
LOOK = 5.0  # between two looks at the settings of an open node, which a person may change
STANDSTILL = 1.0  # another agent whose ticks stand still for this long is taken for dead


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What both rooms of the agent have in common."""

    node: str
    status: Status
    peers: Peers
    lists: KnownLists
    users: UsersFile | None
    registry: Registry | None

    def record(self) -> Record | None:
        return self.registry.read() if self.registry is not None else None

    def look_at_lists(self, record: Record | None, *views: NodeView) -> None:
        """Takes in what the file and the registry say now, and what these nodes hand over."""
        self.lists.hear(*views)
        self.lists.read(record)
        try:
            if self.lists.look_at_file():
                log("membership-file-changed", node=self.node, epoch=self.lists.file.epoch)
        except ConfigurationError as wrong:
            log("membership-file-refused", node=self.node, why=str(wrong))
        self.peers.are_now(self.lists.others(self.node))


class Serving:
    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._certificate = ServerCertificate()
        self._standing: Standing | None = None

    def serve(self, server: LocalServer, view: NodeView, *, resumed: bool) -> bool:
        """Ticks, until there is a reason to look at the memory again. True: superseded."""
        users = self._around.users
        server.load_vote()
        if users is not None:
            self._look_at_users()
            server.apply_users(users.users, known={})
            server.say_edition(users.edition)
        cap = server.cap()
        ticker = Ticker(server.connection, cap=cap, timeout=TIMEOUT)
        if not ticker.register(view.life):
            return False
        self._opened(view, resumed=resumed)
        interval = cap / 2  # W: two wake-ups in a cap, so that a late one loses nothing
        due = look_at = time.monotonic()
        while True:
            result = ticker.tick()
            if result is not Ticked.OK:
                return result is Ticked.SUPERSEDED
            self._around.status.turn()
            self._around.status.update(tick=ticker.value)
            self._apply_new_users(server)
            now = time.monotonic()
            if now >= look_at:
                look_at = now + LOOK
                self.insist_on_fitness(server)
                if self._must_begin_anew(server):
                    return False
            due = max(due + interval, now)
            time.sleep(due - now)

    def watch(self, server: LocalServer, view: NodeView) -> None:
        """Another agent registered: two that take it from each other in turn would be of no use.
        Returns when its ticks stand still, or the memory is another one.
        """
        around = self._around
        log("superseded", node=around.node, by="another agent", life=view.life)
        around.status.update(stage="superseded", why="another agent ticks this server")
        while True:
            time.sleep(STANDSTILL)
            around.status.turn()
            later = server.state()
            if later.life != view.life or not later.open or later.tick == view.tick:
                return
            view = later

    def insist_on_fitness(self, server: LocalServer) -> None:
        try:
            server.check_fitness()
        except Unfit:
            server.close()
            raise
        self._renew_certificate(server)

    def take_birth(self, server: LocalServer, record: Record) -> None:
        node, lists = self._around.node, self._around.lists.newest_first
        membership = next((one for one in lists if one.epoch == record.epoch), lists[0])
        server.meant("lk1_birth", *birth_arguments(record, membership, node))
        log("born", node=node, generation=record.generation, floor=record.floor)

    def _opened(self, view: NodeView, *, resumed: bool) -> None:
        self._standing = None
        self._around.status.update(
            quarantineLeftSeconds=0.0,
            life=view.life,
            incarnation=view.incarnation,
            generation=view.generation,
        )
        log(
            "resumed" if resumed else "open",
            node=self._around.node,
            incarnation=view.incarnation,
            epoch=view.epoch,
            floor=view.floor,
        )

    def _must_begin_anew(self, server: LocalServer) -> bool:
        """Whether the others have gone on without this memory, by a total loss or to another list.
        Then it is closed, and a new life begins.
        """
        around = self._around
        own = server.state()
        try:
            record = around.record()
        except ConfigurationError as wrong:
            around.status.update(why=str(wrong))  # nothing that an open node would need just now
            record = None
        around.look_at_lists(record, own)
        if record is not None and listed_anew(record, own):
            self.take_birth(server, record)
            return False
        lists = around.lists.newest_first
        asks = lists[0].epoch != own.epoch or not own.joined
        found = standing(own, around.peers.views() if asks else {}, lists, record)
        around.peers.close()
        # Others are joined a moment before or after this one: it is overdue only at a second look.
        overdue = found is self._standing is Standing.OVERDUE
        self._say(own, found)
        if (
            overdue
            or found is Standing.BEHIND
            or outranked(own)
            or (record is not None and left_behind(record, own))
        ):
            log("left-behind", node=own.id, generation=own.generation, number=own.incarnation)
            server.close()
            return True
        return False

    def _say(self, own: NodeView, found: Standing) -> None:
        """What the node is in its list: to everybody at /status, and logged when it changes."""
        around = self._around
        why = found.value
        file = around.lists.file
        if found is Standing.MEMBER and file.epoch != own.epoch:
            why = f"open in epoch {own.epoch}; the membership file is epoch {file.epoch}"
            if file.number < number_of(own.epoch):
                why += ": give this agent the newer one"
            else:
                why += " and has no effect here before a change of membership"
        around.status.update(
            stage="open" if found is Standing.MEMBER else found.name.lower(),
            open=found is Standing.MEMBER,
            epoch=own.epoch,
            why=why,
        )
        if found is not self._standing:
            first, self._standing = self._standing is None, found
            if not first or found is not Standing.MEMBER or why:
                said = {"why": why} if why else {}
                log(found.name.lower(), node=own.id, epoch=own.epoch, **said)

    def _look_at_users(self) -> bool:
        try:
            return self._around.users is not None and self._around.users.changed()
        except ConfigurationError as wrong:
            log("users-refused", node=self._around.node, why=str(wrong))
            return False

    def _apply_new_users(self, server: LocalServer) -> None:
        file = self._around.users
        if file is None:
            return
        known = file.users
        if not self._look_at_users():
            return
        if changed := server.apply_users(file.users, known):
            log("users-changed", node=self._around.node, users=",".join(changed))
        server.say_edition(file.edition)

    def _renew_certificate(self, server: LocalServer) -> None:
        around = self._around
        try:
            if self._certificate.renew(server.connection):
                around.status.update(certificate="read")
                log("certificate-read", node=around.node)
        except Refusal as refused:
            why = f"the server cannot use its new certificate files and goes on without: {refused}"
            around.status.update(certificate=why)
            log("certificate-refused", node=around.node, why=why)
