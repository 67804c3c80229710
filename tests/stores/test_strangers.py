"""What answers at a store's address may be anything, and a host's name may be none: one sentence,
and the candidate stands by. Whatever a driver raises then, none of it ends the elector.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from backends import TIMINGS
from candidate_process import checked

from leasekeeper.clock import SystemClock
from leasekeeper.lease import Candidate, LeaseStore, Unavailable

STORES = ("postgresql", "mysql", "zookeeper", "redis")
USER = {"database": "app", "username": "app", "password": "secret"}

HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 3\r\n\r\nno\n"

CLEAR = b"mysql_clear_password"


def packet(number: int, body: bytes) -> bytes:
    """As MySQL's are."""
    return len(body).to_bytes(3, "little") + bytes([number]) + body


def greeting(login: bytes) -> bytes:
    """Of a MySQL without TLS whose users log in in this way."""
    salt, more, flags = b"12345678\0", b"123456789012\0", (b"\xff\xf7", b"\xff\xdf")
    version = b"\x0a8.4.0\0" + b"\1\0\0\0" + salt + flags[0] + b"\xff\2\0" + flags[1]
    return packet(0, version + b"\x15" + bytes(10) + more + login + b"\0")


ANSWERS = {
    "http": HTTP,
    "nothing": b"",
    "ones": b"\xff" * 400,
    "a-redis": b"-ERR unknown command\r\n",
    "a-mysql": greeting(b"mysql_native_password"),
    "a-mysql-error": packet(0, b"\xff\x10\x04Too many connections"),
    "a-postgresql-that-wants-gss": b"R\x00\x00\x00\x08\x00\x00\x00\x07",
    "an-unknown-login": b"R\x00\x00\x00\x08\x00\x00\x00\x63",
    "a-tls-alert": b"\x15\x03\x01\x00\x02\x02\x28",
    "rubbish": bytes(range(256)) * 4,
}


def settings(store: str, host: str, port: int) -> dict[str, Any]:
    if store == "zookeeper":
        return {"store": store, store: {"hosts": f"{host}:{port}"}}
    user = USER if store != "redis" else {"password": "secret"}
    return {"store": store, store: {"host": host, "port": port, **user}}


def candidate(store: str, host: str, port: int) -> LeaseStore:
    return checked(settings(store, host, port), TIMINGS).make(
        lock="shop/orders",
        candidate=Candidate("a", "uid", "nonce"),
        timings=TIMINGS,
        clock=SystemClock(),
    )


Stranger = Callable[[bytes, bool], Awaitable[int]]


@pytest.fixture
async def stranger() -> AsyncIterator[Stranger]:
    """Starts a server that says this to everybody, and closes or stays."""
    servers: list[asyncio.Server] = []

    async def start(answer: bytes, closes: bool) -> int:
        def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(answer)
            if closes:
                writer.close()

        servers.append(await asyncio.start_server(serve, "127.0.0.1", 0))
        port: int = servers[-1].sockets[0].getsockname()[1]
        return port

    yield start
    for server in servers:
        server.close()


async def sentence(store: LeaseStore) -> str:
    """What the second attempt gets: the first may be "not connected yet"."""
    try:
        said = ""
        for _ in range(2):
            async with asyncio.timeout(20 * TIMINGS.renew_deadline):
                outcome = await store.acquire()
            assert isinstance(outcome, Unavailable), outcome
            said = "; ".join(outcome.causes.values())
            await asyncio.sleep(0.2)
        return said
    finally:
        await store.close()


def is_one_sentence(said: str) -> bool:
    return 10 < len(said) < 400 and said.isprintable()


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Of asyncio: what nobody caught."""
    return [record.getMessage() for record in caplog.records if record.name == "asyncio"]


@pytest.mark.parametrize("store", STORES)
async def test_whatever_answers_there_is_one_sentence(
    store: str, stranger: Stranger, caplog: pytest.LogCaptureFixture
) -> None:
    """It says one thing and then nothing, or closes."""
    found: dict[str, str] = {}

    async def look(name: str, closes: bool) -> None:
        port = await stranger(ANSWERS[name], closes)
        found[f"{name}, {closes}"] = await sentence(candidate(store, "127.0.0.1", port))

    await asyncio.gather(*(look(name, closes) for name in ANSWERS for closes in (True, False)))
    assert len(found) == 2 * len(ANSWERS)
    assert {name: said for name, said in found.items() if not is_one_sentence(said)} == {}
    assert not complaints(caplog)


@pytest.mark.parametrize("store", STORES)
async def test_a_name_that_no_host_can_have_is_one_sentence(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    names = ("db..shop", "x" * 64 + ".shop", "no such host")
    found = await asyncio.gather(*(sentence(candidate(store, name, 1)) for name in names))
    assert [said for said in found if not is_one_sentence(said) or "yet" in said] == []
    assert not complaints(caplog)


async def test_a_mysql_whose_login_needs_a_package_says_to_turn_on_tls(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MySQL's default login (caching_sha2_password) without TLS needs `cryptography`, which the
    image lacks: aiomysql raises what is no error of its own then."""
    monkeypatch.setattr("pymysql._auth._have_cryptography", False)
    in_full, key = packet(2, b"\1\4"), packet(4, b"\1key")
    port = await stranger(greeting(b"caching_sha2_password") + in_full + key, False)
    said = await sentence(candidate("mysql", "127.0.0.1", port))
    assert "lets user app send the password only through TLS" in said
    assert "turn `tls` on" in said


async def test_a_mysql_that_wants_the_password_in_clear_gets_none(stranger: Stranger) -> None:
    asked = packet(2, b"\xfemysql_clear_password\0")
    for answer in (greeting(CLEAR), greeting(b"mysql_native_password") + asked):
        said = await sentence(candidate("mysql", "127.0.0.1", await stranger(answer, False)))
        assert "it wants the password in clear, without TLS" in said
