"""One node's queue of those who wait for a lock: bounded, whatever tenants write."""

from __future__ import annotations

import pytest
from servers import Server

from leasekeeper.redlock import functions

EPOCH, LOCK, KEY = "1-abc", "shop/orders", "lk:lock:shop/orders"
CAP, MAX_TTL = 100_000, 3_000_000


class NodeWithQueue:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.client = server.client()
        for name in (functions.ADMIN, functions.VOTE):
            self.client.function_load(functions.library(name), replace=True)
        for call in (
            ("enter", "life", CAP, "run", "0"),
            ("register", "life", "nonce"),
            ("become", "life", "0", 1),
            ("birth", "life", 1, 1000, 0),
            ("open", "life", EPOCH, "members", MAX_TTL, 1),
        ):
            server.fcall(f"lk1_{call[0]}", *call[1:])

    def vote(self, function: str, *args: str | int) -> list[str]:
        answer: list[str] = self.client.fcall(f"lk1_{function}", 1, KEY, EPOCH, *args)
        return answer[:-2]

    def queue(self) -> list[str]:
        text = str(self.client.hget(KEY, "queue") or "")
        return [entry.split(" ")[0] for entry in text.split("\n")[1:]]


def test_the_queue_is_bounded_and_those_who_are_gone_make_room(server: Server) -> None:
    """A holder may lead for months while candidates with fresh nonces come and go."""
    node = NodeWithQueue(server)
    node.vote("grant", "holder/1", 1_000_000, 0)
    for number in range(1000):
        assert node.vote("grant", f"pod-{number}/{'u' * 36}/1", 1_000_000, 0)[0] == "HELD"
    full = node.queue()
    assert 100 < len(full) < 400
    assert full[0].startswith("pod-0/")
    for _ in range(2 * MAX_TTL // CAP):
        server.fcall("lk1_tick", "nonce", CAP)
        node.vote("renew", "holder/1", 1000, 1_000_000)
        node.vote("wait", f"{full[5]}/7")
    node.vote("wait", "new/1")
    assert node.queue() == [full[5], "new"], "who looks again keeps its turn, who does not is gone"


def test_who_looks_again_keeps_its_turn_and_is_in_the_queue_once(server: Server) -> None:
    node = NodeWithQueue(server)
    node.vote("grant", "holder/1", 1_000_000, 0)
    for name in ("a/1", "b/1", "ab/1", "a/2", "b/2", "a/3"):
        node.vote("grant", name, 1_000_000, 0)
    assert node.queue() == ["a", "b", "ab"]


@pytest.mark.parametrize(
    "nonsense",
    ["x", "\n", "\na", "\na b c", "\na 1\nb", " " * 100, "\na " + "9" * 400, "\n\n\n", "9" * 20000],
)
def test_nonsense_in_the_queue_breaks_nothing(server: Server, nonsense: str) -> None:
    """The key is the tenant's own, and it may write there what it likes."""
    node = NodeWithQueue(server)
    for function in ("grant", "wait"):
        assert node.vote("grant", "holder/1", 1_000_000, 0)[0] == "GRANTED"
        node.client.hset(KEY, "queue", nonsense)
        answer = node.vote(function, "a/1", *([1_000_000, 0] if function == "grant" else []))
        assert answer[0] in ("HELD", "OK")
        assert node.vote("renew", "holder/1", 1000, 1_000_000)[0] == "OK"
        assert node.vote("release", "holder/1", 3) == ["OK", ""]
        assert node.queue() == [], "nobody listens: all of it is gone"


def test_a_megabyte_in_the_queue_does_not_hold_up_the_node(server: Server) -> None:
    """Each who waits there would be called: a quarter of a million PUBLISH in one release."""
    node = NodeWithQueue(server)
    assert node.vote("grant", "holder/1", 1_000_000, 0)[0] == "GRANTED"
    node.client.hset(KEY, "queue", "\na 9" * 250_000)
    node.client.config_resetstat()
    assert node.vote("release", "holder/1", 3) == ["OK", ""]
    assert "cmdstat_publish" not in node.client.info("commandstats")
    assert node.vote("grant", "holder/2", 1_000_000, 0)[0] == "GRANTED"
    assert node.vote("grant", "b/1", 1_000_000, 0)[0] == "HELD"
    assert node.queue() == ["b"]
