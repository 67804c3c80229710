"""All mutants, judged on all cores: which schedule catches each one, and how often one would."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import tick_mutants
from sim_mutant import Mutant
from sim_mutants import MUTANTS
from sim_run import workers
from tick_world import search

TICKS = {f"ticks: {name}": change for name, change in tick_mutants.CONTROLS.items()}
"""Of a node's time alone."""
CONTROLS = 20
"""Schedules of a mutant's kind in which the core itself must show nothing."""
REPLAY = ".venv/bin/python tests/simulation/mutants.py"
ENOUGH = 30  # catches after which a rate is known well enough


@dataclass(frozen=True)
class Verdict:
    name: str
    budget: int
    caught_at: int | None
    """The number of the schedule; none: it survived."""
    what: str
    seconds: float


@dataclass(frozen=True)
class Rate:
    """How many of so many schedules caught it. In a budget it should be caught many times over: a
    mutant that is caught once or twice survives after the next change of the dice.
    """

    name: str
    budget: int
    schedules: int
    caught: int

    @property
    def in_a_budget(self) -> float:
        return self.caught / self.schedules * self.budget


def judge(name: str) -> Verdict:
    began = time.monotonic()
    if name in TICKS:
        budget = tick_mutants.BUDGET
        found = search(budget, **TICKS[name])
        caught = None if found is None else found[0]
        what = "" if found is None else found[1].rpartition("\n")[2]
    else:
        mutant = MUTANTS[name]
        budget, outcome = mutant.budget, mutant.first_caught()
        caught = None if outcome is None else int(outcome.seed.rpartition(":")[2])
        what = "" if outcome is None else outcome.violations[0]
    return Verdict(name, budget, caught, what, time.monotonic() - began)


def rate(name: str) -> Rate:
    """With other seeds than those of `judge`."""
    mutant, caught, schedules = MUTANTS[name], 0, 0
    while schedules < mutant.budget and caught < ENOUGH:
        caught += bool(mutant.run(f"rate of {name}:{schedules}").violations)
        schedules += 1
    return Rate(name, mutant.budget, schedules, caught)


def control(name: str) -> list[str]:
    """What goes wrong in the same kind of schedules with nothing taken away: nothing."""
    core = Mutant("the core itself", MUTANTS[name].profile, ())
    outcomes = (core.run(f"{name}:{number}") for number in range(CONTROLS))
    return [
        f"{outcome.violations[0]}; replay: {REPLAY} --intact --replay '{outcome.seed}'"
        for outcome in outcomes
        if outcome.violations
    ]


def judge_all(names: Iterable[str], jobs: int | None = None) -> Iterator[Verdict]:
    with workers(jobs) as pool:
        yield from pool.imap_unordered(judge, names)


def rates(names: Iterable[str], jobs: int | None = None) -> Iterator[Rate]:
    with workers(jobs) as pool:
        yield from pool.imap_unordered(rate, names)


def controls(names: Iterable[str], jobs: int | None = None) -> Iterator[tuple[str, list[str]]]:
    names = list(names)
    with workers(jobs) as pool:
        yield from zip(names, pool.imap(control, names), strict=True)
