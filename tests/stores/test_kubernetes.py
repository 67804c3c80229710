"""The Kubernetes Lease store on a real API server: what only that can show, and the exclusion of a
real elector of client-go on the same Lease."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from kube_lease import administrator, control_plane, fresh_lease

from leasekeeper.clock import SystemClock
from leasekeeper.elector import Elector
from leasekeeper.kubernetes import record
from leasekeeper.kubernetes import store as store_module
from leasekeeper.kubernetes.store import KubernetesStore
from leasekeeper.lease import (
    AlreadyGone,
    Candidate,
    Grant,
    Held,
    Lost,
    Released,
    Renewed,
    Timings,
    Unknown,
)

if TYPE_CHECKING:
    from control_plane import ControlPlane

TIMINGS = Timings(lease_duration=3.0, renew_deadline=2.0, retry_period=0.5)
REPOSITORY = Path(__file__).resolve().parents[2]
ELECTOR = Path(__file__).parent / "go" / "elector"
CLOCK = SystemClock()


@dataclass
class Lock:
    """One Lease of a test's own."""

    plane: ControlPlane
    name: str = field(default_factory=lambda: f"lock-{secrets.token_hex(4)}")

    def store(self, name: str) -> KubernetesStore:
        return KubernetesStore(
            api=administrator(self.plane),
            namespace="default",
            name=self.name,
            candidate=Candidate(name, "uid", secrets.token_hex(4)),
            timings=TIMINGS,
            clock=CLOCK,
        )

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        command = [str(self.plane.kubectl), "--kubeconfig", str(self.plane.kubeconfig), *arguments]
        return subprocess.run(
            command, check=True, input=given, capture_output=True, text=True, timeout=60
        ).stdout

    def object(self) -> Any:
        return json.loads(self.kubectl("get", "lease", self.name, "-o=json"))


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with control_plane() as running:
        yield running


@pytest.fixture
def lock(plane: ControlPlane) -> Lock:
    lock = Lock(plane)
    lock.kubectl("create", "-f-", given=json.dumps(fresh_lease("default", lock.name)))
    return lock


async def won(store: KubernetesStore) -> Grant:
    async with asyncio.timeout(30):
        while not isinstance(outcome := await store.acquire(), Grant):
            await asyncio.sleep(0.02)
    return outcome


async def renewed(store: KubernetesStore, grant: Grant) -> Grant:
    """As an elector renews: on a busy machine the API server may not answer within a period, and
    "cannot tell" ends nothing before the deadline."""
    while isinstance(outcome := await store.renew(grant), Unknown):
        pass
    assert isinstance(outcome, Grant), outcome
    return outcome


async def given_back(store: KubernetesStore, grant: Grant) -> None:
    """A release whose answer was lost may have worked, and can be said again."""
    unsure = False
    while isinstance(outcome := await store.release(grant), Unknown):
        unsure = True
    assert outcome == Released() or (unsure and outcome == AlreadyGone())


async def test_kubectl_shows_the_holder_and_the_token(lock: Lock) -> None:
    store = lock.store("pod-a")
    grant = await won(store)
    line = lock.kubectl("get", "lease", lock.name, "--no-headers").split()
    assert line[1] == grant.id
    assert line[1].startswith("pod-a/")
    assert lock.object()["metadata"]["annotations"]["leasekeeper.dev/token"] == str(grant.token)
    await given_back(store, grant)
    assert lock.object()["spec"]["holderIdentity"] == ""
    await store.close()


async def test_tokens_rise_across_deletions(lock: Lock) -> None:
    tokens = []
    for turn in range(4):
        store = lock.store(f"pod-{turn}")
        tokens.append((await won(store)).token)
        lock.kubectl("delete", "lease", lock.name)
        await store.close()
    assert tokens == sorted(set(tokens))


async def test_a_late_write_does_not_make_a_lease_that_was_deleted(lock: Lock) -> None:
    """A PUT on a Lease that is not there makes one; only the uid in it keeps it from that."""
    store = lock.store("pod-a")
    grant = await won(store)
    lock.kubectl("delete", "lease", lock.name)
    assert await store.renew(grant) == Lost("the Lease was deleted")
    assert await store.release(grant) == AlreadyGone()
    assert lock.name not in lock.kubectl("get", "leases", "-o=name")
    await store.close()


async def test_control_without_the_uid_a_late_write_makes_it_again(
    lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = lock.store("pod-a")
    grant = await won(store)
    lock.kubectl("delete", "lease", lock.name)

    def without_uid(*arguments: Any) -> Any:
        obj = record.renewed(*arguments)
        del obj["metadata"]["uid"]
        del obj["metadata"]["resourceVersion"]
        return obj

    monkeypatch.setattr(store_module, "renewed", without_uid)
    assert isinstance(await store.renew(grant), Grant)
    await store.close()


async def test_a_label_of_somebody_else_is_no_loss_and_stays(lock: Lock) -> None:
    store = lock.store("pod-a")
    grant = await won(store)
    lock.kubectl("label", "lease", lock.name, "team=orders")
    assert isinstance(await store.renew(grant), Grant)
    assert lock.object()["metadata"]["labels"] == {"team": "orders"}
    await store.close()


async def test_a_step_down_by_kubectl_reaches_the_holder(lock: Lock) -> None:
    store = lock.store("pod-a")
    grant = await won(store)
    lock.kubectl("annotate", "lease", lock.name, f"leasekeeper.dev/request=1 step-down {grant.id}")
    asked = (await renewed(store, grant)).request
    assert asked is not None
    assert (asked.kind, asked.target) == ("step-down", grant.id)
    await store.close()


# -- in a sidecar --------------------------------------------------------------------------------


def rules_of_the_docs(lease: str) -> Any:
    text = (REPOSITORY / "docs" / "stores.md").read_text().partition("## A Kubernetes Lease")[2]
    block = text.partition("```yaml")[2].partition("```")[0]
    return yaml.safe_load(block.replace("[orders]", f"[{lease}]"))["rules"]


def test_a_sidecar_leads_by_it_with_the_rights_of_the_docs_and_no_more(
    lock: Lock, tmp_path: Path
) -> None:
    place = {"namespace": "default", "name": lock.name}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": place}
    (tmp_path / "role.yaml").write_text(
        yaml.safe_dump({**role, "rules": rules_of_the_docs(lock.name)})
    )
    lock.kubectl("apply", "-f", str(tmp_path / "role.yaml"))
    lock.kubectl("create", "serviceaccount", lock.name)
    bound = (f"--role={lock.name}", f"--serviceaccount=default:{lock.name}")
    lock.kubectl("create", "rolebinding", lock.name, *bound)
    fresh = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {**place, "annotations": {record.FRESH: "true"}},
    }
    (tmp_path / "lease.yaml").write_text(yaml.safe_dump(fresh))
    lock.kubectl("apply", "-f", str(tmp_path / "lease.yaml"))
    (tmp_path / "token").write_text(lock.kubectl("create", "token", lock.name))
    shutil.copy(lock.plane.directory / "pki" / "ca.crt", tmp_path / "ca.crt")
    for folder in ("leader", "state"):
        (tmp_path / folder).mkdir()
    host, _, port = lock.plane.server.removeprefix("https://").partition(":")
    config = {
        "version": 1,
        "lock": f"default/{lock.name}",
        "store": "kubernetes",
        "kubernetes": {"accountDir": str(tmp_path)},
    }
    environment = {
        "PATH": os.environ["PATH"],
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": port,
        "LEASEKEEPER_CONFIG_JSON": json.dumps(config),
        "LEASEKEEPER_POD_NAME": "pod-a",
        "LEASEKEEPER_POD_UID": "uid-a",
        "LEASEKEEPER_LEADER_DIR": str(tmp_path / "leader"),
        "LEASEKEEPER_STATE_DIR": str(tmp_path / "state"),
        "LEASEKEEPER_HTTP_PORT": "0",
        "LEASEKEEPER_LOCAL_PORT": "0",
        "LEASEKEEPER_MIRROR": "none",
    }
    file = tmp_path / "leader" / "leader"
    with (tmp_path / "log").open("wb") as log:
        command = [sys.executable, "-m", "leasekeeper_sidecar"]
        child = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 60
        while not file.exists() or not json.loads(file.read_text())["leader"]:
            assert child.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < end, "it does not lead"
            time.sleep(0.05)
        led = json.loads(file.read_text())
        lease = lock.object()
        assert lease["spec"]["holderIdentity"].startswith("pod-a/uid-a/")
        assert lease["metadata"]["annotations"]["leasekeeper.dev/token"] == str(led["token"])
    finally:
        child.terminate()
        child.wait(30)
    assert lock.object()["spec"]["holderIdentity"] == "", "it was not given back"
    assert "403" not in (tmp_path / "log").read_text()


# -- with client-go ------------------------------------------------------------------------------


class Ours:
    """An elector of ours; notes on the boot clock when it led."""

    def __init__(self, lock: Lock) -> None:
        self.spans: list[tuple[int, int]] = []
        self.tokens: list[int] = []
        self._since: int | None = None
        self.elector = Elector(
            store=lock.store("ours"), timings=TIMINGS, clock=CLOCK, audience=self
        )
        self.leads = asyncio.Event()

    def leading(self, grant: Grant) -> None:
        if self._since is None:
            self._since = _now()
            self.tokens.append(grant.token)
            self.leads.set()

    def not_leading(self, why: str) -> None:
        if self._since is not None:
            self.spans.append((self._since, _now()))
        self._since = None
        self.leads.clear()

    def standing_by(self, holder: str | None) -> None:
        pass

    def renewal(self, outcome: Renewed) -> None:
        pass

    async def lead_for(self, seconds: float) -> None:
        """From standby to a graceful end."""
        running = asyncio.create_task(self.elector.run())
        async with asyncio.timeout(60):
            await self.leads.wait()
        await asyncio.sleep(seconds)
        self.elector.stop()
        await running


def _now() -> int:
    return round(CLOCK.now().boot * 1e9)


class ClientGo:
    """The real elector as a process."""

    def __init__(self, program: Path, lock: Lock, hold: float, release: bool) -> None:
        times = (TIMINGS.lease_duration, TIMINGS.renew_deadline, TIMINGS.retry_period, hold)
        self._child = subprocess.Popen(
            [
                *(str(program), str(lock.plane.kubeconfig), "default", lock.name, "client-go_1"),
                *(f"{seconds}s" for seconds in times),
                str(release).lower(),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._lines: list[str] = []

    def _read(self) -> str:
        assert self._child.stdout is not None
        if line := self._child.stdout.readline():
            self._lines.append(line)
        return line

    async def line(self) -> str:
        """Its next word."""
        async with asyncio.timeout(60):
            return (await asyncio.to_thread(self._read)).split()[0]

    def signal(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    def finish(self) -> list[tuple[int, int]]:
        """Ends it; when it led."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGCONT)
            self._child.terminate()
        while self._read():
            pass
        self._child.wait(60)
        words = [line.split() for line in self._lines]
        leads = [int(time) for word, time in words if word == "lead"]
        ends = [int(time) for word, time in words if word == "end"]
        return list(zip(leads, [*ends, _now()], strict=False))


@pytest.fixture(scope="module")
def program(plane: ControlPlane) -> Path:
    from localkube import binaries, pins
    from localkube.progress import Progress

    built = binaries.module("client-go-elector", ELECTOR, [], pins.load(), Progress())
    return built / "elector"


@pytest.fixture
def client_go(program: Path, lock: Lock) -> Iterator[Callable[..., ClientGo]]:
    started: list[ClientGo] = []

    def start(hold: float = 0.0, release: bool = True) -> ClientGo:
        started.append(ClientGo(program, lock, hold, release))
        return started[-1]

    yield start
    for child in started:
        child.finish()


def overlaps(ours: list[tuple[int, int]], theirs: list[tuple[int, int]]) -> list[Any]:
    return [(a, b) for a in ours for b in theirs if a[0] < b[1] and b[0] < a[1]]


async def test_client_go_and_ours_take_turns_and_never_lead_together(
    lock: Lock, client_go: Callable[..., ClientGo]
) -> None:
    other = client_go(hold=0.2)
    ours: list[Ours] = []
    for _ in range(3):
        while await other.line() != "lead":
            pass
        ours.append(Ours(lock))
        await ours[-1].lead_for(0.7)  # longer than client-go's retry period: it looks in vain
    theirs = other.finish()
    mine = [span for elector in ours for span in elector.spans]
    assert len(mine) == 3
    assert len(theirs) >= 3
    assert overlaps(mine, theirs) == []
    tokens = [token for elector in ours for token in elector.tokens]
    assert tokens == sorted(set(tokens))


async def test_control_who_does_not_wait_leads_beside_client_go(
    lock: Lock, client_go: Callable[..., ClientGo], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "free_in", lambda *_: 0.0)
    other = client_go()
    assert await other.line() == "lead"
    ours = Ours(lock)
    await ours.lead_for(0.1)
    assert overlaps(ours.spans, other.finish())


async def test_client_go_waits_for_ours_and_takes_what_is_given_back(
    lock: Lock, client_go: Callable[..., ClientGo]
) -> None:
    store = lock.store("ours")
    grant = await won(store)
    other = client_go()
    heard = asyncio.create_task(other.line())
    for _ in range(8):  # longer than a lease, by renewals
        await asyncio.sleep(TIMINGS.retry_period)
        grant = await renewed(store, grant)
    assert not heard.done()
    await given_back(store, grant)
    assert await heard == "lead"
    assert isinstance(await store.acquire(), Held)
    await store.close()


async def test_a_killed_client_go_is_succeeded_after_its_lease_and_ours_by_it(
    lock: Lock, client_go: Callable[..., ClientGo]
) -> None:
    killed = client_go()
    assert await killed.line() == "lead"
    store = lock.store("ours")
    before = CLOCK.now()
    assert isinstance(await store.acquire(), Held)
    killed.signal(signal.SIGKILL)
    grant = await won(store)
    assert CLOCK.now().elapsed_since(before) > TIMINGS.lease_duration
    await store.close()  # dies without a release
    other = client_go()
    assert await other.line() == "lead"
    assert grant.lease_end.passed(CLOCK.now())


async def test_a_frozen_client_go_does_not_get_its_lease_back(
    lock: Lock, client_go: Callable[..., ClientGo]
) -> None:
    """Without `ReleaseOnCancel`: with it, a client-go (0.36.3) that was frozen past its deadline
    reads the newest version, believes its own old record, and empties its successor's Lease. No
    candidate can prevent that; ours finds it lost at its next renewal, and tokens go on rising.
    """
    frozen = client_go(release=False)
    assert await frozen.line() == "lead"
    frozen.signal(signal.SIGSTOP)
    store = lock.store("ours")
    grant = await won(store)
    frozen.signal(signal.SIGCONT)
    heard = asyncio.create_task(frozen.line())
    while not heard.done():
        grant = await renewed(store, grant)
        await asyncio.sleep(TIMINGS.retry_period / 2)
    assert await heard == "end"
    await store.release(grant)
    await store.close()
