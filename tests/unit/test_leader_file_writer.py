"""How the leader file gets onto the disk: whole, readable by all, taken back at any price."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from leasekeeper_sidecar import files
from leasekeeper_sidecar.claim import Claim, standby_claim
from leasekeeper_sidecar.leader_file import LeaderFile

YES = Claim(lock="shop/orders", leader=True, boot="b", token=7, deadline_cs=9, expires_unix=9)
NO = standby_claim("shop/orders", boot="b")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_everybody_may_read_it_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        LeaderFile(str(tmp_path)).say(YES)
    finally:
        os.umask(before)
    assert mode(tmp_path / "leader") == 0o644
    assert mode(tmp_path / "leader.env") == 0o644


def test_a_new_claim_is_a_new_file_and_never_a_change_of_the_old_one(tmp_path: Path) -> None:
    """Known bug 30: written aside and renamed, so whoever has the old one open reads it whole."""
    file = LeaderFile(str(tmp_path))
    file.say(YES)
    with (tmp_path / "leader").open() as opened:
        inode = (tmp_path / "leader").stat().st_ino
        file.say(NO)
        assert (tmp_path / "leader").stat().st_ino != inode
        assert opened.read() == YES.to_json()


def test_kills_leave_no_litter_behind(tmp_path: Path) -> None:
    (tmp_path / ".leader.new").write_text("half a fi")
    LeaderFile(str(tmp_path)).say(YES)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["leader", "leader.env"]
    assert (tmp_path / "leader").read_text() == YES.to_json()


def test_on_a_full_volume_no_is_said_by_removing_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = LeaderFile(str(tmp_path))
    file.say(YES)

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        file.say(YES)
    assert (tmp_path / "leader").read_text() == YES.to_json()
    file.say_no(NO)
    assert not (tmp_path / "leader").exists()
    assert not (tmp_path / "leader.env").exists()


def test_a_file_that_cannot_be_taken_back_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The elector must know: then nothing may be released."""
    file = LeaderFile(str(tmp_path))
    file.say(YES)

    def read_only(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(os, "unlink", read_only)
    with pytest.raises(OSError, match="Read-only"):
        file.say_no(NO)


def test_the_programs_can_be_run_by_everybody(tmp_path: Path) -> None:
    LeaderFile(str(tmp_path)).install_programs()
    assert mode(tmp_path / "is-leader") == 0o755
    assert mode(tmp_path / "run-as-leader") == 0o755


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("precious")
    (tmp_path / ".leader.new").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        files.replace(str(tmp_path / "leader"), b"x", 0o644)
    assert (tmp_path / "elsewhere").read_text() == "precious"
