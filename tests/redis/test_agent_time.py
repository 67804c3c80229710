"""A real node's time: never faster than true time, whoever is paused, killed or there twice."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from ensemble import Ensemble, EnsembleNode
from servers import FLAVOURS, wait_until


@pytest.fixture(scope="module", params=FLAVOURS)
def ensemble(request: pytest.FixtureRequest) -> Iterator[Ensemble]:
    with Ensemble(3, flavour=request.param) as running:
        running.wait_open()
        yield running


def tick(node: EnsembleNode) -> float:
    """In seconds of the node's own time."""
    return int(node.server.fcall("lk1_state")[7]) / 1e6


class Stopwatch:
    """Compares a node's time with true time; the first reading is early, the last one is late, so
    that what is measured of true time is never too little.
    """

    def __init__(self, node: EnsembleNode) -> None:
        self._node = node
        self._began = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._tick = tick(node)

    def read(self) -> tuple[float, float]:
        ticked = tick(self._node) - self._tick
        return ticked, time.clock_gettime(time.CLOCK_BOOTTIME) - self._began


def caps(ensemble: Ensemble, count: int = 2) -> float:
    """What a lease allows for on top of its time."""
    return ensemble.membership.cap * count


def test_ticks_keep_up_with_time_and_never_run_ahead(ensemble: Ensemble) -> None:
    watch = Stopwatch(ensemble.nodes[0])
    time.sleep(3)
    ticked, passed = watch.read()
    assert ticked <= passed + caps(ensemble)
    assert ticked >= passed / 2, "the node's time all but stands still"


def test_two_agents_by_mistake_do_not_double_the_time(ensemble: Ensemble) -> None:
    node = ensemble.nodes[0]
    second = ensemble.agent(node.id, node.server, name="second")
    second.start()
    wait_until(lambda: second.events("resumed"), "the second agent to register")
    watch = Stopwatch(node)
    time.sleep(3)
    ticked, passed = watch.read()
    assert ticked <= passed + caps(ensemble)
    assert ticked >= passed / 2, "the two hinder each other"
    assert node.agent.events("superseded")
    second.kill()
    stood = tick(node)
    wait_until(lambda: tick(node) > stood + 0.2, "the first agent to take over again")


def test_what_an_agents_pause_takes_beyond_the_cap_is_lost(ensemble: Ensemble) -> None:
    node = ensemble.nodes[1]
    watch = Stopwatch(node)
    node.agent.pause()
    before = tick(node)
    time.sleep(1.5)
    node.agent.resume()
    wait_until(lambda: tick(node) > before, "time to go on")
    wait_until(lambda: tick(node) > before + 0.3, "some more ticks")
    ticked, passed = watch.read()
    assert ticked <= passed - 1.5 + caps(ensemble, 3)


def test_a_hung_server_goes_on_with_its_life_and_no_tick_counts_twice(ensemble: Ensemble) -> None:
    """Ticks that were given up while it hung are carried out when it wakes, and are refused."""
    node = ensemble.nodes[2]
    life = node.server.fcall("lk1_state")[1]
    watch = Stopwatch(node)
    node.hang()
    time.sleep(2.5)  # longer than the agent waits for an answer
    node.go_on()
    stood = tick(node)
    wait_until(lambda: tick(node) > stood + 0.3, "time to go on")
    ticked, passed = watch.read()
    assert ticked <= passed - 2.5 + caps(ensemble, 3)
    assert node.server.fcall("lk1_state")[1] == life
    assert node.open


def test_a_lease_of_a_dead_agents_node_does_not_end(ensemble: Ensemble) -> None:
    """Late is safe: a node without its agent votes, and keeps what it granted."""
    node = ensemble.nodes[1]
    node.agent.kill()
    client = node.server.client()
    epoch, key = ensemble.membership.epoch, "lk:lock:ns/name"
    granted = client.fcall("lk1_grant", 1, key, epoch, "x/1", 300_000, 10**13)
    assert granted[0] == "COMMITTED"
    time.sleep(1)
    assert client.fcall("lk1_grant", 1, key, epoch, "y/1", 300_000, 0)[0] == "HELD"
    node.agent.start()
    wait_until(
        lambda: client.fcall("lk1_grant", 1, key, epoch, "y/2", 300_000, 0)[0] == "GRANTED",
        "the lease to end",
    )
