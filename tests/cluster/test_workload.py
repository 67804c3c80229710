"""Who led, of what the watcher told: a tenure that stopped for a while did not lead on."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from tests.cluster.workload import (
    DEADLINE,
    LEASE,
    Tenure,
    Workload,
    gave_back,
    tenures,
    without_a_leader,
)

LOCK = "shop/orders"


def leads(at: float, token: int) -> dict[str, Any]:
    who = {"lock": LOCK, "holder": f"orders-{token}", "pod": f"uid-{token}", "token": token}
    return {"event": "leads", "at": at, **who}


def ends(last: float, token: int) -> dict[str, Any]:
    return {**leads(last, token), "event": "ends", "last": last, "deadline": last + 2}


def workload(*told: dict[str, Any]) -> Workload:
    watcher = mock.Mock()
    watcher.events.return_value = list(told)
    return Workload(mock.Mock(), watcher, mock.Mock(), "shop")


def tenure(*told: dict[str, Any]) -> Tenure:
    (found,) = tenures(told, LOCK)
    return found


def test_a_tenure_keeps_its_gaps() -> None:
    found = tenure(leads(1, 7), ends(5, 7), leads(7, 7))
    assert (found.began, found.ended, found.gaps) == (1, None, ((5, 7),))
    again = tenure(leads(1, 7), ends(5, 7), leads(7, 7), ends(9, 7))
    assert (again.ended, again.deadline, again.gaps) == (9, 11, ((5, 7),))


@pytest.mark.parametrize(("back", "still"), [(5.9, True), (7.0, False)])
def test_who_was_no_leader_for_a_second_does_not_lead_still(back: float, still: bool) -> None:
    before = tenure(leads(1, 7))
    assert workload(leads(1, 7), ends(5, 7), leads(back, 7)).leads_still(before) is still


def test_a_gap_from_before_is_no_gap_since() -> None:
    told = (leads(1, 7), ends(5, 7), leads(8, 7))
    assert workload(*told).leads_still(tenure(*told))


def test_who_leads_with_another_token_does_not_lead_still() -> None:
    before = tenure(leads(1, 7))
    assert not workload(leads(1, 7), ends(5, 7)).leads_still(before)
    assert not workload(leads(1, 7), ends(5, 7), leads(5.1, 8)).leads_still(before)


def test_a_time_without_a_leader_is_one_within_a_tenure_too() -> None:
    told = (leads(1, 7), ends(5, 7), leads(5.5, 7), ends(9, 7), leads(9.25, 8))
    assert without_a_leader(tenures(told, LOCK)) == 0.75


def test_what_can_be_by_running_out_is_no_giving_back() -> None:
    first = ends(5, 7)
    runs_out = first["deadline"] + LEASE - DEADLINE
    for began, given_back in ((5.1, True), (runs_out - 0.1, True), (runs_out, False)):
        assert gave_back(*tenures((leads(1, 7), first, leads(began, 8)), LOCK)) is given_back


def test_the_end_of_the_old_one_may_be_told_after_the_beginning_of_the_new_one() -> None:
    """The watcher read the old file just before it changed."""
    watcher = mock.Mock()
    together, later = [leads(1, 7), leads(5, 8)], [leads(1, 7), leads(5, 8), ends(4.99, 7)]
    watcher.events.side_effect = [together, together, later]
    shop = Workload(mock.Mock(), watcher, mock.Mock(), "shop")
    done = shop.next_leader(tenure(leads(1, 7)), 3, "a fault")
    assert done.new.token == 8
    assert done.gap == pytest.approx(0.01)
