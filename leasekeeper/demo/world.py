"""Five nodes and some candidates on this machine: real servers, real agents, real sidecars."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leasekeeper.demo.history import Reading, read
from leasekeeper.demo.processes import Child, free_ports, server_binary
from leasekeeper.redlock import users
from leasekeeper.redlock.membership import Membership, Node
from leasekeeper.redlock.registry import FRESH
from leasekeeper.redlock.server_config import server_config

LOCK = "demo/leader"


@dataclass
class LocalNode:
    """One server and the agent beside it."""

    name: str
    server: Child
    agent: Child


@dataclass
class LocalCandidate:
    """One sidecar with a folder of its own, as in a pod."""

    name: str
    sidecar: Child
    leader_file: Path


class World:
    """Everything that runs. Made by `world()`, which also ends it."""

    def __init__(self, home: Path, *, nodes: int, candidates: int, lease: float) -> None:
        self.home = home
        self.boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.timings = {
            "leaseDurationSeconds": lease,
            "renewDeadlineSeconds": lease * 2 / 3,
            "retryPeriodSeconds": lease / 6,
            "lockDelaySeconds": 0,
        }
        ports = free_ports(nodes)
        self.membership = Membership(
            nodes=tuple(Node(str(i), "127.0.0.1", port) for i, port in enumerate(ports)),
            max_ttl=lease,
            quarantine=lease * 1.05,
        )
        self._passwords = {name: secrets.token_hex(16) for name in ("agent", "peer", "operator")}
        self._write_shared_files()
        self.nodes = [self._node(node) for node in self.membership.nodes]
        self.candidates = [self._candidate(f"candidate-{i + 1}") for i in range(candidates)]

    def start(self) -> None:
        for node in self.nodes:
            node.server.start()
            node.agent.start()
        for candidate in self.candidates:
            candidate.sidecar.start()

    def stop(self) -> None:
        """Candidates first, so that nobody loses what it leads by."""
        for candidate in self.candidates:
            candidate.sidecar.stop()
        for node in self.nodes:
            node.agent.stop()
            node.server.kill()

    def readings(self) -> list[Reading]:
        """Every file that says "leader" by the reader's rule just now."""
        found = (read(str(c.leader_file), c.name, self.boot) for c in self.candidates)
        return [reading for reading in found if reading is not None]

    # -- how it is made --------------------------------------------------------------------------

    def _write_shared_files(self) -> None:
        lock_password = secrets.token_hex(16)
        credentials = self.home / "credentials"
        credentials.mkdir()
        for name, password in self._passwords.items():
            (credentials / name).write_text(password)
        (self.home / "users").write_text(f"{LOCK} {users.digest(lock_password)}\n")
        self._json("membership.json", self.membership.to_json())
        self._json("registry.json", FRESH.to_json())
        lock = {
            "version": 1,
            "lock": LOCK,
            "store": "redlock",
            "timings": self.timings,
            "redlock": {
                "membership": self.membership.to_json(),
                "username": users.lock_user(LOCK),
                "password": lock_password,
            },
        }
        self._json("lock.json", lock)

    def _json(self, name: str, content: dict[str, Any]) -> None:
        (self.home / name).write_text(json.dumps(content))

    def _node(self, node: Node) -> LocalNode:
        home = self.home / f"node-{node.id}"
        (home / "data").mkdir(parents=True)
        socket = home / "server.sock"
        digests = {name: users.digest(password) for name, password in self._passwords.items()}
        text = server_config(
            agent=digests[users.AGENT],
            peer=digests[users.PEER],
            operator=digests[users.OPERATOR],
            directory=str(home / "data"),
            port=node.port,
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
        return LocalNode(
            node.id,
            Child([server_binary(), str(home / "server.conf")], home / "server.log", {}),
            Child(agent, home / "agent.log", {}),
        )

    def _candidate(self, name: str) -> LocalCandidate:
        home = self.home / name
        for folder in ("lock", "state"):
            (home / folder).mkdir(parents=True)
        environment = {
            "LEASEKEEPER_CONFIG": str(self.home / "lock.json"),
            "LEASEKEEPER_POD_NAME": name,
            "LEASEKEEPER_POD_UID": secrets.token_hex(8),
            "LEASEKEEPER_LEADER_DIR": str(home / "lock"),
            "LEASEKEEPER_STATE_DIR": str(home / "state"),
            "LEASEKEEPER_HTTP_PORT": "0",
            "LEASEKEEPER_LOCAL_PORT": "0",
            "LEASEKEEPER_MIRROR": "none",
        }
        # As a process, not as an import: the library knows nothing of the sidecar.
        command = [sys.executable, "-m", "leasekeeper_sidecar.main"]
        sidecar = Child(command, home / "sidecar.log", environment)
        return LocalCandidate(name, sidecar, home / "lock" / "leader")


@contextmanager
def world(home: Path, *, nodes: int, candidates: int, lease: float) -> Iterator[World]:
    made = World(home, nodes=nodes, candidates=candidates, lease=lease)
    try:
        made.start()
        yield made
    finally:
        made.stop()
