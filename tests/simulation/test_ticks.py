"""A lease never ends early on a node's own clock, whatever is paused, late, lost or doubled.

Each protection has its control: taken away, the same search must find a schedule that ends a lease
before its time.
"""

from __future__ import annotations

import os

import pytest
from sim_run import workers
from tick_mutants import BUDGET, CONTROLS
from tick_world import search

SCHEDULES = 60_000 if os.environ.get("LEASEKEEPER_LONG") else 6_000
PART = 500  # schedules that one process does in one go


def test_no_schedule_ends_a_lease_early() -> None:
    """Ten times as many in `make test-long`; `World(seed).run(150)` replays a failing one."""
    with workers() as pool:
        parts = [pool.apply_async(search, (PART,), {"first": n}) for n in range(0, SCHEDULES, PART)]
        for part in parts:
            found = part.get()
            assert found is None, f"seed {found[0]}:\n{found[1]}"


@pytest.mark.parametrize("protection", CONTROLS)
def test_without_the_protection_a_lease_ends_early(protection: str) -> None:
    found = search(BUDGET, **CONTROLS[protection])
    assert found is not None, f"not caught in {BUDGET} schedules"
