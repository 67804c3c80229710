"""A change of an ensemble's list of nodes, for tests: new servers with their agents, both files,
and the command; and candidates whose claims are watched meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ensemble import Ensemble, EnsembleNode
from servers import Process, Server

from leasekeeper.clock import Deadline, Instant, SystemClock
from leasekeeper.elector import Elector
from leasekeeper.lease import Candidate, Grant, Renewed, Timings
from leasekeeper.redlock import users
from leasekeeper.redlock.coordinator import Change
from leasekeeper.redlock.membership import Membership, Node
from leasekeeper.redlock.registry import FileRegistry, Registry
from leasekeeper.redlock.store import RedlockStore


class ListChange:
    """From the list that `ensemble` has now; when it is through, the ensemble has the new one."""

    def __init__(
        self, ensemble: Ensemble, *, keep: Sequence[str], add: Sequence[str] = (), **timings: float
    ) -> None:
        self.ensemble = ensemble
        self.old = ensemble.membership
        self.old_file = ensemble.membership_file
        self.nodes = [node for node in ensemble.nodes if node.id in keep]
        servers = {id: ensemble.server(ensemble.nodes[0].server.flavour) for id in add}
        stay = [node for node in self.old.nodes if node.id in keep]
        come = [Node(id, "127.0.0.1", server.port) for id, server in servers.items()]
        self.new: Membership = replace(
            self.old, number=self.old.number + 1, nodes=(*stay, *come), **timings
        )
        self.new_file = ensemble.home / f"membership-{self.new.number}.json"
        self.new_file.write_text(json.dumps(self.new.to_json()))
        for node in come:
            self.nodes.append(self._added(node, servers[node.id]))

    def _added(self, node: Node, server: Server) -> EnsembleNode:
        agent = self.ensemble.agent(node.id, server.start())
        agent.options["membership"] = str(self.new_file)
        agent.start()
        return EnsembleNode(node, server, agent)

    def wanted(self, registry: Registry | None = None, patience: float = 30.0) -> Change:
        """What a coordinator in this process needs."""
        return Change(
            old=self.old,
            new=self.new,
            registry=registry or FileRegistry(str(self.ensemble.registry_file)),
            password=lambda: self.ensemble.passwords.operator,
            tls=self.ensemble.tls,
            patience=patience,
        )

    def command(self, **more: str) -> CommandLine:
        """`leasekeeper change-membership`, not started yet."""
        home = self.ensemble.home
        options = {
            "from": str(self.old_file),
            "to": str(self.new_file),
            "registry": str(self.ensemble.registry_file),
            "credentials": str(home / "credentials"),
            "give-up-after": "30",
            **({"tls-ca": str(self.ensemble.authority.ca)} if self.ensemble.authority else {}),
            **more,
        }
        return CommandLine(home / f"change-{secrets.token_hex(4)}.log", options)

    def done(self) -> None:
        """The ensemble is what it was changed to."""
        self.ensemble.membership = self.new
        self.ensemble.membership_file = self.new_file
        self.ensemble.nodes = self.nodes


class CommandLine(Process):
    def __init__(self, log: Path, options: dict[str, str]) -> None:
        super().__init__(log)
        self._options = options

    def start(self) -> CommandLine:
        flags = [f"--{name}={value}" for name, value in self._options.items()]
        self.spawn([sys.executable, "-m", "leasekeeper.cli", "change-membership", *flags])
        return self


@dataclass
class Claims:
    """Who led when, on this machine's boot clock: a claim ends at its deadline, or when it was
    taken back.
    """

    clock: SystemClock = field(default_factory=SystemClock)
    current: dict[str, tuple[int, Deadline]] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)

    def leading(self, who: str, grant: Grant) -> None:
        now = self.clock.now()
        for other, (token, _) in self.alive(now).items():
            if other != who:
                self.overlaps.append(f"{who} with {grant.token}, while {other} leads with {token}")
        if grant.token not in self.tokens:
            self.tokens.append(grant.token)
        self.current[who] = (grant.token, grant.deadline)

    def alive(self, now: Instant) -> dict[str, tuple[int, Deadline]]:
        return {who: one for who, one in self.current.items() if one[1].left(now) > 0}

    def leader(self) -> str | None:
        return next(iter(self.alive(self.clock.now())), None)


@dataclass
class _Watcher:
    """The elector's audience."""

    who: str
    claims: Claims

    def leading(self, grant: Grant) -> None:
        self.claims.leading(self.who, grant)

    def not_leading(self, why: str) -> None:
        self.claims.current.pop(self.who, None)

    def standing_by(self, holder: str | None) -> None: ...
    def renewal(self, outcome: Renewed) -> None: ...


PASSWORD = "of every lock here"


def candidate_of(ensemble: Ensemble, lock: str, name: str, timings: Timings) -> RedlockStore:
    """By the list that the ensemble has now."""
    if lock not in ensemble.users_file.read_text():
        ensemble.add_lock(lock, PASSWORD)
    return RedlockStore(
        membership=ensemble.membership,
        lock=lock,
        candidate=Candidate(name, "uid", secrets.token_hex(4)),
        timings=timings,
        clock=SystemClock(),
        username=users.lock_user(lock),
        password=PASSWORD,
        tls=ensemble.tls,
    )


@asynccontextmanager
async def candidates(
    ensemble: Ensemble, lock: str, names: Sequence[str] = ("a", "b"), **timings: Any
) -> AsyncIterator[tuple[Claims, dict[str, RedlockStore]]]:
    """Real electors over real stores, until the block ends. No claims overlap, and tokens grow."""
    claims, stores, tasks = Claims(), {}, []
    settings = Timings(**timings)
    for name in names:
        stores[name] = store = candidate_of(ensemble, lock, name, settings)
        elector = Elector(
            store=store, timings=settings, clock=claims.clock, audience=_Watcher(name, claims)
        )
        tasks.append(asyncio.create_task(elector.run()))
    try:
        yield claims, stores
        assert not [task for task in tasks if task.done()], "an elector ended"
        assert claims.overlaps == []
        assert claims.tokens == sorted(set(claims.tokens))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for store in stores.values():
            await store.close()


async def until(condition: Any, what: str, patience: float = 30.0) -> None:
    """As `wait_until`, while the electors go on."""
    end = asyncio.get_running_loop().time() + patience
    while not condition():
        assert asyncio.get_running_loop().time() < end, f"waited {patience:g} s for: {what}"
        await asyncio.sleep(0.02)
