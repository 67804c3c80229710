"""Many schedules, on all cores, and what came of them."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.pool import Pool

from sim_mutants import MUTANTS
from sim_progress import Progress
from sim_world import LARGE, USUAL, Outcome, Profile, run_schedule

EVERY_LARGE = 40  # one schedule in so many has more nodes, candidates, faults and time
EVERY_AIMED = 5  # one in so many is of the kind in which some mutant is caught
AIMED = list({repr(mutant.profile): mutant.profile for mutant in MUTANTS.values()}.values())
CHUNK = 25  # schedules that a worker does before it reports
SHOWN = 5  # violations that are shown; the rest is counted


def profile_of(seed: str) -> Profile:
    """A seed is RUN:NUMBER; the number says which kind of schedule it is."""
    number = int(seed.rpartition(":")[2])
    if number % EVERY_LARGE == EVERY_LARGE - 1:
        return LARGE
    return AIMED[number // EVERY_AIMED % len(AIMED)] if number % EVERY_AIMED == 0 else USUAL


@dataclass
class Tally:
    schedules: int = 0
    violations: int = 0
    tenures: int = 0
    seconds: float = 0.0
    found: list[tuple[str, str]] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        self.schedules += 1
        self.tenures += outcome.tenures
        self.seconds += outcome.seconds
        self.seen.update(outcome.seen)
        if outcome.violations:
            self.violations += 1
            self.found.append((outcome.seed, outcome.violations[0]))

    def merge(self, other: Tally) -> None:
        self.schedules += other.schedules
        self.violations += other.violations
        self.tenures += other.tenures
        self.seconds += other.seconds
        self.seen.update(other.seen)
        self.found += other.found


def _chunk(seeds: Sequence[str]) -> Tally:
    tally = Tally()
    for seed in seeds:
        try:
            tally.add(run_schedule(seed, profile_of(seed)))
        except Exception as error:
            error.add_note(f"in schedule {seed}; replay: {replay_command(seed)}")
            raise
    return tally


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0))


def workers(jobs: int | None = None) -> Pool:
    return multiprocessing.get_context("fork").Pool(jobs or cores(), prepare_worker)


def prepare_worker() -> None:
    """A schedule leaves cycles behind, and little else: collecting them seldom is cheaper."""
    gc.freeze()
    gc.set_threshold(50_000, 5, 100)


def chunks(schedules: int, seed: int) -> Iterator[list[str]]:
    for first in range(0, schedules, CHUNK):
        yield [f"{seed}:{n}" for n in range(first, min(first + CHUNK, schedules))]


def simulate(schedules: int, seed: int, jobs: int | None = None, *, out: bool = True) -> Tally:
    tally, progress = Tally(), Progress(schedules)
    with workers(jobs) as pool:
        for part in pool.imap_unordered(_chunk, chunks(schedules, seed)):
            tally.merge(part)
            if not out:
                continue
            if part.found and tally.violations - part.violations < SHOWN:
                progress.clear()
                for found, what in part.found[:SHOWN]:
                    print(f"seed {found}: {what}\n  replay: {replay_command(found)}", flush=True)
            progress.show(tally.schedules, tally.violations)
    if out:
        progress.clear()
    return tally


def replay_command(seed: str) -> str:
    return f".venv/bin/python tests/simulation/simulate.py --replay {seed}"
