"""The line of keys under the demo's live view."""

from __future__ import annotations

import pytest

from leasekeeper.demo.faults import KINDS
from leasekeeper.demo.terminal import help_line

STATE = {"clocks": True, "chaos": True}


@pytest.mark.parametrize(("width", "lines"), [(60, 2), (80, 2), (100, 2), (117, 1), (120, 1)])
def test_all_keys_fit_and_the_way_out_comes_first(width: int, lines: int) -> None:
    shown = help_line(STATE, "", width).plain.splitlines()
    assert len(shown) == lines
    assert all(len(line.rstrip()) <= width for line in shown)
    assert shown[0].startswith(" q quit ")
    keys = " ".join(shown).split()
    assert {kind.key for kind in KINDS} | {"q", "x", "1–9"} <= {*keys}


def test_a_clock_that_cannot_be_stepped_has_no_key() -> None:
    assert "clock" not in help_line({**STATE, "clocks": False}, "", 120).plain


def test_a_complaint_stands_in_their_place() -> None:
    assert help_line(STATE, "no", 120).plain == " no"
