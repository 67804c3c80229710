"""For tests of the Lease store: an API server in memory for virtual time, and the real one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from leasekeeper.clock import Clock
from leasekeeper.kubernetes.api import ApiServer, Credentials, Failed, Object, Reply
from leasekeeper.kubernetes.record import FRESH, made
from leasekeeper.kubernetes.store import KubernetesStore
from leasekeeper.lease import Candidate, LeaseStore, Timings

if TYPE_CHECKING:
    from control_plane import ControlPlane

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cluster" / "kube"))


@contextlib.contextmanager
def control_plane() -> Iterator[ControlPlane]:
    from control_plane import ControlPlane

    with TemporaryDirectory(prefix="plane-") as folder, ControlPlane(folder) as plane:
        yield plane


def fresh_lease(namespace: str, name: str) -> Object:
    """As somebody makes it who knows that there was none before: it need not rest."""
    lease = made(namespace, name)
    lease["metadata"]["annotations"] = {FRESH: "true"}
    return lease


def administrator(plane: ControlPlane) -> ApiServer:
    """A client of its own, with the administrator's certificate."""
    return administrator_at(int(plane.server.rpartition(":")[2]), plane.directory / "pki")


def administrator_at(port: int, keys: Path) -> ApiServer:
    """The same on another port of loopback, say that of a proxy."""

    def tls() -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=keys / "ca.crt")
        context.load_cert_chain(keys / "admin.crt", keys / "admin.key")
        return context

    async def credentials() -> Credentials:
        return Credentials("", tls)

    return ApiServer("127.0.0.1", port, credentials)


@dataclass(frozen=True)
class LeaseSettings:
    """As the settings of a store in `lock.json`, for candidates outside of pods."""

    keys: str
    port: int

    def make(
        self, *, lock: str, candidate: Candidate, timings: Timings, clock: Clock
    ) -> LeaseStore:
        namespace, _, name = lock.partition("/")
        return KubernetesStore(
            api=administrator_at(self.port, Path(self.keys)),
            namespace=namespace,
            name=name,
            candidate=candidate,
            timings=timings,
            clock=clock,
        )


class MemoryApi:
    """One Lease as the real API server keeps it: resourceVersions of one sequence, compare-and-swap
    by uid and version, no write where nothing changes. `delay` and `fault` are the test's.
    """

    def __init__(self) -> None:
        self.revision = 100
        self.lease: Object | None = None
        self.log: list[str] = []
        self.delay = 0.0  # before the server acts
        self.answer_delay = 0.0  # after it has acted
        self.fault: int | None = None  # instead of acting
        self.on_answer: Callable[[str], None] = lambda method: None
        self._events: list[tuple[int, Object]] = []
        self._news = asyncio.Condition()

    async def request(
        self, method: str, path: str, body: bytes = b"", *, timeout: float, keep: bool = False
    ) -> Reply:
        async with asyncio.timeout(timeout):
            self.log.append(method)
            await asyncio.sleep(self.delay)
            if self.fault == 0:
                raise Failed("ConnectionRefusedError: no")
            if self.fault is not None:
                return _refusal(self.fault)
            reply = self.act(method, json.loads(body) if body else {})
            self.on_answer(method)
            async with self._news:
                self._news.notify_all()
            await asyncio.sleep(self.answer_delay)
            return reply

    def act(self, method: str, wanted: Object) -> Reply:
        found = self.lease
        if method == "GET":
            return _refusal(404) if found is None else _answer(found)
        if method == "POST":
            if found is not None:
                return _refusal(409)
            wanted["metadata"]["uid"] = f"uid-{self.revision + 1}"
            return self.put("ADDED", wanted)
        assert method == "PUT"
        if found is None or wanted["metadata"]["uid"] != found["metadata"]["uid"]:
            return _refusal(409)
        if wanted["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            return _refusal(409)
        return _answer(found) if wanted == found else self.put("MODIFIED", wanted)

    def put(self, event: str, wanted: Object) -> Reply:
        self.revision += 1
        wanted["metadata"]["resourceVersion"] = str(self.revision)
        self.lease = None if event == "DELETED" else wanted
        self._events.append((self.revision, {"type": event, "object": deepcopy(wanted)}))
        return _answer(wanted)

    def delete(self) -> None:
        assert self.lease is not None
        self.put("DELETED", self.lease)

    def edit(self, **spec: object) -> None:
        """By somebody else, without asking for the version."""
        assert self.lease is not None
        self.put("MODIFIED", {**self.lease, "spec": {**self.lease["spec"], **spec}})

    def annotate(self, **annotations: str) -> None:
        assert self.lease is not None
        metadata = deepcopy(self.lease["metadata"])
        old = metadata.setdefault("annotations", {})
        old.update({f"leasekeeper.dev/{key}": text for key, text in annotations.items()})
        self.put("MODIFIED", {**self.lease, "metadata": metadata})

    async def watch(self, path: str, *, timeout: float) -> AsyncIterator[Object]:
        self.log.append("WATCH")
        if self.fault is not None:
            raise Failed("refused")
        last = int(parse_qs(urlsplit(path).query).get("resourceVersion", ["0"])[0])
        while True:
            for revision, event in list(self._events):
                if revision > last:
                    last = revision
                    yield event
            async with self._news:
                await self._news.wait()

    def close(self) -> None:
        self.log.append("CLOSE")


def _answer(obj: Object) -> Reply:
    return Reply(200, body=json.dumps(obj).encode())


def _refusal(status: int) -> Reply:
    return Reply(status, message="refused", body=b"{}")
