"""TLS to the databases and to the single Redis, on real servers: spoken, checked, and explained.
ZooKeeper's is in test_zookeeper.py, Redlock's in tests/redis.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from authority import Authority
from backends import TIMINGS
from candidate_process import checked
from databases import NOBODY, MariaDb, PostgreSql, Redis

from leasekeeper.clock import SystemClock
from leasekeeper.lease import Candidate, Grant, Held, LeaseStore, Unavailable
from leasekeeper.sql.schema import schema

STORES = ("postgresql", "mysql", "redis")
NAMED = "db.shop.svc"
"""What the servers' certificates are for; candidates find them at 127.0.0.1."""


class Server:
    """One that speaks TLS; or one that does not, for the control."""

    def __init__(self, store: str, folder: Path, stack: ExitStack, *, speaks: bool) -> None:
        self.store = store
        authority = Authority(folder / "ca")
        self.ca = str(authority.ca)
        issued = authority.issue(host=NAMED)
        daemon: Any = {"postgresql": PostgreSql, "mysql": MariaDb, "redis": Redis}[store]()
        stack.callback(daemon.close)
        key, cert, ca = (daemon.home / name for name in ("tls.key", "tls.crt", "ca.crt"))
        for file, copy in ((issued.key, key), (issued.cert, cert), (authority.ca, ca)):
            shutil.copy(file, copy)
            copy.chmod(0o600)  # PostgreSQL insists on it
            if os.geteuid() == 0:
                os.chown(copy, NOBODY, NOBODY)
        self.port = daemon.port
        plain = daemon.command()
        more = {
            "postgresql": ["-c", "ssl=on", f"-cssl_cert_file={cert}", f"-cssl_key_file={key}"],
            "mysql": [f"--ssl-cert={cert}", f"--ssl-key={key}"],
            "redis": [
                *("--tls-port", str(daemon.port), "--port", "0", "--tls-auth-clients", "no"),
                *("--tls-cert-file", str(cert), "--tls-key-file", str(key)),
                *("--tls-ca-cert-file", str(ca)),
            ],
        }[store]
        off = ["--skip-ssl"] if store == "mysql" else []
        daemon.command = lambda: [*plain, *(more if speaks else off)]
        daemon.prepare()
        daemon.start()
        self.password = getattr(daemon, "password", "secret")
        self.user = "default" if store == "redis" else "app"
        if store == "postgresql":
            daemon.sql(f"CREATE USER app PASSWORD '{self.password}'; CREATE DATABASE app OWNER app")
            daemon.sql(f"SET ROLE app; {schema('postgresql')}", "app")
        if store == "mysql":
            daemon.sql("CREATE DATABASE app")
            daemon.sql(f"CREATE USER app IDENTIFIED BY '{self.password}'")
            daemon.sql("GRANT ALL ON app.* TO app")
            lines = [line.partition("--")[0] for line in schema("mysql").splitlines()]
            daemon.sql("\n".join(lines), "app")

    def candidate(self, tls: dict[str, str] | None, **changes: Any) -> LeaseStore:
        told = {"host": "127.0.0.1", "port": self.port}
        told |= {"username": self.user, "password": self.password} | changes
        if self.store != "redis":
            told["database"] = "app"
        if tls is not None:
            told["tls"] = tls
        return checked({"store": self.store, self.store: told}, TIMINGS).make(
            lock="shop/orders",
            candidate=Candidate("a", "uid", "nonce"),
            timings=TIMINGS,
            clock=SystemClock(),
        )


@contextmanager
def running(store: str, folder: Path, *, speaks: bool) -> Iterator[Server]:
    with ExitStack() as stack:
        yield Server(store, folder, stack, speaks=speaks)


@pytest.fixture(params=STORES, scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Server]:
    with running(request.param, tmp_path_factory.mktemp("tls"), speaks=True) as made:
        yield made


@pytest.fixture(params=STORES)
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with running(request.param, tmp_path, speaks=False) as made:
        yield made


async def outcome(store: LeaseStore) -> Grant | str:
    """The lease, or the sentence that comes instead of it."""
    said = ""
    for _ in range(200):
        got = await store.acquire()
        if isinstance(got, Grant):
            await store.release(got)
            break
        assert isinstance(got, Unavailable | Held), got
        said = next(iter(got.causes.values()), "")
        if said and "not connected" not in said and "no answer" not in said:
            break
    await store.close()
    return got if isinstance(got, Grant) else said


async def test_tls_is_spoken_under_the_name_that_was_told(server: Server) -> None:
    assert isinstance(
        await outcome(server.candidate({"caFile": server.ca, "serverName": NAMED})), Grant
    )


async def test_another_name_is_refused(server: Server) -> None:
    """The control of the one before: without the name, it is the host that is compared."""
    said = await outcome(server.candidate({"caFile": server.ca}))
    assert "certificate is not for 127.0.0.1" in str(said)


async def test_another_ca_is_refused(server: Server, tmp_path: Path) -> None:
    other = str(Authority(tmp_path / "other").ca)
    said = await outcome(server.candidate({"caFile": other, "serverName": NAMED}))
    assert "is not signed by the CA in" in str(said)


async def test_a_wrong_password_is_told_from_a_wrong_certificate(server: Server) -> None:
    tls = {"caFile": server.ca, "serverName": NAMED}
    said = await outcome(server.candidate(tls, password="wrong"))
    assert f"refused user {server.user} or its password" in str(said)


async def test_a_server_without_tls_is_refused_before_it_hears_a_password(plain: Server) -> None:
    """aiomysql goes on without; and who sits between can say that a server has none."""
    said = await outcome(plain.candidate({"caFile": plain.ca, "serverName": NAMED}))
    assert "does not speak TLS" in str(said)
    assert isinstance(await outcome(plain.candidate(None)), Grant)  # the control: it is there
