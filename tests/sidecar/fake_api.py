"""A TLS server of the test's own, which checks every request, and a mirror that talks to it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from leasekeeper_sidecar.claim import Claim
from leasekeeper_sidecar.leadership import Tenure
from leasekeeper_sidecar.log import Log
from leasekeeper_sidecar.metrics import Counters
from leasekeeper_sidecar.mirror import Mirror

from leasekeeper.clock import Deadline, Instant
from leasekeeper.kubernetes.api import ApiServer, ServiceAccount
from leasekeeper.lease import Grant

if TYPE_CHECKING:
    pass

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


@contextlib.asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[FakeApi]:
    """With a service account in `folder`."""
    account = folder / "account"
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
