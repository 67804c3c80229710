"""Three sidecars while everything around them fails at once: candidates cut off, nodes restarted,
processes killed and frozen, and the wall clocks of nodes and candidates stepped (by a library that
is loaded into each of them).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest
from ensemble import Ensemble
from leasekeeper_sidecar.claim import Verdict, read_leader
from leasekeeper_sidecar.host import Host, Proc
from servers import wait_until

from leasekeeper.demo.proxy import Cuts, Proxy
from leasekeeper.demo.wall_clock import WallClock, build_shim

if TYPE_CHECKING:
    from tests.sidecar.conftest import Cast, Pod, Watcher

    Watch = Callable[[list[Pod]], Watcher]

SECONDS = 120.0 if os.environ.get("LEASEKEEPER_LONG") else 8.0
STEPS = (-86_400, -3600, -16, 16, 3600, 86_400)
LOCK = "test/chaos"


class Stepped(Ensemble):
    """Each node has a wall clock of its own, and a proxy that everybody reaches it through."""

    def __init__(self, clocks: list[WallClock]) -> None:
        super().__init__(len(clocks), max_ttl=12.0, quarantine=12.5)
        self.clocks = clocks
        self.cuts = Cuts()
        self.loop = asyncio.new_event_loop()
        self._proxies = [
            Proxy(node.id, node.server.socket, f"lk:freed:{LOCK}/", self.cuts, lambda _: None)
            for node in self.nodes
        ]
        nodes = [
            replace(node, port=proxy.port)
            for node, proxy in zip(self.membership.nodes, self._proxies, strict=True)
        ]
        self.membership = replace(self.membership, nodes=tuple(nodes))
        self.membership_file.write_text(json.dumps(self.membership.to_json()))

    def start(self) -> Self:
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        for proxy in self._proxies:
            asyncio.run_coroutine_threadsafe(proxy.start(), self.loop).result(10)
        for node, clock in zip(self.nodes, self.clocks, strict=True):
            with _environment(clock):
                node.server.start()
                node.agent.start()
        return self

    def restart(self, number: int) -> None:
        with _environment(self.clocks[number]):
            self.nodes[number].server.restart()

    def cut(self, candidate: str, *, off: bool) -> None:
        change = self.cuts.cut if off else self.cuts.heal
        self.loop.call_soon_threadsafe(change, candidate)

    def close(self) -> None:
        for proxy in self._proxies:
            self.loop.call_soon_threadsafe(proxy.close)
        super().close()
        self.loop.call_soon_threadsafe(self.loop.stop)


@contextmanager
def _environment(clock: WallClock) -> Iterator[None]:
    """For the processes that are started meanwhile; this one has been loaded already."""
    before = dict(os.environ)
    os.environ.update(clock.environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@dataclass
class SteppedHost:
    """The clocks of a machine whose wall clock was stepped: its sidecar's and its readers'."""

    clock: WallClock
    real: Proc

    def uptime_cs(self) -> int:
        return self.real.uptime_cs()

    def boot_id(self) -> str:
        return self.real.boot_id()

    def wall(self) -> float:
        return self.real.wall() + self.clock.step


@dataclass
class Stage:
    cast: Cast
    ensemble: Stepped
    pods: list[Pod]
    clocks: dict[str, WallClock]

    def start(self) -> Pod:
        for pod in self.pods:
            pod.start()
        leader: Pod = wait_until(self.leader, "a leader")
        return leader

    def judge(self, path: str, _: Host) -> Verdict:
        """As a reader in that pod, whose machine has the same wall clock."""
        clock = next(clock for home, clock in self.clocks.items() if path.startswith(home))
        return read_leader(path, SteppedHost(clock, Proc()))

    def leader(self) -> Pod | None:
        return next((p for p in self.pods if self.judge(str(p.path), Proc()).leader), None)


@pytest.fixture
def stage(tmp_path: Path, make_cast: Callable[[Ensemble, str], Cast]) -> Iterator[Stage]:
    shim = build_shim(tmp_path)
    assert shim is not None, "this suite needs a C compiler"
    clocks = [WallClock(tmp_path / f"node-{n}", shim) for n in range(5)]
    with Stepped(clocks) as ensemble:
        ensemble.wait_open()
        cast = make_cast(ensemble, LOCK)
        pods = cast.make(3)
        pod_clocks = {}
        for pod in pods:
            clock = WallClock(tmp_path / f"clock-of-{pod.name}", shim)
            pod.environment |= clock.environment
            pod_clocks[str(pod.leader_dir)] = clock
        yield Stage(cast, ensemble, pods, pod_clocks)


def test_a_step_of_wall_clocks_ends_no_tenure_and_begins_none(stage: Stage, watch: Watch) -> None:
    """The best-known objection to Redlock. The control is a plain key with a time to live on the
    same servers: the step ends it at once, and with it any lock that is made of such keys.
    """
    stage.cast.be_patient()
    watcher = watch(stage.pods)
    watcher.judge = stage.judge
    with watcher:
        leader = stage.start()
        token = leader.said()["token"]
        for step in STEPS:
            for number, clock in enumerate(stage.ensemble.clocks):
                with stage.ensemble.nodes[number].server.client() as client:
                    client.set("control", "held", px=15_000)
                    clock.set(clock.step + step)
                    if step > 15:  # a server reads its clock a few times a second
                        gone = lambda: client.get("control") is None  # noqa: E731
                        wait_until(gone, "the step to end the control", patience=10)
                    else:
                        assert client.get("control") == "held"
                        client.delete("control")
            for clock in stage.clocks.values():
                clock.set(clock.step - step)
            leader.wait_renewed()
        assert leader.said()["token"] == token
    watcher.check()
    assert watcher.tenures == [(leader.name, token)]


def test_no_mixture_of_faults_makes_two_leaders(stage: Stage, watch: Watch) -> None:
    dice = random.Random()
    watcher = watch(stage.pods)
    watcher.judge = stage.judge
    happened: Counter[str] = Counter()
    with watcher:
        stage.start()
        faults = Faults(stage, dice)
        end = time.monotonic() + SECONDS
        kinds = list(faults.kinds)
        while time.monotonic() < end or kinds:
            # Each kind at least once, however slow the machine is.
            kind = kinds.pop() if kinds else dice.choice(list(faults.kinds))
            faults.kinds[kind](stage.leader() or dice.choice(stage.pods))
            happened[kind] += 1
            time.sleep(dice.uniform(0.1, 1.2))
        wait_until(stage.leader, "a leader after all that", patience=60)
    print(f"{dict(happened)}; {len(watcher.tenures)} tenures in {watcher.passes} looks")
    watcher.check()
    assert len(watcher.tenures) > 1, "nothing happened"


class Faults:
    """What can happen to a pod and to the nodes; each is over when it returns."""

    def __init__(self, stage: Stage, dice: random.Random) -> None:
        self.stage, self.dice = stage, dice
        self._next_node = 0
        self._restarted = -60.0
        self._spans = itertools.cycle((5.0, 0.5))  # longer than a lease, and shorter
        self.kinds: dict[str, Callable[[Pod], None]] = {
            "cut": self.cut,
            "freeze": self.freeze,
            "kill": self.kill,
            "restart a node": self.restart_node,
            "step clocks": self.step,
        }

    def cut(self, pod: Pod) -> None:
        self.stage.ensemble.cut(pod.name, off=True)
        time.sleep(next(self._spans))
        self.stage.ensemble.cut(pod.name, off=False)

    def freeze(self, pod: Pod) -> None:
        pod.send(signal.SIGSTOP)
        time.sleep(next(self._spans))
        pod.send(signal.SIGCONT)

    def kill(self, pod: Pod) -> None:
        pod.kill()
        time.sleep(self.dice.choice((0.0, 1.0)))
        pod.start()

    def restart_node(self, _: Pod) -> None:
        """One at a time: it has forgotten everything, and is back after its quarantine."""
        if time.monotonic() - self._restarted > 20:
            self._restarted = time.monotonic()
            self.stage.ensemble.restart(self._next_node % 5)
            self._next_node += 1

    def step(self, pod: Pod) -> None:
        for clock in (*self.stage.ensemble.clocks, self.stage.clocks[str(pod.leader_dir)]):
            clock.set(self.dice.choice(STEPS))
