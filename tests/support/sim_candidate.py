"""A candidate: the real elector over the real store, a disk that survives it, and the seat that it
sits on (a pod: it keeps its name, its machine and its volumes while processes come and go).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import floor
from typing import ClassVar, cast

from leasekeeper_sidecar.claim import leading_claim
from leasekeeper_sidecar.host import Host
from sim_kernel import Callback, Kernel, MachineClocks, Process
from sim_link import SimLink
from sim_loop import ProcessLoop
from sim_net import Network, Server
from sim_referee import Referee

from leasekeeper.elector import Elector
from leasekeeper.lease import (
    Acquired,
    Candidate,
    Grant,
    Held,
    LeaseStore,
    Lost,
    Observation,
    ReleaseOutcome,
    Renewed,
    Timings,
)
from leasekeeper.redlock.membership import Membership, Node
from leasekeeper.redlock.store import RedlockStore
from leasekeeper.redlock.transport import Link, OnPush
from leasekeeper.tenure import State

YES = ("COMMITTED", "GRANTED", "OK")
NO = ("HIGH", "MISSING", "NOTMINE")


class Killed(BaseException):
    """In the middle of something. What follows in the dead process has no effect."""


@dataclass
class World:
    """What a seat needs to know of the world."""

    kernel: Kernel
    network: Network
    referee: Referee
    membership: Membership
    lock: str


@dataclass
class Seat:
    world: World
    name: str
    clocks: MachineClocks
    timings: Timings
    resume: Grant | None = None
    process: CandidateProcess | None = None
    fresh_nonces: ClassVar[bool] = True
    membership: Membership | None = None
    """Its own idea of the ensemble, if it is another one than everybody's."""

    def start(self) -> None:
        """As the sidecar does: a lease whose deadline is ahead is gone on with; otherwise the file
        says no before anything else happens.
        """
        if self.process is not None and self.process.alive:
            return
        if self.clocks.suspended:
            self.world.kernel.after(0.05, self.start)
            return
        resume = self.resume
        if resume is not None and resume.deadline.left(self.clocks.now()) <= 0:
            resume = None
        if resume is None:
            self.world.referee.claims_no_more(self.name)
            self.resume = None
        else:
            self.world.kernel.seen["candidate: resumes"] += 1
        self.process = CandidateProcess(self, resume)
        self.world.kernel.say(self.process.name, f"started, resume={resume and resume.id}")
        self.process.start()


class CandidateProcess(Process):
    def __init__(self, seat: Seat, resume: Grant | None) -> None:
        world = seat.world
        super().__init__(world.kernel, world.kernel.fresh(f"{seat.name}."), seat.clocks)
        self.seat = seat
        self.host = seat.name  # a restarted process is where the old one was
        self.loop = ProcessLoop(self, self._failed)
        self.fuse: int | None = None
        """After so many steps that others can see, the process is killed."""
        self.renewals = 0
        self._noes: set[str] = set()
        self._yes: dict[str, tuple[str, float]] = {}
        self._resume = resume
        self.elector: Elector | None = None
        self.store: RedlockStore | None = None

    @property
    def membership(self) -> Membership:
        """The list that it goes by."""
        return self.store.membership if self.store else self.seat.world.membership

    def start(self) -> None:
        self.loop.handle(self._boot, ())

    def _boot(self) -> None:
        seat, world = self.seat, self.seat.world
        nonce = self.kernel.fresh("n") if seat.fresh_nonces else "n"
        candidate = Candidate(seat.name, "uid", nonce)
        timings = seat.timings

        def links(nodes: Sequence[Node], topic: str, on_push: OnPush) -> Mapping[str, Link]:
            patience = timings.retry_period
            return {
                node.id: SimLink(world.network, self, node.id, topic, on_push, patience)
                for node in nodes
            }

        self.store = store = RedlockStore(
            membership=seat.membership or world.membership,
            lock=world.lock,
            candidate=candidate,
            timings=timings,
            clock=self.clocks,
            links=links,
        )
        self.elector = Elector(
            store=cast(LeaseStore, WatchedStore(store, self, candidate)),
            timings=timings,
            clock=self.clocks,
            audience=LeaderFile(self),
            resume=self._resume,
        )
        self.main: asyncio.Task[None] = self.loop.create_task(self.elector.run())
        self.main.add_done_callback(self._ended)

    def handle(self, callback: Callback, args: tuple[object, ...]) -> None:
        try:  # noqa: SIM105  `suppress` would be made anew for every event
            self.loop.handle(callback, args)
        except Killed:
            pass
        if not self.alive:
            self.loop.unwind()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not self.alive or task.cancelled():
            return
        if task.exception() is not None:
            self._failed(task.exception())
        self.kernel.say(self.name, "ended by itself")
        self.die()

    def _failed(self, error: BaseException | None) -> None:
        if not isinstance(error, Killed):
            self.seat.world.referee.violation(f"{self.name} failed: {error!r}")

    def step(self) -> None:
        """Something that others can see happens next: the moments between which a kill matters."""
        if self.fuse is not None and self.alive:
            self.fuse -= 1
            if self.fuse < 0:
                self.kernel.say(self.name, "killed in the middle")
                self.die()
        if not self.alive:
            raise Killed

    def kill(self) -> None:
        if self.alive:
            self.kernel.say(self.name, "killed")
            self.die()
            self.loop.unwind()

    def die(self) -> None:
        """Its connections end with it; what is on its way may still arrive, or not."""
        super().die()
        for channel in self.seat.world.network.channels:
            if channel.client is self:
                channel.close()

    def stop(self) -> None:
        """A graceful end."""
        if self.elector is not None:
            self.deliver(self.elector.stop)

    def heard(
        self, round_: int, server: Server, command: Sequence[str], reply: Sequence[str]
    ) -> None:
        """A node's answer, as it came in: for the referee, not for the store."""
        function, id_, status = command[1], command[5], reply[0]
        if status in YES and function in ("lk1_grant", "lk1_commit", "lk1_renew"):
            self._yes[server.name] = (id_, self.kernel.now)
        elif function == "lk1_renew" and status in NO:
            if round_ == self.renewals:
                self._noes.add(server.node)
            yes, when = self._yes.get(server.name, ("", 0.0))
            mine = status == "NOTMINE" and reply[1].rpartition("/")[0] == id_.rpartition("/")[0]
            if mine and yes == id_ and self.kernel.now < when + self.seat.timings.lease_end:
                self.seat.world.referee.displaced(id_, reply[1], server.node)

    def begin_renewal(self) -> None:
        self.renewals += 1
        self._noes = set()

    @property
    def noes(self) -> int:
        return len(self._noes)

    @property
    def settled(self) -> bool:
        return self.elector is not None and self.elector.state in (State.STANDBY, State.LEADING)


class WatchedStore:
    """The real store, with the referee looking on."""

    def __init__(self, store: RedlockStore, process: CandidateProcess, me: Candidate) -> None:
        self._store = store
        self._process = process
        self._me = me
        self._referee = process.seat.world.referee
        self.ready = store.ready
        self.freed = store.freed
        self.close = store.close

    async def acquire(self) -> Acquired:
        before = self._referee.highest_returned
        self._referee.on_event("acquire")
        outcome = await self._store.acquire()
        self._process.kernel.seen[f"acquire: {type(outcome).__name__}"] += 1
        if self._process.alive:
            if isinstance(outcome, Grant):
                late = outcome.deadline.left(self._process.clocks.now()) <= 0
                self._referee.granted(outcome.id, outcome.token, before, late=late)
            elif isinstance(outcome, Held) and outcome.by == self._me.id:
                self._referee.violation(f"{outcome.by} is kept out by its own other attempt")
        return outcome

    async def renew(self, grant: Grant) -> Renewed:
        before = self._referee.highest_returned
        self._process.begin_renewal()
        self._referee.on_event("renew")
        outcome = await self._store.renew(grant)
        self._process.kernel.seen[f"renew: {type(outcome).__name__}"] += 1
        if self._process.alive:
            if isinstance(outcome, Grant):
                late = grant.deadline.left(self._process.clocks.now()) <= 0
                self._referee.renewed(outcome.id, outcome.token, before, late=late)
            elif isinstance(outcome, Lost) and not outcome.why.startswith("the deadline"):
                noes, nodes = self._process.noes, self._store.membership
                needed = len(nodes.nodes) - nodes.quorum + 1
                self._referee.deposed(grant.id, outcome.why, noes, needed)
        return outcome

    async def release(self, grant: Grant) -> ReleaseOutcome:
        self._referee.gives_back(self._process.seat.name)
        self._referee.on_event("release")
        outcome = await self._store.release(grant)
        self._process.kernel.seen[f"release: {type(outcome).__name__}"] += 1
        return outcome

    async def observe(self) -> Observation:
        return await self._store.observe()


@dataclass
class SimHost:
    """The clocks that readers of the file have."""

    clocks: MachineClocks

    def uptime_cs(self) -> int:
        return floor(self.clocks.boot() * 100)

    def wall(self) -> float:
        return self.clocks.wall()

    def boot_id(self) -> str:
        return "boot"


@dataclass
class LeaderFile:
    """The elector's audience, with the sidecar's order on the disk and its own arithmetic:

    win, renewal:   resume state  ->  file says yes
    loss, stop:     file says no  ->  resume state erased  ->  first byte of the release
    """

    process: CandidateProcess
    host: SimHost = field(init=False)

    def __post_init__(self) -> None:
        self.host = SimHost(self.process.clocks)

    def leading(self, grant: Grant) -> None:
        process, seat = self.process, self.process.seat
        process.step()
        seat.resume = grant
        process.step()
        clocks = process.clocks
        seat.world.referee.told(seat.name, grant, clocks)
        said = leading_claim(
            grant, name=seat.name, acquired=0.0, clock=clocks, host=cast(Host, self.host)
        )
        # A reader sees its uptime truncated, so it believes until the hundredth is reached.
        end = clocks.true_of_boot(said.deadline_cs / 100)
        seat.world.referee.claims_until(seat.name, grant.token, end)

    def not_leading(self, why: str) -> None:
        self.process.kernel.say(self.process.name, f"not leading: {why}")
        self.say_no()
        self.erase()

    def say_no(self) -> None:
        self.process.step()
        self.process.seat.world.referee.claims_no_more(self.process.seat.name)

    def erase(self) -> None:
        self.process.step()
        self.process.seat.resume = None

    def standing_by(self, holder: str | None) -> None:
        pass

    def renewal(self, outcome: Renewed) -> None:
        pass
