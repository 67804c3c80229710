"""Seeded schedules of the real core: no two leaders, no token twice, nobody starves."""

from __future__ import annotations

import os

import pytest
import sim_coverage
from sim_run import replay_command, simulate
from sim_world import LARGE, USUAL, Profile, run_schedule

# About fifty a second and core; `make simulate` runs as many as one likes.
SCHEDULES = 200_000 if os.environ.get("LEASEKEEPER_LONG") else 20_000


def test_no_schedule_violates_a_promise() -> None:
    tally = simulate(SCHEDULES, seed=1, jobs=os.cpu_count() or 2)
    said = "\n".join(f"{what}\n{replay_command(seed)}" for seed, what in tally.found[:5])
    assert tally.violations == 0, said
    assert tally.schedules == SCHEDULES
    # A simulation in which nobody leads would find nothing wrong.
    assert tally.tenures > SCHEDULES
    # Nor would one in which some kind of fault, or some answer of a node, does not happen any more.
    assert sim_coverage.missing(tally.seen, tally.schedules) == []


@pytest.mark.parametrize("profile", [USUAL, LARGE], ids=["usual", "large"])
def test_a_seed_is_always_the_same_schedule(profile: Profile) -> None:
    for seed in ("same:1", "same:2", "same:3"):
        first = run_schedule(seed, profile, traced=True)
        untraced = run_schedule(seed, profile)
        again = run_schedule(seed, profile, traced=True)
        assert first.trace == again.trace
        assert (first.seconds, first.tenures) == (untraced.seconds, untraced.tenures)
