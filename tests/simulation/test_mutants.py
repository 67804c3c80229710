"""Each protection of the protocol is needed: taken away, the simulation finds what it is for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from sim_judge import Verdict, controls, judge_all
from sim_mutants import MUTANTS


def _chosen(request: pytest.FixtureRequest, test: str) -> list[str]:
    """The mutants of this test that this run is about: they are judged together, on all cores."""
    return [
        str(item.callspec.params["name"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == test
    ]


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest) -> Mapping[str, Verdict]:
    names = _chosen(request, "test_without_the_protection_a_violation_is_found")
    return {verdict.name: verdict for verdict in judge_all(names)}


@pytest.fixture(scope="module")
def wrong(request: pytest.FixtureRequest) -> Mapping[str, Sequence[str]]:
    return dict(controls(_chosen(request, "test_where_the_mutant_is_caught_the_core_is_not")))


@pytest.mark.parametrize("name", MUTANTS)
def test_without_the_protection_a_violation_is_found(
    name: str, verdicts: Mapping[str, Verdict]
) -> None:
    verdict = verdicts[name]
    assert verdict.caught_at is not None, f"survived {verdict.budget} schedules"


@pytest.mark.parametrize("name", MUTANTS)
def test_where_the_mutant_is_caught_the_core_is_not(
    name: str, wrong: Mapping[str, Sequence[str]]
) -> None:
    """The control: the same kind of schedules, with nothing taken away."""
    assert wrong[name] == []
