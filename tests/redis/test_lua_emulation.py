"""The emulated node of the simulation answers as a real server does."""

from __future__ import annotations

import random
from typing import Any

import pytest
import redis
from lua_node import FunctionFailed, FunctionNotFound, LuaNode
from servers import Server

from leasekeeper.redlock import functions

SEQUENCES, LENGTH = 60, 60

LIVES = ["life-a", "life-b"]
NODES = ["0", "1", "2"]
LOCKS = ["shop/orders", "shop/stock"]
IDS = ["pod-a/u/1/1", "pod-a/u/1/2", "pod-b/u/2/1", "nonsense"]
EPOCHS = ["1-aaaa", "1-bbbb", "2-cccc"]
NUMBERS = ["0", "1", "2", "3", "100", "100000", "2000000", str(2**52), str(10**15), "1.5", "-1"]
VECTORS = ["", "0:1", "0:1,1:3", "2:7"]


def some_call(r: random.Random) -> tuple[str, str | None, list[str]]:
    """A function, its key and its arguments; valid often enough to get somewhere."""

    def number() -> str:
        return r.choice(NUMBERS)

    life, lock, id = r.choice(LIVES), r.choice(LOCKS), r.choice(IDS)
    epoch = r.choices(EPOCHS, [10, 1, 2])[0]
    ttl = r.choices(["100", "200000", "2000000", "0"], [6, 6, 1, 1])[0]
    key = f"lk:lock:{lock}"
    admin: dict[str, list[str]] = {
        "enter": [life, "100000", r.choice(["run-1", "run-1", "run-1", "run-2"]), r.choice(NODES)],
        "register": [life, r.choice(["n1", "n2"])],
        "tick": [r.choice(["n1", "n2"]), number()],
        "announce": [r.choice(NODES), r.choice(["1", "2", "3"])],
        "become": [life, r.choice(NODES), r.choice(["1", "2"])],
        "rest": [life],
        "dump": ["0"],
        "learn": [life, number(), r.choice(VECTORS), lock, number()],
        "birth": [life, "1", number(), r.choice(["0", "7"]), *NODES],
        "open": [life, epoch, "[]", "1000000", "1", r.choice(["0", "1"])],
        "raise": [life, r.choice(EPOCHS), "[1]"],
        "join": [life, r.choice(EPOCHS), "[2]", "2000000", r.choice(["50000", "100000"]), "2"],
        "close": [],
        "state": [],
        "forget": [lock, number()],
        "request": [
            lock,
            r.choice(["1", "2", "3", str(2**52)]),
            r.choice(["pause", "resume", "step-down", "step-down", "rubbish"]),
            r.choice(["", id]),
            r.choice(["0", "1", "1.5", "-1"]),
        ],
    }
    vote: dict[str, list[str]] = {
        "grant": [epoch, id, ttl, number()],
        "commit": [epoch, id, number(), ttl],
        "renew": [epoch, id, number(), ttl],
        "adopt": [epoch, id, number(), ttl],
        "release": [epoch, id, r.choice(["0", "1", "3"])],
        "wait": [epoch, id],
        "observe": [epoch],
    }
    weights = [0.3 if name in ("enter", "close") else 1 for name in admin]
    if r.random() < 0.4:
        name = r.choices(list(admin), weights)[0]
        return f"lk1_{name}", None, admin[name]
    name = r.choice(list(vote))
    return f"lk1_{name}", key, vote[name]


def real(client: redis.Redis, function: str, key: str | None, args: list[str]) -> Any:
    keys = [] if key is None else [key]
    try:
        return sorted_pages(function, client.fcall(function, len(keys), *keys, *args))
    except redis.ResponseError as wrong:
        return "not found" if "Function not found" in str(wrong) else "failed"


def emulated(node: LuaNode, function: str, key: str | None, args: list[str]) -> Any:
    try:
        return sorted_pages(function, node.fcall(function, *args, key=key))
    except FunctionNotFound:
        return "not found"
    except FunctionFailed:
        return "failed"


def sorted_pages(function: str, reply: list[str]) -> Any:
    """A server scans its keys in an order of its own."""
    if function != "lk1_dump":
        return reply
    pairs = reply[6:-2]
    return reply[:6], sorted(zip(pairs[::2], pairs[1::2], strict=True)), reply[-2:]


def prepare(r: random.Random, client: redis.Redis, node: LuaNode) -> None:
    client.flushall()
    client.function_flush("SYNC")
    client.function_load(functions.library(functions.ADMIN), replace=True)
    if r.random() < 0.9:
        client.function_load(functions.library(functions.VOTE), replace=True)
        node.load(functions.VOTE)
    if r.random() < 0.8:  # otherwise the walk must find its way to an open node by itself
        first: list[tuple[str, list[str]]] = [
            ("lk1_enter", ["life-a", "100000", "run-1", "0"]),
            ("lk1_register", ["life-a", "n1"]),
            ("lk1_open", ["life-a", EPOCHS[0], "[]", "1000000", "1"]),
        ]
        for function, args in first[: r.choice([2, 3, 3, 3])]:
            assert real(client, function, None, args) == emulated(node, function, None, args)


def test_random_calls_have_the_same_answers_and_effects(server: Server) -> None:
    client = server.client()
    listener = client.pubsub()  # type: ignore[no-untyped-call]
    listener.psubscribe("lk:freed:*")
    listener.get_message(timeout=5)
    statuses: set[str] = set()
    for seed in range(SEQUENCES):
        r = random.Random(seed)
        node = LuaNode()
        prepare(r, client, node)
        for step in range(LENGTH):
            function, key, args = some_call(r)
            answer = real(client, function, key, args)
            here = f"seed {seed}, step {step}: {function} {key} {args}"
            assert emulated(node, function, key, args) == answer, here
            statuses.add(answer if isinstance(answer, str) else f"{function} {answer[0]}")
        assert node.data == {name: client.hgetall(name) for name in client.scan_iter()}, seed
        for channel, text in node.take_published():
            message = listener.get_message(timeout=5)
            assert message is not None
            assert (message["channel"], message["data"]) == (channel, text)
    assert reached(statuses) == [], "the walk does not reach every kind of answer"


CHANGED = ("OK", "REFUSED", "CLOSED", "EPOCH")


def reached(statuses: set[str]) -> list[str]:
    wanted = {
        *("lk1_grant COMMITTED", "lk1_grant GRANTED", "lk1_grant HELD", "lk1_grant EPOCH"),
        *("lk1_grant CLOSED", "lk1_grant TTL", "lk1_commit OK", "lk1_commit HIGH"),
        *("lk1_commit NOTMINE", "lk1_renew OK", "lk1_renew HIGH", "lk1_renew MISSING"),
        *("lk1_renew NOTMINE", "lk1_adopt OK", "lk1_release OK", "lk1_release GONE"),
        *("lk1_observe LOCK", "lk1_tick OK", "lk1_tick REFUSED", "lk1_announce OK"),
        *("lk1_announce LOW", "lk1_announce VOID", "lk1_forget OK", "lk1_forget HELD"),
        *("lk1_enter OK", "lk1_enter ALIVE", "lk1_state NODE", "not found"),
        *(f"lk1_{name} {said}" for name in ("raise", "join") for said in CHANGED),
    }
    return sorted(wanted - statuses)


@pytest.mark.parametrize("library", [functions.ADMIN, functions.VOTE])
def test_a_deleted_library_is_not_found(library: str) -> None:
    node = LuaNode()
    node.load(functions.VOTE)
    node.delete(library)
    function = "lk1_state" if library == functions.ADMIN else "lk1_observe"
    with pytest.raises(FunctionNotFound):
        node.fcall(function)
