"""4. Uninstall: what users made stays, and nobody leads."""

from __future__ import annotations

from tests.cluster.client import Client, condition, until
from tests.cluster.faults import pause
from tests.cluster.installation import SELECTED, SYSTEM, Installation
from tests.cluster.recorder import Recorder
from tests.cluster.workload import DEADLINE, PATIENCE, Workload

KINDS = (
    "mutatingwebhookconfigurations,clusterroles,clusterrolebindings,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings"
)


def test_uninstall_leaves_the_workload_alone_and_nobody_leads(
    client: Client, shop: Workload, installation: Installation, recorder: Recorder
) -> None:
    """As the chart's README has it."""
    shop.settle()
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in shop.pods()}
    with recorder.fault("helm uninstall"):
        installation.uninstall()
    until("no node to be left", lambda: _left(client) == ["default-users"], PATIENCE, every=1)
    pause(DEADLINE)
    assert {name: shop.is_leader(name) for name in before} == dict.fromkeys(before)
    assert {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in shop.pods()} == before
    assert all(condition(pod, "Ready") == "True" for pod in shop.pods())
    assert client.items(SYSTEM, KINDS, "-l", "app.kubernetes.io/part-of=leasekeeper") == []
    client.get(shop.namespace, "dlock", "orders")  # what users made is theirs


def _left(client: Client) -> list[str]:
    found = client.items(SYSTEM, "pods,statefulsets,services,secrets,configmaps", *SELECTED)
    return [obj["metadata"]["name"] for obj in found]
