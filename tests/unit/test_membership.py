"""What a list of nodes must be, and that everybody who has the same list names the same epoch."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from leasekeeper.lease import ConfigurationError, Timings
from leasekeeper.redlock.membership import LARGEST_NUMBER, Membership, Node

NODES = tuple(Node(str(i), f"host-{i}", 6379) for i in range(5))
GOOD = Membership(nodes=NODES, max_ttl=30, quarantine=31)


@pytest.mark.parametrize("count", [0, 1, 2, 4, 11])
def test_the_number_of_nodes_is_odd_and_from_3_to_9(count: int) -> None:
    nodes = tuple(Node(str(i), "host", 6379) for i in range(count))
    with pytest.raises(ConfigurationError, match="must be odd and from 3 to 9"):
        replace(GOOD, nodes=nodes)


def test_a_quarantine_not_longer_than_the_longest_lease_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="quarantineSeconds"):
        replace(GOOD, quarantine=30.3)


@pytest.mark.parametrize("field", ["max_ttl", "quarantine", "cap"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_compares_with_nothing_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match="finite"):
        replace(GOOD, **{field: value})  # type: ignore[arg-type]


def test_the_epoch_covers_all_that_nodes_must_agree_on() -> None:
    """Known bug 6."""
    moved = (*NODES[:4], Node("4", "elsewhere", 6379))
    others = [
        replace(GOOD, number=2),
        replace(GOOD, nodes=moved),
        replace(GOOD, nodes=NODES[:3]),
        replace(GOOD, max_ttl=29),
        replace(GOOD, quarantine=32),
        replace(GOOD, cap=0.2),
    ]
    assert len({GOOD.epoch, *(other.epoch for other in others)}) == 7


def test_the_epoch_survives_the_way_through_a_file() -> None:
    assert Membership.from_json(json.loads(json.dumps(GOOD.to_json()))).epoch == GOOD.epoch


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"retry_period": 0}, "retryPeriodSeconds must be greater than 0"),
        ({"lock_delay": -1}, "lockDelaySeconds must not be negative"),
        ({"renew_deadline": 2.4}, "renewDeadlineSeconds .* 1.2 × retryPeriodSeconds"),
        ({"lease_duration": 10.1}, "leaseDurationSeconds .* renewDeadlineSeconds"),
        ({"lease_duration": 1}, "leaseDurationSeconds .* renewDeadlineSeconds"),
        ({"lease_duration": -15}, "leaseDurationSeconds .* renewDeadlineSeconds"),
        ({"retry_period": -1}, "retryPeriodSeconds must be greater than 0"),
        ({"lease_duration": float("nan")}, r"leaseDurationSeconds \(nan\) must be a number"),
        ({"renew_deadline": float("nan")}, r"renewDeadlineSeconds \(nan\) must be a number"),
        ({"retry_period": float("nan")}, r"retryPeriodSeconds \(nan\) must be a number"),
        ({"lock_delay": float("inf")}, r"lockDelaySeconds \(inf\) must be a number"),
        ({"lease_duration": 1e300}, "leaseDurationSeconds .* at most 1000000"),
    ],
)
def test_timings_that_cannot_work_are_refused_by_name(
    wrong: dict[str, float], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        Timings(**wrong)  # type: ignore[arg-type]


def test_a_cap_that_nodes_cannot_count_is_refused() -> None:
    """A node keeps whole microseconds; an agent that compares began thousands of lives a second."""
    nodes = tuple(Node(str(i), "127.0.0.1", 7000 + i) for i in range(3))
    for cap in (1 / 30, 1e-7):
        with pytest.raises(ConfigurationError, match="whole number of microseconds"):
            Membership(nodes=nodes, max_ttl=1, quarantine=2, cap=cap)
    assert Membership(nodes=nodes, max_ttl=1, quarantine=2, cap=0.033333).cap == 0.033333


@pytest.mark.parametrize("number", [0, -1, LARGEST_NUMBER + 1, 10**400])
def test_the_number_of_an_epoch_is_one_that_nodes_can_compare(number: int) -> None:
    with pytest.raises(ConfigurationError, match="number must be from 1"):
        replace(GOOD, number=number)
