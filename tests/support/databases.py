"""Real database servers for tests: PostgreSQL and MariaDB from Debian's packages, ZooKeeper's jar.

Each is one process without privileges in a folder of its own, on a free port of loopback. None
outlives its test, and nothing stays behind.
"""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import redis
from servers import Process, free_port, wait_until

from leasekeeper.demo.wall_clock import WallClock, build_shim

NOBODY = 65534
PATIENCE = 60.0
JAVA = "/usr/share/java"


def unprivileged(command: Sequence[str]) -> list[str]:
    """Database servers refuse to run as root, and rightly so. A change of user clears the signal
    that ends a child with its parent, so it is set again after it.
    """
    if os.geteuid() != 0:
        return list(command)
    user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return ["setpriv", *user, "--pdeathsig=KILL", "--", *command]


class Daemon(Process):
    """A server with a folder. `start` returns when it answers, also after a `kill`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.home = Path(tempfile.mkdtemp(prefix="lk-"))
        self.home.chmod(0o755)
        self.data = self.home / "data"
        self.data.mkdir()
        if os.geteuid() == 0:
            for path in (self.home, self.data):
                os.chown(path, NOBODY, NOBODY)
        self.port = free_port()
        self.wall = WallClock(self.home / "wall-clock", build_shim(self.home))
        """Its wall clock; a test may set it, by so many seconds from the real one."""
        super().__init__(self.home / "server.log")

    def command(self) -> list[str]:
        raise NotImplementedError

    def answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def launch(self) -> None:
        """Starts it, and does not wait."""
        self.spawn(unprivileged(self.command()), **self.wall.environment)

    def start(self) -> Self:
        self.launch()
        wait_until(lambda: self.answers() or not self.running, f"{self.name} to answer", PATIENCE)
        if not self.running:
            raise RuntimeError(f"{self.name} did not start:\n{self.output()[-4000:]}")
        return self

    def restart(self) -> None:
        """Killed without a goodbye, and started again on the same data and port."""
        self.kill()
        self.start()

    def run(self, command: Sequence[str], text: str = "") -> str:
        done = subprocess.run(
            unprivileged(command),
            input=text,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            cwd=self.home,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.prepare()
            return self.start()
        except BaseException:
            self.close()
            raise

    def prepare(self) -> None:
        """What is done once, before the first start."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.close()


class PostgreSql(Daemon):
    """User `app` owns the database `app`; the superuser is `postgres`. Both need a password."""

    def __init__(self) -> None:
        super().__init__("PostgreSQL")
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
        self._bin = Path(found[-1] if found else "/usr/bin")
        self.password = secrets.token_hex(8)

    def command(self) -> list[str]:
        options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.home),
            "fsync": "off",  # what is killed here is the process, not the machine
            "shared_buffers": "16MB",
            "max_connections": "200",
        }
        flags = [f for key, value in options.items() for f in ("-c", f"{key}={value}")]
        return [f"{self._bin}/postgres", "-D", str(self.data), "-p", str(self.port), *flags]

    def prepare(self) -> None:
        word = self.home / "password"
        word.write_text(self.password)
        word.chmod(0o644)
        options = ["-U", "postgres", "-A", "scram-sha-256", "--pwfile", str(word), "-E", "UTF8"]
        self.run([f"{self._bin}/initdb", "-D", str(self.data), "--no-sync", *options])

    def answers(self) -> bool:
        ready = [f"{self._bin}/pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(ready, check=False).returncode == 0

    def start(self) -> Self:
        # Its children outlive a killed postmaster for a moment, and hold the shared memory.
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        return super().start()

    def sql(self, text: str, database: str = "postgres") -> str:
        program = [f"{self._bin}/psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]
        where = f"host={self.home} port={self.port} user=postgres password={self.password}"
        return self.run([*program, f"{where} dbname={database}"], text).strip()

    def kill(self) -> None:
        """All of it: a backend that lives on would still run statements."""
        if self.running:
            children = _descendants(self.pid)
            super().kill()
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            wait_until(lambda: not any(map(_alive, children)), "PostgreSQL's children to end")


class MariaDb(Daemon):
    """The superuser is `root`, through the socket; it has no password of its own here."""

    def __init__(self) -> None:
        super().__init__("MariaDB")
        self.socket = self.home / "m.sock"

    def command(self) -> list[str]:
        return [
            shutil.which("mariadbd") or "/usr/sbin/mariadbd",
            "--no-defaults",
            f"--datadir={self.data}",
            f"--socket={self.socket}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--innodb-buffer-pool-size=16M",
            "--innodb-flush-log-at-trx-commit=2",  # the process is killed, not the machine
            "--skip-name-resolve",
            "--skip-log-bin",
        ]

    def prepare(self) -> None:
        options = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        data = f"--datadir={self.data}"
        self.run(["mariadb-install-db", "--no-defaults", data, "--skip-name-resolve", *options])

    def answers(self) -> bool:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self.port)) != 0:
                return False
            probe.settimeout(1)
            try:
                return bool(probe.recv(1))
            except OSError:
                return False

    def sql(self, text: str, database: str = "mysql") -> list[tuple[object, ...]]:
        import pymysql

        with pymysql.connect(
            unix_socket=str(self.socket), user="root", database=database, autocommit=True
        ) as connection:
            rows: list[tuple[object, ...]] = []
            with connection.cursor() as cursor:
                for statement in filter(str.strip, text.split(";")):
                    cursor.execute(statement)
                    rows = list(cursor.fetchall())
            return rows


class MySql(MariaDb):
    """Oracle's, in the place of MariaDB if the environment names its program: of Debian, only
    `unstable` has it. Its users log in as they do by default (caching_sha2_password).
    """

    PROGRAM = "LEASEKEEPER_MYSQLD"

    def command(self) -> list[str]:
        return [
            os.environ[self.PROGRAM],
            "--no-defaults",
            f"--datadir={self.data}",
            f"--socket={self.socket}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--mysqlx=OFF",
            "--secure-file-priv=NULL",
            "--innodb-buffer-pool-size=16M",
            "--innodb-flush-log-at-trx-commit=2",
            "--skip-name-resolve",
            "--skip-log-bin",
        ]

    def prepare(self) -> None:
        empty = ["--no-defaults", "--initialize-insecure", f"--datadir={self.data}"]
        self.run([os.environ[self.PROGRAM], *empty])


class Redis(Daemon):
    """One server that keeps nothing on the disk: a restart loses everything."""

    def __init__(self) -> None:
        super().__init__("Redis")
        self.password = secrets.token_hex(8)

    def command(self) -> list[str]:
        where = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.data)]
        return ["redis-server", *where, "--save", "", "--requirepass", self.password]

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, password=self.password, decode_responses=True)


class ZooKeeper(Daemon):
    """One server; with `peers` (server lines of the configuration) a member of an ensemble."""

    TICK = 0.2

    def __init__(
        self, number: int = 1, peers: Sequence[str] = (), config: str = "", tick: float = TICK
    ) -> None:
        super().__init__(f"ZooKeeper {number}")
        self._tick = tick
        self._number = number
        self._peers = peers
        self._config = [config]
        self.jaas: Path | None = None

    def config(self, *lines: str) -> None:
        """Further lines of its configuration, before `prepare`."""
        self._config += lines

    def prepare(self) -> None:
        (self.data / "myid").write_text(str(self._number))
        lines = [
            f"tickTime={self._tick * 1000:.0f}",
            f"dataDir={self.data}",
            f"clientPort={self.port}",
            "clientPortAddress=127.0.0.1",
            "admin.enableServer=false",
            "initLimit=50",
            "syncLimit=10",
            "maxSessionTimeout=20000",
            "maxClientCnxns=0",
            "4lw.commands.whitelist=srvr,ruok",
            *self._peers,
            *self._config,
        ]
        (self.home / "zoo.cfg").write_text("\n".join(lines) + "\n")

    def command(self) -> list[str]:
        jvm = ["-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
        if self.jaas is not None:
            jvm.append(f"-Djava.security.auth.login.config={self.jaas}")
        # fsync: what is killed is the process, not the machine.
        jvm += ["-Dzookeeper.forceSync=no", "-Dzookeeper.serverCnxnFactory=" + self.factory]
        # The package's own class path lacks what Netty, and so TLS, needs.
        jars = ("zookeeper", "slf4j-simple", "netty-codec", "netty-resolver")
        path = ":".join(f"{JAVA}/{jar}.jar" for jar in jars)
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return ["java", *jvm, "-cp", path, main, str(self.home / "zoo.cfg")]

    factory = "org.apache.zookeeper.server.NIOServerCnxnFactory"

    def answers(self) -> bool:
        return "Mode:" in self.said("srvr")

    def said(self, word: str) -> str:
        """What it answers to one of its four-letter words."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(word.encode())
                return connection.makefile("rb").read().decode(errors="replace")
        except OSError:
            return ""

    @property
    def leads(self) -> bool:
        return "Mode: leader" in self.said("srvr")


def _descendants(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
