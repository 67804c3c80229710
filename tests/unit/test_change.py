"""The decisions of a change of membership, in virtual time, and of those who follow it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leasekeeper.redlock import change
from leasekeeper.redlock.change import Dump, Raised, Refused, Wait
from leasekeeper.redlock.following import Following
from leasekeeper.redlock.membership import Membership, Node
from leasekeeper.redlock.quorum import Reply, Votes
from leasekeeper.redlock.registry import FRESH, NodeView, Pending, Record


def members(*ids: int, number: int) -> Membership:
    nodes = tuple(Node(str(i), "127.0.0.1", 7000 + i) for i in ids)
    return Membership(number=number, nodes=nodes, max_ttl=10, quarantine=11)


OLD, NEW = members(0, 1, 2, number=1), members(2, 3, 4, number=2)
MOVED = replace(NEW, nodes=(Node("2", "elsewhere", 7002), *NEW.nodes[1:]))
D = OLD.quarantine
BORN = Record(1, 100, 0, {"0": "a"}, OLD.epoch)


def views(*ids: int, epoch: str = OLD.epoch, joined: bool = True) -> dict[str, NodeView]:
    return {
        str(i): NodeView(id=str(i), life=f"life-{i}", open=True, joined=joined, epoch=epoch)
        for i in ids
    }


def raised(**at: float) -> dict[str, Raised]:
    return {id[1:]: Raised(f"life-{id[1:]}", when) for id, when in at.items()}


def test_a_change_is_pending_before_anything_else_happens() -> None:
    begun = change.begun(BORN, OLD, NEW)
    assert begun == replace(BORN, membership=OLD, pending=Pending(NEW))
    assert change.begun(begun, OLD, NEW) == begun, "whoever comes second goes on with it"
    before_epochs = change.begun(replace(BORN, epoch=""), OLD, NEW)
    assert before_epochs.epoch == OLD.epoch


@pytest.mark.parametrize(
    ("record", "old", "new", "why"),
    [
        (None, OLD, NEW, "never born"),
        (FRESH, OLD, NEW, "never born"),
        (BORN, OLD, members(2, 3, 4, number=3), "it must be 2"),
        (BORN, members(0, 1, 3, number=1), NEW, "name the list that is in use"),
        (BORN, OLD, MOVED, "another address another id"),
        (replace(BORN, pending=Pending(members(0, 1, 3, number=2))), OLD, NEW, "another change"),
    ],
)
def test_a_change_that_the_record_does_not_allow_is_refused(
    record: Record | None, old: Membership, new: Membership, why: str
) -> None:
    with pytest.raises(Refused, match=why):
        change.begun(record, old, new)


def test_the_wait_counts_from_the_last_of_the_quorum_that_was_raised() -> None:
    seen = views(0, 1, 2, epoch=NEW.epoch)
    assert change.after_raising(raised(n0=1.0), seen, OLD, 99.0) is None
    two = raised(n0=1.0, n1=5.0)
    assert change.after_raising(two, seen, OLD, 5.0 + D - 0.001) == Wait(5.0 + D)
    assert change.after_raising(two, seen, OLD, 5.0 + D) == Dump({"0": "life-0", "1": "life-1"})
    three = raised(n0=1.0, n1=5.0, n2=9.0)
    assert isinstance(change.after_raising(three, seen, OLD, 5.0 + D), Dump), (
        "a third costs nothing"
    )


def test_one_that_does_not_answer_is_replaced_by_one_that_was_raised_later() -> None:
    three = raised(n0=1.0, n1=5.0, n2=9.0)
    seen = views(0, 2, epoch=NEW.epoch)
    assert change.after_raising(three, seen, OLD, 5.0 + D) == Wait(9.0 + D)
    assert change.after_raising(three, seen, OLD, 9.0 + D) == Dump({"0": "life-0", "2": "life-2"})


@pytest.mark.parametrize(
    "now",
    [
        NodeView(id="1", life="another", open=True, epoch=NEW.epoch),
        NodeView(id="1", life="life-1", open=False, epoch=NEW.epoch),
        NodeView(id="1", life="life-1", open=True, epoch=OLD.epoch),
    ],
)
def test_a_memory_that_is_not_what_it_was_is_not_raised_any_more(now: NodeView) -> None:
    both = raised(n0=1.0, n1=1.0)
    assert set(change.still_raised(both, views(0, epoch=NEW.epoch), NEW)) == {"0", "1"}
    assert set(change.still_raised(both, views(0, epoch=NEW.epoch) | {"1": now}, NEW)) == {"0"}


def test_a_ghost_is_not_raised_and_does_not_count() -> None:
    seen = views(0, 1, 2)
    seen["0"] = replace(seen["0"], incarnation=1)
    seen["1"] = replace(seen["1"], vector={"0": 2})
    assert set(change.to_raise({}, seen, OLD, NEW)) == {"1", "2"}
    up = {id: replace(view, epoch=NEW.epoch) for id, view in seen.items()}
    assert set(change.still_raised(raised(n0=1.0, n1=1.0), up, NEW)) == {"1"}
    assert change.joined(up, NEW) == ["1", "2"]


def test_nodes_of_any_other_list_are_left_alone() -> None:
    seen = views(0) | views(1, epoch=NEW.epoch) | views(2, epoch="1-other")
    assert change.to_raise({}, seen, OLD, NEW) == {"0": "life-0", "1": "life-1"}


def test_memories_that_never_voted_are_written_down_before_the_first_join() -> None:
    """One that restarts after that may have been joined, and have voted: it must learn."""
    empty = NodeView(id="3", life="first", rested=True, incarnation=1)
    record = change.joining(change.begun(BORN, OLD, NEW), views(2) | {"3": empty})
    assert record.pending == Pending(NEW, joining=True, lives={"3": "first"})
    assert record.lives == {}, "births into the old list are void"
    assert change.why_not_joinable(empty, record.pending) == ""
    assert "restarted" in change.why_not_joinable(replace(empty, life="second"), record.pending)
    assert "quarantine" in change.why_not_joinable(replace(empty, rested=False), record.pending)
    assert "quarantine" in change.why_not_joinable(replace(empty, incarnation=0), record.pending)
    assert change.why_not_joinable(views(2)["2"], record.pending) == ""


def test_only_who_votes_in_the_new_epoch_is_joined() -> None:
    seen = views(2, epoch=NEW.epoch) | views(3) | views(4, epoch=NEW.epoch, joined=False)
    assert change.joined(seen, NEW) == ["2"]


def test_what_is_published_is_the_new_list_and_no_change() -> None:
    record = change.joining(change.begun(BORN, OLD, NEW), {})
    through = change.published(record, NEW)
    assert (through.epoch, through.pending) == (NEW.epoch, None)
    assert change.is_published(through, NEW)
    assert not change.is_published(record, NEW)
    assert change.is_published(replace(through, epoch="3-later"), NEW)


# -- candidates ----------------------------------------------------------------------------------


def says(*nodes: str, epoch: str = NEW.epoch, text: str = NEW.to_arguments()[1]) -> Votes:
    votes = Votes(quorum=2, outstanding=len(nodes))
    for node in nodes:
        votes.add(node, Reply("EPOCH", (epoch, text), 1, {}))
    return votes


def test_a_candidate_follows_when_a_quorum_of_its_nodes_has_said_the_same() -> None:
    following = Following(OLD)
    following.hear(says("0"))
    assert following.confirmed() is None, "one node could lead it away"
    following.hear(says("1"))
    assert following.confirmed() == NEW


@pytest.mark.parametrize(
    ("epoch", "text"),
    [
        ("2-0000000000000000", NEW.to_arguments()[1]),  # the list is not what its epoch says
        (NEW.epoch, "nonsense"),
        (NEW.epoch, ""),
        members(0, 1, 3, number=1).to_arguments()[:2],  # not newer: somebody edited a file
    ],
)
def test_a_candidate_follows_to_nothing_that_is_not_newer_and_whole(epoch: str, text: str) -> None:
    following = Following(OLD)
    following.hear(says("0", "1", "2", epoch=epoch, text=text))
    assert following.confirmed() is None


def test_two_different_lists_do_not_make_a_quorum() -> None:
    following = Following(OLD)
    following.hear(says("0"))
    epoch, text, _ = members(2, 3, 5, number=2).to_arguments()
    following.hear(says("1", epoch=epoch, text=text))
    assert following.confirmed() is None


def test_a_servers_last_word_counts_and_a_ghosts_does_not() -> None:
    following = Following(OLD)
    following.hear(says("0", "1"))
    votes = says("1")
    votes.add("0", Reply("OK", (), 1, {}))
    following.hear(votes)
    assert following.confirmed() is None
    following = Following(OLD)
    votes = says("0", "1")
    votes.add("2", Reply("CLOSED", (), 1, {"1": 2}))
    following.hear(votes)
    assert following.confirmed() is None
