"""The order on the disk, and what is said at the moment of the read; with virtual clocks."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import floor
from pathlib import Path

import pytest
from leasekeeper_sidecar import files
from leasekeeper_sidecar.leader_file import LeaderFile
from leasekeeper_sidecar.leadership import Leadership, Tenure
from leasekeeper_sidecar.log import Log
from leasekeeper_sidecar.metrics import Counters
from leasekeeper_sidecar.resume import Occupied, ResumeState, occupy

from leasekeeper.clock import Deadline, Instant
from leasekeeper.lease import Grant, Lost, Timings, Unknown

TIMINGS = Timings()


@dataclass
class Machine:
    """Clocks that a test moves."""

    time: float = 0.0
    boot: str = "boot-1"

    def now(self) -> Instant:
        return Instant(self.time + 1000, self.time + 500)

    def wall(self) -> float:
        return self.time + 1_763_427_723.0

    def uptime_cs(self) -> int:
        return floor((self.time + 1000) * 100)

    def boot_id(self) -> str:
        return self.boot


class Volumes:
    """Both volumes of a pod; `process` is a sidecar that starts on them, as often as one likes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.machine = Machine()
        self.resume_file = path / "resume.json"
        self.leader_file = path / "leader"

    def process(self, *, uid: str = "uid", lock: str = "shop/orders") -> Leadership:
        resume = ResumeState(
            str(self.path), lock=lock, pod_uid=uid, clock=self.machine, host=self.machine
        )
        return Leadership(
            lock=lock,
            pod_name="orders-0",
            timings=TIMINGS,
            clock=self.machine,
            host=self.machine,
            file=LeaderFile(str(self.path)),
            resume=resume,
            counters=Counters(),
            log=Log(),
        )

    def grant(self, token: int = 7, id_: str = "orders-0/uid/n/1") -> Grant:
        start = self.machine.now()
        deadline = Deadline(start, TIMINGS.renew_deadline)
        return Grant("shop/orders", id_, token, deadline, Deadline(start, TIMINGS.lease_end))

    @property
    def file_says(self) -> bool:
        return json.loads(self.leader_file.read_text())["leader"] is True


@pytest.fixture
def volumes(tmp_path: Path) -> Volumes:
    return Volumes(tmp_path)


# -- order on the disk -----------------------------------------------------------------------------


@pytest.fixture
def steps(volumes: Volumes, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every change of a file, in order."""
    seen: list[str] = []
    replace, remove = files.replace, files.remove

    def spy_replace(path: str, data: bytes, mode: int) -> None:
        replace(path, data, mode)
        name = Path(path).name
        if name == "leader":
            seen.append("file true" if volumes.file_says else "file false")
        elif name == "resume.json":
            seen.append("state saved")

    def spy_remove(path: str) -> None:
        remove(path)
        seen.append(f"{Path(path).name} removed")

    monkeypatch.setattr(files, "replace", spy_replace)
    monkeypatch.setattr(files, "remove", spy_remove)
    return seen


def test_a_win_saves_the_resume_state_before_the_file_says_yes(
    volumes: Volumes, steps: list[str]
) -> None:
    sidecar = volumes.process()
    sidecar.start()
    steps.clear()
    sidecar.leading(volumes.grant())
    assert steps == ["state saved", "file true"]


def test_a_loss_takes_the_file_back_before_the_resume_state_is_erased(
    volumes: Volumes, steps: list[str]
) -> None:
    sidecar = volumes.process()
    sidecar.start()
    sidecar.leading(volumes.grant())
    steps.clear()
    sidecar.not_leading("lost")
    assert steps == ["file false", "resume.json removed"]


def test_the_mirror_hears_of_an_end_after_the_disk_does(volumes: Volumes) -> None:
    sidecar = volumes.process()
    sidecar.start()
    heard: list[tuple[bool, bool]] = []

    def listen(_: Tenure | None) -> None:
        heard.append((volumes.file_says, volumes.resume_file.exists()))

    sidecar.on_tenure = listen
    sidecar.leading(volumes.grant())
    sidecar.leading(volumes.grant())  # a renewal is no change of leadership
    sidecar.not_leading("lost")
    assert heard == [(True, True), (False, False)]


def refuse(kind: int, names: set[str]) -> Callable[..., None]:
    def failing(path: str, *_: object) -> None:
        if Path(path).name in names:
            raise OSError(kind, "refused")

    return failing


def test_a_win_that_cannot_be_told_is_given_up(
    volumes: Volumes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It raises, and that ends the process: the lease runs out for one whose app can be told."""
    sidecar = volumes.process()
    sidecar.start()
    monkeypatch.setattr(files, "replace", refuse(errno.ENOSPC, {"leader"}))
    with pytest.raises(OSError, match="refused"):
        sidecar.leading(volumes.grant())


def test_a_renewal_that_cannot_be_told_is_given_up_only_when_the_old_claim_runs_out(
    volumes: Volumes, monkeypatch: pytest.MonkeyPatch
) -> None:
    sidecar = volumes.process()
    sidecar.start()
    sidecar.leading(volumes.grant())
    monkeypatch.setattr(files, "replace", refuse(errno.ENOSPC, {"leader", "resume.json"}))
    volumes.machine.time = 2
    sidecar.leading(volumes.grant())
    assert sidecar.seconds_left() == 8, "what is said goes by what the file says"
    volumes.machine.time = 7
    with pytest.raises(OSError, match="refused"):
        sidecar.leading(volumes.grant())


@pytest.mark.parametrize("stuck", ["leader", "leader.env", "resume.json"])
def test_what_cannot_be_taken_back_stops_the_release(
    volumes: Volumes, monkeypatch: pytest.MonkeyPatch, stuck: str
) -> None:
    """It raises before the elector sends the first byte of a release."""
    sidecar = volumes.process()
    sidecar.start()
    sidecar.leading(volumes.grant())
    monkeypatch.setattr(files, "replace", refuse(errno.EROFS, {stuck}))
    monkeypatch.setattr(files, "remove", refuse(errno.EROFS, {stuck}))
    with pytest.raises(OSError, match="refused"):
        sidecar.not_leading("stopped")


# -- resume ----------------------------------------------------------------------------------------


def test_a_killed_sidecar_goes_on_with_id_token_and_deadline(volumes: Volumes) -> None:
    first = volumes.process()
    first.start()
    grant = volumes.grant()
    first.leading(grant)
    acquired = first.current().acquired
    before = volumes.leader_file.read_bytes()
    volumes.machine.time = 5
    second = volumes.process()
    assert second.start() == grant
    assert volumes.leader_file.read_bytes() == before, "the old file stays, and stays true"
    assert second.current().leader
    second.leading(volumes.grant())
    assert second.current().acquired == acquired, "it is the same tenure"


@pytest.mark.parametrize(
    ("later", "boot", "uid", "lock"),
    [
        (10, "boot-1", "uid", "shop/orders"),
        (5, "boot-2", "uid", "shop/orders"),
        (-5, "boot-1", "uid", "shop/orders"),
        (5, "boot-1", "another", "shop/orders"),
        (5, "boot-1", "uid", "shop/another"),
    ],
    ids=["deadline passed", "rebooted", "clock from the future", "another pod", "another lock"],
)
def test_a_lease_that_is_not_certainly_ours_is_not_resumed(
    volumes: Volumes, later: float, boot: str, uid: str, lock: str
) -> None:
    first = volumes.process()
    first.start()
    first.leading(volumes.grant())
    volumes.machine.time, volumes.machine.boot = later, boot
    second = volumes.process(uid=uid, lock=lock)
    assert second.start() is None
    assert not volumes.file_says
    assert not volumes.resume_file.exists()


def test_half_a_resume_state_is_none(volumes: Volumes) -> None:
    first = volumes.process()
    first.start()
    first.leading(volumes.grant())
    text = volumes.resume_file.read_text()
    for end in range(0, len(text), 11):
        volumes.resume_file.write_text(text[:end])
        assert volumes.process().start() is None


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", '"nan"', "true", "[]"])
@pytest.mark.parametrize("key", ["boot", "raw", "after", "leaseEndAfter", "acquired", "token"])
def test_a_resume_state_with_a_number_that_is_none_is_none(
    volumes: Volumes, key: str, number: str
) -> None:
    first = volumes.process()
    first.start()
    first.leading(volumes.grant())
    text, count = re.subn(
        rf'"{key}": [0-9][0-9.e+]*', f'"{key}": {number}', volumes.resume_file.read_text()
    )
    assert count == 1
    volumes.resume_file.write_text(text)
    assert volumes.process().start() is None
    assert not volumes.file_says


def test_a_resumed_lease_that_is_lost_is_taken_back(volumes: Volumes) -> None:
    first = volumes.process()
    first.start()
    first.leading(volumes.grant())
    second = volumes.process()
    second.start()
    second.not_leading("lost: somebody else has it")
    assert not volumes.file_says
    assert not volumes.resume_file.exists()
    assert not second.current().leader


def test_a_volume_has_one_sidecar(tmp_path: Path) -> None:
    occupy(str(tmp_path), "lock")
    with pytest.raises(Occupied, match="another sidecar already runs on"):
        occupy(str(tmp_path), "lock")


# -- at the moment of the read ---------------------------------------------------------------------


def test_nothing_says_leading_after_the_deadline_though_nobody_said_it_is_over(
    volumes: Volumes,
) -> None:
    """Known bug 27: derived from the deadline at the moment of the read."""
    sidecar = volumes.process()
    sidecar.start()
    sidecar.leading(volumes.grant())
    assert sidecar.current().leader
    assert sidecar.seconds_left() == 10
    volumes.machine.time = 10
    assert not sidecar.current().leader
    assert sidecar.current().token == 0
    assert sidecar.seconds_left() == 0


def test_a_standby_forgets_a_holder_that_was_not_seen_for_a_lease(volumes: Volumes) -> None:
    """Known bug 34."""
    sidecar = volumes.process()
    sidecar.start()
    sidecar.standing_by("orders-1/uid/n/3")
    assert sidecar.current().holder == "orders-1"
    assert sidecar.current().seen == volumes.machine.wall()
    volumes.machine.time = 14
    assert sidecar.current().holder == "orders-1"
    volumes.machine.time = 16
    assert sidecar.current().holder == ""
    sidecar.standing_by(None)
    assert sidecar.current().holder == ""


def test_many_looks_at_a_held_lock_are_few_writes(volumes: Volumes, steps: list[str]) -> None:
    sidecar = volumes.process()
    sidecar.start()
    steps.clear()
    for _ in range(1000):
        volumes.machine.time += 0.01
        sidecar.standing_by("orders-1/uid/n/3")
    assert steps.count("file false") == 2


def test_renewals_are_counted_by_outcome(volumes: Volumes) -> None:
    sidecar = volumes.process()
    counters = Counters()
    sidecar._counters = counters
    sidecar.start()
    for outcome in (volumes.grant(), Unknown({"0": "no answer"}), Unknown({}), Lost("HIGH")):
        sidecar.renewal(outcome)
    assert dict(counters.renewals) == {"renewed": 1, "unknown": 2, "lost": 1}
