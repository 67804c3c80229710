"""1. Install, declare, annotate: one pod leads, and everyone can see which."""

from __future__ import annotations

from tests.cluster.client import Client, until
from tests.cluster.installation import SYSTEM, Installation
from tests.cluster.workload import Workload


def test_helm_install_makes_an_ensemble_that_is_ready(
    client: Client, installation: Installation
) -> None:
    nodes = installation.nodes()
    assert len(nodes) == 5
    assert len({node["spec"]["nodeName"] for node in nodes}) == 2


def test_helm_test_takes_and_gives_back_a_probe_lock(
    client: Client, installation: Installation
) -> None:
    said = client.helm("test", "leasekeeper", "--namespace", SYSTEM, "--timeout=3m", seconds=200)
    assert "Phase:          Succeeded" in said
    assert client.items(SYSTEM, "dlock") == []


def test_one_of_the_operators_two_replicas_is_elected(
    client: Client, installation: Installation
) -> None:
    pods = client.items(SYSTEM, "pods", "-l", "app.kubernetes.io/component=operator")
    assert len(pods) == 2
    holder = client.get(SYSTEM, "lease", "leasekeeper-operator")["spec"]["holderIdentity"]
    assert holder.split("/")[0] in {pod["metadata"]["name"] for pod in pods}


def test_one_annotated_pod_of_three_leads(client: Client, shop: Workload) -> None:
    found = shop.pods()
    assert len(found) == 3
    assert len({pod["spec"]["nodeName"] for pod in found}) == 2
    for pod in found:
        sidecar = pod["spec"]["initContainers"][0]
        assert (sidecar["name"], sidecar["restartPolicy"]) == ("leasekeeper", "Always")
        assert pod["metadata"]["labels"]["leasekeeper.dev/lock"] == "orders"

    leader = shop.settle()
    tokens = {name: shop.is_leader(name) for name in (pod["metadata"]["name"] for pod in found)}
    leading = {name: token for name, token in tokens.items() if token is not None}
    assert leading == {leader.holder: leader.token}

    def acts() -> bool:
        said = client.kubectl("-n", shop.namespace, "logs", leader.holder, "-c", "app")
        return f"I lead with token {leader.token}" in said

    until("the app acts", acts)


def test_kubectl_get_dlock_shows_holder_and_token(client: Client, shop: Workload) -> None:
    leader = shop.settle()

    def shown() -> bool:
        head, line = client.kubectl("-n", shop.namespace, "get", "dlock", "orders").splitlines()
        row = dict(zip(head.split(), line.split(), strict=False))
        return (row["HOLDER"], row["TOKEN"]) == (leader.holder, str(leader.token))

    until(f"kubectl get dlock shows {leader.holder} and {leader.token}", shown)
