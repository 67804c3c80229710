"""A whole ensemble for tests: real servers, each with a real agent process beside it.

with Ensemble(5, flavour="redis", max_ttl=1.0, quarantine=1.1) as ensemble:
    user, password = ensemble.add_lock("shop/orders")
    ensemble.wait_open()
    ... ensemble.membership, ensemble.nodes[0].server.kill() ...
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import redis
from authority import Authority
from servers import PATIENCE, Passwords, Process, Server, free_port, wait_until

from leasekeeper.redlock import functions, users
from leasekeeper.redlock.membership import Membership, Node
from leasekeeper.redlock.registry import FRESH
from leasekeeper.redlock.server_config import ServerTls
from leasekeeper.redlock.tls import Tls


class Agent(Process):
    """`leasekeeper node-agent` beside one server, as a process of its own."""

    def __init__(self, name: str, home: Path, options: dict[str, str]) -> None:
        super().__init__(home / f"agent-{name}.log")
        self.options = options
        """Of the command line, without the dashes; a test may change them before a start."""
        self.program = ["-m", "leasekeeper.cli"]
        """What Python runs; a control puts an agent here that lacks a protection."""

    @property
    def command(self) -> list[str]:
        flags = [f"--{key}={value}" for key, value in self.options.items()]
        return [sys.executable, *self.program, "node-agent", *flags]

    def start(self) -> Self:
        self.spawn(self.command)
        return self

    def restart(self) -> None:
        self.kill()
        self.start()

    def events(self, name: str) -> list[str]:
        """The lines of its log with this event's name."""
        return [line for line in self.output().splitlines() if line.split(" ")[0] == name]


class EnsembleNode:
    """One server and its agent."""

    def __init__(self, node: Node, server: Server, agent: Agent) -> None:
        self.id = node.id
        self.server = server
        self.agent = agent

    @property
    def open(self) -> bool:
        """Whether it may vote: the mark in the data *and* the library."""
        try:
            with self.server.client() as client:
                libraries = client.function_list(library=functions.VOTE)
                return bool(libraries) and client.hget("lk:node", "open") == "1"
        except redis.RedisError:
            return False

    def has_user(self, name: str) -> bool:
        with self.server.client() as client:
            return name in client.acl_users()

    def hang(self) -> None:
        self.server.pause()

    def go_on(self) -> None:
        self.server.resume()


class Ensemble:
    """n nodes with a file registry. A context manager: it leaves no process and no file behind.

    `agents=False` starts the servers only. `http=True` gives each agent a status page. `tls=True`:
    the ensemble has a CA, each node a certificate of its own, and no port is plain.
    """

    def __init__(
        self,
        n: int = 5,
        *,
        flavour: str = "valkey",
        max_ttl: float = 1.0,
        quarantine: float = 1.1,
        cap: float = 0.1,
        agents: bool = True,
        registry: bool = True,
        http: bool = False,
        tls: bool = False,
    ) -> None:
        self._wants_agents = agents
        self._stack = ExitStack()
        self.home = Path(tempfile.mkdtemp(prefix="lk-"))
        self._stack.callback(shutil.rmtree, self.home, ignore_errors=True)
        self.passwords = Passwords()
        self.passwords.write(self.home / "credentials")
        self.users_file = self.home / "users"
        self.users_file.touch()
        self.registry_file = self.home / "registry.json"
        self.registry_file.write_text(json.dumps(FRESH.to_json()))
        self.authority = Authority(self.home / "tls") if tls else None
        servers = [
            Server(flavour, passwords=self.passwords, tls=self._server_tls(i)) for i in range(n)
        ]
        for server in servers:
            self._stack.callback(server.close)
        self.membership = Membership(
            nodes=tuple(Node(str(i), "127.0.0.1", s.port) for i, s in enumerate(servers)),
            max_ttl=max_ttl,
            quarantine=quarantine,
            cap=cap,
        )
        self.membership_file = self.home / "membership.json"
        self.membership_file.write_text(json.dumps(self.membership.to_json()))
        self.nodes = [
            EnsembleNode(node, server, self.agent(node.id, server, registry=registry, http=http))
            for node, server in zip(self.membership.nodes, servers, strict=True)
        ]

    def server(self, flavour: str) -> Server:
        """One more, not started; ends with the ensemble."""
        tls = self._server_tls(len(self.nodes) + 1)
        server = Server(flavour, passwords=self.passwords, tls=tls)
        self._stack.callback(server.close)
        return server

    def _server_tls(self, number: int) -> ServerTls | None:
        if self.authority is None:
            return None
        issued = self.authority.issue(f"node-{number}")
        return ServerTls(
            cert_file=str(issued.cert), key_file=str(issued.key), ca_file=str(self.authority.ca)
        )

    @property
    def tls(self) -> Tls | None:
        """For a candidate; none if this ensemble has no TLS."""
        return Tls(ca_file=str(self.authority.ca)) if self.authority else None

    def agent(
        self,
        node: str,
        server: Server,
        *,
        name: str = "",
        registry: bool = True,
        http: bool = False,
    ) -> Agent:
        """A further agent (a second one beside the same server, say); ends with the ensemble."""
        options = {
            "node": node,
            "server": server.unix_url,
            "membership": str(self.membership_file),
            "credentials": str(self.home / "credentials"),
            "users": str(self.users_file),
        }
        if self.authority:
            options["tls-ca"] = str(self.authority.ca)
        if registry:
            options["registry"] = str(self.registry_file)
        if http:
            options["http"] = f"127.0.0.1:{free_port()}"
        agent = Agent(name or node, self.home, options)
        self._stack.callback(agent.kill)
        return agent

    def add_lock(self, lock: str, password: str | None = None) -> tuple[str, str]:
        """Gives a lock its ACL user on every node; returns when each node that is open has it."""
        password = password or secrets.token_hex(8)
        line = f"{lock} {users.digest(password)}\n"
        self.write_users(self.users_file.read_text() + line)
        name = users.lock_user(lock)
        waiting = [node for node in self.nodes if node.agent.running and node.open]
        wait_until(lambda: all(node.has_user(name) for node in waiting), f"nodes to know {name}")
        return name, password

    def write_users(self, text: str) -> None:
        aside = self.users_file.with_suffix(".new")
        aside.write_text(text)
        os.replace(aside, self.users_file)

    def wait_open(
        self, count: int | None = None, among: Collection[int] = (), patience: float = PATIENCE
    ) -> None:
        """Until `count` nodes (all, if left out), of those `among` the given numbers, are open."""
        nodes = [node for i, node in enumerate(self.nodes) if not among or i in among]
        wanted = len(nodes) if count is None else count
        try:
            wait_until(
                lambda: sum(node.open for node in nodes) >= wanted,
                f"{wanted} of {len(nodes)} nodes to be open",
                patience,
            )
        except TimeoutError as late:
            raise TimeoutError(f"{late}\n{self.logs()}") from None

    def logs(self) -> str:
        return "\n".join(
            f"--- agent {n.id} ---\n{n.agent.output()}\n--- server {n.id} ---\n"
            + "\n".join(n.server.output().splitlines()[-5:])
            for n in self.nodes
        )

    def start(self) -> Self:
        for node in self.nodes:
            node.server.start()
        if self._wants_agents:
            for node in self.nodes:
                node.agent.start()
        return self

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
