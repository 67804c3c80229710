"""The mirror against a TLS server of the test's own, which checks every request.

(A real kube-apiserver with the resource's rules is in test_mirror_api.py; the admission policy,
which needs the chart, is in tests/cluster.)
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import json
import signal
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from leasekeeper_sidecar import mirror
from leasekeeper_sidecar.claim import Claim
from leasekeeper_sidecar.host import Proc
from leasekeeper_sidecar.leadership import Tenure
from leasekeeper_sidecar.log import Log
from leasekeeper_sidecar.metrics import Counters
from leasekeeper_sidecar.mirror import Mirror
from servers import wait_until

from leasekeeper.clock import Deadline, Instant
from leasekeeper.kubernetes import api as kube_api
from leasekeeper.kubernetes.api import ApiServer, ServiceAccount
from leasekeeper.lease import Grant

if TYPE_CHECKING:
    from tests.sidecar.conftest import Cast, Pod

PATH = "/apis/leasekeeper.dev/v1alpha1/namespaces/{}/distributedlocks/{}/status"
PATIENCE = 15.0


def certificate(folder: Path) -> None:
    """A CA that is also the server's certificate, for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test's API server")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(exist_ok=True)
    (folder / "ca.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    (folder / "token").write_text("token-1\n")


@dataclass
class FakeApi:
    """Answers what the test wants, and keeps every request. A status of 0: never answers."""

    account: Path
    answers: list[int] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    """What is said before all answers, byte for byte."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    status: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    port: int = 0
    lock: str = "shop/orders"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            line, *lines = head.strip().split("\r\n")
            headers = {k.lower(): v for k, v in (text.split(": ", 1) for text in lines)}
            body = json.loads(await reader.readexactly(int(headers["content-length"])))
            self.check(line, headers, body)
            self.requests.append({"body": body, "authorization": headers["authorization"]})
            if self.raw:
                writer.write(self.raw.pop(0))
                await writer.drain()
                return
            status = self.answers.pop(0) if self.answers else 200
            if status == 0:
                await asyncio.sleep(3600)
            if body["status"]["token"] < self.status.get("token", 0):
                status = 422  # the resource's own rule: a token never goes down
            if status == 200:
                self.status |= body["status"]
            text = json.dumps({"kind": "Status", "message": f"the reason for {status}"}).encode()
            writer.write(
                f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(text)}\r\n\r\n".encode()
                + text
            )
            await writer.drain()
        finally:
            writer.close()

    def check(self, line: str, headers: dict[str, str], body: Any) -> None:
        expected = {
            "line": (line, f"PATCH {PATH.format(*self.lock.split('/'))} HTTP/1.1"),
            "content type": (headers.get("content-type"), "application/merge-patch+json"),
            "host": (headers.get("host"), f"127.0.0.1:{self.port}"),
            "only the status": (list(body), ["status"]),
        }
        self.wrong += [f"{k}: {is_!r}" for k, (is_, must) in expected.items() if is_ != must]
        if not set(body["status"]) <= {"holder", "token", "acquireTime"}:
            self.wrong.append(f"fields that are not the sidecar's: {body}")
        if type(body["status"].get("token")) is not int:
            self.wrong.append(f"a patch without its token: {body}")


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[FakeApi]:
    account = tmp_path / "account"
    certificate(account)
    fake = FakeApi(account)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(account / "ca.crt", account / "key.pem")
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0, ssl=context)
    fake.port = server.sockets[0].getsockname()[1]
    yield fake
    server.close()
    assert not fake.wrong


@dataclass
class Bench:
    """A mirror at work."""

    mirror: Mirror
    counters: Counters
    looks: list[str]

    def lead(self, token: int, holder: str = "orders-0") -> None:
        deadline = Deadline(Instant(0, 0), 10)
        grant = Grant("shop/orders", f"{holder}/u/n/1", token, deadline, deadline)
        claim = Claim(lock="shop/orders", leader=True, boot="b", holder=holder, token=token)
        self.mirror.tenure(Tenure(grant, 1_763_427_723.456, claim))

    async def until(self, outcome: str, count: int = 1) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.counters.mirror[outcome] < count:
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def bench(api: FakeApi, port: int | None = None) -> AsyncIterator[Bench]:
    counters, looks = Counters(), list[str]()

    async def look() -> str:
        looks.append("looked")
        return "holder orders-1, token 9"

    server = ApiServer("127.0.0.1", port or api.port, ServiceAccount(str(api.account)))
    made = Mirror(
        lock="shop/orders",
        patch=server.merge_patch,
        counters=counters,
        log=Log(),
        on_refused=look,
        first_backoff=0.02,
    )
    task = asyncio.create_task(made.run())
    try:
        yield Bench(made, counters, looks)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_new_tenure_is_written_once(api: FakeApi) -> None:
    async with bench(api) as at:
        at.lead(7)
        await at.until("ok")
        await asyncio.sleep(0.1)
    assert api.status == {
        "holder": "orders-0",
        "token": 7,
        "acquireTime": "2025-11-18T01:02:03.456Z",
    }
    assert len(api.requests) == 1
    assert not at.mirror.pending


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (401, "unauthorized"),
        (403, "forbidden"),
        (404, "not-found"),
        (409, "conflict"),
        (429, "throttled"),
        (500, "server-error"),
        (503, "server-error"),
    ],
)
async def test_a_refusal_is_counted_and_tried_again(
    api: FakeApi, status: int, outcome: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Known bug 36: none of them has any effect but a log line, a metric and a later try."""
    api.answers = [status, status]
    async with bench(api) as at:
        at.lead(7)
        await at.until("ok")
    assert at.counters.mirror == {outcome: 2, "ok": 1}
    logged = [line for line in capfd.readouterr().err.splitlines() if "not-mirrored" in line]
    assert len(logged) == 1, "one line for the outcome, not one for each try"
    assert f"outcome={outcome}" in logged[0]
    assert f"the reason for {status}" in logged[0]


def answer(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.mark.parametrize(
    ("raw", "outcome"),
    [
        (answer("307 X", b"", "Location: https://elsewhere.example/"), "rejected"),
        (answer("418 X", b"[7]"), "rejected"),
        (answer("500 X", b"[" * 200_000), "server-error"),
        (answer("500 X", b"\xff\x00" * 1000), "server-error"),
        (answer("200 X", b"x" * 3_000_000), "unreachable"),
        (answer("200 X", b"{}", "X: " + "y" * 1_000_000), "unreachable"),
        (answer("200 X", b"{}")[:-1], "unreachable"),
        (b"HTTP/1.1 100 X\r\n\r\n" * 10 + answer("503 X", b""), "server-error"),
        (b"\x16\x03\x01 rubbish\r\n\r\n", "unreachable"),
        (b"", "unreachable"),
    ],
    ids=lambda it: None if isinstance(it, bytes) else it,
)
async def test_whatever_is_answered_is_an_outcome_and_the_next_try_is_made(
    api: FakeApi, raw: bytes, outcome: str
) -> None:
    """No redirect is followed: the token would go with it."""
    api.raw = [raw]
    async with bench(api) as at:
        at.lead(7)
        await at.until("ok")
    assert at.counters.mirror == {outcome: 1, "ok": 1}


async def test_a_refused_token_is_a_look_at_the_nodes_and_no_further_try(
    api: FakeApi, capfd: pytest.CaptureFixture[str]
) -> None:
    """Only the nodes depose: anybody who may write a status could otherwise depose every leader."""
    api.answers = [422]
    async with bench(api) as at:
        at.lead(7)
        await at.until("refused")
        await asyncio.sleep(0.2)
        assert at.looks == ["looked"]
    assert len(api.requests) == 1
    assert "looked-at-nodes" in capfd.readouterr().err


async def test_a_silent_server_is_given_up_and_tried_again(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_api, "PATIENCE", 0.3)
    api.answers = [0]
    async with bench(api) as at:
        at.lead(7)
        await at.until("ok")
    assert at.counters.mirror == {"timeout": 1, "ok": 1}


async def test_a_server_that_is_down_is_tried_again(api: FakeApi) -> None:
    async with bench(api, port=1) as at:
        at.lead(7)
        await at.until("unreachable", 3)
        assert at.mirror.pending


async def test_a_server_of_another_ca_is_not_spoken_to(api: FakeApi) -> None:
    certificate(api.account)  # what the pod trusts is now another CA than the server's
    async with bench(api) as at:
        at.lead(7)
        await at.until("unreachable", 2)
    assert not api.requests


async def test_telling_the_mirror_never_waits_for_the_api(api: FakeApi) -> None:
    """Known bug 36: with a silent server, a thousand changes of leadership pass in one turn of the
    loop, and only the newest is written afterwards.
    """
    api.answers = [0]
    async with bench(api) as at:
        at.lead(1)
        async with asyncio.timeout(PATIENCE):
            while not api.requests:
                await asyncio.sleep(0.01)
        for token in range(2, 1000):
            at.mirror.tenure(None)
            at.lead(token)
        assert len(api.requests) == 1


async def test_changes_are_coalesced_to_the_newest(api: FakeApi) -> None:
    api.answers = [503]
    async with bench(api) as at:
        at.lead(7)
        await at.until("server-error")
        at.mirror.tenure(None)
        at.lead(9)
        await at.until("ok")
    assert [r["body"]["status"]["token"] for r in api.requests] == [7, 9]


async def test_a_tenure_that_is_over_is_no_longer_tried(api: FakeApi) -> None:
    api.answers = [503] * 50
    async with bench(api) as at:
        at.lead(7)
        await at.until("server-error")
        at.mirror.tenure(None)
        await asyncio.sleep(0.1)
        tried = len(api.requests)
        await asyncio.sleep(0.3)
        assert len(api.requests) == tried
        assert not at.mirror.pending


async def test_a_rotated_token_is_used_at_once(api: FakeApi) -> None:
    async with bench(api) as at:
        at.lead(7)
        await at.until("ok")
        (api.account / "token").write_text("token-2\n")
        at.lead(8)
        await at.until("ok", 2)
    assert [r["authorization"] for r in api.requests] == ["Bearer token-1", "Bearer token-2"]


async def test_a_farewell_leaves_the_token_and_takes_the_holder_away(api: FakeApi) -> None:
    async with bench(api) as at:
        at.lead(7)
        await at.until("ok")
        at.mirror.tenure(None)
        await at.mirror.farewell()
    assert api.status["holder"] == ""
    assert api.status["token"] == 7


async def test_a_successor_speaks_before_a_farewell(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody who looks at the status sees it without a holder in between."""
    monkeypatch.setattr(mirror, "SUCCESSOR_FIRST", PATIENCE)
    async with bench(api) as at, bench(api) as successor:
        at.lead(7)
        await at.until("ok")
        at.mirror.tenure(None)
        farewell = asyncio.create_task(at.mirror.farewell())
        successor.lead(8, "orders-1")
        await successor.until("ok")
        monkeypatch.undo()
        farewell.cancel()
        await at.mirror.farewell()
    assert [request["body"]["status"]["token"] for request in api.requests] == [7, 8, 7]
    assert (api.status["holder"], api.status["token"]) == ("orders-1", 8)
    assert at.counters.mirror["farewell-refused"] == 1


async def test_a_farewell_does_not_wait_for_a_silent_server(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "LAST_WORD", 0.2)
    async with bench(api) as at:
        at.lead(7)
        await at.until("ok")
        api.answers = [0]
        began = asyncio.get_running_loop().time()
        await at.mirror.farewell()
        assert asyncio.get_running_loop().time() - began < kube_api.PATIENCE / 2


async def test_a_lock_that_was_given_back_names_nobody_though_the_process_goes_on(
    api: FakeApi,
) -> None:
    """Under a pause nobody else comes to say so. An API server that is down is tried again."""
    async with bench(api) as at:
        at.lead(7)
        await at.until("ok")
        api.answers = [503]
        at.mirror.tenure(None)
        at.mirror.released()
        await at.until("farewell-ok")
        assert (api.status["holder"], api.status["token"]) == ("", 7)
        await at.mirror.farewell()
    assert len(api.requests) == 3, "what was said is not said again at the end"
    assert at.counters.mirror == {"ok": 1, "farewell-server-error": 1, "farewell-ok": 1}


async def test_who_leads_again_at_once_is_not_taken_out(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "SUCCESSOR_FIRST", PATIENCE)
    async with bench(api) as at:
        at.lead(7)
        await at.until("ok")
        at.mirror.tenure(None)
        at.mirror.released()
        await asyncio.sleep(0.05)
        at.lead(8)
        await at.until("ok", 2)
    assert [r["body"]["status"]["holder"] for r in api.requests] == ["orders-0", "orders-0"]


async def test_a_successor_that_was_faster_is_no_reason_to_look_or_to_try_again(
    api: FakeApi, capfd: pytest.CaptureFixture[str]
) -> None:
    async with bench(api) as at, bench(api) as successor:
        at.lead(7)
        await at.until("ok")
        at.mirror.tenure(None)
        at.mirror.released()
        successor.lead(8, "orders-1")
        await at.until("farewell-refused")
        await asyncio.sleep(0.1)
        assert not at.mirror.pending
    assert (api.status["holder"], api.status["token"]) == ("orders-1", 8)
    assert len(api.requests) == 3
    assert not at.looks
    assert "not-mirrored" not in capfd.readouterr().err


async def test_a_stop_says_farewell_once_though_the_release_wished_it_already(
    api: FakeApi,
) -> None:
    async with bench(api) as at:
        at.lead(7)
        await at.until("ok")
        at.mirror.tenure(None)
        at.mirror.released()
        await at.mirror.farewell()
        await asyncio.sleep(2 * mirror.SUCCESSOR_FIRST)
    assert [r["body"]["status"]["holder"] for r in api.requests] == ["orders-0", ""]


async def test_who_never_led_says_no_farewell(api: FakeApi) -> None:
    async with bench(api) as at:
        at.mirror.released()
        await at.mirror.farewell()
    assert not api.requests


# -- with the whole sidecar ------------------------------------------------------------------------


def with_mirror(pod: Pod, api: FakeApi) -> Pod:
    pod.environment |= {
        "LEASEKEEPER_MIRROR": "kubernetes",
        "LEASEKEEPER_ACCOUNT_DIR": str(api.account),
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(api.port),
    }
    return pod.start()


async def test_the_holder_and_nobody_else_writes_the_status(api: FakeApi, cast: Cast) -> None:
    api.lock = cast.lock
    cast.be_patient()
    for pod in cast.make(3):
        with_mirror(pod, api)
    first = await asyncio.to_thread(cast.leader)
    await asyncio.to_thread(first.wait_renewed)
    await asyncio.to_thread(wait_until, lambda: api.requests, "the first patch")
    token = first.verdict().token
    assert [r["body"]["status"]["token"] for r in api.requests] == [token], "not on each renewal"
    assert api.status["holder"] == first.name
    first.send(signal.SIGTERM)
    second = await asyncio.to_thread(cast.leader, first)
    assert await asyncio.to_thread(first.wait) == 0
    await asyncio.to_thread(
        wait_until, lambda: api.status["token"] == second.verdict().token > token, "the next holder"
    )


async def test_an_ill_app_leaves_no_name_in_the_status(
    api: FakeApi, cast: Cast, tmp_path: Path
) -> None:
    well = tmp_path / "well"
    well.touch()
    cast.be_patient()
    api.lock = cast.lock
    (pod,) = cast.make(1)
    health = {"HEALTH": str(well), "HEALTH_PERIOD": "0.1"}
    pod.environment |= {f"LEASEKEEPER_{key}": value for key, value in health.items()}
    with_mirror(pod, api)
    await asyncio.to_thread(wait_until, lambda: api.status.get("holder") == pod.name, "the holder")
    token = api.status["token"]
    well.unlink()
    await asyncio.to_thread(wait_until, lambda: api.status["holder"] == "", "nobody's name")
    assert api.status["token"] == token
    assert pod.running


async def test_an_api_that_never_answers_holds_up_no_renewal_and_no_release(
    api: FakeApi, cast: Cast
) -> None:
    """Known bug 36. It is silent from the start: the leader is renewed all the same, and a stop
    hands over before the deadline, though the last word is never answered.
    """
    cast.be_patient()
    api.lock, api.answers = cast.lock, [0] * 50
    for pod in cast.make(2):
        with_mirror(pod, api)
    first = await asyncio.to_thread(cast.leader)
    token = first.verdict().token
    await asyncio.to_thread(first.wait_renewed, 5)
    assert first.verdict().token == token
    assert api.requests
    deadline_cs = first.said()["deadlineCs"]
    first.send(signal.SIGTERM)
    second = await asyncio.to_thread(cast.leader, first)
    assert Proc().uptime_cs() < deadline_cs
    assert await asyncio.to_thread(first.wait) == 0
    assert second.leads
