"""5. API server and etcd are down: leadership goes on, hand-over goes on, the status catches up."""

from __future__ import annotations

import signal

import pytest

from tests.cluster.client import Client, until
from tests.cluster.faults import Faults, api_ready, pause
from tests.cluster.installation import SYSTEM, Installation
from tests.cluster.workload import LEASE, PATIENCE, Tenure, Workload

OUTAGE = 60.0


@pytest.mark.long
def test_a_minute_without_api_server_and_etcd(
    client: Client, shop: Workload, faults: Faults, installation: Installation
) -> None:
    first = shop.settle()
    until("the status names the holder", lambda: shop.mirrored(first))
    pods = {pod["metadata"]["name"]: pod for pod in shop.pods()}
    operators = _operators(client)
    with faults.components_killed("etcd", "apiserver"):
        assert not api_ready(client)
        pause(2 * LEASE)
        assert shop.leads_still(first), "nobody needs the API to go on leading"

        stopped = faults.kill(pods[first.holder], "leasekeeper", signal.SIGTERM)
        second = shop.next_leader(first, stopped, "sidecar told to stop, no API server").new
        with faults.frozen(pods[second.holder], "leasekeeper") as since:
            third = shop.next_leader(second, since, "sidecar frozen, no API server").new
        pause(OUTAGE - 5 * LEASE)
        assert shop.leads_still(third)
    until("the API server is ready", lambda: api_ready(client), seconds=2 * PATIENCE)
    last = _catches_up(shop)
    assert last.token >= third.token
    installation.wait_until_open()
    # The one that acts cannot renew its Lease and ends; the others go on serving the webhook.
    assert _operators(client) & operators, "the webhook was never away"
    # Kubernetes' own parts take a minute or more to notice: until then no pod is ended or made.
    deleted = faults.delete(shop.pod(last.holder))
    shop.next_leader(last, deleted, "pod deleted, after the outage")
    shop.settle()


def _catches_up(shop: Workload) -> Tenure:
    def caught_up() -> Tenure | None:
        leader = shop.leader()
        return leader if leader is not None and shop.mirrored(leader) else None

    return until("the status names the holder", caught_up, seconds=2 * PATIENCE)


def _operators(client: Client) -> set[tuple[str, int]]:
    """Its replicas, each with how often it was started again."""
    pods = client.items(SYSTEM, "pods", "-l", "app.kubernetes.io/component=operator")
    return {
        (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
        for pod in pods
    }
