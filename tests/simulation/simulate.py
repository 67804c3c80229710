"""Runs seeded schedules of the real core on simulated ground.

python tests/simulation/simulate.py --schedules 20000        the last line says what was found
python tests/simulation/simulate.py --replay 1:4711          one of them, with its trace
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from sim_run import profile_of, simulate
from sim_world import run_schedule


def replay(seed: str) -> int:
    outcome = run_schedule(seed, profile_of(seed), traced=True)
    print("true time  who        what")
    for line in outcome.trace:
        print(line)
    for violation in outcome.violations:
        print(f"violation {violation}")
    print(f"1 schedules, {len(outcome.violations)} violations")
    return 1 if outcome.violations else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--schedules", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1, help="another number, other schedules")
    parser.add_argument("--replay", metavar="SEED", help="one schedule, with its trace")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    options = parser.parse_args(arguments)
    if options.replay:
        return replay(options.replay)
    began = time.monotonic()
    tally = simulate(options.schedules, options.seed, options.jobs)
    took = time.monotonic() - began
    print(
        f"{tally.tenures} tenures in {tally.seconds / 3600:.1f} simulated hours,"
        f" {took:.0f} s, {tally.schedules / took:.0f} schedules a second"
    )
    print(f"{tally.schedules} schedules, {tally.violations} violations")
    return 1 if tally.violations else 0


if __name__ == "__main__":
    sys.exit(main())
