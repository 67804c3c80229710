"""The one scenario, from the user's side: install, declare, annotate, and one pod acts.

The tests are the steps of one story and run in this order, on one installation. All the while a
watcher reads every leader file: two leaders, or a token that does not grow, fail the step in which
it happens.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.client import Client, condition, load, until
from tests.cluster.conftest import REPOSITORY
from tests.cluster.watcher import Watcher

SYSTEM, SHOP, LOCK = "leasekeeper", "shop", "shop/orders"

# As short as the CRDs allow with whole seconds and some room for a busy machine.
TIMINGS = {"leaseDurationSeconds": 4, "renewDeadlineSeconds": 3, "retryPeriodSeconds": 1}
LONGEST_LEASE, QUARANTINE = 4, 8

VALUES = (
    "operator.image.repository=localhost/leasekeeper-operator",
    "operator.image.tag=dev",
    "operator.image.pullPolicy=Never",
    "sidecar.image.repository=localhost/leasekeeper-sidecar",
    "sidecar.image.tag=dev",
    "sidecar.image.pullPolicy=Never",
    f"defaultEnsemble.longestLeaseSeconds={LONGEST_LEASE}",
    f"defaultEnsemble.restartDelaySeconds={QUARANTINE}",
)


def example() -> tuple[dict[str, Any], dict[str, Any]]:
    """The lock and the Deployment of examples/, with short timings and an image that is here."""
    lock, deployment = load(REPOSITORY / "examples" / "deployment.yaml")
    lock["spec"] = TIMINGS
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container["image"] = "localhost/app:1"
    return lock, deployment


@pytest.fixture(scope="module")
def watcher(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watcher]:
    out = tmp_path_factory.mktemp("watcher") / "watched.jsonl"
    with Watcher(client.kubelet_roots(), out) as running:
        yield running
    print(f"\nthe watcher: {json.dumps(running.summary())}")


@pytest.fixture(scope="module")
def namespaces(client: Client) -> Iterator[None]:
    """Both with the restricted Pod Security Standard enforced."""
    _remove(client)  # what an earlier run on the same cluster may have left
    for name in (SYSTEM, SHOP):
        label = {"pod-security.kubernetes.io/enforce": "restricted"}
        metadata = {"name": name, "labels": label}
        client.apply("default", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    yield
    _remove(client)


def _remove(client: Client) -> None:
    client.run("helm", "uninstall", "leasekeeper", "--namespace", SYSTEM, "--ignore-not-found")
    client.kubectl("delete", "namespace", SYSTEM, SHOP, "--ignore-not-found", seconds=180)


@pytest.fixture(autouse=True)
def never_two_leaders(watcher: Watcher, namespaces: None) -> Iterator[None]:
    yield
    assert watcher.wrong() == []


def status(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get(SHOP, "dlock", "orders").get("status", {})
    return found


def pods(client: Client) -> list[dict[str, Any]]:
    """The workload's pods that are not on their way out."""
    found = client.items(SHOP, "pods", "-l", "app=orders")
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def leader(watcher: Watcher) -> dict[str, Any]:
    found = watcher.latest(LOCK)
    assert found is not None
    return found


def test_helm_install_makes_an_ensemble_that_is_ready(client: Client) -> None:
    chart = str(REPOSITORY / "charts" / "leasekeeper")
    values = [part for value in VALUES for part in ("--set", value)]
    wait = ("--wait", "--timeout=3m")
    client.helm("install", "leasekeeper", chart, "--namespace", SYSTEM, *values, *wait)
    ready = ("--for=condition=Ready", "--timeout=180s")
    client.kubectl("-n", SYSTEM, "wait", "lockensemble/default", *ready, seconds=200)
    selected = ("-l", "leasekeeper.dev/ensemble=default")
    # The ensemble's condition is from the operator's own look; the kubelet's probe follows.
    client.kubectl("-n", SYSTEM, "wait", "pods", *selected, "--for=condition=Ready")
    nodes = client.items(SYSTEM, "pods", *selected)
    assert len(nodes) == 5
    assert len({node["spec"]["nodeName"] for node in nodes}) == 2


def test_one_annotated_pod_of_three_leads(client: Client, watcher: Watcher) -> None:
    lock, deployment = example()
    client.apply(SHOP, lock)
    client.kubectl("-n", SHOP, "wait", "dlock/orders", "--for=condition=Ready", "--timeout=60s")
    client.apply(SHOP, deployment)
    client.kubectl("-n", SHOP, "rollout", "status", "deployment/orders", "--timeout=90s")

    found = pods(client)
    assert len(found) == 3
    assert len({pod["spec"]["nodeName"] for pod in found}) == 2
    for pod in found:
        sidecar = pod["spec"]["initContainers"][0]
        assert (sidecar["name"], sidecar["restartPolicy"]) == ("leasekeeper", "Always")
        assert pod["metadata"]["labels"]["leasekeeper.dev/lock"] == "orders"

    until("a pod leads", lambda: watcher.latest(LOCK), seconds=30)
    names = [pod["metadata"]["name"] for pod in found]
    tokens = {name: client.is_leader(SHOP, name) for name in names}
    leading = {name: token for name, token in tokens.items() if token is not None}
    assert leading == {leader(watcher)["holder"]: leader(watcher)["token"]}
    until("the app acts", lambda: "I lead with token" in _logs(client, leader(watcher)["holder"]))


def _logs(client: Client, pod: str) -> str:
    return client.kubectl("-n", SHOP, "logs", pod, "-c", "app")


def test_kubectl_get_dlock_shows_holder_and_token(client: Client, watcher: Watcher) -> None:
    holder, token = leader(watcher)["holder"], leader(watcher)["token"]

    def shown() -> bool:
        head, line = client.kubectl("-n", SHOP, "get", "dlock", "orders").splitlines()
        row = dict(zip(head.split(), line.split(), strict=False))
        return (row["HOLDER"], row["TOKEN"]) == (holder, str(token))

    until(f"kubectl get dlock shows {holder} and {token}", shown, seconds=20)


def test_a_forged_holder_is_refused(client: Client, watcher: Watcher) -> None:
    """By another pod of the same workload, with the token that its containers have."""
    before = status(client)
    names = [pod["metadata"]["name"] for pod in pods(client)]
    forger, victim = [name for name in names if name != leader(watcher)["holder"]]
    bound = ("--bound-object-kind", "Pod", "--bound-object-name", forger)
    token = client.kubectl("-n", SHOP, "create", "token", "default", *bound).strip()
    said = client.patch_status(token, SHOP, "orders", holder=victim, token=before["token"] + 1)
    assert f"only the pod {victim} itself may write this" in said
    assert f"of the pod {forger}" in said
    assert status(client) == before


def test_the_leaders_pod_is_deleted_and_another_leads(client: Client, watcher: Watcher) -> None:
    old = leader(watcher)
    deleted = time.clock_gettime(time.CLOCK_BOOTTIME)
    client.kubectl("-n", SHOP, "delete", "pod", old["holder"], "--wait=false")
    new = until(
        "another pod leads",
        lambda: found if (found := leader(watcher))["token"] != old["token"] else None,
        seconds=30,
        every=0.02,
    )
    print(f"\nhand-over: {new['at'] - deleted:.2f} s after kubectl delete")
    assert new["holder"] != old["holder"]
    assert new["token"] > old["token"]
    until(
        "the status names the new holder",
        lambda: (
            (status(client)["holder"], status(client)["token"]) == (new["holder"], new["token"])
        ),
        seconds=20,
    )
    client.kubectl("-n", SHOP, "rollout", "status", "deployment/orders", "--timeout=60s")


def test_a_restarted_node_votes_only_after_its_quarantine_and_the_leader_stays(
    client: Client, watcher: Watcher
) -> None:
    before, name = leader(watcher), "default-0-0"
    first = node_status(client, name)
    assert first is not None
    assert first["open"] is True
    old = client.get(SYSTEM, "pod", name)["metadata"]["uid"]
    client.kubectl("-n", SYSTEM, "delete", "pod", name)
    until(
        "a new pod of the node",
        lambda: client.get(SYSTEM, "pod", name)["metadata"]["uid"] != old,
    )
    stages = set()

    def opened() -> dict[str, Any] | None:
        found = node_status(client, name) or {"stage": "unreachable", "open": False}
        stages.add(found["stage"])
        return found if found["open"] else None

    after = until("the node is open again", opened, seconds=QUARANTINE + 60)
    assert "quarantine" in stages
    assert after["life"] != first["life"]
    assert after["incarnation"] > first["incarnation"]
    begun, open_ = logged(client, name, "life-begun"), logged(client, name, "open")
    print(f"\nquarantine: {open_ - begun:.2f} s of at least {QUARANTINE} s")
    assert open_ - begun >= QUARANTINE
    assert (leader(watcher)["holder"], leader(watcher)["token"]) == (
        before["holder"],
        before["token"],
    )
    assert client.is_leader(SHOP, before["holder"]) == before["token"]


def node_status(client: Client, pod: str) -> dict[str, Any] | None:
    """What the agent says of itself, through the API server's proxy; None while nobody answers."""
    path = f"/api/v1/namespaces/{SYSTEM}/pods/{pod}:8080/proxy/status"
    done = client.run("kubectl", "get", "--raw", path)
    if done.returncode != 0:
        return None
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def logged(client: Client, pod: str, event: str) -> float:
    """When the agent logged the event first, by the container runtime's clock."""
    for line in client.kubectl(
        "-n", SYSTEM, "logs", pod, "-c", "agent", "--timestamps"
    ).splitlines():
        stamp, _, text = line.partition(" ")
        if text.split(" ")[0] == event:
            whole, _, fraction = stamp.removesuffix("Z").partition(".")
            seconds = time.mktime(time.strptime(whole, "%Y-%m-%dT%H:%M:%S"))
            return seconds + float(f"0.{fraction or 0}")
    raise AssertionError(f"{pod} never logged {event}")


def test_uninstall_leaves_the_workload_alone_and_nobody_leads(
    client: Client, watcher: Watcher
) -> None:
    """As the chart's README has it."""
    before = {pod["metadata"]["uid"] for pod in pods(client)}
    names = [pod["metadata"]["name"] for pod in pods(client)]
    client.helm("uninstall", "leasekeeper", "--namespace", SYSTEM, "--wait")
    until(
        "nothing of the ensemble is left",
        lambda: (
            not client.items(
                SYSTEM,
                "pods,statefulsets,services,secrets,configmaps",
                "-l",
                "leasekeeper.dev/ensemble=default",
            )
        ),
        seconds=90,
        every=1,
    )
    time.sleep(TIMINGS["renewDeadlineSeconds"])
    assert {name: client.is_leader(SHOP, name) for name in names} == dict.fromkeys(names)
    assert {pod["metadata"]["uid"] for pod in pods(client)} == before
    assert all(condition(pod, "Ready") == "True" for pod in pods(client))

    kinds = (
        "mutatingwebhookconfigurations,clusterroles,clusterrolebindings,"
        "validatingadmissionpolicies,validatingadmissionpolicybindings"
    )
    assert client.items(SYSTEM, kinds, "-l", "app.kubernetes.io/part-of=leasekeeper") == []
    client.get(SHOP, "dlock", "orders")  # what users made is theirs
