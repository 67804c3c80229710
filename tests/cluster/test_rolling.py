"""4. Rolling changes of workload, ensemble and chart, under a running election."""

from __future__ import annotations

import json
import subprocess
import time
from itertools import pairwise
from typing import Any

import pytest

from tests.cluster.client import Client, until
from tests.cluster.installation import ENSEMBLE, SELECTED, SYSTEM, Installation
from tests.cluster.recorder import Recorder
from tests.cluster.workload import PATIENCE, Tenure, Workload, without_a_leader


def tenures_since(shop: Workload, first: Tenure) -> list[Tenure]:
    return [tenure for tenure in shop.tenures() if tenure.began >= first.began]


def test_a_rolling_update_of_the_workload_is_less_than_a_second_without_a_leader(
    client: Client, shop: Workload, recorder: Recorder
) -> None:
    first = shop.settle()
    with recorder.fault("kubectl rollout restart deployment/orders"):
        client.kubectl("-n", shop.namespace, "rollout", "restart", "deployment/orders")
        last = shop.settle()
    led = tenures_since(shop, first)
    assert first.pod not in {pod["metadata"]["uid"] for pod in shop.pods()}
    assert last.token > first.token
    for before, after in pairwise(led):
        assert after.token > before.token
    gap = without_a_leader(led)
    recorder.measured(f"without a leader, in {len(led) - 1} hand-overs", gap, "s")
    assert gap < 1.0


@pytest.mark.long
def test_a_careless_restart_of_all_nodes_is_rolled_one_at_a_time(
    client: Client, shop: Workload, installation: Installation, recorder: Recorder
) -> None:
    """`kubectl rollout restart` of all StatefulSets at once would be a loss of all memory, if they
    were not `OnDelete`, and the operator the one who deletes."""
    leader = shop.settle()
    before = {pod["metadata"]["uid"] for pod in installation.nodes()}
    births = installation.status()["registry"]["generation"]
    with recorder.fault("kubectl rollout restart of all five nodes"):
        client.kubectl("-n", SYSTEM, "rollout", "restart", "statefulset", *SELECTED)
        _roll(installation, before)
    _assert_one_at_a_time(installation)
    assert shop.leads_still(leader), "no leader notices"
    assert installation.status()["registry"]["generation"] == births


def _roll(installation: Installation, before: set[str]) -> None:
    """Until every pod is another one, and all are open."""

    def rolled() -> bool:
        status = installation.status()
        uids = {pod["metadata"]["uid"] for pod in installation.nodes()}
        return not uids & before and status["openNodes"] == status.get("updatedNodes") == 5

    until("all nodes are replaced and open", rolled, seconds=5 * PATIENCE, every=0.5)


def _assert_one_at_a_time(installation: Installation) -> None:
    """By what each node and the API server wrote down, and not by how many answered somebody in
    time: a pod was made, after the one before it had gone, when the node before it voted again."""
    made = [(_made(pod), number) for number, pod in enumerate(installation.nodes())]
    for (_, first), (then, second) in pairwise(sorted(made)):
        opened = installation.logged(first, "open")
        # The API server leaves out the fraction of the second. Two at a time would be apart by the
        # quarantine, in the other direction.
        assert opened < then + 1, f"node {second} was replaced before node {first} voted"


def _made(pod: dict[str, Any]) -> float:
    """On the clock of `Installation.logged`."""
    return time.mktime(time.strptime(pod["metadata"]["creationTimestamp"], "%Y-%m-%dT%H:%M:%SZ"))


@pytest.mark.long
def test_a_bad_change_of_the_ensemble_stalls_at_one_node(
    client: Client, shop: Workload, installation: Installation, recorder: Recorder
) -> None:
    leader = shop.settle()
    before = {pod["metadata"]["uid"] for pod in installation.nodes()}
    good = client.get(SYSTEM, "lockensemble", ENSEMBLE)["spec"]["image"]

    def stalled() -> str | None:
        found = [c for c in installation.status()["conditions"] if c["type"] == "Updated"]
        return found[0]["message"] if found and found[0]["reason"] == "Stalled" else None

    with recorder.fault("the ensemble is given an image that is not there"):
        _set_image(client, "localhost/valky:8.1")
        said = until("the ensemble says that it stalls", stalled, seconds=PATIENCE, every=0.5)
        recorder.sentence("a running ensemble is given an image that is not there", said)
        assert "localhost/valky:8.1" in said
        assert len(before & {pod["metadata"]["uid"] for pod in installation.nodes()}) == 4
        assert shop.leads_still(leader)
        _set_image(client, good)
    installation.wait_until_open()
    assert shop.leads_still(leader)


def _set_image(client: Client, image: str) -> None:
    patch = json.dumps({"spec": {"image": image}})
    edit = ("patch", "lockensemble", ENSEMBLE, "--type=merge", "-p", patch)
    client.kubectl("-n", SYSTEM, *edit)


@pytest.mark.long
def test_an_upgrade_of_the_chart_leaves_the_running_election_alone(
    client: Client, shop: Workload, installation: Installation, recorder: Recorder
) -> None:
    """There is no release before this one yet: the upgrade is to other images, under other names,
    and with another log level. The operator is replaced; pods that are made later get the new
    sidecar, and those that run keep theirs."""
    first = shop.settle()
    for node in client.cluster.nodes:
        for name in ("operator", "sidecar"):
            _tag(str(node.containerd_socket), f"localhost/leasekeeper-{name}", "dev", "next")
    values = ("operator.image.tag=next", "operator.logLevel=debug")
    try:
        with recorder.fault("helm upgrade"):
            installation.helm("upgrade", *values)
        (pod,) = client.items(SYSTEM, "pods", "-l", "app.kubernetes.io/component=operator")[:1]
        assert pod["spec"]["containers"][0]["image"] == "localhost/leasekeeper-operator:next"
        assert shop.leads_still(first)
        # The new operator injects.
        client.kubectl("-n", shop.namespace, "delete", "pod", first.holder)
        shop.settle()
    finally:
        installation.helm("upgrade")
    shop.settle()


def _tag(socket: str, name: str, old: str, new: str) -> None:
    ctr = ["ctr", "-a", socket, "-n", "k8s.io", "images", "tag", "--force"]
    subprocess.run([*ctr, f"{name}:{old}", f"{name}:{new}"], check=True, capture_output=True)


@pytest.mark.long
def test_a_restart_of_the_operator_costs_nothing(
    client: Client, shop: Workload, recorder: Recorder
) -> None:
    first = shop.settle()
    with recorder.fault("kubectl rollout restart of the operator"):
        deployment = ("-n", SYSTEM, "deployment/leasekeeper-operator")
        client.kubectl("rollout", "restart", *deployment)
        wait = f"--timeout={PATIENCE:.0f}s"
        client.kubectl("rollout", "status", *deployment, wait, seconds=PATIENCE + 30)
    assert shop.leads_still(first)
    until("the status names the holder", lambda: shop.mirrored(first))
