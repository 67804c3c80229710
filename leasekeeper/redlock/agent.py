"""The agent beside one server: counts its time, and takes it through its life.

One thread that blocks. While the node is open it does little else than tick; while it is closed it
asks its peers. Each way out of the inner loops leads back to `_session`, which looks at the memory
and judges it anew:

    connection broken       connect again; the same life goes on where it was
    memory lost or changed  close, begin a new life
    superseded              another agent ticks here: watch, and take over if its ticks stand still
    unfit settings          close, say why, look again
    another node's server   give up, with a sentence and an exit code
    wrong password or CA    the same at the first try; later it may be a rotation, so try again
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from leasekeeper.lease import ConfigurationError, LeaseError
from leasekeeper.redlock import life as steps
from leasekeeper.redlock import users
from leasekeeper.redlock.blocking import (
    BadCredentials,
    Broken,
    Connection,
    Refusal,
    Untrusted,
)
from leasekeeper.redlock.life import Life, Memory, judge_memory, left_behind, listed_anew, next_step
from leasekeeper.redlock.local_server import LocalServer, MemoryChanged, Unfit
from leasekeeper.redlock.log import log
from leasekeeper.redlock.membership import Membership
from leasekeeper.redlock.peers import Peers
from leasekeeper.redlock.registry import NodeView, Record, Registry, birth_arguments, decide_birth
from leasekeeper.redlock.server_certificate import ServerCertificate
from leasekeeper.redlock.status_page import Status
from leasekeeper.redlock.ticker import Ticked, Ticker, raw_clock
from leasekeeper.redlock.tls import Tls
from leasekeeper.redlock.users_file import UsersFile

TIMEOUT = 1.0  # of a call to the server beside us; a longer silence costs a new registration
RETRY = 0.2  # between two attempts to reach the server: it may be starting right now
POLL = 0.2  # between two looks at the peers while closed
LOOK = 5.0  # between two looks at the settings of an open node, which a person may change
STANDSTILL = 1.0  # another agent whose ticks stand still for this long is taken for dead
BIRTH_PATIENCE = 30.0  # after this, a quorum is born without the members that nobody has seen


class WrongServer(LeaseError):
    """The server belongs to another node of the ensemble."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    node: str
    server: str | tuple[str, int]
    membership: Membership
    agent_password: Callable[[], str]
    """Asked for each connection: passwords are rotated while an agent runs."""
    peer_password: Callable[[], str]
    tls: Tls | None = None
    """For peers, and for a server that is not on a unix socket."""
    users: UsersFile | None = None
    registry: Registry | None = None


class Agent:
    def __init__(self, settings: Settings, status: Status) -> None:
        self._settings = settings
        self._membership = settings.membership
        self._status = status
        self._peers = Peers(
            settings.membership, settings.node, settings.peer_password, settings.tls
        )
        self._certificate = ServerCertificate()
        self._been_in = False
        self._life: Life | None = None
        self._superseded = False
        self._said = ""

    def run(self) -> None:
        """Until a signal's exception, or an error that only a person can mend."""
        while True:
            self._status.turn()
            try:
                self._session()
            except WrongServer:
                raise
            except (BadCredentials, Untrusted) as cause:
                if not self._been_in:
                    raise
                self._closed("refused", str(cause))
            except Broken as cause:
                self._closed("unreachable", str(cause))
            except Unfit as cause:
                self._closed("unfit", str(cause))
            except Refusal as cause:
                self._closed("refused", f"the server refused a command: {cause}")
            except MemoryChanged as cause:
                self._closed("memory-changed", str(cause))
            except ConfigurationError as cause:
                self._closed("registry-refused", str(cause))
            time.sleep(RETRY)

    def _session(self) -> None:
        """All on one connection: what is done to a memory is done to the one that was judged."""
        settings = self._settings
        connection = Connection(
            settings.server,
            users.AGENT,
            settings.agent_password(),
            timeout=TIMEOUT,
            tls=settings.tls,
        )
        self._been_in = True
        try:
            server = LocalServer(connection)
            self._insist_on_fitness(server)
            self._renew_certificate(server)
            server.load_admin()
            while True:
                self._status.turn()
                view = server.state()
                memory = judge_memory(view, node=settings.node, run_id=server.run_id)
                if memory is Memory.STRANGE:
                    raise WrongServer(
                        f"the server is node {view.id} of its ensemble, and this agent is --node"
                        f" {settings.node}; correct --node or --server"
                    )
                if memory is Memory.LOST:
                    self._begin_life(server, view)
                elif memory is Memory.CLOSED:
                    self._toward_open(server, view)
                elif self._superseded:
                    self._watch(server, view)
                else:
                    self._serve(server, view)
        finally:
            connection.close()

    # -- closed ---------------------------------------------------------------------------------

    def _begin_life(self, server: LocalServer, view: NodeView) -> None:
        if self._life is not None or view.life or view.tick:
            log("memory-lost", node=self._settings.node, life=view.life or "none")
        server.close()
        name = server.enter(os.urandom(8).hex(), self._settings.node, self._membership.cap)
        self._life = Life(name, _now())
        self._superseded = False
        self._status.update(stage="entered", open=False, life=name, incarnation=0)
        log("life-begun", node=self._settings.node, life=name, run_id=server.run_id[:8])

    def _toward_open(self, server: LocalServer, view: NodeView) -> None:
        """Step by step, until the node is open or its memory is another one."""
        if self._life is None or self._life.name != view.life:
            self._life = Life(view.life, _now())
        if server.cap() != self._membership.cap:
            # C is part of the membership, and a life keeps the one that it began with.
            return self._begin_life(server, view)
        while True:
            self._status.turn()
            own = server.state()
            if own.life != self._life.name or own.open:
                return None
            peers = self._peers.views()
            step = next_step(self._life, own, peers, self._membership, self._record(), _now())
            self._take(step, server, self._life)
            if isinstance(step, steps.Rest | steps.Wait):
                self._peers.tell_outranked(peers)
                self._give_birth({**peers, own.id: own})
                left = step.until - _now() if isinstance(step, steps.Rest) else POLL
                time.sleep(max(0.0, min(left, POLL)))

    def _take(self, step: steps.Step, server: LocalServer, life: Life) -> None:
        node = self._settings.node
        match step:
            case steps.Announce(number, others):
                # Those who know an older number are asked again.
                same = number == life.number
                self._life = life = life if same else replace(life, number=number, announced={})
                for peer in others:
                    if life.number == number:
                        self._life = life = self._peers.announce(life, node, peer, _now)
            case steps.Become(number):
                server.meant("lk1_become", life.name, node, str(number))
                self._status.update(incarnation=number)
                log("announced", node=node, incarnation=number, to=",".join(life.announced))
            case steps.TakeBirth(record):
                self._take_birth(server, record)
            case steps.Rest(until):
                left = until - _now()
                self._closed("quarantine", f"{left:.1f} s left", quarantineLeftSeconds=left)
            case steps.Rested():
                server.meant("lk1_rest", life.name)
                log("rested", node=node)
            case steps.Recover():
                self._recover(server, life, step)
            case steps.Open(generation):
                server.open(life.name, self._membership, generation)
            case steps.Wait(why):
                self._closed("waiting", "; ".join([why, *self._problems()]))

    def _recover(self, server: LocalServer, life: Life, step: steps.Recover) -> None:
        learnt = self._peers.learn(step.helpers)
        if learnt is None:
            time.sleep(POLL)
            return
        for lock in learnt.nonsense:
            log("counter-not-adopted", node=self._settings.node, lock=lock)
        server.write(life.name, learnt)
        log(
            "recovered",
            node=self._settings.node,
            sources=",".join(step.helpers),
            locks=len(learnt.fences),
            floor=learnt.floor,
        )
        server.open(life.name, self._membership, step.generation)

    def _give_birth(self, views: dict[str, NodeView]) -> None:
        """Where the registry is a file, the agents decide what the operator does elsewhere."""
        registry = self._settings.registry
        if registry is None or self._life is None:
            return
        record, wall_ms = self._record(), int(time.time() * 1000)
        waited = _now() - self._life.first_seen > BIRTH_PATIENCE
        if decide_birth(record, views, self._membership, wall_ms, waited=waited) is None:
            return
        known = self._peers.with_highest(views)
        new = decide_birth(record, known, self._membership, wall_ms, waited=waited)
        if new is not None and registry.compare_and_swap(record, new):
            log("birth-recorded", generation=new.generation, nodes=",".join(sorted(new.lives)))

    # -- open -----------------------------------------------------------------------------------

    def _serve(self, server: LocalServer, view: NodeView) -> None:
        """Ticks, until there is a reason to look at the memory again."""
        self._peers.close()
        server.load_vote()
        if self._settings.users is not None:
            self._look_at_users()
            server.apply_users(self._settings.users.users, known={})
        ticker = Ticker(server.connection, cap=server.cap(), timeout=TIMEOUT)
        if not ticker.register(view.life):
            return
        self._opened(view)
        interval = server.cap() / 2  # W: two wake-ups in a cap, so that a late one loses nothing
        due = look_at = time.monotonic()
        while True:
            result = ticker.tick()
            if result is not Ticked.OK:
                self._superseded = result is Ticked.SUPERSEDED
                return
            self._status.turn()
            self._status.update(tick=ticker.value)
            self._apply_new_users(server)
            now = time.monotonic()
            if now >= look_at:
                look_at = now + LOOK
                self._insist_on_fitness(server)
                self._renew_certificate(server)
                if self._left_behind(server):
                    return
            due = max(due + interval, now)
            time.sleep(due - now)

    def _opened(self, view: NodeView) -> None:
        resumed = self._life is None or self._life.name != view.life
        self._life = self._life if not resumed else Life(view.life, _now())
        why = ""
        if view.epoch != self._membership.epoch:
            why = (
                f"open in epoch {view.epoch}; the membership file is epoch {self._membership.epoch}"
                " and has no effect here before a change of membership"
            )
        self._said = ""
        self._status.update(
            stage="open",
            open=True,
            why=why,
            quarantineLeftSeconds=0.0,
            life=view.life,
            incarnation=view.incarnation,
            epoch=view.epoch,
            generation=view.generation,
        )
        log(
            "resumed" if resumed else "open",
            node=self._settings.node,
            incarnation=view.incarnation,
            epoch=view.epoch,
            floor=view.floor,
            **({"why": why} if why else {}),
        )

    def _watch(self, server: LocalServer, view: NodeView) -> None:
        """Another agent registered: two that take it from each other in turn would be of no use."""
        log("superseded", node=self._settings.node, by="another agent", life=view.life)
        self._status.update(stage="superseded", why="another agent ticks this server")
        while True:
            time.sleep(STANDSTILL)
            self._status.turn()
            later = server.state()
            if later.life != view.life or not later.open or later.tick == view.tick:
                self._superseded = False
                return
            view = later

    def _look_at_users(self) -> bool:
        try:
            return self._settings.users is not None and self._settings.users.changed()
        except ConfigurationError as wrong:
            log("users-refused", node=self._settings.node, why=str(wrong))
            return False

    def _apply_new_users(self, server: LocalServer) -> None:
        file = self._settings.users
        if file is None:
            return
        known = file.users
        if self._look_at_users() and (changed := server.apply_users(file.users, known)):
            log("users-changed", node=self._settings.node, users=",".join(changed))

    def _left_behind(self, server: LocalServer) -> bool:
        """A total loss concerns the survivors, too: they are told, or they begin a new life."""
        try:
            record = self._record()
        except ConfigurationError as wrong:
            self._status.update(why=str(wrong))  # nothing that an open node would need just now
            return False
        own = server.state()
        if record is not None and listed_anew(record, own):
            self._take_birth(server, record)
        elif steps.outranked(own) or (record is not None and left_behind(record, own)):
            log("left-behind", node=own.id, generation=own.generation, number=own.incarnation)
            server.close()
            return True
        return False

    def _take_birth(self, server: LocalServer, record: Record) -> None:
        node = self._settings.node
        server.meant("lk1_birth", *birth_arguments(record, self._membership, node))
        log("born", node=node, generation=record.generation, floor=record.floor)

    # -- both -----------------------------------------------------------------------------------

    def _insist_on_fitness(self, server: LocalServer) -> None:
        try:
            server.check_fitness()
        except Unfit:
            server.close()
            raise

    def _renew_certificate(self, server: LocalServer) -> None:
        try:
            if self._certificate.renew(server.connection):
                self._status.update(certificate="read")
                log("certificate-read", node=self._settings.node)
        except Refusal as refused:
            why = f"the server cannot use its new certificate files and goes on without: {refused}"
            self._status.update(certificate=why)
            log("certificate-refused", node=self._settings.node, why=why)

    def _record(self) -> Record | None:
        registry = self._settings.registry
        return registry.read() if registry is not None else None

    def _problems(self) -> list[str]:
        return [f"node {id}: {why}" for id, why in self._peers.problems.items()]

    def _closed(self, stage: str, why: str, **facts: object) -> None:
        """Logged once for each stage and reason, not for each look at it."""
        self._status.update(stage=stage, open=False, why=why, **facts)
        said = f"{stage} {why if not facts else ''}"
        if said != self._said:
            self._said = said
            log(stage, node=self._settings.node, why=why)


def _now() -> float:
    return raw_clock() / 1e9
