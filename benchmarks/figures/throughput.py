"""How many locks a second can be taken and given back: 100 tasks, each with a lock of its own.

One process with many locks shares its connections (`SharedLinks`), as its peers do.
What it costs when each lock has connections of its own is noted beside it.
"""

from __future__ import annotations

from statistics import median

from benchmarks.result import Row, at_least, note
from benchmarks.rig import MANY, SHARED_USER, Rig, run

TASKS = 100


def measure(rig: Rig) -> list[Row]:
    job = {"tasks": TASKS, "seconds": 2.0 if rig.quick else 4.0, "start_at": 0.0}
    workers = {
        "ours": rig.ours("throughput", MANY, **job),
        "ours, shared": rig.ours("throughput", MANY, shared_user=SHARED_USER, **job),
        "redsync": rig.redsync("throughput", "many", **job),
        "pottery": rig.python_peer("pottery", "throughput", "many", **job),
        "redlock-py": rig.python_peer("redlock-py", "throughput", "many", **job),
    }
    rates: dict[str, list[float]] = {name: [] for name in workers}
    for _ in range(1 if rig.quick else 5):
        for name, worker in workers.items():
            result = run([worker], 120)[0]
            rates[name].append(result["pairs"] / result["seconds"])
    found = {name: median(rate) for name, rate in rates.items()}
    shared = found["ours, shared"]
    figure = f"acquire + release, {TASKS} tasks on {TASKS} locks"
    return [
        at_least(figure, "/s", shared, 3, "redsync", found["redsync"]),
        at_least(figure, "/s", shared, 20, "pottery", found["pottery"]),
        note(figure, "/s", shared, "redlock-py", found["redlock-py"]),
        note(f"… with {TASKS} × 5 connections", "/s", found["ours"], "redsync", found["redsync"]),
    ]
