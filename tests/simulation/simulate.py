"""Runs seeded schedules of the real core on simulated ground.

python tests/simulation/simulate.py --schedules 20000        the last line says what was found
python tests/simulation/simulate.py --replay 1:4711          one of them, with its trace
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

import sim_coverage
from sim_run import cores, profile_of, simulate
from sim_world import run_schedule


def replay(seed: str) -> int:
    if not seed.rpartition(":")[2].isdecimal():
        print(f"no schedule {seed!r}: it is SEED:NUMBER, as in 1:4711")
        return 2
    outcome = run_schedule(seed, profile_of(seed), traced=True)
    print("true time  who        what")
    for line in outcome.trace:
        print(line)
    for violation in outcome.violations:
        print(f"violation {violation}")
    print(f"1 schedules, {1 if outcome.violations else 0} violations")
    return 1 if outcome.violations else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--schedules", type=_positive, default=20_000)
    parser.add_argument("--seed", type=int, default=1, help="another number, other schedules")
    parser.add_argument("--replay", metavar="SEED", help="one schedule, with its trace")
    parser.add_argument("--seen", action="store_true", help="also say what happened, how often")
    parser.add_argument("--jobs", type=_positive, default=cores(), help="processes; default: cores")
    options = parser.parse_args(arguments)
    if options.replay:
        return replay(options.replay)
    began = time.monotonic()
    tally = simulate(options.schedules, options.seed, options.jobs)
    took = time.monotonic() - began
    if options.seen:
        print("       times  in a hundred  what")
        for line in sim_coverage.table(tally.seen, tally.schedules):
            print(line)
    print(
        f"{tally.tenures} tenures in {tally.seconds / 3600:.1f} simulated hours,"
        f" {took:.0f} s, {tally.schedules / took:.0f} schedules a second on {options.jobs} cores"
    )
    print(f"{tally.schedules} schedules, {tally.violations} violations")
    return 1 if tally.violations else 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number


if __name__ == "__main__":
    sys.exit(main())
