"""What a sidecar costs in every pod, and how fast two of them hand over."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from control_plane import ControlPlane
from ensemble import Ensemble
from leasekeeper_sidecar.claim import read_leader
from leasekeeper_sidecar.host import Proc
from localkube import binaries, pins
from localkube.progress import Progress
from lock_api import LockApi
from servers import Process, free_port, wait_until

from benchmarks import image_root
from benchmarks.figures.handover import contend, our_worker
from benchmarks.result import Row, at_most, note, percentile
from benchmarks.rig import Rig, boot, in_memory
from leasekeeper.lease import Timings

LOCK = "bench/sidecar"
DEFAULT = Timings()
MIB = 1024.0  # /proc counts in KiB
PATIENCE = 60.0
ELECTOR = Path(__file__).resolve().parents[2] / "tests" / "stores" / "go" / "elector"
FROM_SOURCE = [sys.executable, "-m", "leasekeeper_sidecar"]


class Sidecar(Process):
    def __init__(self, home: Path, name: str, config: dict[str, Any], api: LockApi) -> None:
        self.home = home / name
        self.home.mkdir(mode=0o777)
        self.home.chmod(0o777)
        super().__init__(self.home / "log")
        for folder in ("leader", "state"):
            (self.home / folder).mkdir()
            (self.home / folder).chmod(0o777)
        self.leader_file = str(self.home / "leader" / "leader")
        self.http_port, self.local_port = free_port(), free_port()
        self.environment = {
            "LEASEKEEPER_CONFIG_JSON": json.dumps(config),
            "LEASEKEEPER_POD_NAME": name,
            "LEASEKEEPER_POD_UID": f"uid-{name}",
            "LEASEKEEPER_LEADER_DIR": str(self.home / "leader"),
            "LEASEKEEPER_STATE_DIR": str(self.home / "state"),
            "LEASEKEEPER_HTTP_PORT": str(self.http_port),
            "LEASEKEEPER_LOCAL_PORT": str(self.local_port),
            **api.environment,
        }

    def start(self, command: Sequence[str] = FROM_SOURCE) -> Self:
        self._before = len(self.output())
        self.spawn(command, **self.environment)
        return self

    def leads(self) -> bool:
        return read_leader(self.leader_file, Proc()).leader

    def wait_leading(self) -> None:
        wait_until(self.leads, f"{self.log.parent.name} to lead")

    def led_at(self) -> float:
        """When its file said yes. Whether there is a new one is looked at far more often than what
        it says: reading takes ten times as long, on the processors that are measured."""
        known, began = (0, 0), boot()
        while boot() - began < PATIENCE:
            status = os.stat(self.leader_file)
            found, at = (status.st_ino, status.st_mtime_ns), boot()
            if found != known and self.leads():
                return at
            known = found
            time.sleep(0.0002)
        raise TimeoutError(f"{self.log.parent.name} does not lead after {PATIENCE:.0f} s")

    def wait_standby(self) -> None:
        """In this life: its log has those of the earlier ones, too."""
        wait_until(lambda: "standing-by" in self.output()[self._before :], "a standby")

    def mirrored(self) -> int:
        """How often it wrote the status."""
        page = self.get(self.http_port, "/metrics")
        found = re.findall(
            r'^leasekeeper_mirror_requests_total\{.*outcome="ok"\} (\d+)', page, re.M
        )
        return sum(map(int, found))

    def get(self, port: int, page: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=10) as answer:
            said: bytes = answer.read()
            return said.decode()

    def memory(self) -> tuple[float, float]:
        """PSS and RSS in MiB."""
        text = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        found = {key: int(kib) for key, kib in re.findall(r"^(Pss|Rss):\s+(\d+) kB", text, re.M)}
        return found["Pss"] / MIB, found["Rss"] / MIB

    def processor(self) -> float:
        """Seconds of the processor so far, of all its threads."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


@contextmanager
def _home(folder: Path | None = None) -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="lk-bench-", dir=folder))
    home.chmod(0o777)
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _api(home: Path) -> Iterator[LockApi]:
    """As in a pod, the sidecars mirror into the status of their lock, and may."""
    namespace, _, name = LOCK.partition("/")
    with ControlPlane(home / "plane") as plane:
        api = LockApi.prepare(plane, namespace, home / "account")
        api.create(name)
        api.allow(name)
        yield api


def _config(ensemble: Ensemble, username: str, password: str, **more: Any) -> dict[str, Any]:
    redlock = {
        "membership": ensemble.membership.to_json(),
        "username": username,
        "password": password,
    }
    return {"version": 1, "lock": LOCK, "store": "redlock", "redlock": redlock | more}


# -- what it costs ---------------------------------------------------------------------------------


def measure_cost(rig: Rig) -> list[Row]:
    """In the shipped image, with TLS to five nodes, both HTTP servers asked and scraped, and the
    status of the lock written. The first one alone on its machine, so that it pays for every page
    of its libraries; then with a second one, which shares them, as two pods of a node do.
    """
    ttl = DEFAULT.ttl
    with (
        _home() as home,
        _api(home) as api,
        Ensemble(5, flavour="redis", tls=True, max_ttl=ttl, quarantine=ttl * 1.1) as ensemble,
    ):
        ensemble.wait_open(patience=60)
        root = home / "root"
        size = image_root.unpack(image_root.sidecar(), root)
        assert ensemble.authority is not None
        ca = home / "ca.crt"
        shutil.copy(ensemble.authority.ca, ca)
        config = _config(ensemble, *ensemble.add_lock(LOCK), tls={"caFile": str(ca)})
        holder, standby = (Sidecar(home, name, config, api) for name in ("holder", "standby"))
        try:
            holder.start(image_root.command(root, home)).wait_leading()
            wait_until(holder.mirrored, "the status to be written")
            alone = _settled(holder)
            standby.start(image_root.command(root, home)).wait_standby()
            start = 1000 * standby.processor()
            together = {"holder": holder, "standby": standby}
            memory = {name: _settled(sidecar) for name, sidecar in together.items()}
            shares = _shares(together, 20.0 if rig.quick else 60.0)
        finally:
            holder.kill()
            standby.kill()
    rows = [
        note("sidecar image, all layers", "MiB", size / 2**20, "", None),
        note("sidecar, holder, alone on its machine: PSS", "MiB", alone[0], "", None),
        note("sidecar, holder, alone on its machine: RSS", "MiB", alone[1], "", None),
    ]
    for name in together:
        pss, rss = memory[name]
        rows += [
            at_most(f"sidecar, {name}, one of two: PSS", "MiB", pss, 24, "a bound"),
            note(f"sidecar, {name}, one of two: RSS", "MiB", rss, "", None),
            at_most(f"sidecar, {name}: processor", "% of a core", shares[name], 0.2, "a bound"),
        ]
    rows.append(at_most("sidecar, start to standby: processor", "ms", start, 400, "a bound"))
    return rows


def _settled(sidecar: Sidecar) -> tuple[float, float]:
    """PSS and RSS when everything was used once."""
    for _ in range(5):
        sidecar.get(sidecar.http_port, "/metrics")
        sidecar.get(sidecar.http_port, "/healthz")
        sidecar.get(sidecar.local_port, "/")
    time.sleep(5)
    return sidecar.memory()


def _shares(sidecars: dict[str, Sidecar], seconds: float) -> dict[str, float]:
    """Of a core, in percent."""
    before, began = {name: it.processor() for name, it in sidecars.items()}, boot()
    time.sleep(seconds)
    return {
        name: 100 * (it.processor() - before[name]) / (boot() - began)
        for name, it in sidecars.items()
    }


# -- hand-over -------------------------------------------------------------------------------------


def measure_handover(rig: Rig) -> list[Row]:
    """From SIGTERM to the other's file, in turns with client-go's elector at its defaults on a real
    API server, which gives the lease back when it is cancelled; and the bare library. The volumes
    are in memory, as those of injected pods are.
    """
    sidecars: list[float] = []
    electors: list[float] = []
    gaps: list[float] = []
    program = binaries.module("client-go-elector", ELECTOR, [], pins.load(), Progress())
    with _home() as disk, _api(disk) as api, _home(in_memory()) as home:
        for turn in range(3 if rig.quick else 12):
            sidecars += _sidecars(rig, home, api, turn)
            electors.append(_electors(program / "elector", api.plane, turn))
            tenures = contend(our_worker(rig), tasks=2, processes=2, seconds=1.5, hold=0.02)
            gaps += [b.began - a.released for a, b in pairwise(tenures) if a.task != b.task]
    figure = "hand-over between two sidecars, SIGTERM to the other's file"
    found, theirs = (1000 * percentile(times, 50) for times in (sidecars, electors))
    bare = 1000 * percentile(gaps, 50)
    least, bare_least = (1000 * percentile(times, 10) for times in (sidecars, gaps))
    return [
        at_most(f"{figure}, p50", "ms", found, 1 / 50, "client-go's elector", theirs),
        at_most(f"{figure}, p50 beyond the bare library's", "ms", found - bare, 5, "a bound"),
        note(f"{figure}, p50", "ms", found, "the bare library, release to knowing", bare),
        note(f"{figure}, p10", "ms", least, "the bare library", bare_least),
        note(f"{figure}, worst", "ms", 1000 * max(sidecars), "", None),
    ]


def _sidecars(rig: Rig, home: Path, api: LockApi, turn: int) -> list[float]:
    """There and back again, a few times: whoever was stopped is started anew. All write their
    tenures into the status of the lock meanwhile, and take their names out of it when they end.
    """
    config = _config(rig.ensemble, f"lock:{LOCK}", rig.password)
    config["timings"] = {
        "leaseDurationSeconds": rig.membership.max_ttl,
        "renewDeadlineSeconds": 6,
        "retryPeriodSeconds": 2,
    }
    times = []
    pair = [Sidecar(home, f"{name}{turn}", config, api) for name in ("a", "b")]
    try:
        pair[0].start().wait_leading()
        for _ in range(3):
            leader, other = pair
            other.start().wait_standby()
            wait_until(leader.mirrored, "the status to be written")
            time.sleep(1.0)
            began = boot()
            leader.send(signal.SIGTERM)
            times.append(other.led_at() - began)
            assert leader.wait() == 0
            pair.reverse()
    finally:
        for sidecar in pair:
            sidecar.kill()
    return times


def _electors(program: Path, plane: ControlPlane, turn: int) -> float:
    def start(name: str) -> subprocess.Popen[str]:
        timings = ["15s", "10s", "2s", "0s", "true"]  # its defaults
        arguments = [str(plane.kubeconfig), "default", f"bench-{turn}", name, *timings]
        return subprocess.Popen([str(program), *arguments], stdout=subprocess.PIPE, text=True)

    with start("a") as leader:
        assert leader.stdout is not None
        leader.stdout.readline()
        with start("b") as other:
            try:
                time.sleep(random.uniform(3.0, 6.2))  # anywhere in its retry period, which varies
                began = boot()
                leader.terminate()
                assert other.stdout is not None
                word, at = other.stdout.readline().split()
                assert word == "lead"
                return int(at) / 1e9 - began
            finally:
                os.kill(other.pid, signal.SIGKILL)
