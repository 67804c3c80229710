"""A queue without a stampede: many candidates wait, one gets the lock, and no vote is split."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterator

import pytest
from ensemble import Ensemble

from leasekeeper.clock import SystemClock
from leasekeeper.elector import Elector
from leasekeeper.lease import Candidate, Grant, Renewed, Timings
from leasekeeper.redlock import store as store_module
from leasekeeper.redlock.gate import gate_order
from leasekeeper.redlock.store import RedlockStore
from leasekeeper.redlock.transport import OnAnswer, TcpLink

TIMINGS = Timings(lease_duration=3.0, renew_deadline=2.0, retry_period=0.5)
CROWD = 12


@pytest.fixture(scope="module")
def ensemble() -> Iterator[Ensemble]:
    with Ensemble(5, max_ttl=3.0, quarantine=3.2) as running:
        running.wait_open()
        yield running


class Contender:
    """An elector that gives the lock back as soon as it has it, so that it passes on."""

    def __init__(self, name: str, store: RedlockStore, tenures: list[tuple[str, int]]) -> None:
        self.name = name
        self.tenures = tenures
        self.store = store
        self.elector = Elector(store=store, timings=TIMINGS, clock=SystemClock(), audience=self)

    def leading(self, grant: Grant) -> None:
        self.tenures.append((self.name, grant.token))
        self.elector.stop()

    def not_leading(self, why: str) -> None: ...
    def standing_by(self, holder: str | None) -> None: ...
    def renewal(self, outcome: Renewed) -> None: ...


def crowd(ensemble: Ensemble) -> tuple[list[Contender], list[tuple[str, int]]]:
    lock = f"shop/{secrets.token_hex(4)}"
    user, password = ensemble.add_lock(lock)
    tenures: list[tuple[str, int]] = []
    contenders = [
        Contender(
            str(number),
            RedlockStore(
                membership=ensemble.membership,
                lock=lock,
                candidate=Candidate(str(number), "uid", secrets.token_hex(4)),
                timings=TIMINGS,
                clock=SystemClock(),
                username=user,
                password=password,
            ),
            tenures,
        )
        for number in range(CROWD)
    ]
    return contenders, tenures


async def test_everybody_in_the_queue_gets_its_turn(ensemble: Ensemble) -> None:
    contenders, tenures = crowd(ensemble)
    try:
        async with asyncio.timeout(60):
            await asyncio.gather(*(contender.elector.run() for contender in contenders))
    finally:
        for contender in contenders:
            await contender.store.close()
    assert Counter(name for name, _ in tenures) == {str(n): 1 for n in range(CROWD)}
    tokens = [token for _, token in tenures]
    assert tokens == sorted(set(tokens))


async def test_whoever_waits_asks_one_node_first(
    ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: without the gate, the crowd sends half as many requests again, or more."""
    sent = 0
    call = TcpLink.call

    def counted(link: TcpLink, command: tuple[str, ...], on_answer: OnAnswer) -> None:
        nonlocal sent
        sent += command[1] == "lk1_grant"
        call(link, command, on_answer)

    async def grants_sent() -> int:
        nonlocal sent
        sent = 0
        contenders, _ = crowd(ensemble)
        try:
            async with asyncio.timeout(90):
                await asyncio.gather(*(contender.elector.run() for contender in contenders))
        finally:
            for contender in contenders:
                await contender.store.close()
        return sent

    async def open_door(*_: object) -> bool:
        return True

    monkeypatch.setattr(TcpLink, "call", counted)
    with_gate = await grants_sent()
    monkeypatch.setattr(store_module, "pass_the_gate", open_door)
    without = await grants_sent()
    print(f"grants sent: {with_gate} with the gate, {without} without")
    assert with_gate * 1.5 < without


def test_the_gate_is_the_same_for_all_and_another_one_for_the_next_lock() -> None:
    nodes = [str(number) for number in range(5)]
    assert gate_order("shop/orders", nodes) == gate_order("shop/orders", reversed(nodes))
    first = {gate_order(f"shop/{number}", nodes)[0] for number in range(50)}
    assert len(first) == 5
