"""Takes every protection away, one after the other; the simulation must catch each one.

python tests/simulation/mutants.py                       all of them
python tests/simulation/mutants.py --only "renew"        those whose name has this in it
python tests/simulation/mutants.py --replay "NAME:17"    the schedule that caught it, traced
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import runpy
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

import sim_mutants_life
import sim_mutants_votes
from sim_mutant import Mutant
from sim_run import prepare_worker
from tick_world import search

MUTANTS: list[Mutant] = [*sim_mutants_votes.MUTANTS, *sim_mutants_life.MUTANTS]
"""Of the whole core."""
_ticks = runpy.run_path(str(Path(__file__).with_name("test_ticks.py")))
TICKS: dict[str, dict[str, Any]] = {f"ticks: {k}": v for k, v in _ticks["CONTROLS"].items()}
"""Of a node's time alone, in a world that has nothing else in it (tests/support/tick_world.py)."""


@dataclass(frozen=True)
class Verdict:
    name: str
    budget: int
    caught_at: int | None
    """The number of the schedule; none: it survived."""
    what: str
    seconds: float


def judge(name: str) -> Verdict:
    began = time.monotonic()
    if name in TICKS:
        budget = int(_ticks["BUDGET"])
        found = search(budget, **TICKS[name])
        caught = None if found is None else found[0]
        what = "" if found is None else found[1].rpartition("\n")[2]
    else:
        mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
        budget, outcome = mutant.budget, mutant.first_caught()
        caught = None if outcome is None else int(outcome.seed.rpartition(":")[2])
        what = "" if outcome is None else outcome.violations[0]
    return Verdict(name, budget, caught, what, time.monotonic() - began)


def judge_all(names: Sequence[str], jobs: int) -> list[Verdict]:
    verdicts = []
    with multiprocessing.get_context("fork").Pool(jobs, prepare_worker, maxtasksperchild=8) as pool:
        for verdict in pool.imap_unordered(judge, names):
            verdicts.append(verdict)
            said = "SURVIVED" if verdict.caught_at is None else f"caught at {verdict.caught_at}"
            print(
                f"{verdict.name:<52} {said:>14} of {verdict.budget:<5}"
                f" {verdict.seconds:5.1f} s  {verdict.what[:110]}",
                flush=True,
            )
    return verdicts


def replay(seed: str) -> int:
    name, _, _ = seed.rpartition(":")
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    outcome = mutant.run(seed, traced=True)
    for line in [*outcome.trace, *outcome.violations]:
        print(line)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Every protection taken away by name.")
    parser.add_argument("--only", default="", help="mutants whose name has this in it")
    parser.add_argument("--replay", metavar="NAME:NUMBER")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    options = parser.parse_args(arguments)
    if options.replay:
        return replay(options.replay)
    names = [*(mutant.name for mutant in MUTANTS), *TICKS]
    verdicts = judge_all([name for name in names if options.only in name], options.jobs)
    caught = sum(verdict.caught_at is not None for verdict in verdicts)
    print(f"{caught} of {len(verdicts)} mutants caught")
    return 0 if caught == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
