"""TLS with real servers: what is said when it fails, and what a rotation costs (nothing)."""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from authority import Authority, Issued, replace
from ensemble import Ensemble, EnsembleNode
from servers import TLS_FLAVOURS, Server, wait_until

from leasekeeper import cli
from leasekeeper.clock import SystemClock
from leasekeeper.lease import Candidate, Grant, Timings, Unavailable
from leasekeeper.redlock import users
from leasekeeper.redlock.blocking import BadCredentials, Broken, Connection
from leasekeeper.redlock.membership import Node
from leasekeeper.redlock.server_config import ServerTls
from leasekeeper.redlock.store import RedlockStore
from leasekeeper.redlock.tls import Tls
from leasekeeper.redlock.transport import Answer, Failure, TcpLink

PAST = -timedelta(days=1)
TIMINGS = Timings(lease_duration=3.0, renew_deadline=2.0, retry_period=0.5)


@pytest.fixture(params=TLS_FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ensemble(flavour: str) -> Iterator[Ensemble]:
    with Ensemble(3, flavour=flavour, tls=True, max_ttl=3.0, quarantine=3.2, http=True) as running:
        running.wait_open()
        yield running


def server_tls(ca: Authority, issued: Issued, *, clients: bool = False) -> ServerTls:
    return ServerTls(
        cert_file=str(issued.cert), key_file=str(issued.key), ca_file=str(ca.ca), clients=clients
    )


def client_tls(ca: Authority, issued: Issued | None = None) -> Tls:
    if issued is None:
        return Tls(ca_file=str(ca.ca))
    return Tls(ca_file=str(ca.ca), cert_file=str(issued.cert), key_file=str(issued.key))


# -- what is said ----------------------------------------------------------------------------------

Pair = Callable[[Authority, Authority], tuple[ServerTls | None, Tls | None]]
"""Of our CA and another one: what the server has, and what its client."""

CUT = "if it wants client certificates, give one that its CA signed"
FAILURES: dict[str, tuple[Pair, tuple[str, ...]]] = {
    "another CA": (
        lambda ours, other: (server_tls(other, other.issue()), client_tls(ours)),
        ("certificate is not signed by the CA in", "put the CA that signed it there"),
    ),
    "an expired certificate": (
        lambda ours, _: (server_tls(ours, ours.issue(ends=PAST)), client_tls(ours)),
        ("the node's certificate has expired; renew it on the node",),
    ),
    "another host": (
        lambda ours, _: (server_tls(ours, ours.issue(host="elsewhere")), client_tls(ours)),
        ("certificate is not for 127.0.0.1; issue one that names it",),
    ),
    "another address": (
        lambda ours, _: (server_tls(ours, ours.issue(host="127.0.0.2")), client_tls(ours)),
        ("certificate is not for 127.0.0.1; issue one that names it",),
    ),
    "a plain server": (
        lambda ours, _: (None, client_tls(ours)),
        ("does not speak TLS at this port; turn TLS on there, or off here",),
    ),
    "a plain client": (
        lambda ours, _: (server_tls(ours, ours.issue()), None),
        ("TLS at this port", "turn TLS on"),
    ),
}
# The server's alert is lost if its reset overtakes it; then the sentence is the more careful one.
CLIENT_FAILURES: dict[str, tuple[Pair, tuple[str, ...]]] = {
    "no client certificate": (
        lambda ours, _: (server_tls(ours, ours.issue(), clients=True), client_tls(ours)),
        ("the node wants a client certificate; give one with its key", CUT),
    ),
    "a stranger's client certificate": (
        lambda ours, other: (
            server_tls(ours, ours.issue(), clients=True),
            client_tls(ours, other.issue("client")),
        ),
        ("the node refused the client certificate", CUT),
    ),
}


def connection_says(server: Server, tls: Tls | None) -> str:
    with pytest.raises(Broken) as raised:
        connect(server, tls)
    return str(raised.value)


def connect(server: Server, tls: Tls | None, password: str | None = None) -> Connection:
    address = ("127.0.0.1", server.port)
    return Connection(address, users.PEER, password or server.passwords.peer, timeout=1.0, tls=tls)


async def link_says(server: Server, tls: Tls | None) -> str:
    link = TcpLink(
        Node("0", "127.0.0.1", server.port),
        username=users.PEER,
        password=server.passwords.peer,
        patience=0.5,
        tls=tls,
    )
    said: list[Answer] = []
    try:
        async with asyncio.timeout(10):
            while not said or "yet" in str(said[-1]):
                await asyncio.sleep(0.02)
                link.call(("PING",), said.append)
    finally:
        await link.close()
    assert isinstance(said[-1], Failure), said
    return said[-1].why


@pytest.mark.parametrize("case", FAILURES)
async def test_a_failed_handshake_is_a_sentence_with_the_address(
    case: str, flavour: str, tmp_path: Path
) -> None:
    pair, wanted = FAILURES[case]
    of_server, of_client = pair(Authority(tmp_path / "ours"), Authority(tmp_path / "other"))
    with Server(flavour, tls=of_server) as server:
        for said in (await link_says(server, of_client), connection_says(server, of_client)):
            assert f"127.0.0.1:{server.port}" in said
            assert all(part in said for part in wanted), said


@pytest.mark.parametrize("case", CLIENT_FAILURES)
async def test_a_node_that_wants_another_client_certificate_is_a_sentence(
    case: str, flavour: str, tmp_path: Path
) -> None:
    pair, either = CLIENT_FAILURES[case]
    of_server, of_client = pair(Authority(tmp_path / "ours"), Authority(tmp_path / "other"))
    with Server(flavour, tls=of_server) as server:
        for said in (await link_says(server, of_client), connection_says(server, of_client)):
            assert any(part in said for part in either), said


async def test_an_expired_ca_is_told_from_an_expired_certificate(
    flavour: str, tmp_path: Path
) -> None:
    old = Authority(tmp_path / "old", ends=PAST)
    with Server(flavour, tls=server_tls(old, old.issue())) as server:
        for said in (
            await link_says(server, client_tls(old)),
            connection_says(server, client_tls(old)),
        ):
            assert f"the CA in {old.ca} has expired" in said


def test_a_client_certificate_and_another_server_name_are_accepted(
    flavour: str, tmp_path: Path
) -> None:
    ours = Authority(tmp_path / "ours")
    client = ours.issue("client")
    named = Tls(
        ca_file=str(ours.ca),
        cert_file=str(client.cert),
        key_file=str(client.key),
        server_name="nodes.example",
    )
    of_server = server_tls(ours, ours.issue(host="nodes.example"), clients=True)
    with Server(flavour, tls=of_server) as server:
        assert connect(server, named).call("PING") == "PONG"
        with pytest.raises(BadCredentials, match="refused the user 'peer'"):
            connect(server, named, "wrong")


def test_a_hung_server_ends_a_handshake_within_its_time(flavour: str, tmp_path: Path) -> None:
    ours = Authority(tmp_path / "ours")
    with Server(flavour, tls=server_tls(ours, ours.issue())) as server:
        server.pause()
        began = time.monotonic()
        assert "no answer in time" in connection_says(server, client_tls(ours))
        # 1 s, and the question whether it speaks plainly; the rest is for a busy machine.
        assert time.monotonic() - began < 5
        server.resume()


# -- a store and agents whose TLS is wrong for a while ---------------------------------------------


def store_of(ensemble: Ensemble, tls: Tls | None) -> RedlockStore:
    lock = f"shop/{secrets.token_hex(4)}"
    user, password = ensemble.add_lock(lock)
    return RedlockStore(
        membership=ensemble.membership,
        lock=lock,
        candidate=Candidate("a", "uid", secrets.token_hex(4)),
        timings=TIMINGS,
        clock=SystemClock(),
        username=user,
        password=password,
        tls=tls,
    )


async def test_a_candidate_with_a_wrong_ca_says_so_for_each_node_and_recovers_when_it_is_mended(
    ensemble: Ensemble, tmp_path: Path
) -> None:
    assert ensemble.authority is not None
    wrong = Authority(tmp_path / "wrong")
    store = store_of(ensemble, client_tls(wrong))
    try:
        async with asyncio.timeout(20):
            # An attempt is over when it is certain to fail; a look waits for all of them.
            while "yet" in str(said := (await store.observe()).nodes):
                await asyncio.sleep(0.05)
            assert set(said) == {"0", "1", "2"}
            assert all("is not signed by the CA" in why for why in said.values()), said
            outcome = await store.acquire()
            assert isinstance(outcome, Unavailable)
            assert all("is not signed by the CA" in why for why in outcome.causes.values())
            replace(wrong.ca, ensemble.authority.ca.read_bytes())
            await store.ready()
            assert isinstance(await store.acquire(), Grant)
    finally:
        await store.close()


def status(node: EnsembleNode) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{node.agent.options['http']}/status", timeout=10) as page:
        found: dict[str, Any] = json.load(page)
        return found


def test_an_agent_with_a_wrong_ca_for_its_peers_says_so_once_and_goes_on_when_it_is_mended(
    ensemble: Ensemble, tmp_path: Path
) -> None:
    assert ensemble.authority is not None
    wrong, node = Authority(tmp_path / "wrong"), ensemble.nodes[0]
    node.agent.kill()
    node.agent.options["tls-ca"] = str(wrong.ca)
    node.server.restart()
    node.agent.start()

    def sentences() -> list[str]:
        return [e for e in node.agent.events("waiting") if e.count("is not signed by the CA") == 2]

    wait_until(sentences, "the agent to name both peers")
    assert status(node)["why"].count("is not signed by the CA") == 2
    time.sleep(1.0)
    assert len(sentences()) == 1
    replace(wrong.ca, ensemble.authority.ca.read_bytes())
    ensemble.wait_open()


def test_an_agent_whose_own_server_is_not_the_cas_ends_with_a_sentence(
    ensemble: Ensemble, tmp_path: Path
) -> None:
    agent = ensemble.agent("0", ensemble.nodes[0].server, name="mistaken")
    agent.options["server"] = f"127.0.0.1:{ensemble.nodes[0].server.port}"
    agent.options["tls-ca"] = str(Authority(tmp_path / "wrong").ca)
    agent.start()
    assert agent.wait() == cli.EXIT_CREDENTIALS
    last = agent.output().splitlines()[-1]
    assert last.startswith(f"leasekeeper: cannot connect to {agent.options['server']}: ")
    assert "is not signed by the CA in" in last
    assert ensemble.nodes[0].open


def test_an_agent_over_tcp_speaks_tls_with_its_own_server(ensemble: Ensemble) -> None:
    node = ensemble.nodes[0]
    node.agent.kill()
    node.agent.options["server"] = f"127.0.0.1:{node.server.port}"
    node.agent.start()
    wait_until(lambda: node.agent.events("resumed"), "the agent to go on over TCP")
    node.server.restart()
    ensemble.wait_open()
    assert not node.agent.events("refused"), "a server that is gone is unreachable, nothing else"


def test_a_running_agent_outlives_a_rotation_of_its_password(ensemble: Ensemble) -> None:
    node = ensemble.nodes[0]
    with node.server.client() as admin:
        admin.execute_command("ACL", "SETUSER", users.AGENT, "resetpass", ">rotated")
        admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        wait_until(lambda: node.agent.events("refused"), "the agent to be refused")
        assert "refused the user 'agent'" in status(node)["why"].replace('"', "'")
        time.sleep(1.0)
        assert len(node.agent.events("refused")) == 1
        assert node.agent.running
        replace(ensemble.home / "credentials" / "agent", b"rotated\n")
        wait_until(lambda: status(node)["open"], "the agent to go on with the new password")
        # So that the fixture's own clients get in again.
        admin.execute_command("ACL", "SETUSER", users.AGENT, f">{node.server.passwords.agent}")


# -- rotation --------------------------------------------------------------------------------------


def shown(node: EnsembleNode) -> str:
    return ssl.get_server_certificate(("127.0.0.1", node.server.port))


def issue_again(ensemble: Ensemble, authority: Authority) -> None:
    """To the files that the servers have, as cert-manager does it."""
    for node in ensemble.nodes:
        assert node.server.tls is not None
        new = authority.issue(f"again-{node.id}")
        replace(Path(node.server.tls.key_file), new.key.read_bytes())
        replace(Path(node.server.tls.cert_file), new.cert.read_bytes())


async def test_a_rotated_certificate_is_served_without_a_restart_and_disturbs_no_leader(
    ensemble: Ensemble,
) -> None:
    """By the agents: CONFIG SET tls-cert-file on a server whose connections stand."""
    assert ensemble.authority is not None
    store = store_of(ensemble, ensemble.tls)
    before = [shown(node) for node in ensemble.nodes]
    clients = [connected(node) for node in ensemble.nodes]
    try:
        async with asyncio.timeout(60):
            await store.ready()
            first = grant = await grant_of(store)
            issue_again(ensemble, ensemble.authority)
            while any(shown(node) == old for node, old in zip(ensemble.nodes, before, strict=True)):
                outcome = await store.renew(grant)
                assert isinstance(outcome, Grant), outcome
                grant = outcome
                await asyncio.sleep(0.1)
        assert grant.token == first.token
        # A renewal may also succeed on a connection that was made anew; these were not cut.
        assert [client.call("PING") for client in clients] == ["PONG"] * 3
        assert all(node.open for node in ensemble.nodes)
    finally:
        await store.close()
    fresh = store_of(ensemble, ensemble.tls)
    async with asyncio.timeout(20):
        await fresh.ready()
    await fresh.close()


def connected(node: EnsembleNode) -> Connection:
    tls = node.server.tls
    assert tls is not None
    return connect(node.server, Tls(ca_file=tls.ca_file))


async def grant_of(store: RedlockStore) -> Grant:
    while not isinstance(outcome := await store.acquire(), Grant):
        await asyncio.sleep(0.05)
    return outcome


async def test_a_new_ca_in_two_steps_disturbs_no_leader(ensemble: Ensemble, tmp_path: Path) -> None:
    """First everybody trusts both, then the certificates are the new one's."""
    assert ensemble.authority is not None
    new, ca = Authority(tmp_path / "new"), ensemble.authority.ca
    store = store_of(ensemble, ensemble.tls)
    try:
        async with asyncio.timeout(60):
            await store.ready()
            first = grant = await grant_of(store)
            replace(ca, ca.read_bytes() + new.ca.read_bytes())
            old = [shown(node) for node in ensemble.nodes]
            issue_again(ensemble, new)
            while any(shown(n) == was for n, was in zip(ensemble.nodes, old, strict=True)):
                outcome = await store.renew(grant)
                assert isinstance(outcome, Grant), outcome
                grant = outcome
                await asyncio.sleep(0.1)
            assert grant.token == first.token
            replace(ca, new.ca.read_bytes())
            fresh = store_of(ensemble, ensemble.tls)
            await fresh.ready()
            await fresh.close()
    finally:
        await store.close()
    ensemble.nodes[1].server.restart()  # its agent finds its peers by the new CA
    ensemble.wait_open()


def test_new_files_that_the_server_cannot_use_are_said_once_and_change_nothing(
    ensemble: Ensemble,
) -> None:
    node = ensemble.nodes[2]
    assert node.server.tls is not None
    cert = Path(node.server.tls.cert_file)
    before, good = shown(node), cert.read_bytes()
    replace(cert, b"half of")
    wait_until(lambda: node.agent.events("certificate-refused"), "the agent to say so")
    assert "goes on" in status(node)["certificate"]
    assert shown(node) == before
    assert node.open
    replace(cert, good)
    wait_until(lambda: status(node)["certificate"] == "read", "the file to be good again")
    assert len(node.agent.events("certificate-refused")) == 1
