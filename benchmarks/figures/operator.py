"""The operator with 1,000 locks on 10 ensembles of 3 nodes: a real API server with its controllers,
and 30 real servers with their agents, which run before the operator does. So "at rest" is rest:
all nodes are open. Nobody holds the locks.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from control_plane import ControlPlane
from ensemble import Ensemble
from kube_lease import administrator
from servers import free_port

from benchmarks.result import Row, at_most, note, percentile
from benchmarks.rig import Rig
from leasekeeper.kubernetes import record
from leasekeeper.kubernetes.api import ApiServer
from leasekeeper.redlock.users import AGENT, OPERATOR, PEER

REPOSITORY = Path(__file__).resolve().parents[2]
NAMESPACE = "bench"
STILL = 10.0  # seconds in which nothing is done: then the last deed was the end of the start
LOOKS = 'leasekeeper_operator_reconciles_total{kind="DistributedLock",outcome="done"}'
NODES = 3
LONGEST_LEASE, DELAY = 30, 32  # seconds; the defaults of a LockEnsemble
PATIENCE = 300.0
GROUP = "leasekeeper.dev/v1alpha1"

Object = dict[str, Any]


class Operator:
    def __init__(self, plane: ControlPlane, home: Path, ports: dict[str, int]) -> None:
        self._port = free_port()
        environment = {
            **os.environ,
            "KUBECONFIG": str(plane.kubeconfig),
            "LEASEKEEPER_NAMESPACE": NAMESPACE,
            "LEASEKEEPER_SIDECAR_IMAGE": "example.test/sidecar:1",
            "LEASEKEEPER_HTTP_PORT": str(free_port()),
            "LEASEKEEPER_METRICS_PORT": str(self._port),
        }
        places = home / "ports.json"
        places.write_text(json.dumps(ports))
        self.began = time.monotonic()
        with (home / "operator.log").open("wb") as log:
            worker = "benchmarks.workers.operator_with_nodes"
            command = [sys.executable, "-m", worker, str(places)]
            self._child = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def stop(self) -> None:
        self._child.terminate()
        self._child.wait(30)

    def metrics(self) -> dict[str, float]:
        try:
            address = f"http://127.0.0.1:{self._port}/metrics"
            with urllib.request.urlopen(address, timeout=10) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return {}
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def writes(self) -> float:
        return self.metrics().get("leasekeeper_operator_writes_total", 0.0)

    def memory(self, field: str) -> float:
        status = Path(f"/proc/{self._child.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith(field + ":")]
        return int(line.split()[1]) / 1024

    def processor_seconds(self) -> float:
        return _processor_seconds(self._child.pid)

    def seconds_to_quiet(self, locks: int) -> float:
        """From the start of the process to its last write or look at a lock."""
        last, since = (0.0, 0.0), time.monotonic()
        while time.monotonic() - self.began < PATIENCE:
            assert self._child.poll() is None, "the operator ended"
            now, page = time.monotonic(), self.metrics()
            looks = page.get(LOOKS, 0.0)
            done = page.get("leasekeeper_operator_writes_total", 0.0), looks
            if done != last:
                last, since = done, now
            idle = page.get("leasekeeper_operator_queue_depth") == 0
            if looks >= locks and idle and now - since >= STILL:
                return since - self.began
            time.sleep(0.25)
        raise TimeoutError(f"not quiet after {PATIENCE:.0f} s")


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _of_others(plane: ControlPlane) -> dict[str, float]:
    return {name: _processor_seconds(pid) for name, pid in plane.processes.items()}


def measure(rig: Rig) -> list[Row]:
    locks, ensembles, rest, changes = (100, 2, 15, 20) if rig.quick else (1000, 10, 60, 200)
    with (
        tempfile.TemporaryDirectory(prefix="lk-bench-") as folder,
        _world(Path(folder)) as plane,
        contextlib.ExitStack() as stack,
    ):
        nodes = [
            stack.enter_context(
                Ensemble(NODES, registry=False, max_ttl=LONGEST_LEASE, quarantine=DELAY)
            )
            for _ in range(ensembles)
        ]
        rested = time.monotonic() + DELAY
        _declare(plane, locks, nodes)
        # A birth waits for the nodes' quarantine, if locks were published: it is not the operator's
        time.sleep(max(0.0, rested - time.monotonic()))
        before = _of_others(plane)
        start = partial(Operator, plane, Path(folder), _ports(nodes))
        operator = start()
        try:
            rows = _started(operator, plane, locks, before)
            rows += _at_rest(operator, rest)
            rows += _changed(plane, locks, changes)
            operator.stop()
            operator = start()
            again = operator.seconds_to_quiet(locks)
        finally:
            operator.stop()
    rows.append(at_most("started again, to quiet", "s", again, 30, "a bound"))
    what = f"operator, {locks} locks on {ensembles} ensembles: "
    return [replace(row, figure=what + row.figure) for row in rows]


def _started(
    operator: Operator, plane: ControlPlane, locks: int, before: dict[str, float]
) -> list[Row]:
    """`before`: what the others had used of the processor."""
    quiet, own = operator.seconds_to_quiet(locks), operator.processor_seconds()
    others = {name: now - before[name] for name, now in _of_others(plane).items()}
    assert _published(plane) == locks, "the operator is quiet, and not done"
    assert _ready(plane) == locks, "not every lock can be used"
    used = {"operator": own, **others}
    return [
        at_most("start to quiet", "s", quiet, 30, "a bound"),
        *(note(f"processor until then, {name}", "s", it, "", None) for name, it in used.items()),
    ]


def _at_rest(operator: Operator, seconds: float) -> list[Row]:
    processor, writes = operator.processor_seconds(), operator.writes()
    time.sleep(seconds)
    share = (operator.processor_seconds() - processor) / seconds * 100
    written = operator.writes() - writes
    return [
        at_most("resident memory", "MiB", operator.memory("VmRSS"), 150, "a bound"),
        note("its peak", "MiB", operator.memory("VmHWM"), "", None),
        at_most(f"writes in {seconds} s at rest", "", written, 0.5, "none"),
        at_most("processor at rest", "% of a core", share, 1.0, "a bound"),
    ]


def _changed(plane: ControlPlane, locks: int, changes: int) -> list[Row]:
    latencies = asyncio.run(_change(plane, locks, changes))
    return [
        note("a changed lock, p50", "s", percentile(latencies, 50), "", None),
        at_most("a changed lock, p99", "s", percentile(latencies, 99), 1.0, "a bound"),
    ]


@contextlib.contextmanager
def _world(folder: Path) -> Iterator[ControlPlane]:
    with ControlPlane(folder / "plane", controller_manager=True) as plane:
        _kubectl(plane, "apply", "--server-side", "-f", str(REPOSITORY / "crds"))
        _kubectl(plane, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        _kubectl(plane, "get", "dlock,lens", "--all-namespaces")
        _kubectl(plane, "create", "namespace", NAMESPACE)
        yield plane


def _kubectl(plane: ControlPlane, *arguments: str, given: Object | None = None) -> str:
    command = [str(plane.kubectl), "--kubeconfig", str(plane.kubeconfig), *arguments]
    text = None if given is None else json.dumps(given)
    done = subprocess.run(command, input=text, check=True, capture_output=True, text=True)
    return done.stdout


def _ports(nodes: list[Ensemble]) -> dict[str, int]:
    """By the names under which an ensemble's nodes are known in a cluster."""
    return {
        f"e{number}-{node.id}.{NAMESPACE}.svc": node.server.port
        for number, ensemble in enumerate(nodes)
        for node in ensemble.nodes
    }


def _declare(plane: ControlPlane, locks: int, nodes: list[Ensemble]) -> None:
    def named(kind: str, name: str, spec: Object) -> Object:
        place = {"namespace": NAMESPACE, "name": name}
        return {"apiVersion": GROUP, "kind": kind, "metadata": place, "spec": spec}

    async def make() -> None:
        api = administrator(plane)
        # As the chart does: nobody can have been deleted under it.
        lease = record.made(NAMESPACE, "leasekeeper-operator")
        lease["metadata"]["annotations"] = {record.FRESH: "true"}
        await _post(api, "/apis/coordination.k8s.io/v1", "leases", lease)
        for number, ensemble in enumerate(nodes):
            # The servers already run with them: the operator makes none where there are some.
            passwords = {user: ensemble.passwords.of(user) for user in (AGENT, PEER, OPERATOR)}
            place = {"namespace": NAMESPACE, "name": f"e{number}-credentials"}
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": place}
            await _post(api, "/api/v1", "secrets", {**secret, "stringData": passwords})
            spec: Object = {
                "nodes": NODES,
                "longestLeaseSeconds": LONGEST_LEASE,
                "restartPolicy": {"delaySeconds": DELAY},
            }
            obj = named("LockEnsemble", f"e{number}", spec)
            await _post(api, f"/apis/{GROUP}", "lockensembles", obj)
        for number in range(locks):
            spec = {"ensembleRef": {"name": f"e{number % len(nodes)}"}}
            lock = named("DistributedLock", f"lock-{number}", spec)
            await _post(api, f"/apis/{GROUP}", "distributedlocks", lock)
        api.close()

    asyncio.run(make())


async def _post(api: ApiServer, group: str, plural: str, obj: Object) -> None:
    path = f"{group}/namespaces/{NAMESPACE}/{plural}"
    reply = await api.request("POST", path, json.dumps(obj).encode(), timeout=30, keep=True)
    assert reply.status == 201, reply.message


def _published(plane: ControlPlane) -> int:
    names = _kubectl(plane, "-n", NAMESPACE, "get", "secrets", "-o=name").split()
    return sum(name.startswith("secret/leasekeeper-lock-") for name in names)


def _ready(plane: ControlPlane) -> int:
    path = '{.items[*].status.conditions[?(@.type=="Ready")].status}'
    return _kubectl(plane, "get", "dlock", "-A", f"-o=jsonpath={path}").split().count("True")


async def _change(plane: ControlPlane, locks: int, changes: int) -> list[float]:
    """Seconds from a patch of a lock to the new `lock.json` in its Secret."""
    api, found = administrator(plane), []
    for number in range(changes):
        lock, lease = f"lock-{number * 7 % locks}", 16 + number % 10
        async with contextlib.aclosing(_published_leases(plane, lock)) as leases:
            await anext(leases)  # as it stands: the watch runs
            body = json.dumps({"spec": {"leaseDurationSeconds": lease}}).encode()
            began = time.monotonic()
            path = f"/apis/{GROUP}/namespaces/{NAMESPACE}/distributedlocks/{lock}"
            reply = await api.merge_patch(path, body)
            assert reply.status == 200, reply.message
            async with asyncio.timeout(60):
                while await anext(leases) != lease:
                    pass
            found.append(time.monotonic() - began)
    return found


async def _published_leases(plane: ControlPlane, lock: str) -> AsyncGenerator[float, None]:
    """The leaseDurationSeconds that a lock's Secret says, now and after each change."""
    field = f"fieldSelector=metadata.name%3Dleasekeeper-{lock}"
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets?watch=1&{field}"
    async with contextlib.aclosing(administrator(plane).watch(path, timeout=30)) as events:  # type: ignore[type-var]
        async for event in events:
            text = base64.b64decode(event["object"]["data"]["lock.json"])
            yield json.loads(text)["timings"]["leaseDurationSeconds"]
