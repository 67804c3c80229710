"""What the operator makes of who holds a lock: status, Events, the leader-only Service, requests.

Real nodes, real sidecars, a real API server; the pods are only objects there, with the uids that
the sidecars were given."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ensemble import Ensemble as RealNodes
from leasekeeper_operator.api import Api
from leasekeeper_operator.model import lock_key

from tests.operator.conftest import Cluster
from tests.operator.real_world import SHORT, World, candidate
from tests.operator.test_operator import Operator
from tests.sidecar.conftest import Pod, Watcher

Object = dict[str, Any]
SERVICE = {"name": "leader", "ports": [{"port": 80, "targetPort": 8080}]}


class Stage:
    """A lock with a Service, and two pods that want it."""

    def __init__(self, world: World, home: Path, name: str) -> None:
        self.world = world
        self.home = home
        self.name = name
        self.key = lock_key(world.namespace, name)
        self.pods: dict[str, Pod] = {}
        self.addresses: dict[str, str] = {}

    def make_pod(self, name: str, address: str) -> str:
        """Its uid."""
        cluster, namespace = self.world.cluster, self.world.namespace
        labels = {"leasekeeper.dev/lock": self.name}
        made = cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": namespace, "labels": labels},
                "spec": {"containers": [{"name": "app", "image": "app"}]},
            }
        )
        status = {"podIP": address, "podIPs": [{"ip": address}]}
        cluster.patch(namespace, "pod", name, {"status": status}, "--subresource=status")
        self.ready(name, True)
        self.addresses[name] = address
        return str(made["metadata"]["uid"])

    def ready(self, name: str, ready: bool) -> None:
        body = {"status": {"conditions": [{"type": "Ready", "status": str(ready)}]}}
        place = (self.world.namespace, "pod", name)
        self.world.cluster.patch(*place, body, "--subresource=status")

    async def start(self, name: str, address: str, password: str) -> Pod:
        uid = self.make_pod(name, address)
        pod = candidate(self.world, self.home, self.name, password, name)
        pod.environment["LEASEKEEPER_POD_UID"] = uid
        self.pods[name] = pod.start()
        return pod

    async def step(self) -> None:
        """What watches and timers would set in motion."""
        await self.world.ensembles.reconcile(self.world.key)
        await self.world.locks.reconcile(self.key)

    async def until(self, true: Callable[[], Any], what: str, patience: float = 60.0) -> None:
        end = asyncio.get_running_loop().time() + patience
        while not true():
            if asyncio.get_running_loop().time() > end:
                logs = "\n".join(pod.output() for pod in self.pods.values())
                raise TimeoutError(f"{what}\n{json.dumps(self.status(), indent=1)}\n{logs}")
            await self.step()
            await asyncio.sleep(0.1)

    def leader(self) -> str:
        leading = [name for name, pod in self.pods.items() if pod.path.exists() and pod.leads]
        return leading[0] if leading else ""

    def routed(self) -> list[str]:
        found = self.world.cluster.get(
            self.world.namespace, "endpointslice", f"{self.name}-leader-ipv4"
        )
        endpoints = (found or {}).get("endpoints") or []
        assert len(endpoints) <= 1
        return [address for endpoint in endpoints for address in endpoint["addresses"]]

    def follows(self) -> bool:
        """The Service leads to the leader, and the status says so."""
        leader = self.leader()
        held = self.condition("Held")
        return bool(
            leader
            and self.routed() == [self.addresses[leader]]
            and held[0] == "True"
            and held[2].startswith(f"pod {leader} leads with token ")
        )

    def status(self) -> Object:
        found = self.world.cluster.get(self.world.namespace, "dlock", self.name) or {}
        return dict(found.get("status", {}))

    def condition(self, kind: str) -> tuple[str, str, str]:
        found = {c["type"]: c for c in self.status().get("conditions", [])}.get(kind, {})
        return found.get("status", ""), found.get("reason", ""), found.get("message", "")

    def patch(self, spec: Object) -> None:
        self.world.cluster.patch(self.world.namespace, "dlock", self.name, {"spec": spec})

    def events(self) -> set[str]:
        place = ("-n", self.world.namespace, "get", "events")
        return {*self.world.cluster.run(*place, "-o", "jsonpath={.items[*].reason}").split()}


@pytest.fixture(scope="module")
def world(managed: Cluster) -> Iterator[World]:
    with RealNodes(3, registry=False, max_ttl=4.0, quarantine=4.1) as nodes:
        world = World(managed, nodes)
        world.make_ensemble()
        yield world


@pytest.fixture
async def stage(
    world: World, managed_api: Api, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Stage]:
    world.start_operator(managed_api)
    name = f"lock-{abs(hash(request.node.name)) % 10**6}"
    stage = Stage(world, tmp_path, name)
    await world.until_open(3)
    service = {**SERVICE, "name": name}
    reference = {"ensembleRef": {"name": "main"}, "service": service, **SHORT}
    world.cluster.lock(world.namespace, name, **reference)
    password = await world.publish(name, made=True)
    try:
        await stage.start(f"{name}-a", "10.1.0.1", password)
        await stage.until(stage.follows, "the Service to lead to the first pod")
        await stage.start(f"{name}-b", "10.1.0.2", password)
        yield stage
    finally:
        for pod in stage.pods.values():
            pod.kill()
        await world.ensembles.close()


async def test_the_service_follows_the_holder_and_nothing_else(stage: Stage) -> None:
    a, b = stage.pods
    token = stage.pods[a].said()["token"]
    assert stage.status()["transitions"][0]["token"] == token
    # What stands in the status is a pod's word, and no address rests on it.
    forged = {"status": {"holder": b, "token": token + 1}}
    place = (stage.world.namespace, "dlock", stage.name)
    stage.world.cluster.patch(*place, forged, "--subresource=status")
    await stage.step()
    assert stage.routed() == ["10.1.0.1"]
    # A holder that is not ready gets no traffic, and nobody else does.
    stage.ready(a, False)
    await stage.step()
    assert stage.routed() == []
    stage.ready(a, True)
    await stage.step()
    assert stage.routed() == ["10.1.0.1"]
    # A new pod of the holder's name is not the holder.
    stage.world.cluster.run("-n", stage.world.namespace, "delete", "pod", a, "--now")
    stage.make_pod(a, "10.1.0.3")
    await stage.step()
    assert stage.routed() == []
    # The hand-over.
    stage.pods[a].terminate()
    await stage.until(stage.follows, "the Service to lead to the second pod")
    assert stage.leader() == b
    assert [t["holder"] for t in stage.status()["transitions"]] == [b, a]
    assert {"LeaderElected"} <= stage.events()
    # Nobody left.
    stage.pods[b].terminate()
    await stage.until(lambda: stage.condition("Held")[:2] == ("False", "Free"), "nobody")
    assert stage.routed() == []
    assert {"NoLeader"} <= stage.events()


async def test_nothing_is_written_while_a_pod_leads(stage: Stage) -> None:
    def versions() -> str:
        out = "jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.resourceVersion} {end}"
        kinds = "dlock,lens,service,endpointslice,secret"
        return stage.world.cluster.run("-n", stage.world.namespace, "get", kinds, "-o", out)

    await stage.step()
    before = versions()
    for _ in range(3):
        await stage.step()
    assert versions() == before


async def test_an_operator_that_has_not_looked_yet_leaves_the_address(stage: Stage) -> None:
    await stage.world.ensembles.close()
    stage.world.start_operator(stage.world.api)
    await stage.world.locks.reconcile(stage.key)
    assert stage.routed() == ["10.1.0.1"]
    assert stage.condition("Held")[0] == "True"
    # Nor does one that reaches too few nodes to tell.
    for node in stage.world.nodes.nodes[:2]:
        node.hang()
    try:
        await stage.step()
        assert stage.condition("Held")[:2] == ("Unknown", "CannotTell")
        assert stage.routed() == ["10.1.0.1"]
    finally:
        for node in stage.world.nodes.nodes[:2]:
            node.go_on()
    await stage.until(stage.follows, "sight")


async def test_a_pause_ends_the_tenure_and_lasts_until_it_is_taken_back(stage: Stage) -> None:
    with Watcher([*stage.pods.values()]) as watcher:
        token = stage.pods[stage.leader()].said()["token"]
        stage.patch({"paused": True})
        await stage.until(lambda: not stage.leader(), "nobody to lead")
        await stage.until(lambda: stage.condition("Held")[1] == "Paused", "the status to say so")
        assert stage.status()["request"]["kind"] == "pause"
        assert stage.status()["request"]["by"].startswith("kubectl-patch (a program")
        assert stage.routed() == []
        # A node that lost its memory is told again.
        stage.world.nodes.nodes[0].server.restart()
        await stage.until(lambda: stage.world.status()["openNodes"] == 2, "the loss to be seen")
        await stage.until(lambda: stage.world.status()["openNodes"] == 3, "all nodes to be open")
        await stage.step()
        assert not stage.leader()
        stage.patch({"paused": False})
        await stage.until(stage.follows, "a leader again")
    watcher.check()
    assert watcher.tenures[-1][1] > token
    assert {"Paused", "Resumed"} <= stage.events()


async def test_a_step_down_ends_the_tenure_that_it_names_and_no_other(stage: Stage) -> None:
    first, token = stage.leader(), stage.pods[stage.leader()].said()["token"]
    with Watcher([*stage.pods.values()]) as watcher:
        stage.patch({"stepDown": {"token": token - 1}})  # a tenure that is over
        for _ in range(3):
            await stage.step()
        assert "request" not in stage.status()
        stage.patch({"stepDown": {"token": token}})
        await stage.until(lambda: stage.leader() not in ("", first), "another pod to lead")
        await stage.until(stage.follows, "the Service to follow")
        second = stage.pods[stage.leader()].said()["token"]
        # The field still stands there, also for an operator that remembers nothing.
        await stage.world.ensembles.close()
        stage.world.start_operator(stage.world.api)
        for _ in range(5):
            await stage.step()
        assert stage.pods[stage.leader()].said()["token"] == second
    watcher.check()
    asked = stage.status()["request"]
    assert (asked["kind"], asked["token"]) == ("step-down", token)
    assert asked["target"].startswith(f"{first}/")
    assert "StepDown" in stage.events()


async def test_a_service_of_somebody_else_is_left_alone(stage: Stage) -> None:
    cluster, namespace = stage.world.cluster, stage.world.namespace
    cluster.run("-n", namespace, "create", "service", "clusterip", "theirs", "--tcp=80")
    before = cluster.get(namespace, "service", "theirs")
    stage.patch({"service": {**SERVICE, "name": "theirs"}})
    await stage.step()
    assert stage.condition("Degraded")[:2] == ("True", "ServiceConflict")
    assert cluster.get(namespace, "service", "theirs") == before
    assert cluster.get(namespace, "service", stage.name) is None  # the one before is gone
    stage.patch({"service": None})
    await stage.step()
    assert cluster.get(namespace, "service", "theirs") == before
    assert stage.condition("Degraded")[:2] == ("False", "AsExpected")
    cluster.run("-n", namespace, "delete", "service", "theirs")


NONSENSE = ["/", "/u/n/1", "../secrets/x/u/1", "x" * 600_000, "é", " "]


async def test_nonsense_in_a_locks_own_entry_is_nobodys_address_and_stops_nothing(
    stage: Stage,
) -> None:
    """A candidate may write into its own lock's key what it likes."""
    for pod in stage.pods.values():
        pod.kill()
    key = f"lk:lock:{stage.world.namespace}/{stage.name}"
    for owner in NONSENSE:
        for node in stage.world.nodes.nodes:
            with node.server.client() as client:
                far = str(int(client.hget("lk:node", "tick") or 0) + 10**12)
                client.hset(key, mapping={"owner": owner, "expires": far})
        await stage.step()
        assert stage.routed() == []
        assert stage.world.status()["openNodes"] == 3
    for node in stage.world.nodes.nodes:
        with node.server.client() as client:
            client.delete(key)


# -- the label -------------------------------------------------------------------------------------


def labelled(stage: Stage) -> list[str]:
    ours = f"leasekeeper.dev/lock={stage.name},leasekeeper.dev/role=leader"
    out = ("-o", "jsonpath={.items[*].metadata.name}")
    return stage.world.cluster.run(
        "-n", stage.world.namespace, "get", "pod", "-l", ours, *out
    ).split()


def version(stage: Stage, pod: str) -> int:
    found = stage.world.cluster.get(stage.world.namespace, "pod", pod) or {}
    return int(found["metadata"]["resourceVersion"])


async def test_the_label_follows_the_holder_for_locks_that_ask_for_it(stage: Stage) -> None:
    a, b = stage.pods
    await stage.step()
    assert labelled(stage) == []  # nobody asked
    stage.patch({"labelHolder": True})
    await stage.step()
    assert (labelled(stage), stage.status()["labelledPod"]) == ([a], a)
    # Somebody's hand, and a new pod of the holder's name.
    place = ("-n", stage.world.namespace)
    stage.world.cluster.run(*place, "label", "pod", b, "leasekeeper.dev/role=leader")
    await stage.step()
    assert labelled(stage) == [a]
    before = version(stage, b)
    stage.pods[a].terminate()
    await stage.until(lambda: b in labelled(stage), "the label to move")
    assert labelled(stage) == [b]
    # Taken from the old one first: the API server numbers its writes in their order.
    assert before < version(stage, a) < version(stage, b)
    stage.patch({"labelHolder": False})
    await stage.step()
    assert labelled(stage) == []
    assert "labelledPod" not in stage.status()
    assert stage.leader() == b


async def test_without_the_right_to_patch_pods_the_lock_says_what_to_do(
    stage: Stage, tmp_path: Path
) -> None:
    """The rights of the README do not have it; with it, and no more, the label comes."""
    cluster, (a, _) = stage.world.cluster, stage.pods
    account = Operator(cluster, tmp_path / "account")
    account.grant()
    api = await Api.connect(account.kubeconfig())
    await stage.world.ensembles.close()
    stage.world.start_operator(api)
    try:
        stage.patch({"labelHolder": True})
        await stage.step()
        status, reason, message = stage.condition("Degraded")
        assert (status, reason) == ("True", "LabelForbidden")
        assert "set operator.labelHolders of the chart" in message
        assert labelled(stage) == []
        assert stage.condition("Ready")[0] == "True"
        role, group = f"label-{account.namespace}", f"system:serviceaccounts:{account.namespace}"
        cluster.run("create", "clusterrole", role, "--verb=patch", "--resource=pods")
        cluster.run(
            "create", "clusterrolebinding", role, f"--clusterrole={role}", f"--group={group}"
        )
        await stage.until(lambda: labelled(stage) == [a], "the label")
        assert stage.condition("Degraded")[0] == "False"
        cluster.run("delete", "clusterrole,clusterrolebinding", role)
    finally:
        await api.close()
        cluster.run("delete", "clusterrole,clusterrolebinding", account.namespace)
