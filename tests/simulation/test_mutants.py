"""Each protection of the protocol is needed: taken away, the simulation finds what it is for."""

from __future__ import annotations

import pytest
import sim_mutants_life
import sim_mutants_votes
from sim_mutant import Mutant

MUTANTS = [*sim_mutants_votes.MUTANTS, *sim_mutants_life.MUTANTS]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_without_the_protection_a_violation_is_found(mutant: Mutant) -> None:
    assert mutant.first_caught() is not None, f"survived {mutant.budget} schedules"


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_where_the_mutant_is_caught_the_core_is_not(mutant: Mutant) -> None:
    """The control: the same kind of schedules, with nothing taken away."""
    real = Mutant("the core itself", mutant.profile, ())
    for number in range(20):
        outcome = real.run(f"{mutant.name}:{number}")
        assert not outcome.violations, f"{outcome.seed}: {outcome.violations[0]}"
