"""What a node's time costs, and how true it is: the real agent beside a real server.

    python benchmarks/ticker.py --seconds 20 --flavour valkey [--json FILE]

Three nodes (the fewest that an ensemble has) are started, and the first one's agent is measured:
CPU time as the kernel accounts it, memory, the rate of ticks against the boot clock, and how long
after its time a lease ends (at most 2C + W, protocol §2, and what the machine adds).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests" / "support")]

from ensemble import Ensemble, EnsembleNode  # noqa: E402
from servers import FLAVOURS  # noqa: E402

TTL = 0.5  # of the leases whose end is measured, in seconds


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def cpu_seconds(pid: int) -> float:
    """In nanoseconds in the kernel: `stat` counts in hundredths of a second, far too coarse."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in threads) / 1e9


def memory_mib(pid: int) -> dict[str, float]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    fields = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return {"pssMib": fields["Pss"] / 1024, "rssMib": fields["Rss"] / 1024}


def cost_and_rate(node: EnsembleNode, seconds: float) -> dict[str, float]:
    """Each reading of the counter is bracketed by two of the clock; their middle is compared."""

    def reading() -> tuple[float, float]:
        before = now()
        tick = int(node.server.fcall("lk1_state")[7]) / 1e6
        return (before + now()) / 2, tick

    began, first = reading()
    cpu = cpu_seconds(node.agent.pid)
    time.sleep(seconds)
    cpu = cpu_seconds(node.agent.pid) - cpu
    ended, last = reading()
    passed = ended - began
    return {"cpuPercentOfACore": 100 * cpu / passed, "ticksPerTime": (last - first) / passed}


def lateness(ensemble: Ensemble, node: EnsembleNode, samples: int) -> list[float]:
    """Seconds from a lease's time to the first grant to somebody else, on one node."""
    client, epoch = node.server.client(), ensemble.membership.epoch
    found = []
    for sample in range(samples):
        key, attempt = f"lk:lock:bench/{sample}", 0
        client.fcall("lk1_grant", 1, key, epoch, "x/1", round(TTL * 1e6), 0)
        due = now() + TTL
        time.sleep(TTL * 0.9)
        while True:
            attempt += 1
            reply = client.fcall("lk1_grant", 1, key, epoch, f"y/{attempt}", round(TTL * 1e6), 0)
            if reply[0] == "GRANTED":
                found.append(now() - due)
                break
            time.sleep(0.001)
    return found


def measure(flavour: str, seconds: float, samples: int) -> dict[str, Any]:
    with Ensemble(3, flavour=flavour, max_ttl=15, quarantine=16, http=True) as ensemble:
        ensemble.wait_open()
        node = ensemble.nodes[0]
        time.sleep(1)  # what the start costs is not what a second costs
        figures: dict[str, Any] = {"flavour": flavour, **cost_and_rate(node, seconds)}
        late = lateness(ensemble, node, samples)
        cap = ensemble.membership.cap
        figures |= {
            "leaseEndLateSecondsMin": min(late),
            "leaseEndLateSecondsMedian": statistics.median(late),
            "leaseEndLateSecondsMax": max(late),
            "leaseEndLateSecondsBound": 2 * cap + cap / 2,
        }
        return figures | memory_mib(node.agent.pid)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=20, help="how long to measure the cost")
    parser.add_argument("--samples", type=int, default=20, help="how many leases to see the end of")
    parser.add_argument("--flavour", choices=FLAVOURS, default="valkey")
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    figures = measure(options.flavour, options.seconds, options.samples)
    for name, value in figures.items():
        print(f"{name:28} {value if isinstance(value, str) else f'{value:.5g}'}")
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
