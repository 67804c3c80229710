"""A number that the demo cannot use is refused before anything is started."""

from __future__ import annotations

import pytest

from leasekeeper import cli
from leasekeeper.demo.world import renew_deadline


@pytest.mark.parametrize("option", ["--seconds", "--lease", "--candidates"])
@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "many"])
def test_a_number_that_proves_nothing_is_refused(
    option: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        cli.main(["demo", f"{option}={text}"])
    assert refused.value.code == cli.EXIT_CONFIGURATION
    least = 2 if option == "--lease" else 1
    assert f"argument {option}: '{text}' is not a number from {least} on" in capsys.readouterr().err


@pytest.mark.parametrize("lease", [2.0, 2.5, 3.0, 5.0, 15.0, 60.0])
def test_the_file_of_a_healthy_leader_does_not_flicker(lease: float) -> None:
    """Its end on the wall clock is up to a second early, and a renewal must come before."""
    deadline, retry = renew_deadline(lease), lease / 6
    assert deadline - 1 > retry
    assert deadline < lease * 0.99 - 0.01
