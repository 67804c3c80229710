"""`make bench`: ours and the peers side by side on this machine; a table and a JSON file.

Only ratios of one run mean something: the machine is shared with the servers that are measured.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ensemble import Ensemble

from benchmarks import build
from benchmarks.figures import (
    acquire,
    handover,
    memory,
    operator,
    sidecar,
    stores,
    takeover,
    throughput,
)
from benchmarks.result import Row, table, write
from benchmarks.rig import LONG, Rig

FIGURES: dict[str, Callable[[Rig], list[Row]]] = {
    "memory": memory.measure,
    "acquire": acquire.measure,
    "throughput": throughput.measure,
    "handover": handover.measure,
    "fight": handover.measure_fight,
    "takeover": takeover.measure,
    "stores": stores.measure,
    "zookeeper": stores.measure_zookeeper,
    "sidecar": sidecar.measure_cost,
    "sidecar-handover": sidecar.measure_handover,
    "operator": operator.measure,
}


def main() -> int:
    arguments = _arguments()
    peers = build.peers()
    rows: list[Row] = []
    began = time.monotonic()
    load = os.getloadavg()[0]
    with Ensemble(5, max_ttl=LONG.ttl, quarantine=LONG.ttl * 1.1) as ensemble:
        ensemble.wait_open()
        rig = Rig(ensemble, peers, quick=arguments.quick)
        for name in arguments.only or FIGURES:
            print(f"[{time.monotonic() - began:5.0f} s] {name}", file=sys.stderr, flush=True)
            rows += FIGURES[name](rig)
    print(table(rows))
    circumstances = {
        "date": time.strftime("%Y-%m-%d"),
        "quick": arguments.quick,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load_before": load,
        "load_after": os.getloadavg()[0],
    }
    write(arguments.out, rows, circumstances)
    missed = sum(row.met is False for row in rows)
    print(f"\n{len(rows)} rows, {missed} targets missed; {arguments.out}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench ARGS=…",
        description="Measures Leasekeeper and its peers in turns, in one run, on this machine.",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=FIGURES,
        metavar="NAME",
        help=f"only this figure, or several: {', '.join(FIGURES)}",
    )
    parser.add_argument("--quick", action="store_true", help="fewer samples: is it in order at all")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/bench.json"),
        help="where the JSON goes (default: %(default)s)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
