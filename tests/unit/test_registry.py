"""Who may be born, and the file that remembers it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.lease import ConfigurationError
from leasekeeper.redlock.membership import Membership, Node
from leasekeeper.redlock.registry import (
    FRESH,
    LEAP,
    PLAUSIBLE,
    FileRegistry,
    NodeView,
    Pending,
    Record,
    birth_arguments,
    decide_birth,
    parse_vector,
)

MEMBERSHIP = Membership(
    nodes=tuple(Node(str(i), "127.0.0.1", 7000 + i) for i in range(5)), max_ttl=10, quarantine=11
)
WALL = 1_763_427_723_456
BORN = Record(1, WALL, 0, {str(i): f"life-{i}" for i in range(5)}, MEMBERSHIP.epoch)


def view(id: str, life: str = "", **facts: Any) -> NodeView:
    return NodeView(id=id, life=life or f"life-{id}", **facts)


def empty(ids: Iterable[int], **facts: Any) -> dict[str, NodeView]:
    return {str(i): view(str(i), f"new-{i}", **facts) for i in ids}


def open_(ids: Iterable[int], **facts: Any) -> dict[str, NodeView]:
    facts = {"epoch": MEMBERSHIP.epoch, **facts}
    return {
        str(i): view(str(i), open=True, joined=True, generation=1, incarnation=1, **facts)
        for i in ids
    }


def test_all_members_with_an_empty_memory_are_born_above_unix_milliseconds() -> None:
    record = decide_birth(FRESH, empty(range(5)), MEMBERSHIP, WALL)
    lives = {str(i): f"new-{i}" for i in range(5)}
    assert record == Record(1, WALL, 0, lives, MEMBERSHIP.epoch)


def test_a_birth_waits_for_every_member() -> None:
    assert decide_birth(FRESH, empty(range(4)), MEMBERSHIP, WALL) is None


def test_after_a_long_wait_a_quorum_is_born_without_the_rest() -> None:
    record = decide_birth(FRESH, empty(range(3)), MEMBERSHIP, WALL, waited=True)
    assert record is not None
    assert set(record.lives) == {"0", "1", "2"}
    assert decide_birth(FRESH, empty(range(2)), MEMBERSHIP, WALL, waited=True) is None


def test_a_member_without_a_life_is_not_there_yet() -> None:
    views = empty(range(5)) | {"4": NodeView(id="4", life="")}
    assert decide_birth(FRESH, views, MEMBERSHIP, WALL) is None


def test_strangers_and_mistaken_addresses_do_not_count() -> None:
    strangers = empty(range(4)) | {"4": view("3", "new-3"), "9": view("9")}
    assert decide_birth(FRESH, strangers, MEMBERSHIP, WALL) is None


def test_without_a_record_nobody_is_born_before_a_quarantine() -> None:
    """An ensemble that was deleted and made again has the names and passwords of the old one: its
    leases may still live, so its nodes have lost a memory and not begun one.
    """
    assert decide_birth(None, empty(range(5)), MEMBERSHIP, WALL) is None
    born = decide_birth(None, empty(range(5), rested=True), MEMBERSHIP, WALL)
    assert born is not None
    assert born.generation == 1


def test_an_ensemble_that_is_born_is_not_born_again() -> None:
    assert decide_birth(BORN, open_(range(5)), MEMBERSHIP, WALL) is None


def test_a_node_that_lost_its_memory_recovers_from_others() -> None:
    views = open_(range(3)) | empty([3, 4], rested=True)
    assert decide_birth(BORN, views, MEMBERSHIP, WALL, waited=True) is None


def test_listed_nodes_that_have_not_opened_yet_are_no_total_loss() -> None:
    views = {str(i): view(str(i), rested=True) for i in range(5)}
    assert decide_birth(BORN, views, MEMBERSHIP, WALL, waited=True) is None


def test_a_total_loss_waits_until_all_have_rested() -> None:
    assert decide_birth(BORN, empty(range(5)), MEMBERSHIP, WALL) is None
    assert decide_birth(BORN, empty(range(5), rested=True), MEMBERSHIP, WALL) is not None


def test_after_a_total_loss_tokens_and_incarnations_leap() -> None:
    reborn = decide_birth(BORN, empty(range(5), rested=True), MEMBERSHIP, WALL)
    assert reborn is not None
    assert (reborn.generation, reborn.floor) == (2, WALL + LEAP)
    assert reborn.incarnation_floor == LEAP


def test_a_survivors_counters_are_below_the_floor() -> None:
    survivor = open_([0], highest=WALL + 3 * LEAP, vector={"1": 2 * LEAP})
    views = survivor | empty(range(1, 5), rested=True)
    reborn = decide_birth(BORN, views, MEMBERSHIP, WALL)
    assert reborn is not None
    assert reborn.floor == WALL + 3 * LEAP
    assert reborn.incarnation_floor == 2 * LEAP
    assert reborn.lives["0"] == "life-0"


@pytest.mark.parametrize("written", [2**52 - 1, WALL + PLAUSIBLE + 1])
def test_what_a_tenant_wrote_into_its_own_lock_is_not_everybodys_floor(written: int) -> None:
    """With a floor just below 2^52 no lock could ever be won again."""
    views = open_([0], highest=written, floor=WALL + 2 * LEAP) | empty(range(1, 5), rested=True)
    reborn = decide_birth(BORN, views, MEMBERSHIP, WALL)
    assert reborn is not None
    assert reborn.floor == WALL + 2 * LEAP
    assert reborn.lives["0"] == "life-0"


def test_a_counter_is_plausible_far_above_a_clock_that_was_set_back() -> None:
    views = open_([0], highest=WALL + PLAUSIBLE) | empty(range(1, 5), rested=True)
    reborn = decide_birth(BORN, views, MEMBERSHIP, wall_ms=0)
    assert reborn is not None
    assert reborn.floor == WALL + PLAUSIBLE


def test_a_registry_that_forgot_is_told_by_the_nodes_and_nobody_is_born() -> None:
    """Otherwise the next total loss would pass for a first start."""
    views = open_(range(2), floor=WALL + 5) | empty(range(2, 5), rested=True)
    restored = decide_birth(None, views, MEMBERSHIP, WALL)
    lives = {"0": "life-0", "1": "life-1"}
    assert restored == Record(1, WALL + 5, 0, lives, MEMBERSHIP.epoch)


def test_the_arguments_of_a_birth_name_every_member() -> None:
    arguments = birth_arguments(BORN, MEMBERSHIP, "2")
    assert arguments == ("life-2", "1", str(WALL), "0", "0", "1", "2", "3", "4")


def test_a_reply_of_state_becomes_a_view() -> None:
    reply = [
        "NODE",
        "ab",
        "1",
        "1",
        "1",
        "1-x",
        "7",
        "9",
        "2",
        "3",
        "1",
        "run",
        "4",
        "{}",
        "5",
        "0:1,3:5",
    ]
    assert NodeView.from_reply(reply) == NodeView(
        id="3",
        life="ab",
        birth=1,
        open=True,
        joined=True,
        epoch="1-x",
        floor=7,
        tick=9,
        locks=2,
        rested=True,
        run_id="run",
        generation=4,
        members="{}",
        incarnation=5,
        vector={"0": 1, "3": 5},
    )


def test_an_empty_vector() -> None:
    assert parse_vector("") == {}


def test_a_record_survives_json() -> None:
    assert Record.from_json(BORN.to_json()) == BORN


@pytest.mark.parametrize(
    "data", [{}, [], None, {"generation": "x"}, {**BORN.to_json(), "lives": 3}]
)
def test_a_record_that_cannot_be_read_is_an_error_and_not_unborn(data: object) -> None:
    with pytest.raises(ConfigurationError, match="registry"):
        Record.from_json(data)


def test_the_file_is_only_replaced_if_it_is_what_was_read(tmp_path: Path) -> None:
    registry = FileRegistry(str(tmp_path / "registry.json"))
    assert registry.read() is None
    assert registry.compare_and_swap(None, BORN)
    assert registry.read() == BORN
    assert not registry.compare_and_swap(None, BORN)
    reborn = Record(2, BORN.floor + 1, 5, BORN.lives)
    assert registry.compare_and_swap(BORN, reborn)
    assert registry.read() == reborn


def test_of_many_that_swap_at_once_one_wins(tmp_path: Path) -> None:
    won: list[int] = []

    def swap(number: int) -> None:
        mine = Record(1, number, 0, {})
        if FileRegistry(str(tmp_path / "registry.json")).compare_and_swap(None, mine):
            won.append(number)

    threads = [threading.Thread(target=swap, args=(i,)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    record = FileRegistry(str(tmp_path / "registry.json")).read()
    assert record is not None
    assert won == [record.floor]


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "registry.json"
    path.write_text('{"generation": 1')
    with pytest.raises(ConfigurationError, match=r"registry\.json"):
        FileRegistry(str(path)).read()


def test_a_file_that_is_not_text_is_an_error_and_not_unborn(tmp_path: Path) -> None:
    (tmp_path / "registry.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="not JSON"):
        FileRegistry(str(tmp_path / "registry.json")).read()


def test_a_directory_that_is_gone_is_an_error_that_an_agent_survives(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written: No such file"):
        FileRegistry(str(tmp_path / "gone" / "registry.json")).compare_and_swap(None, BORN)


def test_a_full_disk_is_an_error_that_an_agent_survives_and_the_record_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    registry = FileRegistry(str(tmp_path / "registry.json"))
    assert registry.compare_and_swap(None, BORN)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ConfigurationError, match="No space left"):
            registry.compare_and_swap(BORN, Record(2, BORN.floor, 0, {}))
    assert registry.read() == BORN


OTHER = Membership(number=2, nodes=MEMBERSHIP.nodes[:3], max_ttl=10, quarantine=11)


def test_a_record_with_a_change_of_membership_comes_back_as_it_was(tmp_path: Path) -> None:
    registry = FileRegistry(str(tmp_path / "registry.json"))
    pending = Pending(OTHER, joining=True, lives={"0": "a"})
    changing = replace(BORN, membership=MEMBERSHIP, pending=pending)
    assert registry.compare_and_swap(None, changing)
    assert registry.read() == changing
    assert Record.from_json({**FRESH.to_json()}) == FRESH, "fields of a change may be left out"


def test_a_record_with_a_pending_list_that_makes_no_sense_is_refused() -> None:
    data = replace(BORN, pending=Pending(OTHER)).to_json()
    data["pending"]["membership"]["nodes"] = []
    with pytest.raises(ConfigurationError, match="the record cannot be read"):
        Record.from_json(data)


def test_only_the_list_that_the_record_is_about_decides_on_a_total_loss() -> None:
    """Nodes that are being added are empty, and are more than a minority of a new list."""
    views = empty(range(5), rested=True)
    assert decide_birth(BORN, views, MEMBERSHIP, WALL) is not None
    assert decide_birth(BORN, views, OTHER, WALL) is None
    before_epochs = replace(BORN, epoch="")
    survivors = empty(range(4), rested=True) | open_([4], epoch="2-other")
    assert decide_birth(before_epochs, survivors, MEMBERSHIP, WALL) is None


def test_a_total_loss_keeps_the_change_that_was_begun_unless_that_has_come_too_far() -> None:
    begun = replace(BORN, membership=MEMBERSHIP, pending=Pending(OTHER))
    reborn = decide_birth(begun, empty(range(5), rested=True), MEMBERSHIP, WALL)
    assert reborn is not None
    assert (reborn.pending, reborn.epoch) == (begun.pending, MEMBERSHIP.epoch)
    assert reborn.membership == MEMBERSHIP
    joining = replace(BORN, pending=Pending(OTHER, joining=True))
    for membership in (MEMBERSHIP, OTHER):
        views = empty(range(5), rested=True)
        assert decide_birth(joining, views, membership, WALL) is None


def test_nodes_of_another_list_do_not_restore_a_record_that_was_lost() -> None:
    assert decide_birth(None, open_([0, 1], epoch="2-other"), MEMBERSHIP, WALL) is None
