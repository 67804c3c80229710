"""Changes of the list of nodes, with real servers, agents and candidates."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import redis
from changing import PASSWORD, ListChange, candidate_of, candidates, until
from ensemble import Ensemble, EnsembleNode
from servers import FLAVOURS

from leasekeeper.clock import SystemClock
from leasekeeper.lease import Grant, Timings
from leasekeeper.redlock import change as change_rules
from leasekeeper.redlock import users
from leasekeeper.redlock.change import after_raising
from leasekeeper.redlock.coordinator import Coordinator
from leasekeeper.redlock.membership import Membership
from leasekeeper.redlock.peers import Peers
from leasekeeper.redlock.registry import FileRegistry, Pending, Record
from leasekeeper.redlock.store import RedlockStore

LOCK = "shop/orders"
SHORT: dict[str, Any] = {"max_ttl": 0.6, "quarantine": 0.65, "cap": 0.05}
LEASE: dict[str, Any] = {"lease_duration": 0.6, "renew_deadline": 0.5, "retry_period": 0.1}


# Each takes a quarantine or two, and little of it depends on the server.
_LONG = bool(os.environ.get("LEASEKEEPER_LONG"))
ONE = pytest.mark.parametrize("flavour", FLAVOURS if _LONG else FLAVOURS[:1])
OTHER = pytest.mark.parametrize("flavour", FLAVOURS if _LONG else FLAVOURS[1:])


def epoch_of(node: EnsembleNode) -> tuple[str, bool]:
    values = node.server.client().hmget("lk:node", "epoch", "joined")
    return str(values[0]), values[1] == "1"


def fence(node: EnsembleNode) -> int:
    return int(str(node.server.client().hget(f"lk:lock:{LOCK}", "fence") or 0))


async def through(change: ListChange) -> None:
    """Runs the command to its end, while everybody else goes on."""
    command = change.command().start()
    await until(lambda: not command.running, "the change to be through", 60.0)
    assert command.wait() == 0, command.output() + change.ensemble.logs()
    change.done()


async def everybody_votes(change: ListChange) -> None:
    expected = (change.new.epoch, True)
    await until(
        lambda: all(node.open and epoch_of(node) == expected for node in change.nodes),
        "all nodes of the new list to vote",
    )


async def test_a_node_is_replaced_while_others_elect(flavour: str) -> None:
    """The whole way: candidates with the old list follow their nodes to the new one, tokens grow,
    and the node that was taken out says so.
    """
    with Ensemble(3, flavour=flavour, http=True, **SHORT) as three:
        three.wait_open()
        async with candidates(three, LOCK, **LEASE) as (claims, stores):
            await until(claims.leader, "a first leader")
            before = claims.tokens[-1]
            removed = three.nodes[0]
            change = ListChange(three, keep=["1", "2"], add=["3"])
            await through(change)
            await until(lambda: claims.tokens[-1] > before, "a leader by the new list")
            await everybody_votes(change)
            await until(
                lambda: {store.membership.epoch for store in stores.values()} == {change.new.epoch},
                "both candidates to have followed",
            )
            assert min(map(fence, change.nodes)) >= before
            await until(lambda: removed.agent.events("removed"), "the old node to say so")
            assert "no longer a member" in removed.agent.events("removed")[0]
            assert epoch_of(removed) == (change.new.epoch, False)
            record = json.loads(three.registry_file.read_text())
            assert (record["epoch"], "pending" in record) == (change.new.epoch, False)
            refuse_everybody_else(change.nodes[0], LOCK)


def refuse_everybody_else(node: EnsembleNode, lock: str) -> None:
    """Only agents and the operator may raise and join a node."""
    life = node.server.fcall("lk1_state")[1]
    tenant = node.server.client(users.lock_user(lock), PASSWORD)
    for client in (tenant, node.server.client(users.PEER)):
        for call in (("lk1_raise", life, "9-x", "[]"), ("lk1_join", life, "9-x", "[]", 1, 1, 1)):
            with pytest.raises(redis.RedisError, match=r"(?i)permission|can't access"):
                client.fcall(call[0], 0, *call[1:])


@ONE
async def test_an_ensemble_grows_gets_other_timings_and_shrinks(flavour: str) -> None:
    """Three lists one after the other; each has everything that the last one knew."""
    with Ensemble(3, flavour=flavour, **SHORT) as ensemble:
        ensemble.wait_open()
        async with candidates(ensemble, LOCK, **LEASE) as (claims, _):
            await until(claims.leader, "a first leader")
            changes: list[Callable[[], ListChange]] = [
                lambda: ListChange(ensemble, keep=["0", "1", "2"], add=["3", "4"]),
                lambda: ListChange(
                    ensemble, keep=["0", "1", "2", "3", "4"], max_ttl=0.7, quarantine=0.75, cap=0.04
                ),
                lambda: ListChange(ensemble, keep=["2", "3", "4"]),
            ]
            for make in changes:
                before = claims.tokens[-1]
                change = make()
                await through(change)
                await until(lambda known=before: claims.tokens[-1] > known, "a later leader")
                await everybody_votes(change)
                for node in change.nodes:
                    client = node.server.client()
                    assert client.hget("lk:node", "cap") == str(round(change.new.cap * 1e6))
                    longest = client.hget("lk:node", "max_ttl")
                    assert longest == str(round(change.new.max_ttl * 1e6))
                    tick = int(node.server.fcall("lk1_state")[7])
                    await until(
                        lambda n=node, t=tick: int(n.server.fcall("lk1_state")[7]) > t,
                        "its time to go on",
                    )


class Killed(BaseException):
    """Instead of SIGKILL: nothing that follows in the coordinator happens."""


class Killer(FileRegistry):
    """Kills the coordinator at a step, before or after its effect."""

    def __init__(self, path: str, step: str, *, after: bool) -> None:
        super().__init__(path)
        self.step, self.after = step, after
        self.died = False

    def passes(self, step: str, act: Callable[[], Any]) -> Any:
        if step == self.step and not self.after:
            self.died = True
            raise Killed
        answer = act()
        if step == self.step:
            self.died = True
            raise Killed
        return answer

    def compare_and_swap(self, expected: Record | None, new: Record) -> bool:
        step = "published"
        if new.pending is not None:
            step = "joining" if new.pending.joining else "pending"
        swapped: bool = self.passes(
            step, lambda: FileRegistry.compare_and_swap(self, expected, new)
        )
        return swapped


STEPS = ["pending", "lk1_raise", "lk1_dump", "joining", "lk1_learn", "lk1_join", "published"]


@OTHER
async def test_a_coordinator_that_is_killed_at_any_step_is_gone_on_with_also_by_two_at_once(
    flavour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three nodes are replaced: the new ones must be joined, they have nobody to learn from.
    Each coordinator dies one step later than the last one.
    """
    ask = Peers.ask
    with Ensemble(3, flavour=flavour, **SHORT) as three:
        three.wait_open()
        async with candidates(three, LOCK, **LEASE) as (claims, _):
            await until(claims.leader, "a first leader")
            before = claims.tokens[-1]
            change = ListChange(three, keep=["2"], add=["3", "4"])
            for number, step in enumerate(STEPS):
                killer = Killer(str(three.registry_file), step, after=number % 2 == 1)

                def asks(
                    self: Peers, id: str, function: str, *args: str, killer: Killer = killer
                ) -> Any:
                    return killer.passes(function, lambda: ask(self, id, function, *args))

                monkeypatch.setattr(Peers, "ask", asks)
                with pytest.raises(Killed):
                    await asyncio.to_thread(Coordinator(change.wanted(killer), lambda _: None).run)
                assert killer.died
            monkeypatch.setattr(Peers, "ask", ask)
            commands = [change.command().start() for _ in range(2)]
            await until(lambda: not any(one.running for one in commands), "both to end", 60.0)
            assert [one.wait() for one in commands] == [0, 0], commands[0].output()
            await until(lambda: claims.tokens[-1] > before, "a leader by the new list")
            await everybody_votes(change)
            assert min(map(fence, change.nodes)) >= before


@ONE
@pytest.mark.parametrize("protected", [True, False], ids=["wait", "control"])
async def test_nobody_wins_by_the_new_list_while_a_lease_of_the_old_one_lives(
    flavour: str, protected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quorum of the new list is new, and knows nothing of the lease. The control does not wait
    between raise and dump.
    """
    ttl = 3.0
    timings = Timings(lease_duration=ttl, renew_deadline=2.8, retry_period=0.2)
    if not protected:

        def at_once(raised: Any, views: Any, old: Membership, now: float) -> Any:
            return after_raising(raised, views, old, now + 2 * ttl)

        monkeypatch.setattr(change_rules, "after_raising", at_once)
    with Ensemble(3, flavour=flavour, max_ttl=ttl, quarantine=ttl * 1.05) as three:
        three.wait_open()
        change = ListChange(three, keep=["2"], add=["3", "4"])
        for node in change.nodes[1:]:
            await until(lambda n=node: n.server.client().hget("lk:node", "rested"), "a rest")
        old = candidate_of(three, LOCK, "old", timings)
        first = await won(old)
        running = asyncio.create_task(
            asyncio.to_thread(Coordinator(change.wanted(), lambda _: None).run)
        )
        change.done()
        new = candidate_of(three, LOCK, "new", timings)
        second = await won(new)
        assert (first.deadline.left(SystemClock().now()) <= 0) is protected
        assert second.token > first.token
        await running
        await old.close()
        await new.close()


async def won(store: RedlockStore) -> Grant:
    while not isinstance(grant := await store.acquire(), Grant):
        await asyncio.sleep(0.02)
    return grant


@ONE
async def test_a_node_that_never_heard_of_the_change_elects_nobody_and_comes_back(
    flavour: str,
) -> None:
    """Two nodes stand still all the time: one that is taken out, and one that stays."""
    with Ensemble(5, flavour=flavour, http=True, **SHORT) as five:
        five.wait_open()
        out, stays = five.nodes[0], five.nodes[4]
        async with candidates(five, LOCK, **LEASE) as (claims, _):
            await until(claims.leader, "a first leader")
            before = claims.tokens[-1]
            old = five.membership
            lives = {node.id: node.server.fcall("lk1_state")[1] for node in (out, stays)}
            for node in (out, stays):
                node.agent.pause()
                node.hang()
            change = ListChange(five, keep=["1", "2", "4"])
            await through(change)
            await until(lambda: claims.tokens[-1] > before, "a leader by the new list")
            for node in (out, stays):
                node.go_on()
            for node in (out, stays):
                assert epoch_of(node) == (old.epoch, True)
                vote = node.server.client().fcall(
                    "lk1_grant", 1, "lk:lock:x/y", old.epoch, "x/1", 1000, 0
                )
                assert vote[0] == "GRANTED", "it votes by the old list, which has no quorum left"
            for node in (out, stays):
                node.agent.resume()
            await everybody_votes(change)
            assert stays.server.fcall("lk1_state")[1] != lives["4"], "by a new life"
            await until(lambda: not out.open, "the node that is out to close")
            waiting = "its agent to say why"
            await until(lambda: "no longer a member" in out.agent.output(), waiting)


@ONE
async def test_a_node_that_restarts_in_the_middle_of_a_change_comes_back_by_the_new_list(
    flavour: str,
) -> None:
    """It is raised, and forgets it: the coordinator must not count on it any more."""
    with Ensemble(3, flavour=flavour, **{**SHORT, "quarantine": 1.5}) as three:
        three.wait_open()
        async with candidates(three, LOCK, **LEASE) as (claims, _):
            await until(claims.leader, "a first leader")
            before = claims.tokens[-1]
            change = ListChange(three, keep=["1", "2"], add=["3"])
            command = change.command().start()
            await until(lambda: epoch_of(three.nodes[1])[0] == change.new.epoch, "the raise")
            three.nodes[1].server.restart()
            await until(lambda: not command.running, "the change to be through", 60.0)
            assert command.wait() == 0, command.output()
            change.done()
            await until(lambda: claims.tokens[-1] > before, "a leader by the new list")
            await everybody_votes(change)


@ONE
def test_the_command_says_what_is_wrong(flavour: str) -> None:
    with Ensemble(3, flavour=flavour, **SHORT) as three:
        three.wait_open()
        change = ListChange(three, keep=["0", "1", "2"], max_ttl=0.7, quarantine=0.75)
        same = change.command(to=str(change.old_file)).start()
        assert same.wait() == 2
        assert "the new list has the number 1, and the old one 1" in same.output()
        missing = change.command(credentials=str(three.home)).start()
        assert missing.wait() == 2
        assert "it must hold one password" in missing.output()
        for node in three.nodes[:2]:
            node.hang()
        silent = change.command(**{"give-up-after": "0.5"}).start()
        assert silent.wait() == 1
        assert "gave up" in silent.output()
        assert "run this again to go on" in silent.output()
        for node in three.nodes[:2]:
            node.go_on()
        registry = FileRegistry(str(three.registry_file))
        record = registry.read()
        assert record is not None
        other = replace(change.new, max_ttl=0.5)
        assert registry.compare_and_swap(record, replace(record, pending=Pending(other)))
        refused = change.command().start()
        assert refused.wait() == 2
        assert f"another change is under way, to epoch {other.epoch}" in refused.output()
