"""A number that the demo cannot use is refused before anything is started."""

from __future__ import annotations

import pytest

from leasekeeper import cli


@pytest.mark.parametrize("option", ["--seconds", "--lease", "--candidates"])
@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "many"])
def test_a_number_that_proves_nothing_is_refused(
    option: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        cli.main(["demo", f"{option}={text}"])
    assert refused.value.code == cli.EXIT_CONFIGURATION
    assert f"argument {option}: '{text}' is not a number from 1 on" in capsys.readouterr().err
