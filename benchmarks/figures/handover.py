"""How fast a lock passes on: from the holder's call to release to the next one's knowing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.result import Row, at_least, at_most, note, percentile
from benchmarks.rig import Rig, boot, command, run

PROCESSES = 5
HOLD = 0.02  # long enough that everybody waits again when the lock is given back
START = 4.0  # until five processes have connected all their candidates
REST = 0.3  # redsync has no queue: without it whoever gives the lock back takes it again
SETTLED = 0.5  # the first tenures begin before everybody waits

Worker = Callable[..., list[str]]


@dataclass(frozen=True, slots=True)
class Tenure:
    task: int
    began: float
    released: float


def measure(rig: Rig) -> list[Row]:
    rows = []
    for waiters in (2, 10, 50):
        rows += _gaps(rig, waiters)
    return rows


def measure_fight(rig: Rig) -> list[Row]:
    """Ten tasks of one process that want nothing but the lock, again and again."""
    seconds = 3.0 if rig.quick else 6.0
    workers: dict[str, Worker] = {
        "ours": our_worker(rig, shared_user="lock:bench/handover"),
        "redsync": _redsync(rig),
        "ours, 50 connections": our_worker(rig),
    }
    changes: dict[str, list[float]] = {name: [] for name in workers}
    shares: dict[str, Counter[int]] = {name: Counter() for name in workers}
    for _ in range(1 if rig.quick else 3):
        for name, worker in workers.items():
            tenures = contend(worker, tasks=10, processes=1, seconds=seconds, hold=0.0)
            passed = sum(a.task != b.task for a, b in pairwise(tenures))
            changes[name].append(passed / seconds)
            shares[name].update(tenure.task for tenure in tenures)
    ours, theirs, unshared = (percentile(changes[name], 50) for name in workers)
    spread = {name: max(found.values()) / min(found.values()) for name, found in shares.items()}
    figure, share = "ten tasks fight for one lock, ", "largest by smallest share"
    return [
        at_least(f"{figure}hand-overs", "/s", ours, 12, "redsync", theirs),
        at_most(f"{figure}{share}", "", spread["ours"], 1.5, "a bound"),
        note(f"{figure}{share}", "", spread["ours"], "redsync", spread["redsync"]),
        note("… with 10 × 5 connections, hand-overs", "/s", unshared, "redsync", theirs),
        note(f"… with 10 × 5 connections, {share}", "", spread["ours, 50 connections"], "", None),
    ]


def _gaps(rig: Rig, waiters: int) -> list[Row]:
    seconds = 4.0 if rig.quick else 8.0
    gaps: dict[str, list[float]] = {"ours": [], "etcd": [], "redsync": []}
    for turn in range(1 if rig.quick else 3):
        with rig.etcd() as etcd:
            workers = {"ours": our_worker(rig), "etcd": _etcd(rig, etcd)}
            if turn == 0:
                workers["redsync"] = _redsync(rig, rest=REST)
            for name, worker in workers.items():
                tenures = contend(
                    worker, tasks=waiters + 1, processes=PROCESSES, seconds=seconds, hold=HOLD
                )
                gaps[name] += [
                    b.began - a.released for a, b in pairwise(tenures) if a.task != b.task
                ]
    p50 = {name: 1000 * percentile(found, 50) for name, found in gaps.items()}
    p99 = {name: 1000 * percentile(found, 99) for name, found in gaps.items()}
    figure = f"hand-over, {waiters} waiters, "
    return [
        at_most(f"{figure}p50", "ms", p50["ours"], 1.2, "etcd", p50["etcd"]),
        at_most(f"{figure}p99", "ms", p99["ours"], 10, "ours, p50", p50["ours"]),
        note(f"{figure}p99", "ms", p99["ours"], "etcd", p99["etcd"]),
        note(f"{figure}p50", "ms", p50["ours"], "redsync", p50["redsync"]),
    ]


def our_worker(rig: Rig, **more: str) -> Worker:
    return lambda **job: rig.ours("contend", "bench/handover", **job, **more)


def _redsync(rig: Rig, rest: float = 0.0) -> Worker:
    return lambda **job: rig.redsync("contend", "handover", rest=rest, **job)


def _etcd(rig: Rig, address: str) -> Worker:
    program = [str(rig.peers.election)]
    return lambda **job: command(program, {"addresses": [address], "lock": "/bench", **job})


def contend(
    worker: Worker, *, tasks: int, processes: int, seconds: float, hold: float
) -> list[Tenure]:
    """Tenures in the order in which they began, of all processes, once everybody waits."""
    start_at = boot() + (START if processes > 1 else START / 2)
    shares = [len(range(number, tasks, processes)) for number in range(processes)]
    jobs: list[list[str]] = []
    first = 0
    for share in shares:
        job: dict[str, Any] = {"tasks": share, "first_task": first, "hold": hold}
        if share:
            jobs.append(worker(**job, start_at=start_at, seconds=seconds))
        first += share
    results = run(jobs, seconds + 60)
    tenures = sorted(
        (Tenure(int(t), b, r) for result in results for t, b, r in result["tenures"] or []),
        key=lambda tenure: tenure.began,
    )
    for one, next_ in pairwise(tenures):
        assert next_.began >= one.released, f"two held the lock at once: {one} and {next_}"
    return [tenure for tenure in tenures if tenure.began > start_at + SETTLED]
