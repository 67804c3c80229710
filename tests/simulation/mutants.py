"""Takes every protection away, one after the other; the simulation must catch each one.

python tests/simulation/mutants.py                       all of them
python tests/simulation/mutants.py --only "renew"        those whose name has this in it
python tests/simulation/mutants.py --rate                how often each one would be caught
python tests/simulation/mutants.py --replay "NAME:17"    the schedule that caught it, traced
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from sim_judge import TICKS, judge_all, rates
from sim_mutants import MUTANTS
from sim_run import cores

RATHER = 20
"""How often a budget of schedules should catch a mutant: then none survives by bad luck."""


def judge(names: Sequence[str], jobs: int) -> int:
    caught = 0
    for verdict in judge_all(names, jobs):
        caught += verdict.caught_at is not None
        said = "SURVIVED" if verdict.caught_at is None else f"caught at {verdict.caught_at}"
        print(
            f"{verdict.name:<52} {said:>14} of {verdict.budget:<5}"
            f" {verdict.seconds:5.1f} s  {verdict.what[:110]}",
            flush=True,
        )
    print(f"{caught} of {len(names)} mutants caught")
    return 0 if caught == len(names) else 1


def rate(names: Sequence[str], jobs: int) -> int:
    seldom = 0
    for found in rates(names, jobs):
        seldom += found.in_a_budget < RATHER
        print(
            f"{found.name:<52} {found.caught:>3} of {found.schedules:<4} schedules catch it:"
            f" {found.in_a_budget:5.0f} times in a budget of {found.budget}"
            f"{'  TOO SELDOM' if found.in_a_budget < RATHER else ''}",
            flush=True,
        )
    print(f"{len(names) - seldom} of {len(names)} mutants are caught {RATHER} times in a budget")
    return 1 if seldom else 0


def replay(seed: str, *, intact: bool) -> int:
    name, _, number = seed.rpartition(":")
    if name not in MUTANTS or not number.isdecimal():
        print(f"no schedule {seed!r}: it is NAME:NUMBER, as `mutants.py` prints them")
        return 2
    mutant = replace(MUTANTS[name], changes=()) if intact else MUTANTS[name]
    outcome = mutant.run(seed, traced=True)
    for line in [*outcome.trace, *outcome.violations]:
        print(line)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Every protection taken away by name.")
    parser.add_argument("--only", default="", help="mutants whose name has this in it")
    parser.add_argument("--rate", action="store_true", help="how often each one would be caught")
    parser.add_argument("--replay", metavar="NAME:NUMBER")
    parser.add_argument("--intact", action="store_true", help="replay it with nothing taken away")
    parser.add_argument("--jobs", type=int, default=cores())
    options = parser.parse_args(arguments)
    if options.replay:
        return replay(options.replay, intact=options.intact)
    names = [name for name in MUTANTS if options.only in name]
    if options.rate:
        return rate(names, options.jobs)
    return judge([*names, *(name for name in TICKS if options.only in name)], options.jobs)


if __name__ == "__main__":
    sys.exit(main())
