"""The status page, over real sockets: what visitors do to each other, which must be nothing."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest
from servers import free_port

from leasekeeper.redlock import status_page
from leasekeeper.redlock.status_page import PATIENCE, ROOM, Status

LONG = 40.0  # the page's patience in most of these tests: they must not pass by its running out
QUICK = LONG / 2  # a probe that takes longer has waited for somebody else


@pytest.fixture
def status() -> Status:
    return Status("0")


@pytest.fixture
def address(status: Status, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(status_page, "PATIENCE", LONG)
    address = ("127.0.0.1", free_port())
    end = status_page.serve(address, status)
    yield address
    end()


def probe(address: tuple[str, int], patience: float = QUICK, request: str = "GET /healthz") -> str:
    """The whole answer; TimeoutError: none in time."""
    with socket.create_connection(address, timeout=patience) as client:
        client.sendall(f"{request} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
        return read(client)


def read(client: socket.socket) -> str:
    """Until the page closes the connection."""
    with client.makefile("rb") as page:
        return page.read().decode()


def visitors(
    address: tuple[str, int], count: int, stack: contextlib.ExitStack
) -> list[socket.socket]:
    return [
        stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(count)
    ]


def test_a_visitor_who_speaks_byte_by_byte_delays_nobody(address: tuple[str, int]) -> None:
    """A time-out for each recv begins anew with each byte: the page served nobody else."""
    with socket.create_connection(address) as slow:
        for byte in b"GET":
            slow.send(bytes([byte]))
            assert "200 OK" in probe(address)


def test_a_visitor_has_one_deadline_however_often_it_speaks(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_page, "PATIENCE", PATIENCE)
    with socket.create_connection(address, timeout=0.2 * PATIENCE) as slow:
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < began + 10 * PATIENCE:
                slow.send(b"x")
                with contextlib.suppress(TimeoutError):
                    if not slow.recv(1):
                        break
        assert 0.9 * PATIENCE < time.monotonic() - began < 10 * PATIENCE


def test_a_crowd_that_says_nothing_delays_nobody(address: tuple[str, int]) -> None:
    with contextlib.ExitStack() as stack:
        visitors(address, 3 * ROOM, stack)
        assert "200 OK" in probe(address)


def test_when_there_is_no_more_room_the_oldest_must_leave(address: tuple[str, int]) -> None:
    with contextlib.ExitStack() as stack:
        first, second = visitors(address, 2, stack)
        visitors(address, ROOM - 1, stack)
        assert read(first) == ""
        second.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert "200 OK" in read(second)


def test_a_visitor_who_leaves_without_a_word_is_forgotten(address: tuple[str, int]) -> None:
    for _ in range(3 * ROOM):
        socket.create_connection(address).close()
    assert "200 OK" in probe(address)


def test_an_answer_that_does_not_fit_is_sent_in_parts(
    address: tuple[str, int], status: Status
) -> None:
    status.update(why="x" * 8_000_000)
    assert probe(address, request="GET /status").endswith("}\n")


def test_the_head_of_an_answer_and_unknown_requests(address: tuple[str, int]) -> None:
    assert probe(address, request="HEAD /healthz").endswith("\r\n\r\n")
    assert "404 Not Found" in probe(address, request="GET /")
    assert "405 Method Not Allowed" in probe(address, request="POST /healthz")


def test_the_page_ends_when_told(status: Status) -> None:
    address = ("127.0.0.1", free_port())
    status_page.serve(address, status)()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5)
