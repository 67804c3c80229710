"""Moving a lock from one store to another while candidates of both configurations live.

Known bug 35: two elections ran side by side. The order, and each statement below, is that of
docs/migration.md: the new store is *held* before anybody may be elected there, and freed when the
last candidate of the old one has gone and its lease has ended.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from backends import TIMINGS, Backend, RedlockBackend, started
from candidates import CandidateProcess, Lock
from kazoo.client import KazooClient
from servers import wait_until
from zookeepers import won

from leasekeeper.lease import Grant, Held

PAGE = Path(__file__).resolve().parents[2] / "docs" / "migration.md"
OLD = "redlock"


def documented(store: str, step: str, lock: str, token: int) -> list[str]:
    """The commands of the page for this store and step (`hold` or `free`), filled in."""
    text = PAGE.read_text()
    found = re.search(rf"<!-- {store} {step} -->\n```\w*\n(.*?)```", text, re.S)
    assert found, f"docs/migration.md does not say how to {step} {store}"
    assert lock.startswith("shop/"), "as on the page"
    filled = found[1].replace("orders", lock.removeprefix("shop/")).replace("4711", str(token))
    return [line for line in filled.splitlines() if line.strip()]


def run(backend: Any, store: str, lines: list[str]) -> None:
    if store == "zookeeper":
        with _zookeeper(backend) as client:
            for line in lines:
                verb, path = line.split()[:2]
                client.ensure_path(path) if verb == "create" else client.delete(path)
    elif store == "redis":
        with backend.server.client() as client:
            for line in lines:
                client.execute_command(*shlex.split(line))
    elif store == "kubernetes":
        _kubectl(backend, lines)
    else:
        backend.sql("\n".join(lines).rstrip().rstrip(";"))


def _kubectl(backend: Any, lines: list[str]) -> None:
    """A manifest, or what stands after `$ kubectl`."""
    if lines[0].startswith("$ "):
        (line,) = lines
        backend.kubectl(*shlex.split(line)[2:])
        return
    backend.kubectl("replace", "--force", "-f-", given="\n".join(lines))


@contextmanager
def _zookeeper(backend: Any) -> Iterator[Any]:
    client = KazooClient(f"127.0.0.1:{backend.server.port}")
    client.start()
    yield client
    client.stop()
    client.close()


def tenures(processes: list[CandidateProcess]) -> list[tuple[float, float, int]]:
    """When each led (on the boot clock that all share), and with which token."""
    found = []
    for process in processes:
        if claims := process.events("leading"):
            found.append((claims[0]["at"], process.until, claims[0]["token"]))
    return sorted(found)


def start(backend: Backend, name: str, folder: Path) -> Lock:
    lock = Lock(backend, folder)
    if name:
        lock.name = name
        lock.settings = lock.backend.settings(name)
    if "zookeeper" in lock.settings:
        lock.settings["zookeeper"]["tokenFloor"] = 2**41  # above every token of the old store
    return lock


ALL = ("postgresql", "mysql", "sqlite", "zookeeper", "redis", "kubernetes")


@pytest.mark.parametrize("store", ALL)
def test_the_page_says_how_for_every_store(store: str) -> None:
    for step in ("hold", "free"):
        assert documented(store, step, "shop/other", 12345)


@pytest.mark.parametrize("store", ["postgresql", "mysql", "sqlite", "redis"])
async def test_a_lock_that_is_held_by_the_page_is_held_for_all_who_ask(
    store: str, backends: Callable[[str], Backend], tmp_path: Path
) -> None:
    """And not tried again and again: a key of Redis that has no end was reported as free."""
    new = start(backends(store), "", tmp_path)
    run(new.backend, store, documented(store, "hold", new.name, 4711))
    candidate = new.candidate("a")
    try:
        await candidate.ready()
        outcome = await candidate.acquire()
        seen = await candidate.observe()
    finally:
        await new.close()
    assert isinstance(outcome, Held), outcome
    assert outcome.by == seen.holder == "migration"
    assert outcome.free_in > TIMINGS.lease_duration


@pytest.mark.parametrize("store", ALL)
async def test_a_lock_comes_back_to_a_store_in_which_it_was_before(
    store: str, backends: Callable[[str], Backend], tmp_path: Path
) -> None:
    """A release keeps the row or the Lease with its token: it is taken over, and not in the way."""
    new = start(backends(store), "", tmp_path)
    try:
        before = await won(new.candidate("earlier"))
        await new.stores[0].release(before)
        run(new.backend, store, documented(store, "hold", new.name, before.token + 100))
        candidate = new.candidate("now")
        await candidate.ready()
        outcome = await candidate.acquire()
        run(new.backend, store, documented(store, "free", new.name, before.token + 100))
        after = await won(candidate)
    finally:
        await new.close()
    assert not isinstance(outcome, Grant), outcome
    # ZooKeeper's are above by the tokenFloor, not by what is written there.
    assert after.token > before.token + (0 if store == "zookeeper" else 100)


@pytest.mark.parametrize(
    ("origin", "store"), [*((OLD, store) for store in ALL), ("redis", "kubernetes")]
)
def test_in_the_documented_order_there_is_one_election_at_a_time(
    origin: str, store: str, backends: Callable[[str], Backend], tmp_path: Path
) -> None:
    old = start(backends(origin), "", tmp_path)
    new = start(backends(store), old.name, tmp_path)
    _move(
        old,
        new,
        hold=lambda token: run(new.backend, store, documented(store, "hold", old.name, token)),
        free=lambda token: run(new.backend, store, documented(store, "free", old.name, token)),
    )


def test_the_way_back_to_redlock_is_to_an_ensemble_that_is_born_for_it(
    backends: Callable[[str], Backend], tmp_path: Path
) -> None:
    """Its tokens begin at its birth, above those of a store that began before it. The operator
    passes `spec.paused` on as here (tests/operator)."""
    old = start(backends("postgresql"), "", tmp_path)
    first = old.process("old-first")
    first.wait_for("leading")
    assert first.terminate() == 0
    with started("redlock", tmp_path) as backend:
        assert isinstance(backend, RedlockBackend)
        new = start(backend, old.name, tmp_path)
        _move(
            old,
            new,
            hold=lambda _: backend.ask(old.name, "1", "pause", "-", "0"),
            free=lambda _: backend.ask(old.name, "2", "resume", "-", "0"),
        )


def _move(old: Lock, new: Lock, hold: Callable[[int], None], free: Callable[[int], None]) -> None:
    try:
        before = [old.process("old-a"), old.process("old-b")]
        hold(_leader(before).events("leading")[0]["token"])
        after = [new.process("new-a"), new.process("new-b")]
        for process in after:
            process.wait_for("standby")  # both configurations are alive
        for process in before:
            assert process.terminate() == 0
        time.sleep(TIMINGS.lease_duration)
        free(max(found for _, _, found in tenures(before)))
        _leader(after)
        history = tenures(before + after)
        for (_, until, earlier), (began, _, later) in pairwise(history):
            assert until < began
            assert earlier < later
        assert max(until for _, until, _ in tenures(before)) < tenures(after)[0][0]
    finally:
        old.end_processes()
        new.end_processes()


def test_control_without_the_order_two_elections_run_side_by_side(
    backends: Callable[[str], Backend], tmp_path: Path
) -> None:
    old = start(backends(OLD), "", tmp_path)
    new = start(backends("postgresql"), old.name, tmp_path)
    try:
        first = old.process("old")
        first.wait_for("leading")
        second = new.process("new")
        second.wait_for("leading")
        assert first.until > second.events("leading")[0]["at"]
    finally:
        old.end_processes()
        new.end_processes()


def _leader(processes: list[CandidateProcess]) -> CandidateProcess:
    found: CandidateProcess = wait_until(
        lambda: next((p for p in processes if p.events("leading")), None), "a leader"
    )
    return found
