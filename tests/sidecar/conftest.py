"""Sidecars as real processes on real nodes, and a watcher that reads all their files."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from ensemble import Ensemble
from leader_volume import SHELLS, Volume
from leasekeeper_sidecar.claim import Verdict, read_leader
from leasekeeper_sidecar.host import Host, Proc
from servers import Process, free_port, wait_until

# Short, but with room: readers have whole seconds of the wall clock, so up to one second of the
# deadline is lost to rounding, and several suites may share two cores.
TIMINGS = {"leaseDurationSeconds": 4, "renewDeadlineSeconds": 3, "retryPeriodSeconds": 0.4}


class Pod(Process):
    """One sidecar with its two volumes."""

    def __init__(self, home: Path, name: str, config: Path) -> None:
        home.mkdir(exist_ok=True)
        super().__init__(home / "log")
        self.name = name
        self.leader_dir = home / "leader-dir"
        self.state_dir = home / "state-dir"
        self.leader_dir.mkdir(exist_ok=True)
        self.state_dir.mkdir(exist_ok=True)
        self.http_port, self.local_port = free_port(), free_port()
        self.environment = {
            "LEASEKEEPER_CONFIG": str(config),
            "LEASEKEEPER_POD_NAME": name,
            "LEASEKEEPER_POD_UID": f"uid-of-{name}",
            "LEASEKEEPER_LEADER_DIR": str(self.leader_dir),
            "LEASEKEEPER_STATE_DIR": str(self.state_dir),
            "LEASEKEEPER_HTTP_PORT": str(self.http_port),
            "LEASEKEEPER_LOCAL_PORT": str(self.local_port),
            "LEASEKEEPER_MIRROR": "none",
        }

    @property
    def path(self) -> Path:
        return self.leader_dir / "leader"

    def start(self) -> Self:
        self.spawn([sys.executable, "-m", "leasekeeper_sidecar"], **self.environment)
        return self

    def verdict(self) -> Verdict:
        return read_leader(str(self.path), Proc())

    @property
    def leads(self) -> bool:
        return self.verdict().leader

    def said(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.path.read_text())
        return said

    def wait_renewed(self, times: int = 1) -> None:
        for _ in range(times):
            first = self.said()["deadlineCs"]
            wait_until(lambda: self.said()["deadlineCs"] != first, f"a renewal of {self.name}")  # noqa: B023

    def events(self, name: str) -> list[dict[str, str]]:
        """The lines of its log with this event's name, as keys and values."""
        lines = [line.split(" ") for line in self.output().splitlines()]
        return [
            dict(part.split("=", 1) for part in line[1:] if "=" in part)
            for line in lines
            if line[0] == name
        ]


Judge = Callable[[str, Host], Verdict]


@dataclass
class Watcher:
    """Reads all files every few milliseconds, and keeps what it saw.

    Two leaders: two yeses in one pass. The clocks of the second are read after those of the first,
    and the first is read once more at the end, so that a hand-over between two reads is not taken
    for two leaders at once.
    """

    pods: list[Pod]
    judge: Judge = read_leader
    two_leaders: list[str] = field(default_factory=list)
    tenures: list[tuple[str, int]] = field(default_factory=list)
    passes: int = 0

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        host = Proc()
        while not self._stop.wait(0.002):
            self.passes += 1
            saying = [(pod, self.judge(str(pod.path), host)) for pod in self.pods]
            yes = [(pod, verdict) for pod, verdict in saying if verdict.leader]
            if len(yes) > 1:
                still = [pod for pod, _ in yes if self.judge(str(pod.path), host).leader]
                if len(still) > 1:
                    self.two_leaders.append(f"{time.monotonic():.3f} {yes}")
            for pod, verdict in yes:
                tenure = (pod.name, verdict.token)
                if not self.tenures or self.tenures[-1] != tenure:
                    self.tenures.append(tenure)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def check(self) -> None:
        """At most one leader at a time, and each tenure with a larger token than the last."""
        assert self.passes > 0
        assert not self.two_leaders, self.two_leaders[:3]
        tokens = [token for _, token in self.tenures]
        assert tokens == sorted(set(tokens)), self.tenures


def without_deadline(path: str, _: Host) -> Verdict:
    """The control: what a file without an end of its own would say."""
    try:
        said = json.loads(Path(path).read_text())
    except (OSError, ValueError):
        return Verdict(False, 0, "no file")
    return Verdict(said["leader"] is True, said["token"], "as it stands there")


class Cast:
    """The sidecars of one lock."""

    def __init__(self, home: Path, ensemble: Ensemble, lock: str) -> None:
        self.home = home
        self.ensemble = ensemble
        self.lock = lock
        username, password = ensemble.add_lock(lock)
        self.config = home / "lock.json"
        self._contents: dict[str, Any] = {
            "version": 1,
            "lock": lock,
            "store": "redlock",
            "timings": TIMINGS,
            "redlock": {
                "membership": ensemble.membership.to_json(),
                "username": username,
                "password": password,
            },
        }
        self.set_timings()
        self.pods: list[Pod] = []

    def set_timings(self, **timings: float) -> None:
        self._contents["timings"] = {**TIMINGS, **timings}
        self.config.write_text(json.dumps(self._contents))

    def be_patient(self) -> None:
        """For tests in which nobody should lose by time: a busy machine takes seconds to start a
        process.
        """
        self.set_timings(leaseDurationSeconds=12, renewDeadlineSeconds=10)

    def make(self, count: int) -> list[Pod]:
        """Not started yet."""
        names = [f"pod-{n}" for n in range(len(self.pods), len(self.pods) + count)]
        new = [Pod(self.home / name, name, self.config) for name in names]
        self.pods += new
        return new

    def add(self, count: int = 1) -> list[Pod]:
        new = [pod.start() for pod in self.make(count)]
        wait_until(lambda: all(pod.path.exists() for pod in new), "their files")
        return new

    def twin(self, pod: Pod) -> Pod:
        """A second sidecar on the volumes of the first."""
        new = Pod(self.home / "twin", pod.name, self.config)
        for key in ("LEASEKEEPER_LEADER_DIR", "LEASEKEEPER_STATE_DIR"):
            new.environment[key] = pod.environment[key]
        self.pods.append(new)
        return new

    def leader(self, other_than: Pod | None = None) -> Pod:
        def leading() -> Pod | None:
            return next((p for p in self.pods if p is not other_than and p.leads), None)

        try:
            found: Pod = wait_until(leading, "a leader")
        except TimeoutError as late:
            logs = "\n".join(f"--- {pod.name}\n{pod.output()}" for pod in self.pods)
            raise TimeoutError(f"{late}\n{logs}") from None
        return found

    def close(self) -> None:
        for pod in self.pods:
            pod.kill()


@pytest.fixture(scope="session", params=["valkey", "redis"])
def ensemble(request: pytest.FixtureRequest) -> Iterator[Ensemble]:
    flavour: str = request.param
    with Ensemble(5, flavour=flavour, max_ttl=12.0, quarantine=12.5) as started:
        started.wait_open()
        yield started


@pytest.fixture
def cast(ensemble: Ensemble, tmp_path: Path) -> Iterator[Cast]:
    made = Cast(tmp_path, ensemble, f"test/lock-{os.urandom(4).hex()}")
    yield made
    made.close()


@pytest.fixture
def make_pod() -> type[Pod]:
    """For tests that need no nodes."""
    return Pod


@pytest.fixture
def make_cast(tmp_path: Path) -> Iterator[Callable[[Ensemble, str], Cast]]:
    """For tests with an ensemble of their own."""
    made: list[Cast] = []

    def make(ensemble: Ensemble, lock: str) -> Cast:
        made.append(Cast(tmp_path, ensemble, lock))
        return made[-1]

    yield make
    for cast in made:
        cast.close()


@pytest.fixture
def watch() -> Callable[[list[Pod]], Watcher]:
    return Watcher


@pytest.fixture
def watch_without_deadline() -> Callable[[list[Pod]], Watcher]:
    return lambda pods: Watcher(pods, judge=without_deadline)


# -- the programs for shells -----------------------------------------------------------------------


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> list[str]:
    name: str = request.param
    if shutil.which(SHELLS[name][0]) is None:
        pytest.skip(f"no {name} on this machine")
    return SHELLS[name]


@pytest.fixture
def volume(tmp_path: Path, shell: list[str]) -> Volume:
    return Volume(tmp_path, shell)


@pytest.fixture
def real(tmp_path: Path, shell: list[str]) -> Volume:
    return Volume(tmp_path, shell, real_clocks=True)
