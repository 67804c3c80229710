"""The agent beside one server: counts its time, and takes it through its life.

One thread that blocks. While the node is open it does little else than tick (`serving.py`); while
it is closed it asks its peers, which is here. Each way out of the inner loops leads back to
`_session`, which looks at the memory and judges it anew:

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
from leasekeeper.redlock.known_lists import KnownLists
from leasekeeper.redlock.life import Life, Memory, judge_memory, list_to_vote_by, next_step
from leasekeeper.redlock.local_server import LocalServer, MemoryChanged, Unfit
from leasekeeper.redlock.log import log
from leasekeeper.redlock.membership import Membership
from leasekeeper.redlock.peers import Peers
from leasekeeper.redlock.registry import NodeView, Record, Registry, decide_birth
from leasekeeper.redlock.serving import TIMEOUT, Serving, Surroundings
from leasekeeper.redlock.status_page import Status
from leasekeeper.redlock.ticker import raw_clock
from leasekeeper.redlock.tls import Tls
from leasekeeper.redlock.users_file import UsersFile
from leasekeeper.redlock.watched_file import WatchedFile

RETRY = 0.2  # between two attempts to reach the server: it may be starting right now
POLL = 0.2  # between two looks at the peers while closed
BIRTH_PATIENCE = 30.0  # after this, a quorum is born without the members that nobody has seen


class WrongServer(LeaseError):
    """The server belongs to another node of the ensemble."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    node: str
    server: str | tuple[str, int]
    membership: Membership
    membership_file: WatchedFile | None = None
    """Where it was read from, if that may change. A newer list has no effect by itself: nodes come
    to it by a change of membership (`change.py`), or after the others when they were left behind.
    """
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
        self._status = status
        self._lists = KnownLists(settings.membership, settings.membership_file)
        self._peers = Peers(self._lists.others(settings.node), settings.peer_password, settings.tls)
        self._around = Surroundings(
            settings.node, status, self._peers, self._lists, settings.users, settings.registry
        )
        self._open_room = Serving(self._around)
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
            self._open_room.insist_on_fitness(server)
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
                    self._begin_life(server, view, self._lists.newest_first[0].cap)
                elif memory is Memory.CLOSED:
                    self._toward_open(server, view)
                elif self._superseded:
                    self._open_room.watch(server, view)
                    self._superseded = False
                else:
                    self._serve(server, view)
        finally:
            connection.close()

    # -- closed ---------------------------------------------------------------------------------

    def _begin_life(self, server: LocalServer, view: NodeView, cap: float) -> None:
        if self._life is not None or view.life or view.tick:
            log("memory-lost", node=self._settings.node, life=view.life or "none")
        server.close()
        name = server.enter(os.urandom(8).hex(), self._settings.node, cap)
        self._life = Life(name, _now())
        self._superseded = False
        self._status.update(stage="entered", open=False, life=name, incarnation=0)
        log("life-begun", node=self._settings.node, life=name, run_id=server.run_id[:8])

    def _toward_open(self, server: LocalServer, view: NodeView) -> None:
        """Step by step, until the node is open or its memory is another one."""
        if self._life is None or self._life.name != view.life:
            self._life = Life(view.life, _now())
        while True:
            self._status.turn()
            # Before the nodes are looked at: a decision by what they were must not be written down
            # over a record that has changed since, by a change of membership, say.
            record = self._around.record()
            own = server.state()
            if own.life != self._life.name or own.open:
                return None
            peers = self._peers.views()
            self._around.look_at_lists(record, own, *peers.values())
            membership = list_to_vote_by(own, peers, self._lists.newest_first, record)
            if server.cap() != membership.cap:
                # C is part of the membership, and a life keeps the one that it began with.
                return self._begin_life(server, own, membership.cap)
            step = next_step(self._life, own, peers, membership, record, _now())
            self._take(step, server, self._life, membership)
            if isinstance(step, steps.Rest | steps.Wait):
                self._peers.tell_outranked(peers)
                self._give_birth(record, {**peers, own.id: own}, membership)
                left = step.until - _now() if isinstance(step, steps.Rest) else POLL
                time.sleep(max(0.0, min(left, POLL)))

    def _take(
        self, step: steps.Step, server: LocalServer, life: Life, membership: Membership
    ) -> None:
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
                self._open_room.take_birth(server, record)
            case steps.Rest(until):
                left = until - _now()
                self._closed("quarantine", f"{left:.1f} s left", quarantineLeftSeconds=left)
            case steps.Rested():
                server.meant("lk1_rest", life.name)
                log("rested", node=node)
            case steps.Recover():
                self._recover(server, life, step, membership)
            case steps.Open(generation):
                server.open(life.name, membership, generation)
            case steps.Wait(why):
                self._closed("waiting", "; ".join([why, *self._problems()]))

    def _recover(
        self, server: LocalServer, life: Life, step: steps.Recover, membership: Membership
    ) -> None:
        learnt = self._peers.learn(step.helpers, membership.epoch)
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
        server.open(life.name, membership, step.generation, joined=step.joined)

    def _give_birth(
        self, record: Record | None, views: dict[str, NodeView], membership: Membership
    ) -> None:
        """Where the registry is a file, the agents decide what the operator does elsewhere."""
        registry = self._settings.registry
        if registry is None or self._life is None:
            return
        wall_ms = int(time.time() * 1000)
        waited = _now() - self._life.first_seen > BIRTH_PATIENCE
        if decide_birth(record, views, membership, wall_ms, waited=waited) is None:
            return
        known = self._peers.with_highest(views)
        new = decide_birth(record, known, membership, wall_ms, waited=waited)
        if new is not None and registry.compare_and_swap(record, new):
            log("birth-recorded", generation=new.generation, nodes=",".join(sorted(new.lives)))

    # -- both -----------------------------------------------------------------------------------

    def _serve(self, server: LocalServer, view: NodeView) -> None:
        self._peers.close()
        resumed = self._life is None or self._life.name != view.life
        if resumed:
            self._life = Life(view.life, _now())
        self._said = ""
        self._superseded = self._open_room.serve(server, view, resumed=resumed)

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
