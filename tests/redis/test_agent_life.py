"""The life of real nodes: birth, loss of memory, quarantine, recovery, total loss."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator

import pytest
import redis
from ensemble import Ensemble, EnsembleNode
from servers import KINDS, Kind, wait_until

from leasekeeper.redlock import functions

TOKEN = int(time.time() * 1000) + 2**31  # above every floor, and not so far that nobody believes it


@pytest.fixture(scope="module", params=KINDS, ids=str)
def shared(request: pytest.FixtureRequest) -> Iterator[Ensemble]:
    kind: Kind = request.param
    with Ensemble(5, flavour=kind.flavour, tls=kind.tls, max_ttl=1.0, quarantine=1.1) as running:
        yield running


@pytest.fixture
def ensemble(shared: Ensemble) -> Ensemble:
    """All five open: what a test does to them must leave them able to recover."""
    shared.wait_open()
    return shared


@pytest.fixture
def lock(ensemble: Ensemble) -> str:
    """One for each test; nobody has voted on it yet."""
    name = f"shop/{secrets.token_hex(4)}"
    ensemble.add_lock(name)
    return name


def life(node: EnsembleNode) -> str:
    return str(node.server.client().hget("lk:node", "life") or "")


def incarnation(node: EnsembleNode) -> int:
    return int(str(node.server.client().hget("lk:node", "incarnation") or 0))


def take(ensemble: Ensemble, node: EnsembleNode, lock: str, *, id: str = "x/1") -> str:
    """Has a candidate ask one node for the lock, with TOKEN for a guess; what it answers."""
    args = (ensemble.membership.epoch, id, round(ensemble.membership.max_ttl * 1e6), TOKEN)
    try:
        return str(node.server.client().fcall("lk1_grant", 1, f"lk:lock:{lock}", *args)[0])
    except redis.RedisError as wrong:
        return str(wrong)


def fence(node: EnsembleNode, lock: str) -> int:
    return int(str(node.server.client().hget(f"lk:lock:{lock}", "fence") or 0))


def test_five_empty_nodes_are_born_once_and_open(flavour: str) -> None:
    with Ensemble(5, flavour=flavour) as five:
        user, _ = five.add_lock("shop/orders")
        five.wait_open()
        record = json.loads(five.registry_file.read_text())
        assert record["generation"] == 1
        assert record["lives"] == {node.id: life(node) for node in five.nodes}
        assert abs(record["floor"] / 1000 - time.time()) < 120
        recorded = [line for node in five.nodes for line in node.agent.events("birth-recorded")]
        assert len(recorded) == 1
        for node in five.nodes:
            assert node.server.client().hget("lk:node", "floor") == str(record["floor"])
            wait_until(lambda n=node: n.has_user(user), "the lock's user")  # type: ignore[misc]


def test_a_restarted_server_votes_only_after_its_quarantine_and_with_the_others_counters(
    ensemble: Ensemble, lock: str
) -> None:
    for node in ensemble.nodes:
        assert take(ensemble, node, lock) == "COMMITTED"
    lost = ensemble.nodes[2]
    before = incarnation(lost)
    lost.server.kill()
    killed = time.monotonic()
    lost.server.start()
    lost_life = wait_until(lambda: life(lost), "the agent to begin a new life")
    ensemble.wait_open(among=[2])
    assert time.monotonic() - killed >= ensemble.membership.quarantine
    assert life(lost) == lost_life
    assert fence(lost, lock) == TOKEN
    assert lost.server.client().hget(f"lk:lock:{lock}", "owner") is None
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
        assert [take(three, node, "ns/a") for node in three.nodes[:2]] == ["COMMITTED"] * 2
        three.nodes[0].server.restart()
        second = None
        attempt = 0
        while second is None and time.monotonic() < asked + ttl:
            attempt += 1
            votes = [take(three, three.nodes[i], "ns/a", id=f"y/{attempt}") for i in (0, 2)]
            if set(votes) <= {"COMMITTED", "GRANTED"}:
                second = time.monotonic()
        assert (second is None) is protected


def test_in_quarantine_candidates_have_neither_user_nor_function(
    ensemble: Ensemble, lock: str
) -> None:
    lost = ensemble.nodes[0]
    before = life(lost)
    lost.server.restart()
    wait_until(lambda: life(lost) not in ("", before), "a new life")
    assert not lost.open
    assert not lost.has_user(f"lock:{lock}")
    assert "Function not found" in take(ensemble, lost, lock)


def test_a_restarted_agent_goes_on_beside_a_living_server(ensemble: Ensemble, lock: str) -> None:
    node = ensemble.nodes[1]
    before = life(node)
    take(ensemble, node, lock)
    node.agent.kill()
    stood = int(node.server.fcall("lk1_state")[7])
    node.agent.start()
    wait_until(lambda: int(node.server.fcall("lk1_state")[7]) > stood, "time to go on")
    assert node.open
    assert life(node) == before
    assert len(node.agent.events("resumed")) == 1
    assert fence(node, lock) == TOKEN


def test_flushall_is_a_loss_of_memory(ensemble: Ensemble, lock: str) -> None:
    """It keeps the functions, so only the mark in the data can tell."""
    node = ensemble.nodes[3]
    for other in ensemble.nodes[:4]:
        take(ensemble, other, lock)
    before = life(node)
    node.server.client().flushall()
    flushed = time.monotonic()
    assert not node.open
    ensemble.wait_open(among=[3])
    assert time.monotonic() - flushed >= ensemble.membership.quarantine
    assert life(node) not in ("", before)
    assert node.agent.events("memory-lost")
    assert fence(node, lock) == TOKEN


def test_a_memory_that_came_back_from_a_disk_is_not_trusted(ensemble: Ensemble) -> None:
    """A dump brings back data, mark and functions; the run_id in it is not the process's."""
    node = ensemble.nodes[4]
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


def test_two_of_five_that_restart_together_recover(ensemble: Ensemble, lock: str) -> None:
    for node in ensemble.nodes:
        take(ensemble, node, lock)
    for index in (0, 1):
        ensemble.nodes[index].server.restart()
    ensemble.wait_open()
    assert json.loads(ensemble.registry_file.read_text())["generation"] == 1
    for index in (0, 1):
        assert fence(ensemble.nodes[index], lock) == TOKEN


def test_a_total_loss_begins_a_new_generation_above_all_tokens_and_incarnations(
    flavour: str,
) -> None:
    with Ensemble(5, flavour=flavour) as five:
        five.wait_open()
        survivor = five.nodes[4]
        assert take(five, survivor, "ns/a") == "COMMITTED"
        lost = time.monotonic()
        for node in five.nodes[:4]:
            node.server.kill()
        for node in five.nodes[:4]:
            node.server.start()
        five.wait_open()
        assert time.monotonic() - lost >= five.membership.quarantine
        record = json.loads(five.registry_file.read_text())
        assert record["generation"] == 2
        assert record["floor"] >= TOKEN
        assert record["incarnationFloor"] >= 2**20
        told = "the survivor to be told"
        wait_until(lambda: incarnation(survivor) > record["incarnationFloor"], told)
        for node in five.nodes:
            assert incarnation(node) > record["incarnationFloor"]
            assert int(str(node.server.client().hget("lk:node", "floor"))) == record["floor"]


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


def test_without_a_record_a_whole_ensemble_rests_before_its_birth(flavour: str) -> None:
    """It may be one that was deleted and made again, whose leases still live."""
    with Ensemble(3, flavour=flavour, agents=False) as three:
        three.registry_file.unlink()
        began = time.monotonic()
        for node in three.nodes:
            node.agent.start()
        three.wait_open()
        assert time.monotonic() - began >= three.membership.quarantine
        assert json.loads(three.registry_file.read_text())["generation"] == 1


def test_users_follow_the_file(ensemble: Ensemble, lock: str) -> None:
    user = f"lock:{lock}"
    assert all(node.has_user(user) for node in ensemble.nodes)
    ensemble.write_users("")
    wait_until(
        lambda: not any(node.has_user(user) for node in ensemble.nodes), "the users to be gone"
    )


def test_agents_say_which_edition_of_the_file_they_have_read(ensemble: Ensemble, lock: str) -> None:
    """And never of more than one: whoever asks takes it for the one that agents go by."""

    def said() -> list[list[str]]:
        found = []
        for node in ensemble.nodes:
            with node.server.client() as client:
                found.append([u for u in client.acl_users() if u.startswith("edition:")])
        return found

    number, text = len(ensemble.nodes), ensemble.users_file.read_text()
    assert said() == [[]] * number, "of a file that nobody numbered"
    ensemble.write_users(f"# edition 7\n{text}")
    wait_until(lambda: said() == [["edition:7"]] * number, "the agents to say so")
    ensemble.write_users(f"# edition 8\n{text}")
    wait_until(lambda: said() == [["edition:8"]] * number, "the agents to say so again")
    ensemble.nodes[0].agent.restart()
    ensemble.nodes[1].server.restart()
    ensemble.write_users(f"# edition 9\n{text}")
    wait_until(lambda: said() == [["edition:9"]] * number, "those that begin again to say so")
    ensemble.write_users(text)
    wait_until(lambda: said() == [[]] * number, "nothing to be said of a file without a number")


def test_a_broken_users_file_changes_nothing_and_is_said(ensemble: Ensemble, lock: str) -> None:
    good = ensemble.users_file.read_text()
    ensemble.write_users("this is no user\n")
    node = ensemble.nodes[0]
    wait_until(lambda: node.agent.events("users-refused"), "the agent to say so")
    assert node.has_user(f"lock:{lock}")
    assert node.open
    ensemble.write_users(good)
