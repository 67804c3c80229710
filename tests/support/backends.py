"""The servers of each store, and what a test may do to them. A new store is one class here."""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from databases import MariaDb, MySql, PostgreSql, Redis, ZooKeeper
from ensemble import Ensemble
from kazoo.client import KazooClient
from kube_lease import control_plane, fresh_lease
from tcp_proxy import TcpProxy

from leasekeeper.lease import Timings
from leasekeeper.sql.schema import TABLE, schema

TIMINGS = Timings(lease_duration=2.0, renew_deadline=1.5, retry_period=0.4)
PATIENT = Timings(lease_duration=8.0, renew_deadline=6.0, retry_period=0.5)
"""Where something is done to a server in the middle of a lease."""

Json = dict[str, Any]


class Backend(Protocol):
    """One store's servers. What a candidate is told is its part of `lock.json`, as in a pod."""

    def settings(self, lock: str) -> Json:
        """`{"store": NAME, NAME: {…}}`; the way to the servers leads through what can be cut."""

    def cut(self) -> None:
        """Nobody reaches a server: connections end, new ones are refused."""

    def freeze(self) -> None:
        """Connections stay, and nothing comes through."""

    def heal(self) -> None: ...

    def restart(self) -> None:
        """A server is killed, and started again."""

    def delete(self, lock: str) -> None:
        """What the servers keep of the lock is gone, under whoever holds it."""

    def held_up(self) -> bool:
        """Whether a candidate that was paused in the middle of a write keeps everybody out."""


class Proxied:
    """The way to one or more servers: what can be cut."""

    def __init__(self, stack: ExitStack, *ports: int) -> None:
        self.proxies = [stack.enter_context(TcpProxy(port)) for port in ports]
        self.port = self.proxies[0].port

    def cut(self) -> None:
        for proxy in self.proxies:
            proxy.cut()

    def freeze(self) -> None:
        for proxy in self.proxies:
            proxy.freeze()

    def heal(self) -> None:
        for proxy in self.proxies:
            proxy.heal()

    def held_up(self) -> bool:
        return False  # a server needs nobody to finish what it was asked


class RedlockBackend(Proxied):
    """Five nodes. The members' addresses are those of the proxies, for agents as for candidates."""

    def __init__(self, stack: ExitStack) -> None:
        self._ensemble = ensemble = Ensemble(5, max_ttl=PATIENT.ttl, quarantine=PATIENT.ttl + 0.2)
        stack.callback(ensemble.close)
        super().__init__(stack, *(node.port for node in ensemble.membership.nodes))
        pairs = zip(ensemble.membership.nodes, self.proxies, strict=True)
        nodes = tuple(replace(node, port=proxy.port) for node, proxy in pairs)
        ensemble.membership = replace(ensemble.membership, nodes=nodes)
        ensemble.membership_file.write_text(json.dumps(ensemble.membership.to_json()))
        ensemble.start()
        ensemble.wait_open()
        self._passwords: dict[str, tuple[str, str]] = {}

    def settings(self, lock: str) -> Json:
        if lock not in self._passwords:
            self._passwords[lock] = self._ensemble.add_lock(lock)
        username, password = self._passwords[lock]
        return {
            "store": "redlock",
            "redlock": {
                "membership": self._ensemble.membership.to_json(),
                "username": username,
                "password": password,
            },
        }

    def restart(self) -> None:
        """One of five, as in a rolling restart. It is out for its quarantine."""
        self._ensemble.wait_open()
        self._ensemble.nodes[0].server.restart()

    def ask(self, lock: str, *wish: str) -> None:
        """What people ask of a lock, as the operator passes it on: number, what, whom, how long."""
        for node in self._ensemble.nodes:
            node.server.fcall("lk1_request", lock, *wish)

    def delete(self, lock: str) -> None:
        """As the operator does it, which nodes refuse while it is held. (By force it would be a
        memory that was rolled back, against which nothing is promised.)
        """
        for node in self._ensemble.nodes:
            node.server.fcall("lk1_forget", lock, 2**50)


class PostgreSqlBackend(Proxied):
    ended = "expires = now() - interval '1 second'"
    """What makes a row one whose lease is over."""

    def __init__(self, stack: ExitStack) -> None:
        self.server = stack.enter_context(PostgreSql())
        self.password = secrets.token_hex(8)
        self.server.sql(f"CREATE USER app PASSWORD '{self.password}'; CREATE DATABASE app;")
        self.server.sql(schema("postgresql"), "app")
        self.server.sql(f"GRANT SELECT, INSERT, UPDATE ON {TABLE} TO app;", "app")
        super().__init__(stack, self.server.port)

    def settings(self, lock: str) -> Json:
        told = {"host": "127.0.0.1", "port": self.port, "database": "app"}
        user = {"username": "app", "password": self.password}
        return {"store": "postgresql", "postgresql": told | user}

    def sql(self, text: str) -> Any:
        return self.server.sql(text, "app")

    def restart(self) -> None:
        self.server.restart()

    def delete(self, lock: str) -> None:
        self.sql(f"DELETE FROM {TABLE} WHERE resource = '{lock}'")


class MySqlBackend(Proxied):
    ended = "expires = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND"

    def __init__(self, stack: ExitStack) -> None:
        kind = MySql if os.environ.get(MySql.PROGRAM) else MariaDb
        self.server = stack.enter_context(kind())
        self.password = secrets.token_hex(8)
        self.server.sql("CREATE DATABASE app")
        self.sql(f"CREATE USER app IDENTIFIED BY '{self.password}'")
        self.sql("\n".join(line.partition("--")[0] for line in schema("mysql").splitlines()))
        self.sql(f"GRANT SELECT, INSERT, UPDATE ON app.{TABLE} TO app")
        super().__init__(stack, self.server.port)

    def settings(self, lock: str) -> Json:
        told = {"host": "127.0.0.1", "port": self.port, "database": "app"}
        return {"store": "mysql", "mysql": told | {"username": "app", "password": self.password}}

    def sql(self, text: str) -> Any:
        return self.server.sql(text, "app")

    def restart(self) -> None:
        self.server.restart()

    def delete(self, lock: str) -> None:
        self.sql(f"DELETE FROM {TABLE} WHERE resource = '{lock}'")


class SqliteBackend:
    """A file. Its network is the right to open it, its server is nobody: so a transaction that
    locks the file stands for both.
    """

    ended = "expires = expires - 60000"

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.file = folder / "locks.db"
        self._stack = stack
        self._blocker: sqlite3.Connection | None = None
        with sqlite3.connect(self.file) as connection:
            connection.executescript(schema("sqlite"))

    def settings(self, lock: str) -> Json:
        return {"store": "sqlite", "sqlite": {"file": str(self.file)}}

    def sql(self, text: str) -> Any:
        with sqlite3.connect(self.file, timeout=20) as connection:
            return connection.execute(text).fetchall()

    def cut(self) -> None:
        self._blocker = sqlite3.connect(self.file, timeout=20, isolation_level=None)
        self._blocker.execute("BEGIN EXCLUSIVE")

    freeze = cut

    def held_up(self) -> bool:
        connection = sqlite3.connect(self.file, timeout=0, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        finally:
            connection.close()
        return False

    def heal(self) -> None:
        if self._blocker is not None:
            self._blocker.close()
            self._blocker = None

    def restart(self) -> None:
        self.cut()
        self.heal()

    def delete(self, lock: str) -> None:
        self.sql(f"DELETE FROM {TABLE} WHERE resource = '{lock}'")


class RedisBackend(Proxied):
    def __init__(self, stack: ExitStack) -> None:
        self.server = stack.enter_context(Redis())
        self.password = secrets.token_hex(8)
        self._make_user()
        super().__init__(stack, self.server.port)

    def _make_user(self) -> None:
        commands = "get set del pttl pexpire hget hmget hset time publish subscribe unsubscribe"
        rules = [f"+{command}" for command in ("eval", "hello", *commands.split())]
        with self.server.client() as client:
            keys = ("~leasekeeper:*", "&leasekeeper:*")
            words = ("reset", "on", f">{self.password}", *keys, *rules)
            client.execute_command("ACL", "SETUSER", "app", *words)

    def settings(self, lock: str) -> Json:
        told = {"host": "127.0.0.1", "port": self.port}
        return {"store": "redis", "redis": told | {"username": "app", "password": self.password}}

    def restart(self) -> None:
        self.server.restart()
        self._make_user()

    def delete(self, lock: str) -> None:
        with self.server.client() as client:
            client.delete(f"leasekeeper:{lock}", f"leasekeeper:{lock}:token")


class ZooKeeperBackend(Proxied):
    def __init__(self, stack: ExitStack) -> None:
        self.server = stack.enter_context(ZooKeeper())
        super().__init__(stack, self.server.port)

    def settings(self, lock: str) -> Json:
        told = {"hosts": f"127.0.0.1:{self.port}", "tickSeconds": ZooKeeper.TICK}
        return {"store": "zookeeper", "zookeeper": told}

    def restart(self) -> None:
        self.server.restart()

    def delete(self, lock: str) -> None:
        client = KazooClient(f"127.0.0.1:{self.server.port}")
        client.start()
        client.delete(f"/leasekeeper/{lock}", recursive=True)
        client.stop()
        client.close()


class KubernetesBackend(Proxied):
    """One API server with its etcd; the candidates are administrators."""

    def __init__(self, stack: ExitStack) -> None:
        self._plane = stack.enter_context(control_plane())
        self.kubectl("create", "namespace", "shop")
        super().__init__(stack, int(self._plane.server.rpartition(":")[2]))

    def kubectl(self, *words: str, given: str | None = None) -> None:
        command = (str(self._plane.kubectl), "--kubeconfig", str(self._plane.kubeconfig))
        done = subprocess.run(
            [*command, *words], input=given, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr

    def settings(self, lock: str) -> Json:
        self.kubectl("create", "-f-", given=json.dumps(fresh_lease(*lock.split("/"))))
        keys = str(self._plane.directory / "pki")
        return {"store": "kubernetes", "kubernetes": {"keys": keys, "port": self.port}}

    def restart(self) -> None:
        self._plane.restart_api_server()

    def delete(self, lock: str) -> None:
        namespace, _, name = lock.partition("/")
        self.kubectl("delete", "lease", "--namespace", namespace, name)


STORES = ("redlock", "kubernetes", "postgresql", "mysql", "sqlite", "zookeeper", "redis")


@contextmanager
def started(name: str, folder: Path) -> Iterator[Backend]:
    with ExitStack() as stack:
        made: dict[str, Any] = {
            "redlock": lambda: RedlockBackend(stack),
            "kubernetes": lambda: KubernetesBackend(stack),
            "postgresql": lambda: PostgreSqlBackend(stack),
            "mysql": lambda: MySqlBackend(stack),
            "zookeeper": lambda: ZooKeeperBackend(stack),
            "redis": lambda: RedisBackend(stack),
            "sqlite": lambda: SqliteBackend(stack, folder),
        }
        yield made[name]()
