"""Five nodes and some candidates on this machine: real servers, real agents, real sidecars."""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leasekeeper.demo.history import Reading, read
from leasekeeper.demo.processes import Child, insist_on_sidecar, server_binary
from leasekeeper.demo.proxy import Cuts, Proxy, Vote
from leasekeeper.demo.wall_clock import WallClock, build_shim
from leasekeeper.redlock import users
from leasekeeper.redlock.membership import Membership, Node
from leasekeeper.redlock.registry import FRESH
from leasekeeper.redlock.server_config import server_config

LOCK = "demo/leader"
APP = Path(__file__).with_name("app.py")
PATIENCE = 5.0  # for a process that was asked to end


@dataclass
class LocalNode:
    """One server, the agent beside it, and the proxy before it."""

    name: str
    server: Child
    agent: Child
    socket: Path
    wall_clock: WallClock


@dataclass
class LocalCandidate:
    """One sidecar and its app, with a folder of their own, as in a pod."""

    name: str
    home: Path
    sidecar: Child
    app: Child

    @property
    def leader_file(self) -> Path:
        return self.home / "lock" / "leader"

    @property
    def frozen(self) -> bool:
        return self.sidecar.frozen

    def start(self) -> None:
        """As a new pod: a uid of its own, and nothing left of the one before."""
        shutil.rmtree(self.home, ignore_errors=True)
        for folder in ("lock", "state"):
            (self.home / folder).mkdir(parents=True)
        self.sidecar.environment["LEASEKEEPER_POD_UID"] = secrets.token_hex(8)
        for process in (self.sidecar, self.app):
            process.start()

    def kill(self) -> None:
        for process in (self.sidecar, self.app):
            process.kill()

    def freeze(self) -> None:
        for process in (self.sidecar, self.app):
            process.freeze()

    def thaw(self) -> None:
        for process in (self.sidecar, self.app):
            process.thaw()


class World:
    """Everything that runs. Made by `world()`, which also ends it."""

    def __init__(
        self,
        home: Path,
        *,
        nodes: int,
        candidates: int,
        lease: float,
        on_vote: Callable[[Vote], None],
    ) -> None:
        self.home = home
        self.lease = lease
        self.boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.journal = home / "journal"
        self.cuts = Cuts()
        ids = [str(i + 1) for i in range(nodes)]
        prefix = f"lk:freed:{LOCK}/"
        self._proxies = [Proxy(i, self._socket(i), prefix, self.cuts, on_vote) for i in ids]
        ports = [proxy.port for proxy in self._proxies]
        self.membership = Membership(
            nodes=tuple(Node(id, "127.0.0.1", port) for id, port in zip(ids, ports, strict=True)),
            max_ttl=lease,
            quarantine=lease * 1.05,
        )
        self.passwords = {
            name: secrets.token_hex(16) for name in (users.AGENT, users.PEER, users.OPERATOR)
        }
        self._write_shared_files()
        insist_on_sidecar()
        server, shim = server_binary(), build_shim(home)
        self.nodes = [self._node(node, server, shim) for node in self.membership.nodes]
        self.candidates = [self._candidate(f"candidate-{i + 1}") for i in range(candidates)]

    async def start(self) -> None:
        for proxy in self._proxies:
            await proxy.start()
        for node in self.nodes:
            node.server.start()
            node.agent.start()
        for candidate in self.candidates:
            candidate.start()

    async def stop(self) -> None:
        """Candidates first, so that nobody loses what it leads by; all of a kind together."""
        for candidate in self.candidates:
            candidate.app.kill()
            self.cuts.heal(candidate.name)
        await _end([candidate.sidecar for candidate in self.candidates])
        await _end([node.agent for node in self.nodes])
        for node in self.nodes:
            node.server.kill()
        for proxy in self._proxies:
            proxy.close()

    def casualties(self) -> list[str]:
        """Who ended by itself, each with its last words: nothing here may do that."""
        processes = {c.name: c.sidecar for c in self.candidates}
        processes |= {f"the app of {c.name}": c.app for c in self.candidates}
        processes |= {f"the agent of node {n.name}": n.agent for n in self.nodes}
        processes |= {f"the server of node {n.name}": n.server for n in self.nodes}
        return [
            f"{name} ended by itself: {process.last_words()}"
            for name, process in processes.items()
            if process.ended_by_itself
        ]

    def last_words(self) -> str:
        """Of one of each kind that decides, for when nobody was elected."""
        agent, sidecar = self.nodes[0].agent, self.candidates[0].sidecar
        return (
            f"the agent of node {self.nodes[0].name} said last: {agent.last_words()};"
            f" the sidecar of {self.candidates[0].name}: {sidecar.last_words()}"
        )

    def readings(self) -> list[Reading]:
        """Every file that says "leader", and whose deadline is ahead just now."""
        found = (read(str(c.leader_file), c.name, self.boot) for c in self.candidates)
        return [reading for reading in found if reading is not None]

    # -- how it is made --------------------------------------------------------------------------

    def _socket(self, node: str) -> Path:
        return self.home / f"node-{node}" / "server.sock"

    def _write_shared_files(self) -> None:
        lock_password = secrets.token_hex(16)
        credentials = self.home / "credentials"
        credentials.mkdir()
        for name, password in self.passwords.items():
            (credentials / name).write_text(password)
        (self.home / "users").write_text(f"{LOCK} {users.digest(lock_password)}\n")
        self._json("membership.json", self.membership.to_json())
        self._json("registry.json", FRESH.to_json())
        lock = {
            "version": 1,
            "lock": LOCK,
            "store": "redlock",
            "timings": {
                "leaseDurationSeconds": self.lease,
                "renewDeadlineSeconds": renew_deadline(self.lease),
                "retryPeriodSeconds": self.lease / 6,
                "lockDelaySeconds": 0,
            },
            "redlock": {
                "membership": self.membership.to_json(),
                "username": users.lock_user(LOCK),
                "password": lock_password,
            },
        }
        self._json("lock.json", lock)

    def _json(self, name: str, content: dict[str, Any]) -> None:
        (self.home / name).write_text(json.dumps(content))

    def _node(self, node: Node, server: str, shim: Path | None) -> LocalNode:
        home = self.home / f"node-{node.id}"
        (home / "data").mkdir(parents=True)
        socket = self._socket(node.id)
        digests = {name: users.digest(password) for name, password in self.passwords.items()}
        text = server_config(
            agent=digests[users.AGENT],
            peer=digests[users.PEER],
            operator=digests[users.OPERATOR],
            directory=str(home / "data"),
            port=0,  # none: everybody comes through the proxy
            bind="127.0.0.1",
            unix_socket=str(socket),
        )
        (home / "server.conf").write_text(text)
        options = {
            "node": node.id,
            "server": f"unix://{socket}",
            "membership": str(self.home / "membership.json"),
            "credentials": str(self.home / "credentials"),
            "users": str(self.home / "users"),
            "registry": str(self.home / "registry.json"),
        }
        flags = [f"--{key}={value}" for key, value in options.items()]
        agent = [sys.executable, "-m", "leasekeeper.cli", "node-agent", *flags]
        clock = WallClock(home / "wall_clock", shim)
        return LocalNode(
            node.id,
            Child([server, str(home / "server.conf")], home / "server.log", clock.environment),
            Child(agent, home / "agent.log", {}),
            socket,
            clock,
        )

    def _candidate(self, name: str) -> LocalCandidate:
        home = self.home / name
        environment = {
            "LEASEKEEPER_CONFIG": str(self.home / "lock.json"),
            "LEASEKEEPER_POD_NAME": name,
            "LEASEKEEPER_LEADER_DIR": str(home / "lock"),
            "LEASEKEEPER_STATE_DIR": str(home / "state"),
            "LEASEKEEPER_HTTP_PORT": "0",
            "LEASEKEEPER_LOCAL_PORT": "0",
            "LEASEKEEPER_MIRROR": "none",
        }
        # As a process, not as an import: the library knows nothing of the sidecar.
        sidecar = [sys.executable, "-m", "leasekeeper_sidecar"]
        app = [sys.executable, "-I", "-S", str(APP), name, str(home / "lock"), str(self.journal)]
        return LocalCandidate(
            name,
            home,
            Child(sidecar, self.home / f"{name}.log", environment),
            Child(app, self.home / f"{name}-app.log", {}),
        )


def renew_deadline(lease: float) -> float:
    """Two thirds, as by default. Of a short lease more: the file's end on the wall clock is rounded
    down to a whole second, and what is left must last until the next renewal.
    """
    return max(lease * 2 / 3, min(lease * 0.9, lease / 6 + 1.25))


async def _end(children: list[Child]) -> None:
    for child in children:
        child.ask_to_end()
    await asyncio.gather(*(asyncio.to_thread(child.end, PATIENCE) for child in children))


@asynccontextmanager
async def world(
    home: Path,
    *,
    nodes: int,
    candidates: int,
    lease: float,
    on_vote: Callable[[Vote], None],
) -> AsyncIterator[World]:
    made = World(home, nodes=nodes, candidates=candidates, lease=lease, on_vote=on_vote)
    try:
        await made.start()
        yield made
    finally:
        await made.stop()
