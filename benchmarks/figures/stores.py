"""Every store side by side: an acquire, and a graceful hand-over; ZooKeeper also against kazoo.

All on loopback and without a disk (the servers do not wait for it): what is compared are protocols.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from backends import STORES, Backend, started

from benchmarks.build import HERE
from benchmarks.figures.handover import Worker, contend
from benchmarks.result import Row, at_most, note, percentile
from benchmarks.rig import LONG, OURS, Rig, command, run, timings_json

LOCK = "shop/bench"
WAITERS, PROCESSES, HOLD = 2, 3, 0.02
KAZOO = HERE / "workers" / "kazoo_peer.py"
LED, LOOK = 0.25, 0.1
"""Settled: leaders have led for longer than waiters take to look, so who is second in line knows
it by its own timed look. Rapid: the lock passes on every HOLD, and only the word of who wins can
tell it in time. Leaders that lead for hours are settled; both are held against kazoo."""
CALLS_NOBODY = ("mysql", "sqlite")
"""Whoever gives a lock back there leaves it to others for half a second; so few samples."""
Times = dict[str, list[float]]


def measure(rig: Rig) -> list[Row]:
    """Every store, by itself."""
    acquires: Times = {}
    gaps: Times = {}
    with ExitStack() as stack:
        stores = {name: stack.enter_context(_store(rig, name)) for name in STORES}
        for turn in range(1 if rig.quick else 3):
            for name, job in stores.items():
                acquires.setdefault(name, []).extend(_acquire(job, rig.quick))
                if turn == 0:
                    gaps.setdefault(name, []).extend(_gaps(_ours(job), rig.quick))
    acquire, gap = _p50(acquires), _p50(gaps)
    return [
        *(note(f"acquire p50, {name}", "ms", ms, "", None) for name, ms in acquire.items()),
        *(note(f"hand-over p50, {name}", "ms", ms, "", None) for name, ms in gap.items()),
    ]


def measure_zookeeper(rig: Rig) -> list[Row]:
    """Ours and kazoo's recipes on one server, in turns."""
    kinds = ("Lock", "Election")
    found: dict[str, Times] = {"settled": {}, "rapid": {}}
    with _store(rig, "zookeeper") as job:
        kazoo = {kind: _kazoo(job, kind) for kind in kinds}
        runs = {
            "settled": ({"ours": _ours(_quick_looks(job)), **kazoo}, LED),
            "rapid": ({"ours": _ours(job), **kazoo}, HOLD),
        }
        for _ in range(1 if rig.quick else 3):
            for form, (workers, hold) in runs.items():
                for kind, worker in workers.items():
                    found[form].setdefault(kind, []).extend(_gaps(worker, rig.quick, hold=hold))
    gap = {form: _p50(times) for form, times in found.items()}
    return [
        at_most(
            f"ZooKeeper, hand-over p50, {form}",
            "ms",
            gap[form]["ours"],
            1.2,
            f"kazoo's {kind}",
            gap[form][kind],
        )
        for form in found
        for kind in kinds
    ]


def _p50(times: Times) -> dict[str, float]:
    return {name: 1000 * percentile(found, 50) for name, found in times.items()}


@contextmanager
def _store(rig: Rig, name: str) -> Iterator[dict[str, Any]]:
    """What a worker needs to be a candidate of this store."""
    if name == "redlock":
        yield rig.our_job("", "bench/handover")
        return
    with tempfile.TemporaryDirectory() as folder, started(name, Path(folder)) as backend:
        yield {"lock": LOCK, "timings": timings_json(LONG), "settings": _direct(backend)}


def _direct(backend: Backend) -> dict[str, Any]:
    """Without the tests' proxy, which is there to be cut and costs more than some stores."""
    if hasattr(backend, "proxies"):
        backend.port = backend.proxies[0].target  # type: ignore[attr-defined]
    return backend.settings(LOCK)


def _ours(job: dict[str, Any]) -> Worker:
    program = [sys.executable, "-m", OURS]
    return lambda **more: command(program, {**job, "kind": "contend", **more})


def _kazoo(job: dict[str, Any], kind: str) -> Worker:
    told = {"hosts": job["settings"]["zookeeper"]["hosts"], "variant": kind}
    return lambda **more: command([sys.executable, str(KAZOO)], {**told, **more})


def _acquire(job: dict[str, Any], quick: bool) -> list[float]:
    polite = job.get("settings", {}).get("store") in CALLS_NOBODY
    count = 10 if polite else 50 if quick else 200
    more = {"kind": "acquire", "warm_up": 5 if polite else 20, "count": count}
    worker = command([sys.executable, "-m", OURS], {**job, **more, "hold": 0.001, "start_at": 0.0})
    seconds: list[float] = run([worker], 120)[0]["seconds"]
    return seconds


def _quick_looks(job: dict[str, Any]) -> dict[str, Any]:
    return {**job, "timings": {**job["timings"], "retry_period": LOOK}}


def _gaps(worker: Worker, quick: bool, hold: float = HOLD) -> list[float]:
    seconds = 4.0 if quick else 8.0
    tenures = contend(worker, tasks=WAITERS + 1, processes=PROCESSES, seconds=seconds, hold=hold)
    return [b.began - a.released for a, b in pairwise(tenures) if a.task != b.task]
