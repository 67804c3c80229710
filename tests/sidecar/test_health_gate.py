"""When a pod whose app is ill may lead, and when not; with a clock that the test moves."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest
from leasekeeper_sidecar.config import HealthConfig
from leasekeeper_sidecar.health import Gate, Probe
from leasekeeper_sidecar.log import Log
from leasekeeper_sidecar.main import Sidecar

from leasekeeper.clock import Instant

PERIOD, LEASE, ESCAPE = 5.0, 15.0, 300.0


@dataclass
class Pod:
    """One pod that leads when it may and nobody else does. `others` lead if they are there."""

    others: bool = False
    leading: bool = False
    time: float = 0.0
    gate: Gate = field(default_factory=lambda: Gate(3, ESCAPE, encore=LEASE))

    def look(self, well: bool) -> bool:
        self.time += PERIOD
        now = Instant(self.time, self.time)
        may = self.gate.look(
            well, leading=self.leading, somebody=self.others and not self.leading, now=now
        )
        self.leading = may and (self.leading or not self.others)
        return may

    def looks(self, well: bool, seconds: float) -> list[bool]:
        return [self.look(well) for _ in range(round(seconds / PERIOD))]


def test_a_pod_leads_when_its_app_has_been_well_once() -> None:
    pod = Pod()
    assert not pod.look(well=False), "an app that starts cannot lead yet"
    assert pod.look(well=True)


def test_leadership_ends_at_the_threshold_and_not_before() -> None:
    pod = Pod()
    pod.look(well=True)
    assert [pod.look(well=False) for _ in range(3)] == [True, True, False]


def test_a_good_look_in_between_starts_the_count_anew() -> None:
    pod = Pod()
    pod.look(well=True)
    for _ in range(5):
        assert [pod.look(well=False), pod.look(well=False), pod.look(well=True)] == [True] * 3


def test_an_ill_pod_stays_out_until_it_is_well_while_others_lead() -> None:
    pod = Pod()
    pod.look(well=True)
    pod.looks(False, 15)
    pod.others = True
    assert not any(pod.looks(False, 10 * ESCAPE)), "somebody leads: there is nothing to escape from"
    assert pod.look(well=True)


def test_nobody_leads_cannot_last_for_ever() -> None:
    pod = Pod()
    pod.look(well=True)
    pod.looks(False, 10)
    out = pod.looks(False, ESCAPE)
    assert not any(out)
    assert pod.look(well=False), "nobody led for the whole time of the escape"


def test_an_ill_leader_gives_way_after_as_long_again_and_is_back_soon_if_nobody_came() -> None:
    pod = Pod()
    pod.looks(False, ESCAPE + PERIOD)
    assert pod.leading
    assert pod.looks(False, ESCAPE) == [True] * 60
    gave_way = pod.looks(False, LEASE + 2 * PERIOD)
    assert gave_way[0] is False
    assert gave_way[-1] is True, "nobody was better: it need not wait for the whole escape again"


def test_an_ill_leader_that_gave_way_to_another_waits_for_the_whole_escape_again() -> None:
    pod = Pod()
    pod.looks(False, 2 * ESCAPE + PERIOD)
    assert pod.looks(False, PERIOD) == [False]
    pod.others = True
    pod.look(well=False)
    pod.others = False
    assert not any(pod.looks(False, ESCAPE - PERIOD))


def test_of_many_that_escaped_one_leads_and_gives_way_to_the_first_that_is_well() -> None:
    """Nobody could lead for the whole escape, so all of them are in the race; one of them wins."""
    ill = [Pod() for _ in range(3)]
    for pod in ill:
        pod.looks(False, ESCAPE)
        assert pod.look(well=False)
        pod.leading = False
    ill[0].leading = True
    for pod in ill[1:]:
        pod.others = True
    for _ in range(round(ESCAPE / PERIOD)):
        # A pod that is well waits in the race all the while, and shall wait alone.
        assert [pod.look(well=False) for pod in ill] == [True, False, False]
    for pod in ill[1:]:
        pod.others = False
    assert [pod.look(well=False) for pod in ill] == [False] * 3, "only who is well may take it now"


def test_a_tenure_that_a_killed_sidecar_left_survives_a_few_bad_looks() -> None:
    pod = Pod(leading=True)
    assert [pod.look(well=False) for _ in range(3)] == [True, True, False]


# -- looking ---------------------------------------------------------------------------------------


async def test_a_volume_that_hangs_is_an_ill_app_and_holds_up_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hang = threading.Event()
    looks: list[str] = []

    def exists(path: str) -> bool:
        looks.append(path)
        return hang.wait(30)

    monkeypatch.setattr(os.path, "exists", exists)
    probe = Probe(HealthConfig(str(tmp_path / "well"), period=0.05, failures=3, escape=300))
    for _ in range(3):
        assert "does not answer" in await probe.look()
    assert len(looks) == 1, "one thread hangs, not one for each look"
    hang.set()
    async with asyncio.timeout(20):
        while await probe.look():
            await asyncio.sleep(0.01)


async def test_nobody_listens_and_a_server_error_are_illnesses() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers.pop(0))
        writer.close()

    answers = [b"HTTP/1.1 500 X\r\n\r\n", b"rubbish\r\n\r\n", b"HTTP/1.1 204 X\r\n\r\n", b""]
    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    probe = Probe(HealthConfig(f"http://127.0.0.1:{port}/", period=5, failures=3, escape=300))
    said = [await probe.look() for _ in range(4)]
    assert [bool(why) for why in said] == [True, True, False, True], said
    assert said[0] == "status 500"
    server.close()
    await server.wait_closed()
    assert await probe.look(), os.strerror(111)


async def test_no_name_of_a_pods_hosts_file_leads_off_the_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`hostAliases` may say that `localhost` is another machine."""
    asked: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 302 X\r\nLocation: http://10.0.0.1/\r\n\r\n")
        writer.close()

    def getaddrinfo(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a name was looked up")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    families = [socket.AF_INET, *([socket.AF_INET6] if socket.has_dualstack_ipv6() else [])]
    for family in families:
        listener = socket.create_server(
            ("" if family == socket.AF_INET6 else "127.0.0.1", 0), family=family
        )
        server = await asyncio.start_server(answer, sock=listener)
        address = f"http://localhost:{listener.getsockname()[1]}/"
        probe = Probe(HealthConfig(address, period=5, failures=3, escape=300))
        assert await probe.look() == "", "a redirect is an answer, and is not followed"
        server.close()
    assert len(asked) == len(families)


async def test_a_look_that_could_not_be_told_is_not_the_last_one() -> None:
    """A gate that nobody tells anything stays as it is: an ill pod leads, or a well one never."""
    told: list[str] = []

    class Looks:
        period = 0.001

        async def look(self) -> str:
            return "ill"

    def tell(why: str, now: Instant) -> None:
        told.append(why)
        if len(told) == 1:
            raise OSError("too many open files")

    config: Any = None
    probe: Any = Looks()
    looking = asyncio.ensure_future(Sidecar(config, Log())._look(probe, tell))
    async with asyncio.timeout(20):
        while len(told) < 3 and not looking.done():
            await asyncio.sleep(0.001)
    looking.cancel()
    assert len(told) >= 3
