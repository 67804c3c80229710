"""What is ZooKeeper's own: the queue, sessions, logins, TLS. Three servers: the next file."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from authority import Authority
from backends import Backend
from candidates import Lock
from databases import ZooKeeper
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from servers import free_port
from zookeepers import Stores, won

from leasekeeper.clock import SystemClock
from leasekeeper.lease import (
    ConfigurationError,
    Grant,
    Held,
    LeaseStore,
    Lost,
    Timings,
    Unavailable,
    Unknown,
)
from leasekeeper.redlock.tls import Tls
from leasekeeper.zookeeper.line import in_order
from leasekeeper.zookeeper.session import Login

CLOCK = SystemClock()


@pytest.fixture(scope="module")
def backend(backends: Callable[[str], Backend]) -> Any:
    return backends("zookeeper")


@pytest.fixture
def admin(backend: Any) -> Iterator[Any]:
    client = KazooClient(f"127.0.0.1:{backend.server.port}")
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
async def store() -> Any:
    stores = Stores()
    yield stores
    for made in stores.made:
        await made.close()


async def why(candidate: LeaseStore) -> str:
    """What attempts get instead of a lease, once it is more than "not connected yet"."""
    async with asyncio.timeout(30):
        while True:
            outcome = await candidate.acquire()
            assert isinstance(outcome, Unavailable), outcome
            said = outcome.causes["zookeeper"]
            if "not connected" not in said:
                return said
            await asyncio.sleep(0.05)


def test_the_line_is_in_the_order_of_the_numbers_and_not_of_the_names() -> None:
    line = ["zz-1-0000000003", "aa-9-0000000010", "mm-2-0000000004", "lock"]
    assert in_order(line) == ["zz-1-0000000003", "mm-2-0000000004", "aa-9-0000000010"]


# -- the queue -----------------------------------------------------------------------------------


async def test_a_release_wakes_the_next_in_line_and_nobody_else(lock: Lock) -> None:
    line = [lock.candidate(name) for name in "abcd"]
    grant = await won(line[0])
    for waiter in line[1:]:
        await waiter.ready()
        assert isinstance(await waiter.acquire(), Held)
    waits = [asyncio.create_task(waiter.freed()) for waiter in line[1:]]
    await asyncio.sleep(0.1)
    assert not any(wait.done() for wait in waits)
    await line[0].release(grant)
    async with asyncio.timeout(10):
        await waits[0]
    assert [wait.done() for wait in waits] == [True, False, False]
    second = await line[1].acquire()
    assert isinstance(second, Grant)
    assert second.token > grant.token
    for wait in waits:
        wait.cancel()


async def test_who_wins_tells_its_watcher_that_it_is_next(lock: Lock) -> None:
    """So that the release that follows needs no further question, however soon it comes."""
    first, second, third = [lock.candidate(name) for name in "abc"]
    grant = await won(first)
    for waiter in (second, third):
        await waiter.ready()
        assert isinstance(await waiter.acquire(), Held)
    place = third._line.place  # type: ignore[attr-defined]
    assert not place.behind
    await first.release(grant)
    async with asyncio.timeout(10):
        await second.freed()
        grant = await won(second)
        await third.freed()
    assert isinstance(await third.acquire(), Held)
    assert place.behind
    await second.release(grant)
    async with asyncio.timeout(10):
        await third.freed()
    assert place.first
    assert (await won(third)).token > grant.token


async def test_a_waiter_that_nobody_asks_after_leaves_the_line(lock: Lock, admin: Any) -> None:
    """Its session would live on, and it would become first and block everybody."""
    holder, absent = lock.candidate("a"), lock.candidate("b")
    await won(holder)
    await absent.ready()
    assert isinstance(await absent.acquire(), Held)
    assert len(admin.get_children(f"/leasekeeper/{lock.name}")) == 2
    async with asyncio.timeout(20):
        while len(admin.get_children(f"/leasekeeper/{lock.name}")) == 2:
            await asyncio.sleep(0.05)


# -- the session ---------------------------------------------------------------------------------


async def test_a_session_that_the_server_ended_is_lost(
    store: Stores, backend: Any, admin: Any
) -> None:
    candidate = store(backend.server.port, f"shop/{secrets.token_hex(4)}")
    grant = await won(candidate)
    session = candidate._session._client.client_id
    twin = KazooClient(f"127.0.0.1:{backend.server.port}", client_id=session)
    await asyncio.to_thread(twin.start)
    await asyncio.to_thread(twin.stop)  # closes the session that both have
    async with asyncio.timeout(20):
        while isinstance(outcome := await candidate.renew(grant), Unknown | Grant):
            await asyncio.sleep(0.02)
    assert isinstance(outcome, Lost)
    assert (await won(candidate)).token > grant.token
    twin.close()


async def test_a_lease_that_was_not_given_back_outlives_the_candidate_that_is_closed(
    store: Stores, backend: Any
) -> None:
    """So ends a sidecar that could not take its leader file back: what it said must run out."""
    name = f"shop/{secrets.token_hex(4)}"
    holder, other = store(backend.server.port, name), store(backend.server.port, name)
    grant = await won(holder)
    await holder.close()
    taken = await won(other)
    assert grant.lease_end.passed(CLOCK.now())
    assert taken.token > grant.token


async def test_a_node_of_another_session_is_not_ours(
    store: Stores, backend: Any, admin: Any
) -> None:
    name = f"shop/{secrets.token_hex(4)}"
    candidate = store(backend.server.port, name)
    grant = await won(candidate)
    [node] = admin.get_children(f"/leasekeeper/{name}")
    path = f"/leasekeeper/{name}/{node}"
    admin.delete(path)
    admin.create(path, grant.id.encode(), ephemeral=True)
    assert await candidate.renew(grant) == Lost("the node of the lease belongs to another session")


async def test_a_session_timeout_that_the_server_refuses_is_said(
    store: Stores, backend: Any
) -> None:
    """The tests' servers grant 20 s at the most. The line is left for those who can."""
    timings = Timings(lease_duration=60, renew_deadline=10, retry_period=2)
    candidate = store(backend.server.port, f"shop/{secrets.token_hex(4)}", timings=timings)
    said = await why(candidate)
    assert "grants sessions of 20 s, and this lock needs 62.2" in said
    assert "raise the servers' maxSessionTimeout" in said


@pytest.mark.parametrize("renew_deadline", [17.0, 10.0])
async def test_a_session_that_is_shortened_under_a_lease_shortens_it(
    store: Stores, backend: Any, renew_deadline: float
) -> None:
    """As when the servers' maxSessionTimeout is lowered, one after the other: who connects again
    gets what is granted then.
    """
    timings = Timings(lease_duration=18, renew_deadline=renew_deadline, retry_period=0.5)
    candidate = store(backend.server.port, f"shop/{secrets.token_hex(4)}", timings=timings)
    grant = await won(candidate)
    candidate._session._client._session_timeout = 4000
    candidate._session.drop()
    async with asyncio.timeout(grant.deadline.left(CLOCK.now())):
        while candidate._session.granted > 4:
            await asyncio.sleep(0.02)
        while isinstance(outcome := await candidate.renew(grant), Unknown):
            await asyncio.sleep(0.02)
    if renew_deadline == 17.0:
        assert isinstance(outcome, Grant), outcome
        assert outcome.lease_end.left(CLOCK.now()) <= 4
    else:  # the deadline of such a lease has passed before it begins
        assert isinstance(outcome, Lost), outcome
        assert "grants sessions of 4 s, and this lock needs 18.7" in outcome.why


async def test_a_path_for_all_is_made_like_any_other(store: Stores, backend: Any) -> None:
    """`hosts` may end in one. It was looked for without a pause, as if a place had been deleted."""
    name = secrets.token_hex(4)
    candidate = store(0, hosts=f"127.0.0.1:{backend.server.port}/{name}/deep")
    assert await won(candidate)


async def test_hosts_that_are_none_are_refused(store: Stores) -> None:
    with pytest.raises(ConfigurationError, match="names no servers"):
        store(0, hosts="127.0.0.1:x")


# -- who may, and TLS ----------------------------------------------------------------------------

JAAS = """
Server {
  org.apache.zookeeper.server.auth.DigestLoginModule required user_app="secret";
};
"""


class Guarded:
    """A server with SASL on its plain port, and TLS on another."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        authority = Authority(folder)
        issued = authority.issue("server")
        self.tls_port, self.ca = free_port(), authority.ca
        self.server = server = ZooKeeper(
            config=f"secureClientPort={self.tls_port}\nssl.clientAuth=none\n"
            "ssl.keyStore.type=PEM\nssl.trustStore.type=PEM\n"
            "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n"
        )
        stack.callback(server.close)
        server.factory = "org.apache.zookeeper.server.NettyServerCnxnFactory"
        server.jaas = server.home / "jaas.conf"
        server.jaas.write_text(JAAS)
        pem, trusted = server.home / "server.pem", server.home / "ca.pem"
        pem.write_bytes(issued.key.read_bytes() + issued.cert.read_bytes())
        pem.chmod(0o644)
        shutil.copy(authority.ca, trusted)
        server.config(f"ssl.keyStore.location={pem}", f"ssl.trustStore.location={trusted}")
        server.prepare()
        server.start()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with ExitStack() as stack:
        yield Guarded(stack, tmp_path_factory.mktemp("guarded"))


async def test_digest_keeps_others_out_and_says_so(store: Stores, backend: Any, admin: Any) -> None:
    name = f"shop/{secrets.token_hex(4)}"
    login = Login(mechanism="digest", username="app", password="right")
    grant = await won(store(backend.server.port, name, root="/digest", login=login))
    with pytest.raises(NoAuthError):
        admin.get_children("/digest")
    for other in (None, Login(mechanism="digest", username="app", password="wrong")):
        said = await why(store(backend.server.port, name, root="/digest", login=other))
        assert "the password is wrong, or the nodes' ACL is for somebody else" in said
    assert grant.token


async def test_sasl_proves_who_we_are_and_a_wrong_password_is_said(
    store: Stores, guarded: Guarded
) -> None:
    right = Login(mechanism="DIGEST-MD5", username="app", password="secret")
    assert await won(store(guarded.server.port, "shop/sasl", root="/sasl", login=right))
    wrong = Login(mechanism="DIGEST-MD5", username="app", password="wrong")
    said = await why(store(guarded.server.port, "shop/sasl", root="/sasl", login=wrong))
    assert "refused user app or its password" in said


async def test_tls_is_spoken_and_an_unknown_ca_is_said(
    store: Stores, guarded: Guarded, tmp_path: Path
) -> None:
    tls = Tls(ca_file=str(guarded.ca))
    candidate = store(guarded.tls_port, "shop/tls", tls=tls)
    grant = await won(candidate)
    assert isinstance(await candidate.renew(grant), Grant)
    stranger = Tls(ca_file=str(Authority(tmp_path).ca))
    said = await why(store(guarded.tls_port, "shop/tls", tls=stranger))
    assert "is not signed by the CA in" in said


async def test_a_zookeeper_made_anew_is_refused_by_who_remembers(
    store: Stores, guarded: Guarded
) -> None:
    """It is ZooKeeper that sends away who has seen more than it knows; we say what that means. Who
    remembers nothing is let in, and needs the floor.
    """
    candidate = store(guarded.server.port, "shop/anew")
    grant = await won(candidate)
    await candidate.release(grant)
    guarded.server.kill()
    shutil.rmtree(guarded.server.data / "version-2")
    guarded.server.start()
    async with asyncio.timeout(30):
        while "restored or made anew" not in await why(candidate):
            await asyncio.sleep(0.05)
    control = store(guarded.server.port, "shop/anew")
    repeated = await won(control)
    assert repeated.token <= grant.token
    await control.release(repeated)
    above = store(guarded.server.port, "shop/anew", token_floor=grant.token)
    assert (await won(above)).token > grant.token
