"""Which list of nodes a node goes by while the list changes, and what it says of itself."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from leasekeeper.lease import ConfigurationError
from leasekeeper.redlock import life as steps
from leasekeeper.redlock.known_lists import MOST, KnownLists
from leasekeeper.redlock.life import Life, Standing, list_to_vote_by, next_step, standing
from leasekeeper.redlock.membership import LONGEST_LIST, Membership, Node, handed_over, number_of
from leasekeeper.redlock.registry import NodeView, Pending, Record
from leasekeeper.redlock.watched_file import WatchedFile


def members(*ids: int, number: int = 1, max_ttl: float = 10) -> Membership:
    nodes = tuple(Node(str(i), "127.0.0.1", 7000 + i) for i in ids)
    return Membership(number=number, nodes=nodes, max_ttl=max_ttl, quarantine=max_ttl * 1.1)


OLD = members(0, 1, 2)
NEW = members(0, 2, 3, number=2)
OUT = members(2, 3, 4, number=2)
"""A newer list without node 0, which is the one that decides here."""
OWN = NodeView(id="0", life="mine", incarnation=5, rested=True)


def in_(membership: Membership, *ids: int, joined: bool = True) -> dict[str, NodeView]:
    """Open nodes in the epoch of this list."""
    epoch, text, _ = membership.to_arguments()
    return {
        str(i): NodeView(
            id=str(i), life=f"life-{i}", open=True, joined=joined, epoch=epoch, members=text
        )
        for i in ids
    }


@pytest.mark.parametrize(
    ("peers", "goes_by"),
    [
        (in_(OLD, 1, 2), OLD),  # nobody has begun the change that the newer list is for
        (in_(OLD, 1) | in_(NEW, 2, joined=False), NEW),  # neither has a quorum: wait for the newer
        (in_(NEW, 2, 3, joined=False), NEW),
        (in_(OLD, 1) | in_(NEW, 2, 3), NEW),
        ({}, NEW),
    ],
)
def test_a_node_goes_by_the_newest_list_of_which_a_quorum_of_others_remembers(
    peers: dict[str, NodeView], goes_by: Membership
) -> None:
    assert list_to_vote_by(OWN, peers, [NEW, OLD], None) == goes_by


def test_with_nobody_to_learn_from_the_record_says_which_list_it_is_about() -> None:
    record = Record(1, 100, 0, {}, OLD.epoch)
    assert list_to_vote_by(OWN, {}, [NEW, OLD], record) == OLD


def announced(ids: Iterable[int]) -> Life:
    life = Life("mine", 0.0, 5)
    for id in ids:
        life = life.accepted(str(id), f"life-{id}", 0.0, 10)
    return life


def test_it_learns_from_others_of_the_list_that_it_will_vote_by_and_from_no_others() -> None:
    """`spec/README.md`, finding 3: two of the old list that know the new epoch are not enough."""
    peers = in_(NEW, 1, 2)  # node 1 is not in the new list, and was raised
    step = next_step(announced([1, 2]), OWN, peers, NEW, None, 100)
    assert isinstance(step, steps.Wait)
    peers |= in_(NEW, 3)
    step = next_step(announced([1, 2, 3]), OWN, peers, NEW, None, 100)
    assert step == steps.Recover({"2": "life-2", "3": "life-3"}, 0)


def test_it_is_joined_only_if_one_that_it_learnt_from_is() -> None:
    raised = in_(NEW, 2, 3, joined=False)
    step = next_step(announced([2, 3]), OWN, raised, NEW, None, 100)
    assert step == steps.Recover({"2": "life-2", "3": "life-3"}, 0, joined=False)
    step = next_step(announced([2, 3]), OWN, raised | in_(NEW, 3), NEW, None, 100)
    assert step == steps.Recover({"2": "life-2", "3": "life-3"}, 0, joined=True)


def test_a_birth_into_the_old_list_does_not_open_a_node_in_the_new_one() -> None:
    born = replace(OWN, birth=1)
    record = Record(1, 100, 0, {"0": "mine"}, OLD.epoch)
    assert next_step(announced([1, 2]), born, in_(OLD, 1, 2), OLD, record, 0) == steps.Open(1)
    step = next_step(announced([2, 3]), born, in_(NEW, 2, 3), NEW, record, 100)
    assert isinstance(step, steps.Recover)
    changed = Record(1, 100, 0, {}, NEW.epoch)
    step = next_step(announced([2, 3]), born, in_(NEW, 2, 3), NEW, changed, 100)
    assert isinstance(step, steps.Recover)


def test_a_node_that_the_list_does_not_have_says_so_and_tells_nobody_of_itself() -> None:
    step = next_step(Life("mine", 0.0), OWN, in_(OUT, 2, 3), OUT, None, 0)
    assert isinstance(step, steps.Wait)
    assert "no longer a member" in step.why


@pytest.mark.parametrize(
    ("own", "others", "record", "expected"),
    [
        (in_(OLD, 0), {}, None, Standing.MEMBER),
        (in_(OLD, 0), in_(NEW, 2, 3, joined=False), None, Standing.MEMBER),
        (in_(OLD, 0), in_(NEW, 2), None, Standing.MEMBER),
        (in_(OLD, 0), in_(NEW, 2, 3), None, Standing.BEHIND),
        (in_(OLD, 0), {}, Record(1, 1, 0, {}, NEW.epoch), Standing.BEHIND),
        (in_(NEW, 0, joined=False), in_(NEW, 2), None, Standing.RAISED),
        (in_(OLD, 0), in_(NEW, 2, 3), Record(1, 1, 0, {}, OLD.epoch), Standing.MEMBER),
        (in_(NEW, 0, joined=False), in_(NEW, 2, 3), None, Standing.OVERDUE),
        (
            in_(NEW, 0, joined=False),
            in_(NEW, 2, 3),
            Record(1, 1, 0, {}, OLD.epoch),
            Standing.RAISED,
        ),
        (in_(NEW, 0, joined=False), {}, Record(1, 1, 0, {}, NEW.epoch), Standing.OVERDUE),
        (in_(OUT, 0, joined=False), in_(OUT, 2, 3), None, Standing.REMOVED),
        (in_(NEW, 0), {}, Record(1, 1, 0, {}, OLD.epoch), Standing.MEMBER),
    ],
)
def test_an_open_node_knows_what_it_is_in_its_list(
    own: dict[str, NodeView],
    others: dict[str, NodeView],
    record: Record | None,
    expected: Standing,
) -> None:
    newest = OUT if own["0"].epoch == OUT.epoch else NEW
    assert standing(own["0"], others, [newest, OLD], record) is expected


def test_a_list_that_is_handed_over_must_be_what_its_epoch_says() -> None:
    epoch, text, _ = NEW.to_arguments()
    assert handed_over(epoch, text) == NEW
    for wrong in (OLD.epoch, "2-0000000000000000", ""):
        assert handed_over(wrong, text) is None
    nonsense = ("", "[]", "{", "[" * 100_000, '{"number": 2}', " " * (LONGEST_LIST + 1) + text)
    for wrong in nonsense:
        assert handed_over(epoch, wrong) is None


@pytest.mark.parametrize(
    ("epoch", "number"), [("7-ab", 7), ("", 0), ("7", 0), ("-ab", 0), ("x-ab", 0), ("9" * 99, 0)]
)
def test_the_number_of_an_epoch(epoch: str, number: int) -> None:
    assert number_of(epoch) == number


def test_an_agent_hears_of_lists_and_keeps_the_newest() -> None:
    lists = KnownLists(OLD)
    lists.hear(*in_(NEW, 2).values(), NodeView(id="3", life="x", epoch="3-x", members="nonsense"))
    assert lists.newest_first == [NEW, OLD]
    assert {node.id for node in lists.others("0")} == {"1", "2", "3"}
    for number in range(3, 20):
        lists.hear(*in_(members(0, 1, 2, number=number), 1).values())
    assert [one.number for one in lists.newest_first] == [19, 18, 17, 16][:MOST]


def test_a_file_that_changes_is_read_again_and_nonsense_in_it_changes_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "membership.json"
    path.write_text(json.dumps(OLD.to_json()))
    file = WatchedFile(str(path), what="membership file", advice="the last one stays in use")
    lists = KnownLists(OLD, file)
    assert not lists.look_at_file()
    path.write_text(json.dumps(NEW.to_json()))
    assert lists.look_at_file()
    assert (lists.file, lists.newest_first) == (NEW, [NEW, OLD])
    path.write_text("{")
    with pytest.raises(ConfigurationError, match="not JSON"):
        lists.look_at_file()
    assert not lists.look_at_file()
    path.unlink()
    with pytest.raises(ConfigurationError, match="No such file"):
        lists.look_at_file()
    assert lists.file == NEW


def test_the_registry_tells_an_agent_of_lists_that_nobody_else_remembers() -> None:
    """After a total loss an agent with an old file would wait for nodes that are no members."""
    lists = KnownLists(OLD)
    later = members(0, 3, 4, number=3)
    lists.read(Record(2, 1, 0, {}, NEW.epoch, NEW, Pending(later)))
    assert lists.newest_first == [later, NEW, OLD]
    lists.read(None)
    assert lists.newest_first == [later, NEW, OLD]
