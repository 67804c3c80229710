"""What the figures stand on: five real nodes, the peers' own user on them, a proxy and an etcd.

Workers are processes with one job each (workers/, go/): a job goes in as JSON in the first
argument, a result comes out as JSON on stdout.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ensemble import Ensemble
from servers import Process, free_port, wait_until

from benchmarks.build import HERE, Peers
from leasekeeper.lease import Timings
from leasekeeper.redlock import users

Job = dict[str, Any]

LONG = Timings(lease_duration=8.0, renew_deadline=6.0, retry_period=2.0)
"""Long enough that nothing expires while it is measured; redsync's own default is 8 s, too."""

DELAY = 0.0005
"""Seconds, each way: the round trip of two zones of one region."""

OURS = "benchmarks.workers.ours"
HOLDER = HERE / "workers" / "holder.py"
PEERS_PY = HERE / "workers" / "peers.py"

LOCKS = ("bench/acquire", "bench/handover", "bench/takeover", "bench/memory", "bench/sidecar")
MANY = "bench/many"
ONE, ALL = f"{MANY}-0", f"{MANY}*"
SHARED_USER = "benchmark-shared"
"""As the user of a lock, but of all the locks called MANY (SharedLinks)."""
PEER_USER = "benchmark-peer"
"""May do everything, but on the keys of the peers only: our locks stay what they are."""


def boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def in_memory() -> Path | None:
    """A folder whose files are in memory. None: wherever temporary files are."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() else None


def timings_json(timings: Timings) -> dict[str, float]:
    found = asdict(timings)
    del found["drift"]
    return found


class Rig:
    def __init__(self, ensemble: Ensemble, peers: Peers, *, quick: bool) -> None:
        self.ensemble = ensemble
        self.peers = peers
        self.quick = quick
        self.password = secrets.token_hex(8)
        self.membership = ensemble.membership
        self.addresses = [node.address for node in ensemble.membership.nodes]
        self._add_users()

    def _add_users(self) -> None:
        locks = [*LOCKS, *(f"{MANY}-{number}" for number in range(100))]
        digest = users.digest(self.password)
        self.ensemble.write_users("".join(f"{lock} {digest}\n" for lock in locks))
        last = users.lock_user(locks[-1])
        for node in self.ensemble.nodes:
            wait_until(partial(node.has_user, last), f"node {node.id} to know {last}")
            with node.server.client() as client:
                rules = ("reset", "on", f"#{digest}", "~bench:*", "~redlock:*", "&*", "+@all")
                client.execute_command("ACL", "SETUSER", PEER_USER, *rules)
                ours = (rule.replace(ONE, ALL) for rule in users.lock_rules(ONE, {digest}))
                client.execute_command("ACL", "SETUSER", SHARED_USER, *ours)

    # -- jobs ------------------------------------------------------------------------------------

    def our_job(self, kind: str, lock: str, **more: Any) -> Job:
        return {
            "kind": kind,
            "lock": lock,
            "membership": self.membership.to_json(),
            "password": self.password,
            "timings": timings_json(LONG),
            **more,
        }

    def peer_job(self, kind: str, lock: str, **more: Any) -> Job:
        return {
            "kind": kind,
            "lock": f"bench:{lock}",
            "addresses": self.addresses,
            "username": PEER_USER,
            "password": self.password,
            **more,
        }

    def ours(self, kind: str, lock: str, **more: Any) -> list[str]:
        """The command line of a worker."""
        return command([sys.executable, "-m", OURS], self.our_job(kind, lock, **more))

    def redsync(self, kind: str, lock: str, **more: Any) -> list[str]:
        return command([str(self.peers.redsync)], self.peer_job(kind, lock, **more))

    def python_peer(self, name: str, kind: str, lock: str, **more: Any) -> list[str]:
        job = self.peer_job(kind, lock, variant=name, **more)
        return command([str(self.peers.python), str(PEERS_PY)], job)

    # -- what stands between ---------------------------------------------------------------------

    @contextmanager
    def proxy(self) -> Iterator[list[str]]:
        """Addresses of the nodes behind a round trip of 2 × DELAY."""
        delay = f"-delay={DELAY * 1e6:.0f}us"
        with subprocess.Popen(
            [str(self.peers.delayproxy), delay, *self.addresses], stdout=subprocess.PIPE
        ) as process:
            try:
                assert process.stdout is not None
                yield json.loads(process.stdout.readline())
            finally:
                process.kill()

    @contextmanager
    def hung(self, count: int) -> Iterator[None]:
        """The last `count` nodes stand still: connections stay open, and nothing answers."""
        nodes = self.ensemble.nodes[len(self.ensemble.nodes) - count :]
        for node in nodes:
            node.hang()
        try:
            yield
        finally:
            for node in nodes:
                node.go_on()

    @contextmanager
    def etcd(self) -> Iterator[str]:
        """The address of one etcd server. Its data is in memory where that can be had: what is
        compared are protocols, not this machine's disk.
        """
        home = Path(tempfile.mkdtemp(prefix="lk-", dir=in_memory()))
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        server = Process(home / "etcd.log")
        server.spawn(
            [
                str(self.peers.etcd),
                f"--data-dir={home / 'data'}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--log-level=error",
            ]
        )
        try:
            wait_until(lambda: _healthy(client), "etcd to answer")
            yield client
        finally:
            server.kill()
            shutil.rmtree(home, ignore_errors=True)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return b"true" in answer.read()
    except OSError:
        return False


def command(program: Sequence[str], job: Job) -> list[str]:
    return [*program, json.dumps(job)]


def run(workers: Sequence[list[str]], patience: float) -> list[Any]:
    """Runs workers side by side; their results. One that fails is an error, not a figure."""
    running = [
        subprocess.Popen(
            worker, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=HERE.parent
        )
        for worker in workers
    ]
    results = []
    try:
        for process, worker in zip(running, workers, strict=True):
            out, err = process.communicate(timeout=patience)
            if process.returncode != 0:
                raise RuntimeError(f"{Path(worker[-2]).name} failed:\n{err[-2000:]}")
            results.append(json.loads(out.strip().splitlines()[-1]))
    finally:
        for process in running:
            process.kill()
    return results
