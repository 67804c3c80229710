"""All mutants of the core, by name. Another file of them is added here, and nowhere else."""

from __future__ import annotations

import sim_mutants_life
import sim_mutants_membership
import sim_mutants_votes
from sim_mutant import Mutant

_FILES = (
    sim_mutants_votes.MUTANTS,
    sim_mutants_life.MUTANTS,
    sim_mutants_membership.MUTANTS,
)
MUTANTS: dict[str, Mutant] = {mutant.name: mutant for file in _FILES for mutant in file}
assert len(MUTANTS) == sum(map(len, _FILES)), "two mutants have the same name"
