"""4. Rolling changes of workload, ensemble and chart, under a running election."""

from __future__ import annotations

import subprocess
from itertools import pairwise

import pytest

from tests.cluster.client import Client, until
from tests.cluster.installation import SYSTEM, Installation
from tests.cluster.recorder import Recorder
from tests.cluster.workload import PATIENCE, Tenure, Workload


def without_a_leader(tenures: list[Tenure]) -> float:
    """How long nobody led between the first and the last of them, in seconds."""
    return sum(
        max(0.0, after.began - before.ended)
        for before, after in pairwise(tenures)
        if before.ended is not None
    )


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
