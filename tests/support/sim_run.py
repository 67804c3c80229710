"""Many schedules, on all cores, and what came of them."""

from __future__ import annotations

import gc
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sim_world import LARGE, USUAL, Outcome, Profile, run_schedule

EVERY_LARGE = 40  # one schedule in so many has more nodes, candidates, faults and time
CHUNK = 50  # schedules that a worker does before it reports
SHOWN = 5  # violations that are shown; the rest is counted


def profile_of(seed: str) -> Profile:
    """A seed is RUN:NUMBER; the number says which kind of schedule it is."""
    number = int(seed.rpartition(":")[2])
    return LARGE if number % EVERY_LARGE == EVERY_LARGE - 1 else USUAL


@dataclass
class Tally:
    schedules: int = 0
    violations: int = 0
    tenures: int = 0
    seconds: float = 0.0
    found: list[tuple[str, str]] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.schedules += 1
        self.tenures += outcome.tenures
        self.seconds += outcome.seconds
        if outcome.violations:
            self.violations += 1
            self.found.append((outcome.seed, outcome.violations[0]))

    def merge(self, other: Tally) -> None:
        self.schedules += other.schedules
        self.violations += other.violations
        self.tenures += other.tenures
        self.seconds += other.seconds
        self.found += other.found


def _chunk(seeds: Sequence[str]) -> Tally:
    tally = Tally()
    for seed in seeds:
        tally.add(run_schedule(seed, profile_of(seed)))
    return tally


def prepare_worker() -> None:
    """A schedule leaves cycles behind, and little else: collecting them seldom is cheaper."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def chunks(schedules: int, seed: int) -> Iterator[list[str]]:
    for first in range(0, schedules, CHUNK):
        yield [f"{seed}:{n}" for n in range(first, min(first + CHUNK, schedules))]


def simulate(schedules: int, seed: int, jobs: int, *, out: bool = True) -> Tally:
    tally, began = Tally(), time.monotonic()
    said = began
    with multiprocessing.get_context("fork").Pool(jobs, prepare_worker) as pool:
        for part in pool.imap_unordered(_chunk, chunks(schedules, seed)):
            tally.merge(part)
            for found, what in part.found[: SHOWN if out else 0]:
                if tally.violations <= SHOWN:
                    print(f"seed {found}: {what}\n  replay: {replay_command(found)}", flush=True)
            if out and time.monotonic() - said > (2 if sys.stdout.isatty() else 20):
                said = time.monotonic()
                _progress(tally, schedules, said - began)
    return tally


def _progress(tally: Tally, schedules: int, seconds: float) -> None:
    line = (
        f"{tally.schedules:>9} of {schedules} ({100 * tally.schedules // schedules} %),"
        f" {tally.violations} violations, {tally.schedules / seconds:.0f} a second"
    )
    end = "\r" if sys.stdout.isatty() else "\n"
    print(line, end=end, flush=True)


def replay_command(seed: str) -> str:
    return f"python tests/simulation/simulate.py --replay {seed}"
