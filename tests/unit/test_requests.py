"""Requests from outside, as the holder reads them."""

from __future__ import annotations

import pytest

from leasekeeper.lease import Request
from leasekeeper.redlock import requests

STEP_DOWN = Request(7, "step-down", "pod/uid/nonce/3", 60)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7 pause - 0 1234", Request(7, "pause")),
        ("8 resume - 0 1234", Request(8, "resume")),
        ("7 step-down pod/uid/nonce/3 60 1234", STEP_DOWN),
        ("7 step-down pod/uid/nonce/3", Request(7, "step-down", "pod/uid/nonce/3")),
    ],
)
def test_what_a_node_keeps_is_understood(text: str, expected: Request) -> None:
    assert requests.parse(text) == expected


@pytest.mark.parametrize(
    "text", ["", "pause", "x pause", "-1 pause", "\u0663 pause", "9" * 17 + " p"]
)
def test_a_tenants_nonsense_is_no_wish(text: str) -> None:
    assert requests.parse(text) is None


def test_a_node_that_was_told_earlier_is_outvoted_by_the_number() -> None:
    assert requests.latest(["7 pause - 0 1", "8 resume - 0 1", "rubbish"]) == Request(8, "resume")
    assert requests.latest([]) is None


def test_the_call_has_what_the_function_takes() -> None:
    assert requests.call("shop/orders", STEP_DOWN) == (
        "lk1_request", "shop/orders", "7", "step-down", "pod/uid/nonce/3", "60",
    )  # fmt: skip
