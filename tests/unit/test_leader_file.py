"""The leader file and the reader's rule, in virtual time."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leasekeeper_sidecar.claim import (
    Claim,
    flicker,
    holder_name,
    judge,
    leading_claim,
    standby_claim,
)

from leasekeeper.clock import Deadline, Instant
from leasekeeper.lease import Grant, Timings

BOOT = "5f0c2a44-6c1e-4c55-9b1e-6f0f2b1f7a10"
OTHER_BOOT = "00000000-6c1e-4c55-9b1e-6f0f2b1f7a10"
BOOTED = 8123.4567  # true time zero on the boot clock
UNIX = 1_763_427_723.456  # and on the wall clock


@dataclass
class World:
    """One machine: true time, and clocks that show it. A pause may follow each reading."""

    time: float = 0.0
    wall_offset: float = UNIX
    boot: str = BOOT
    pauses: list[float] = field(default_factory=list)

    def _read(self, value: float) -> float:
        if self.pauses:
            self.time += self.pauses.pop(0)
        return value

    def now(self) -> Instant:
        return Instant(*(self._read(self.time + BOOTED),) * 2)

    def wall(self) -> float:
        return self._read(self.time + self.wall_offset)

    def uptime_cs(self) -> int:
        return floor(self._read(self.time + BOOTED) * 100)

    def boot_id(self) -> str:
        return self.boot


def grant(world: World, seconds: float, *, lease: float = 15) -> Grant:
    start = Instant(world.time + BOOTED, world.time + BOOTED)
    return Grant(
        "shop/orders", "orders-x2x/uid/n/1", 17, Deadline(start, seconds), Deadline(start, lease)
    )


def claim_of(world: World, seconds: float = 10) -> Claim:
    return leading_claim(
        grant(world, seconds), name="orders-x2x", acquired=UNIX, clock=world, host=world
    )


def leads(text: str, world: World) -> bool:
    return judge(text, uptime_cs=world.uptime_cs(), boot=world.boot_id(), wall=world.wall()).leader


def test_the_file_has_the_fields_of_the_contract_in_their_order() -> None:
    said = json.loads(claim_of(World()).to_json())
    assert list(said.items()) == [
        ("lock", "shop/orders"),
        ("leader", True),
        ("holder", "orders-x2x"),
        ("token", 17),
        ("acquired", "2025-11-18T01:02:03.456Z"),
        ("expires", "2025-11-18T01:02:13.456Z"),
        ("expiresUnix", 1763427733),
        ("deadlineCs", 813344),  # 8133.4567 s, rounded down, less one hundredth
        ("boot", BOOT),
    ]


def test_the_environment_file_says_the_same() -> None:
    lines = dict(line.split("=", 1) for line in claim_of(World()).to_env().splitlines())
    assert lines["LEASEKEEPER_LEADER"] == "true"
    assert lines["LEASEKEEPER_TOKEN"] == "17"
    assert lines["LEASEKEEPER_DEADLINE_CS"] == "813344"
    assert lines["LEASEKEEPER_EXPIRES_UNIX"] == "1763427733"
    assert lines["LEASEKEEPER_BOOT"] == BOOT


def test_a_dead_writers_file_becomes_false_by_itself() -> None:
    """Known bugs 27 and 29: the file carries its own end; a reader needs no writer."""
    world = World()
    text = claim_of(world).to_json()
    assert leads(text, world)
    world.time = 8.9
    assert leads(text, world)
    world.time = 10
    assert not leads(text, world)


def test_a_file_of_another_boot_is_false() -> None:
    world = World()
    text = claim_of(world).to_json()
    world.boot = OTHER_BOOT
    assert not leads(text, world)


def test_a_wall_clock_set_back_does_not_prolong_the_claim() -> None:
    world = World()
    text = claim_of(world).to_json()
    world.time, world.wall_offset = 10, UNIX - 3600
    assert not leads(text, world)


def test_an_uptime_of_ones_own_does_not_prolong_the_claim() -> None:
    """lxcfs shows each container the time since its own start: there the wall clock decides."""
    world = World()
    text = claim_of(world).to_json()
    world.time = 10
    verdict = judge(text, uptime_cs=500, boot=BOOT, wall=world.wall())
    assert not verdict.leader


def test_a_writer_paused_between_its_clocks_claims_too_little() -> None:
    world = World(pauses=[3, 2])  # after the uptime, after the wall clock
    text = claim_of(world, 10).to_json()
    assert world.time == 5
    said = json.loads(text)
    assert said["deadlineCs"] <= floor((BOOTED + 5) * 100)
    assert said["expiresUnix"] <= UNIX + 8


TRUE = {"leader": True, "boot": BOOT, "token": 1, "deadlineCs": 10**9, "expiresUnix": 10**10}
WRONG: list[dict[str, object]] = [
    {"deadlineCs": "1000000000"},
    {"leader": 1},
    {"leader": "true"},
    {"token": 1.5},
    {"token": True},
    {"boot": None},
    {"expiresUnix": None},
]


def test_the_file_that_is_spoilt_below_would_be_true() -> None:
    assert leads(json.dumps(TRUE), World())


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"leader":true}', *(json.dumps(TRUE | wrong) for wrong in WRONG)],
)
def test_what_cannot_be_understood_means_no(text: str) -> None:
    """Known bug 30: half a file is not a yes."""
    assert not leads(text, World())


def test_every_beginning_of_a_true_file_means_no() -> None:
    """Known bug 30, from the reader's side."""
    world = World()
    text = claim_of(world).to_json().rstrip("\n")
    assert leads(text, world)
    assert not any(leads(text[:end], world) for end in range(len(text)))


def test_a_standby_names_the_holder_with_its_age_or_says_unknown() -> None:
    """Known bug 34."""
    known = standby_claim("shop/orders", boot=BOOT, holder="orders-a", seen=UNIX)
    assert json.loads(known.to_json())["seen"] == "2025-11-18T01:02:03.456Z"
    unknown = standby_claim("shop/orders", boot=BOOT, seen=UNIX)
    assert json.loads(unknown.to_json())["holder"] == ""
    assert json.loads(unknown.to_json())["seen"] is None


@pytest.mark.parametrize(
    ("candidate", "name"),
    [
        ("orders-x2x/uid/nonce/3", "orders-x2x"),
        ("orders-x2x", "orders-x2x"),
        (None, ""),
        ("", ""),
        ("$(reboot)/uid", ""),
        ('a","leader":true,"x":"/uid', ""),
        ("a\nLEASEKEEPER_LEADER=true/uid", ""),
        ("a" * 300, ""),
    ],
)
def test_a_hostile_holder_cannot_speak_through_the_file(candidate: str | None, name: str) -> None:
    """Another tenant of the store may have written it, and shells read `leader.env`."""
    assert holder_name(candidate) == name


times = st.floats(0, 30, allow_nan=False)
pauses = st.lists(st.floats(0, 20, allow_nan=False), max_size=3)


@given(seconds=st.floats(0.5, 20), writer=pauses, reader=pauses, read_at=times, skew=times)
def test_nobody_believes_a_claim_past_its_deadline(
    seconds: float, writer: list[float], reader: list[float], read_at: float, skew: float
) -> None:
    """Whatever pauses writer and reader make: if the uptime that decides was read before the true
    deadline, only then the answer may be yes. The wall clock may be anything.
    """
    world = World(pauses=list(writer))
    text = claim_of(world, seconds).to_json()
    world.time = max(world.time, read_at)
    world.wall_offset -= skew
    read = world.time
    if leads(text, world):
        assert read < seconds


def test_control_a_writer_that_reads_its_clocks_in_the_other_order_is_believed_too_long() -> None:
    """The same pause, with the lease measured before the uptime: believed after the deadline."""
    world = World()
    left = grant(world, 10).deadline.left(world.now())
    world.time = 5  # paused here
    wrong = Claim(
        lock="shop/orders",
        leader=True,
        boot=BOOT,
        expires_unix=floor(world.wall() + left),
        deadline_cs=floor(world.uptime_cs() + left * 100) - 1,
    )
    world.time = 12
    assert leads(wrong.to_json(), world)


@pytest.mark.parametrize("phase", [step / 10 for step in range(10)])
@pytest.mark.parametrize(
    ("deadline", "steady"), [(3.0, True), (1.9, False)], ids=["room", "too close"]
)
def test_a_deadline_with_room_for_whole_seconds_keeps_the_file_true_between_renewals(
    phase: float, deadline: float, steady: bool
) -> None:
    """The renewal is due after 1 s and takes 0.9 s more; at which part of a second it began must
    not matter. Too close, the file says no at some of them.
    """
    timings = Timings(lease_duration=15, renew_deadline=deadline, retry_period=1)
    assert (flicker(timings) == "") is steady
    said = []
    for part in {phase, 0.95}:
        world = World(wall_offset=floor(UNIX) + part)
        text = claim_of(world, deadline).to_json()
        world.time = timings.retry_period + 0.9 - 0.01
        said.append(leads(text, world))
    assert all(said) is steady


def test_a_warning_names_both_timings_and_what_to_do() -> None:
    said = flicker(Timings(lease_duration=4, renew_deadline=2.5, retry_period=1))
    assert "renewDeadlineSeconds (2.5) is less than retryPeriodSeconds (1) + 2" in said
    assert "raise the deadline or lower the retry period" in said
