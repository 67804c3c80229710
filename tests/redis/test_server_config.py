"""A tenant against the memory of a node, with the configuration that every node has."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.exceptions import OutOfMemoryError
from servers import Server, wait_until

from leasekeeper.redlock import functions, users
from leasekeeper.redlock.blocking import Connection
from leasekeeper.redlock.local_server import LocalServer

EPOCH, TTL, CAP = "1-abc", "1000000", "100000"
GREEDY, LEADER, IDLE = "shop/greedy", "shop/orders", "shop/stock"
LIMIT = 128 * 2**20  # of a node's container, unless its ensemble says otherwise
HALF = "*3\r\n$4\r\nHSET\r\n$900000\r\n" + "x" * 900_000 + "\r\n$900000\r\nx"


def open_node(server: Server) -> None:
    """By hand, with a user for each lock, whose password is the lock's name."""
    with server.client() as client:
        for name in (functions.ADMIN, functions.VOTE):
            client.function_load(functions.library(name), replace=True)
        for lock in (GREEDY, LEADER, IDLE):
            rules = users.lock_rules(lock, {users.digest(lock)})
            client.execute_command("ACL", "SETUSER", users.lock_user(lock), *rules)
    server.fcall("lk1_enter", "life", CAP, "run", "0")
    server.fcall("lk1_register", "life", "nonce")
    server.fcall("lk1_become", "life", "0", 1)
    server.fcall("lk1_birth", "life", 1, 1000, 0)
    server.fcall("lk1_open", "life", EPOCH, "members", TTL, 1)


def tenant(server: Server, lock: str) -> redis.Redis:
    return server.client(users.lock_user(lock), lock)


def vote(server: Server, lock: str, function: str, *args: str) -> str:
    with tenant(server, lock) as client:
        answer: list[str] = client.fcall(f"lk1_{function}", 1, f"lk:lock:{lock}", EPOCH, *args)
    return answer[0]


@contextlib.contextmanager
def full(server: Server) -> Iterator[None]:
    """One tenant writes all that it can into its own key, to the last byte, and does not stop: a
    server gives back what it had set aside for a client that pauses, and then it would not be full.
    """
    for size in (900_000, 10_000):  # each on a connection of its own, for the same reason
        with tenant(server, GREEDY) as client:
            fill(client, size)
    with tenant(server, GREEDY) as client:
        fill(client, 100)
        ended = threading.Event()
        goes_on = threading.Thread(target=go_on, args=(client, ended))
        goes_on.start()
        try:
            yield
        finally:
            ended.set()
            goes_on.join()


def fill(client: redis.Redis, size: int) -> None:
    with contextlib.suppress(OutOfMemoryError):
        for field in range(2 * LIMIT // size):
            client.hset(f"lk:lock:{GREEDY}", f"{size}-{field}", "x" * size)
        pytest.fail("there seems to be no end to the memory")


def go_on(client: redis.Redis, ended: threading.Event) -> None:
    with contextlib.suppress(redis.ConnectionError):  # its user is taken away
        while not ended.wait(0.01):
            fill(client, 99)


def resident(server: Server) -> int:
    """Bytes, as the kernel counts them against the container's limit."""
    lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def test_a_tenant_that_fills_the_memory_stops_new_grants_and_no_leader(server: Server) -> None:
    open_node(server)
    assert vote(server, LEADER, "grant", "x/1", TTL, "0") == "GRANTED"
    with full(server):
        assert resident(server) < 0.75 * LIMIT
        with pytest.raises(OutOfMemoryError):
            vote(server, IDLE, "grant", "y/1", TTL, "0")
        assert server.fcall("lk1_tick", "nonce", CAP)[0] == "OK"
        assert vote(server, LEADER, "commit", "x/1", "1001", TTL) == "OK"
        assert vote(server, LEADER, "renew", "x/1", "1001", TTL) == "OK"
        assert server.fcall("lk1_tick", "nonce", CAP)[0] == "OK"
        assert vote(server, LEADER, "release", "x/1", "1") == "OK"


def test_a_full_node_can_be_taken_through_a_change_of_membership_and_emptied(
    server: Server,
) -> None:
    """A raise that no join can follow would leave every lock of the ensemble without a leader."""
    open_node(server)
    with full(server):
        assert server.fcall("lk1_raise", "life", "2-b", "[]")[0] == "OK"
        assert server.fcall("lk1_learn", "life", "0", "", LEADER, "2000")[0] == "OK"
        assert server.fcall("lk1_join", "life", "2-b", "[]", "3000000", CAP, "1")[0] == "OK"
        with server.client() as operator:  # as it does before a lock is forgotten
            operator.execute_command("ACL", "DELUSER", users.lock_user(GREEDY))
        assert server.fcall("lk1_forget", GREEDY, "5000")[0] == "OK"
    with tenant(server, IDLE) as client:
        answer = client.fcall("lk1_grant", 1, f"lk:lock:{IDLE}", "2-b", "y/1", TTL, "0")
    assert answer[0] == "GRANTED"


def test_an_agent_that_comes_back_to_a_full_node_goes_on(server: Server) -> None:
    """A full server takes no functions, also not those that it has. Its time must go on, or a dead
    leader would never be replaced.
    """
    open_node(server)
    connection = Connection(str(server.socket), "agent", server.passwords.agent, timeout=5)
    with full(server):
        local = LocalServer(connection)
        local.load_admin()
        local.load_vote()
        assert connection.fcall("lk1_register", "life", "another")[0] == "OK"
        assert connection.fcall("lk1_tick", "another", CAP)[0] == "OK"
    connection.close()


def test_connections_cannot_take_the_memory_either(server: Server) -> None:
    """A request that is begun and never finished, again and again, beside one who leads."""
    open_node(server)
    assert vote(server, LEADER, "grant", "x/1", TTL, "0") == "GRANTED"
    assert vote(server, LEADER, "commit", "x/1", "1001", TTL) == "OK"
    greedy = []
    try:
        for _ in range(2 * LIMIT // len(HALF)):
            client = socket.socket(socket.AF_UNIX)
            greedy.append(client)
            client.settimeout(5)
            client.connect(str(server.socket))
            client.sendall(f"AUTH {users.lock_user(GREEDY)} {GREEDY}\r\n".encode())
            assert client.recv(5) == b"+OK\r\n"
            client.sendall(HALF.encode())
        assert vote(server, LEADER, "renew", "x/1", "1001", TTL) == "OK"
        assert vote(server, IDLE, "grant", "y/1", TTL, "0") == "GRANTED"
        assert resident(server) < 0.75 * LIMIT
    finally:
        for client in greedy:
            client.close()


def test_a_value_beyond_a_megabyte_is_refused(server: Server) -> None:
    open_node(server)
    with (
        tenant(server, GREEDY) as client,
        pytest.raises((redis.ResponseError, OSError, redis.ConnectionError)),
    ):
        client.hset(f"lk:lock:{GREEDY}", "field", "x" * (2**20 + 1))


def test_who_never_says_a_word_is_sent_away_and_a_subscriber_is_not(flavour: str) -> None:
    with Server(flavour) as running, running.client() as client:
        assert int(client.config_get("timeout")["timeout"]) > 0
    with Server(flavour, extra_config="timeout 1\n") as server:
        open_node(server)
        with tenant(server, IDLE) as client, socket.socket(socket.AF_UNIX) as silent:
            subscriber = client.pubsub()
            subscriber.subscribe(f"lk:freed:{IDLE}/me")
            silent.connect(str(server.socket))
            silent.settimeout(20)
            assert silent.recv(1) == b""
            time.sleep(1.5)
            with server.client() as agent:
                wait_until(
                    lambda: agent.publish(f"lk:freed:{IDLE}/me", "1") == 1, "the subscriber", 1
                )
            subscriber.close()
