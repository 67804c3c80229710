"""The life of real nodes: birth, loss of memory, quarantine, recovery, total loss."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
import redis
from ensemble import Ensemble, EnsembleNode
from servers import wait_until

from leasekeeper.redlock import functions

LOCK = "shop/orders"
KEY = f"lk:lock:{LOCK}"


@pytest.fixture
def ensemble(flavour: str) -> Iterator[Ensemble]:
    with Ensemble(5, flavour=flavour, max_ttl=1.0, quarantine=1.1) as running:
        running.add_lock(LOCK)
        running.wait_open()
        yield running


def life(node: EnsembleNode) -> str:
    return str(node.server.client().hget("lk:node", "life") or "")


def incarnation(node: EnsembleNode) -> int:
    return int(str(node.server.client().hget("lk:node", "incarnation") or 0))


def vote(ensemble: Ensemble, node: EnsembleNode, token: int, attempt: int = 1) -> str:
    """Has a candidate take the lock on one node, with a guess; the status of the answer."""
    client = node.server.client()
    epoch = ensemble.membership.epoch
    return str(client.fcall("lk1_grant", 1, KEY, epoch, f"pod/u/n/{attempt}", 1_000_000, token)[0])


def test_five_empty_nodes_are_born_once_and_open(ensemble: Ensemble) -> None:
    record = json.loads(ensemble.registry_file.read_text())
    assert record["generation"] == 1
    assert record["lives"] == {node.id: life(node) for node in ensemble.nodes}
    assert abs(record["floor"] / 1000 - time.time()) < 120
    recorded = [line for node in ensemble.nodes for line in node.agent.events("birth-recorded")]
    assert len(recorded) == 1
    for node in ensemble.nodes:
        assert node.server.client().hget("lk:node", "floor") == str(record["floor"])
        assert node.has_user(f"lock:{LOCK}")


def test_a_restarted_server_votes_only_after_its_quarantine_and_with_the_others_counters(
    ensemble: Ensemble,
) -> None:
    token = 10**13
    for node in ensemble.nodes:
        assert vote(ensemble, node, token) == "COMMITTED"
    lost = ensemble.nodes[2]
    before = incarnation(lost)
    lost.server.kill()
    killed = time.monotonic()
    lost.server.start()
    lost_life = wait_until(lambda: life(lost), "the agent to begin a new life")
    ensemble.wait_open(among=[2])
    assert time.monotonic() - killed >= ensemble.membership.quarantine
    assert life(lost) == lost_life
    assert lost.server.client().hget(KEY, "fence") == str(token)
    assert lost.server.client().hget(KEY, "owner") is None
    assert incarnation(lost) == before + 1
    for other in ensemble.nodes:
        vector = str(other.server.client().hget("lk:node", "vector"))
        assert f"2:{before + 1}" in vector.split(",")
    names = [line.split(" ")[0] for line in lost.agent.output().splitlines()]
    last = len(names) - 1 - names[::-1].index("life-begun")
    wanted = ["life-begun", "announced", "recovered", "open"]
    assert [name for name in names[last:] if name in wanted] == wanted


HASTY = """
import sys
from leasekeeper import cli
from leasekeeper.redlock import life
life.quarantine = lambda *_: 0.0
sys.exit(cli.main())
"""


@pytest.mark.parametrize("protected", [True, False], ids=["quarantine", "control"])
def test_a_vote_that_was_forgotten_is_not_given_again_while_its_lease_lives(
    flavour: str, protected: bool
) -> None:
    """X holds nodes 0 and 1 of three, node 0 forgets, Y asks nodes 0 and 2. The control is the same
    agent without its quarantine.
    """
    ttl = 4.0
    with Ensemble(3, flavour=flavour, max_ttl=ttl, quarantine=ttl * 1.05) as three:
        if not protected:
            for node in three.nodes:
                node.agent.kill()
                node.agent.program = ["-c", HASTY]
                node.agent.start()
        three.wait_open()
        asked = time.monotonic()
        assert [take(three, i, "x/1", ttl) for i in (0, 1)] == ["COMMITTED", "COMMITTED"]
        three.nodes[0].server.restart()
        second = None
        attempt = 0
        while second is None and time.monotonic() < asked + ttl:
            attempt += 1
            votes = [take(three, i, f"y/{attempt}", ttl) for i in (0, 2)]
            if set(votes) <= {"COMMITTED", "GRANTED"}:
                second = time.monotonic()
        assert (second is None) is protected


def take(ensemble: Ensemble, index: int, id: str, ttl: float) -> str:
    client = ensemble.nodes[index].server.client()
    try:
        args = (ensemble.membership.epoch, id, round(ttl * 1e6), 10**13)
        return str(client.fcall("lk1_grant", 1, KEY, *args)[0])
    except redis.RedisError:
        return "no answer"


def test_in_quarantine_candidates_have_neither_user_nor_function(ensemble: Ensemble) -> None:
    lost = ensemble.nodes[0]
    lost.server.restart()
    wait_until(lambda: lost.agent.events("quarantine")[1:], "the quarantine")
    assert not lost.open
    assert not lost.has_user(f"lock:{LOCK}")
    with pytest.raises(redis.ResponseError, match="Function not found"):
        vote(ensemble, lost, 1)


def test_a_restarted_agent_goes_on_beside_a_living_server(ensemble: Ensemble) -> None:
    node = ensemble.nodes[1]
    before = life(node)
    vote(ensemble, node, 10**13)
    node.agent.kill()
    stood = int(node.server.fcall("lk1_state")[7])
    node.agent.start()
    wait_until(lambda: int(node.server.fcall("lk1_state")[7]) > stood, "time to go on")
    assert node.open
    assert life(node) == before
    assert len(node.agent.events("resumed")) == 1
    assert node.server.client().hget(KEY, "fence") == str(10**13)


def test_flushall_is_a_loss_of_memory(ensemble: Ensemble) -> None:
    """It keeps the functions, so only the mark in the data can tell."""
    node = ensemble.nodes[3]
    vote(ensemble, node, 10**13)
    for other in ensemble.nodes[:3]:
        vote(ensemble, other, 10**13)
    before = life(node)
    node.server.client().flushall()
    flushed = time.monotonic()
    assert not node.open
    ensemble.wait_open(among=[3])
    assert time.monotonic() - flushed >= ensemble.membership.quarantine
    assert life(node) not in ("", before)
    assert node.agent.events("memory-lost")
    assert node.server.client().hget(KEY, "fence") == str(10**13)


def test_a_memory_that_came_back_from_a_disk_is_not_trusted(ensemble: Ensemble) -> None:
    """A dump brings back data, mark and functions; the run_id in it is not the process's."""
    node = ensemble.nodes[4]
    vote(ensemble, node, 10**13)
    before = life(node)
    node.agent.kill()
    node.server.client().save()
    node.server.restart()
    assert node.server.client().hget("lk:node", "open") == "1", "the dump was not loaded"
    assert functions.VOTE in str(node.server.client().function_list())
    for dump in (node.server.home / "data").iterdir():
        dump.unlink()
    node.agent.start()
    wait_until(lambda: life(node) not in ("", before), "a new life")
    assert not node.open
    ensemble.wait_open(among=[4])


def test_two_of_five_that_restart_together_recover(ensemble: Ensemble) -> None:
    for node in ensemble.nodes:
        vote(ensemble, node, 10**13)
    for index in (0, 1):
        ensemble.nodes[index].server.restart()
    ensemble.wait_open()
    assert json.loads(ensemble.registry_file.read_text())["generation"] == 1
    for index in (0, 1):
        assert ensemble.nodes[index].server.client().hget(KEY, "fence") == str(10**13)


def test_a_total_loss_begins_a_new_generation_above_all_tokens_and_incarnations(
    ensemble: Ensemble,
) -> None:
    before = json.loads(ensemble.registry_file.read_text())
    survivor = ensemble.nodes[4]
    high = before["floor"] + 2**30
    vote(ensemble, survivor, high)
    lost = time.monotonic()
    for node in ensemble.nodes[:4]:
        node.server.kill()
    for node in ensemble.nodes[:4]:
        node.server.start()
    ensemble.wait_open()
    assert time.monotonic() - lost >= ensemble.membership.quarantine
    after = json.loads(ensemble.registry_file.read_text())
    assert after["generation"] == 2
    assert after["floor"] >= high
    assert after["incarnationFloor"] >= 2**20
    told = "the survivor to be told"
    wait_until(lambda: incarnation(survivor) > after["incarnationFloor"], told)
    for node in ensemble.nodes:
        assert incarnation(node) > after["incarnationFloor"]
        assert int(str(node.server.client().hget("lk:node", "floor"))) == after["floor"]


def test_without_a_registry_a_node_waits_for_somebody_else_to_give_birth(flavour: str) -> None:
    with Ensemble(3, flavour=flavour, registry=False) as waiting:
        for node in waiting.nodes:
            wait_until(lambda n=node: life(n), "a life")  # type: ignore[misc]
        wait_until(lambda: waiting.nodes[0].agent.events("waiting"), "node 0 to say so")
        assert not any(node.open for node in waiting.nodes)
        for node in waiting.nodes:
            reply = node.server.fcall(
                "lk1_birth", life(node), 1, 4711, 0, "0", "1", "2", user="operator"
            )
            assert reply[0] == "OK"
        waiting.wait_open()
        assert waiting.nodes[0].server.client().hget("lk:node", "floor") == "4711"


def test_users_follow_the_file(ensemble: Ensemble) -> None:
    ensemble.add_lock("shop/stock")
    assert all(node.has_user("lock:shop/stock") for node in ensemble.nodes)
    ensemble.write_users("")
    wait_until(
        lambda: not any(node.has_user("lock:shop/stock") for node in ensemble.nodes),
        "the users to be gone",
    )


def test_a_broken_users_file_changes_nothing_and_is_said(ensemble: Ensemble) -> None:
    ensemble.write_users("this is no user\n")
    node = ensemble.nodes[0]
    wait_until(lambda: node.agent.events("users-refused"), "the agent to say so")
    assert node.has_user(f"lock:{LOCK}")
    assert node.open
