"""4. New passwords, of the ensemble and of a lock, under a running election: no leader notices."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from tests.cluster.client import Client, until
from tests.cluster.installation import ENSEMBLE, SYSTEM, Installation
from tests.cluster.recorder import Recorder
from tests.cluster.workload import PATIENCE, Workload

pytestmark = pytest.mark.long

SINCE = "leasekeeper.dev/passwords-since"


def read(client: Client, namespace: str, name: str) -> dict[str, str]:
    """A Secret's texts."""
    data = client.get(namespace, "secret", name)["data"]
    return {key: base64.b64decode(text).decode() for key, text in data.items()}


def long_ago(client: Client, namespace: str, secret: str) -> None:
    """The ten minutes in which kubelets bring the new passwords are not waited for: they have."""
    stamp = (datetime.now(UTC) - timedelta(minutes=11)).strftime("%Y-%m-%dT%H:%M:%SZ")
    edit = ("annotate", "--overwrite", "secret", secret, f"{SINCE}={stamp}")
    client.kubectl("-n", namespace, *edit)


def raise_generation(client: Client, namespace: str, kind: str, name: str) -> None:
    patch = json.dumps({"spec": {"passwordGeneration": 2}})
    client.kubectl("-n", namespace, "patch", kind, name, "--type=merge", "-p", patch)


def test_a_new_password_of_a_lock(client: Client, shop: Workload, recorder: Recorder) -> None:
    leader = shop.settle()

    def published() -> str:
        lock = json.loads(read(client, shop.namespace, "leasekeeper-orders")["lock.json"])
        return str(lock["redlock"]["password"])

    def mounted(pod: str) -> str:
        show = ("exec", pod, "-c", "leasekeeper", "--", "cat", "/etc/leasekeeper/lock.json")
        return str(json.loads(client.kubectl("-n", shop.namespace, *show))["redlock"]["password"])

    old = published()
    with recorder.fault("spec.passwordGeneration of the lock is raised"):
        raise_generation(client, shop.namespace, "dlock", "orders")
        new = until("a new one is published", lambda: (p := published()) != old and p)
        names = [pod["metadata"]["name"] for pod in shop.pods()]
        until("all pods have it", lambda: {mounted(name) for name in names} == {new}, every=1)
        long_ago(client, shop.namespace, "leasekeeper-orders")
        until(
            "the old one is refused everywhere",
            lambda: shop.status().get("passwordGeneration") == 2,
            seconds=2 * PATIENCE,
            every=0.5,
        )
    assert shop.leads_still(leader)
    # Those who stand by were cut off, too, and are back.
    client.kubectl("-n", shop.namespace, "delete", "pod", leader.holder)
    assert shop.settle().token > leader.token


def test_new_passwords_of_the_ensemble(
    client: Client, shop: Workload, installation: Installation, recorder: Recorder
) -> None:
    """Of agents, peers and the operator. A node that is made anew afterwards learns from the others
    by the new ones."""
    leader = shop.settle()
    name = f"{ENSEMBLE}-credentials"
    before = read(client, SYSTEM, name)
    nodes = {node["metadata"]["uid"] for node in installation.nodes()}
    with recorder.fault("spec.passwordGeneration of the ensemble is raised"):
        raise_generation(client, SYSTEM, "lockensemble", ENSEMBLE)

        def used() -> dict[str, str] | None:
            now = read(client, SYSTEM, name)
            return now if "old-agent" in now else None

        after = until("new ones are used", used, seconds=2 * PATIENCE, every=0.5)
        assert all(after[user] != before[user] for user in ("agent", "peer", "operator"))
        for number in range(5):
            until(
                f"agent {number} has the new one",
                partial(installation.agent_has, number, after["agent"]),
                every=1,
            )
        long_ago(client, SYSTEM, name)
        until(
            "the old ones are gone",
            lambda: "old-agent" not in read(client, SYSTEM, name),
            seconds=2 * PATIENCE,
            every=0.5,
        )
        until(
            "no node takes the old one",
            lambda: not any(installation.takes(number, before["agent"]) for number in range(5)),
            every=1,
        )
    assert all(installation.takes(number, after["agent"]) for number in range(5))
    assert shop.leads_still(leader)
    assert {node["metadata"]["uid"] for node in installation.nodes()} == nodes
    memory = installation.agent(3)
    assert memory is not None
    client.kubectl("-n", SYSTEM, "delete", "pod", f"{ENSEMBLE}-3-0")
    installation.open_again(3, memory)
    installation.wait_until_open()
    assert shop.leads_still(leader)
