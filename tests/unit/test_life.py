"""The decisions on a node's way from an empty memory to an open one, in virtual time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from leasekeeper.redlock import life as steps
from leasekeeper.redlock.learnt import Learnt, merge
from leasekeeper.redlock.life import (
    Life,
    Memory,
    judge_memory,
    left_behind,
    listed_anew,
    next_step,
    quarantine,
)
from leasekeeper.redlock.membership import Membership, Node
from leasekeeper.redlock.registry import NOT_A_TOKEN, NodeView, Record

MEMBERSHIP = Membership(
    nodes=tuple(Node(str(i), "127.0.0.1", 7000 + i) for i in range(5)), max_ttl=10, quarantine=11
)
OWN = NodeView(id="0", life="mine")
D = MEMBERSHIP.quarantine


def peers(ids: Iterable[int], *, open: bool = True, generation: int = 1) -> dict[str, NodeView]:
    return {
        str(i): NodeView(
            id=str(i),
            life=f"life-{i}",
            open=open,
            joined=open,
            epoch=MEMBERSHIP.epoch,
            generation=generation,
            vector={"0": 4},
        )
        for i in ids
    }


def announced(at: Mapping[int, float], *, number: int = 5, first_seen: float = 0.0) -> Life:
    life = Life("mine", first_seen, number)
    for peer, when in at.items():
        life = life.accepted(str(peer), f"life-{peer}", when, 10)
    return life


def decide(
    life: Life,
    now: float,
    others: Mapping[str, NodeView],
    own: NodeView = OWN,
    record: Record | None = None,
) -> steps.Step:
    return next_step(life, own, others, MEMBERSHIP, record, now)


BECAME = NodeView(id="0", life="mine", incarnation=5)
RESTED = replace(BECAME, rested=True)


@pytest.mark.parametrize(
    ("view", "memory"),
    [
        (NodeView(id="", life=""), Memory.LOST),
        (NodeView(id="0", life="a", run_id="run", open=True), Memory.OPEN),
        (NodeView(id="0", life="a", run_id="run"), Memory.CLOSED),
        (NodeView(id="0", life="a", run_id="another", open=True), Memory.LOST),
        (NodeView(id="3", life="a", run_id="run", open=True), Memory.STRANGE),
    ],
)
def test_a_memory_is_judged_at_first_sight(view: NodeView, memory: Memory) -> None:
    assert judge_memory(view, node="0", run_id="run") is memory


def test_it_announces_one_more_than_anybody_knows() -> None:
    step = decide(Life("mine", 0.0), 0, peers(range(1, 5)))
    assert step == steps.Announce(5, ("1", "2", "3", "4"))


def test_a_peer_with_a_new_memory_is_told_again() -> None:
    life = announced({1: 0, 2: 0, 3: 0})
    others = peers(range(1, 4)) | {"3": NodeView(id="3", life="another")}
    assert decide(life, 5, others) == steps.Announce(5, ("3",))


def test_a_number_that_a_peer_knows_already_is_raised_and_all_are_asked_again() -> None:
    """The peer may know it from a ghost: only what Q others took from us is ours alone."""
    life = announced({1: 0, 2: 0}).outranked(7)
    assert (life.number, life.announced) == (8, {})


def test_it_takes_its_number_when_a_quorum_of_others_knows_it() -> None:
    assert decide(announced({1: 0, 2: 0}), 0, peers([1, 2])) == steps.Rest(D)
    assert decide(announced({1: 0, 2: 0, 3: 0}), 0, peers([1, 2, 3])) == steps.Become(5)


@pytest.mark.parametrize(
    ("first_seen", "at", "until"),
    [
        (0.0, {1: 1.0, 2: 2.0, 3: 3.0}, 3.0 + D),  # from the quorum's last
        (0.0, {1: 1.0, 2: 2.0, 3: 3.0, 4: 9.0}, 3.0 + D),  # a straggler costs nothing
        (5.0, {1: 1.0, 2: 2.0, 3: 3.0}, 5.0 + D),  # never before D after first sight
    ],
)
def test_the_quarantine_counts_from_first_sight_and_from_the_quorums_last_announcement(
    first_seen: float, at: dict[int, float], until: float
) -> None:
    life = announced(at, first_seen=first_seen)
    others = peers(at)
    assert decide(life, until - 0.001, others, BECAME) == steps.Rest(until)
    helpers = {str(i): f"life-{i}" for i in (1, 2, 3)}
    assert decide(life, until, others, BECAME) == steps.Recover(helpers, 1)


def test_a_helper_that_restarted_is_replaced_and_the_quarantine_moves_with_the_new_one() -> None:
    life = announced({1: 1.0, 2: 2.0, 3: 3.0, 4: 9.0})
    others = peers([1, 2, 4])  # 3 cannot be reached
    assert decide(life, 3.0 + D, others, BECAME) == steps.Rest(9.0 + D)
    step = decide(life, 9.0 + D, others, BECAME)
    assert step == steps.Recover({"1": "life-1", "2": "life-2", "4": "life-4"}, 1)


def test_longer_leases_that_a_peer_may_have_granted_make_the_quarantine_longer() -> None:
    life = announced({1: 0.0, 2: 0.0}).accepted("3", "life-3", 0.0, 60.0)
    assert quarantine(life, MEMBERSHIP) > 60 * 1.01


def test_closed_peers_teach_nothing() -> None:
    life = announced({1: 0.0, 2: 0.0, 3: 0.0})
    others = peers([1, 2]) | peers([3], open=False)
    assert decide(life, D, others, BECAME) == steps.Rested()
    step = decide(life, D, others, RESTED)
    assert isinstance(step, steps.Wait)
    assert "2 of the 3 other nodes" in step.why


def test_it_does_not_learn_across_epochs() -> None:
    life = announced({1: 0.0, 2: 0.0, 3: 0.0})
    others = peers([1, 2, 3])
    others["2"] = NodeView(id="2", life="life-2", open=True, epoch="2-other")
    step = decide(life, D, others, RESTED)
    assert isinstance(step, steps.Wait)
    assert "node 2 is open in epoch 2-other" in step.why


def test_it_does_not_learn_from_a_ghost_that_only_itself_has_heard_of() -> None:
    """The successor announced itself to this node; the other helpers have not heard of it."""
    life = announced({1: 0.0, 2: 0.0, 3: 0.0})
    others = peers([1, 2, 3])
    assert isinstance(decide(life, D, others, BECAME), steps.Recover)
    knows = replace(RESTED, vector={"2": 9})
    assert isinstance(decide(life, D, others, knows), steps.Wait)


def test_a_node_of_the_first_birth_opens_at_once() -> None:
    record = Record(1, 100, 0, {"0": "mine"})
    assert decide(announced({1: 0}), 0, peers([1]), record=record) == steps.TakeBirth(record)
    own = NodeView(id="0", life="mine", birth=1, incarnation=5)
    assert decide(announced({1: 0}), 0, peers([1]), own, record) == steps.Open(1)


def test_a_node_that_was_born_takes_the_number_that_others_know_it_by() -> None:
    own = NodeView(id="0", life="mine", birth=1, incarnation=1)
    assert decide(announced({1: 0}), 0, peers([1]), own) == steps.Become(5)


def test_a_node_that_is_reborn_opens_after_its_quarantine() -> None:
    own = NodeView(id="0", life="mine", birth=2, incarnation=5)
    life = announced({1: 0, 2: 0, 3: 0})
    others = peers([1, 2, 3], open=False)
    assert decide(life, D - 0.1, others, own) == steps.Rest(D)
    assert decide(life, D, others, own) == steps.Open(2)


def test_a_number_that_a_birth_gave_is_no_other_server_of_the_same_name() -> None:
    """The others know a reborn node by the birth's number, which is above the announced one. It was
    taken for a rival's, and a total loss lasted three quarantines. A rival still counts as one.
    """
    own = NodeView(id="0", life="mine", birth=2, incarnation=1000, vector={"0": 1000})
    life = announced({1: 0, 2: 0, 3: 0})
    told = {id: replace(v, vector={"0": 1000}) for id, v in peers([1, 2, 3], open=False).items()}
    assert decide(life, D, told, own) == steps.Open(2)
    rival = told | {"3": replace(told["3"], vector={"0": 1001})}
    assert isinstance(decide(life, D, rival, own), steps.Wait)


def test_a_life_that_is_not_on_the_record_must_ask_the_others() -> None:
    record = Record(1, 100, 0, {"0": "an earlier one"})
    life = announced({1: 0, 2: 0, 3: 0})
    assert isinstance(decide(life, 0, peers([1, 2, 3]), BECAME, record), steps.Rest)


def test_a_survivor_of_a_total_loss_is_told_or_left_behind() -> None:
    survivor = NodeView(id="0", life="mine", open=True, birth=1, generation=1)
    listed, not_listed = Record(2, 1, 1, {"0": "mine"}), Record(2, 1, 1, {"1": "x"})
    assert listed_anew(listed, survivor)
    assert not left_behind(listed, survivor)
    assert left_behind(not_listed, survivor)
    assert not left_behind(Record(1, 1, 1, {"1": "x"}), survivor)


def page(*pairs: str, floor: int = 0, vector: str = "") -> list[str]:
    return ["OPEN", "0", "life", "epoch", str(floor), "10", *pairs, "1", vector]


def test_what_others_know_is_taken_at_its_maximum() -> None:
    one = Learnt().with_page(page("a", "3", "b", "9", floor=2, vector="0:1,1:4"))
    other = Learnt().with_page(page("a", "7", "b", "1", floor=1, vector="0:2"))
    learnt = merge([one, other])
    assert learnt.fences == {"a": 7, "b": 9}
    assert (learnt.floor, learnt.vector) == (2, {"0": 2, "1": 4})


def test_a_helper_that_knows_nothing_of_a_lock_stands_for_its_floor() -> None:
    """Otherwise nodes that recover one after the other from a survivor's old counter would all end
    up below the floor of the last birth.
    """
    survivor = Learnt().with_page(page("a", "5", floor=100))
    reborn = Learnt().with_page(page(floor=1000))
    assert merge([survivor, reborn]).fences == {"a": 1000}
    assert merge([survivor]).fences == {"a": 5}


@pytest.mark.parametrize("nonsense", [str(NOT_A_TOKEN), "9" * 5000, "nan", "-1", "1e9", "", "٣"])
def test_a_counter_that_a_tenant_made_up_is_not_adopted(nonsense: str) -> None:
    learnt = Learnt().with_page(page("a", nonsense, "b", "2"))
    assert (learnt.fences, learnt.nonsense) == ({"b": 2}, ("a",))
