"""The Kubernetes Lease store beside a real elector of client-go, on one Lease."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kube_lease import control_plane
from lease_locks import CLOCK, TIMINGS, Lock, given_back, renewed, won

from leasekeeper.elector import Elector
from leasekeeper.kubernetes import store as store_module
from leasekeeper.lease import (
    Grant,
    Held,
    Renewed,
)

if TYPE_CHECKING:
    from control_plane import ControlPlane

ELECTOR = Path(__file__).parent / "go" / "elector"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with control_plane() as running:
        yield running


@pytest.fixture
def lock(plane: ControlPlane) -> Lock:
    return Lock.make(plane)


class Ours:
    """An elector of ours; notes on the boot clock when it led."""

    def __init__(self, lock: Lock) -> None:
        self.spans: list[tuple[int, int]] = []
        self.tokens: list[int] = []
        self._since: int | None = None
        self.elector = Elector(
            store=lock.store("ours"), timings=TIMINGS, clock=CLOCK, audience=self
        )
        self.leads = asyncio.Event()

    def leading(self, grant: Grant) -> None:
        if self._since is None:
            self._since = _now()
            self.tokens.append(grant.token)
            self.leads.set()

    def not_leading(self, why: str) -> None:
        if self._since is not None:
            self.spans.append((self._since, _now()))
        self._since = None
        self.leads.clear()

    def standing_by(self, holder: str | None) -> None:
        pass

    def renewal(self, outcome: Renewed) -> None:
        pass

    async def lead_for(self, seconds: float) -> None:
        """From standby to a graceful end."""
        running = asyncio.create_task(self.elector.run())
        async with asyncio.timeout(60):
            await self.leads.wait()
        await asyncio.sleep(seconds)
        self.elector.stop()
        await running


def _now() -> int:
    return round(CLOCK.now().boot * 1e9)


class ClientGo:
    """The real elector as a process."""

    def __init__(self, program: Path, lock: Lock, hold: float, release: bool) -> None:
        times = (TIMINGS.lease_duration, TIMINGS.renew_deadline, TIMINGS.retry_period, hold)
        self._child = subprocess.Popen(
            [
                *(str(program), str(lock.plane.kubeconfig), "default", lock.name, "client-go_1"),
                *(f"{seconds}s" for seconds in times),
                str(release).lower(),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._lines: list[str] = []

    def _read(self) -> str:
        assert self._child.stdout is not None
        if line := self._child.stdout.readline():
            self._lines.append(line)
        return line

    async def line(self) -> str:
        """Its next word."""
        async with asyncio.timeout(60):
            return (await asyncio.to_thread(self._read)).split()[0]

    def signal(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    def finish(self) -> list[tuple[int, int]]:
        """Ends it; when it led."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGCONT)
            self._child.terminate()
        while self._read():
            pass
        self._child.wait(60)
        words = [line.split() for line in self._lines]
        leads = [int(time) for word, time in words if word == "lead"]
        ends = [int(time) for word, time in words if word == "end"]
        return list(zip(leads, [*ends, _now()], strict=False))


@pytest.fixture(scope="module")
def program(plane: ControlPlane) -> Path:
    from localkube import binaries, pins
    from localkube.progress import Progress

    built = binaries.module("client-go-elector", ELECTOR, [], pins.load(), Progress())
    return built / "elector"


@pytest.fixture
def client_go(program: Path, lock: Lock) -> Iterator[Callable[..., ClientGo]]:
    started: list[ClientGo] = []

    def start(hold: float = 0.0, release: bool = True) -> ClientGo:
        started.append(ClientGo(program, lock, hold, release))
        return started[-1]

    yield start
    for child in started:
        child.finish()


def overlaps(ours: list[tuple[int, int]], theirs: list[tuple[int, int]]) -> list[Any]:
    return [(a, b) for a in ours for b in theirs if a[0] < b[1] and b[0] < a[1]]


async def test_client_go_and_ours_take_turns_and_never_lead_together(
    lock: Lock, client_go: Callable[..., ClientGo]
) -> None:
    other = client_go(hold=0.2)
    ours: list[Ours] = []
    for _ in range(3):
        while await other.line() != "lead":
            pass
        ours.append(Ours(lock))
        await ours[-1].lead_for(0.7)  # longer than client-go's retry period: it looks in vain
    theirs = other.finish()
    mine = [span for elector in ours for span in elector.spans]
    assert len(mine) == 3
    assert len(theirs) >= 3
    assert overlaps(mine, theirs) == []
    tokens = [token for elector in ours for token in elector.tokens]
    assert tokens == sorted(set(tokens))


async def test_control_who_does_not_wait_leads_beside_client_go(
    lock: Lock, client_go: Callable[..., ClientGo], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "free_in", lambda *_: 0.0)
    other = client_go()
    assert await other.line() == "lead"
    ours = Ours(lock)
    await ours.lead_for(0.1)
    assert overlaps(ours.spans, other.finish())


async def test_client_go_waits_for_ours_and_takes_what_is_given_back(
    lock: Lock, client_go: Callable[..., ClientGo]
) -> None:
    store = lock.store("ours")
    grant = await won(store)
    other = client_go()
    heard = asyncio.create_task(other.line())
    for _ in range(8):  # longer than a lease, by renewals
        await asyncio.sleep(TIMINGS.retry_period)
        grant = await renewed(store, grant)
    assert not heard.done()
    await given_back(store, grant)
    assert await heard == "lead"
    assert isinstance(await store.acquire(), Held)
    await store.close()


async def test_a_killed_client_go_is_succeeded_after_its_lease_and_ours_by_it(
    lock: Lock, client_go: Callable[..., ClientGo]
) -> None:
    killed = client_go()
    assert await killed.line() == "lead"
    store = lock.store("ours")
    before = CLOCK.now()
    assert isinstance(await store.acquire(), Held)
    killed.signal(signal.SIGKILL)
    grant = await won(store)
    assert CLOCK.now().elapsed_since(before) > TIMINGS.lease_duration
    await store.close()  # dies without a release
    other = client_go()
    assert await other.line() == "lead"
    assert grant.lease_end.passed(CLOCK.now())


async def test_a_frozen_client_go_does_not_get_its_lease_back(
    lock: Lock, client_go: Callable[..., ClientGo]
) -> None:
    """Without `ReleaseOnCancel`: with it, a client-go (0.36.3) that was frozen past its deadline
    reads the newest version, believes its own old record, and empties its successor's Lease. No
    candidate can prevent that; ours finds it lost at its next renewal, and tokens go on rising.
    """
    frozen = client_go(release=False)
    assert await frozen.line() == "lead"
    frozen.signal(signal.SIGSTOP)
    store = lock.store("ours")
    grant = await won(store)
    frozen.signal(signal.SIGCONT)
    heard = asyncio.create_task(frozen.line())
    while not heard.done():
        grant = await renewed(store, grant)
        await asyncio.sleep(TIMINGS.retry_period / 2)
    assert await heard == "end"
    await store.release(grant)
    await store.close()
