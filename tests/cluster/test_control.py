"""Control: the same fault with the fencing deadline removed. The watcher must find two leaders."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.cluster.client import Client, until
from tests.cluster.faults import Faults
from tests.cluster.recorder import Recorder
from tests.cluster.watcher import Watcher
from tests.cluster.workload import PATIENCE, Workload, example, make_namespace

# Python runs a module of this name, if it finds one, before everything else.
MUTANT = """
import dataclasses
from leasekeeper_sidecar import leadership

honest = leadership.leading_claim

def for_ever(*args, **named):
    claim = honest(*args, **named)
    hour = 3600
    return dataclasses.replace(
        claim, expires_unix=claim.expires_unix + hour, deadline_cs=claim.deadline_cs + 100 * hour
    )

leadership.leading_claim = for_ever
"""


def mutated(pod: dict[str, Any], name: str) -> dict[str, Any]:
    """The pod as the webhook made it, but its sidecar's leader file never ends. The annotation is
    what the webhook goes by: without it the pod is taken as it is."""
    spec = json.loads(json.dumps(pod["spec"]))
    (sidecar,) = [c for c in spec["initContainers"] if c["name"] == "leasekeeper"]
    sidecar["env"].append({"name": "PYTHONPATH", "value": "/mutant"})
    sidecar["volumeMounts"].append({"name": "mutant", "mountPath": "/mutant", "readOnly": True})
    spec["volumes"].append({"name": "mutant", "configMap": {"name": "mutant"}})
    spec.pop("nodeName", None)
    labels = pod["metadata"]["labels"]
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.mark.control("the leader file's deadline is an hour too late", lock="control/orders")
def test_without_the_deadline_a_frozen_sidecar_makes_two_leaders(
    client: Client,
    watcher: Watcher,
    recorder: Recorder,
    faults: Faults,
    installation: object,
) -> None:
    workload = Workload(client, watcher, recorder, "control")
    make_namespace(client, "control")
    recorder.namespace("control")
    lock, deployment = example()
    client.apply("control", lock)
    workload.wait("dlock/orders", "condition=Ready")
    data = {"sitecustomize.py": MUTANT}
    mutant = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mutant"}, "data": data}
    client.apply("control", mutant)
    try:
        _two_leaders(client, workload, faults, watcher, deployment)
    finally:
        # Whatever they do wrong belongs to this scenario: no later one is to be blamed for it.
        client.kubectl("-n", "control", "delete", "pods", "--all", seconds=PATIENCE)
        workload.remove()


def _two_leaders(
    client: Client,
    workload: Workload,
    faults: Faults,
    watcher: Watcher,
    deployment: dict[str, Any],
) -> None:
    template = deployment["spec"]["template"]
    template["metadata"]["name"] = "orders"
    asked = {"apiVersion": "v1", "kind": "Pod", **template}
    dry_run = ("-n", "control", "create", "--dry-run=server", "-o", "json", "-f", "-")

    def answered() -> dict[str, Any] | None:
        done = client.run("kubectl", *dry_run, given=yaml.safe_dump(asked))
        found: dict[str, Any] | None = json.loads(done.stdout) if done.returncode == 0 else None
        return found

    # Nobody asks again for a bare pod, and a webhook that was just installed may be out of reach
    # for a moment: docs/failure-modes.md.
    injected = until("the webhook answers", answered)
    client.apply("control", *(mutated(injected, f"orders-{i}") for i in (1, 2)))
    for name in ("orders-1", "orders-2"):
        workload.wait(f"pod/{name}", "condition=Ready")
    old = until("a pod leads", workload.leader)
    with faults.frozen(workload.pod(old.holder), "leasekeeper"):
        until(
            "the watcher finds two leaders",
            lambda: any("two leaders of control/orders" in text for text in watcher.wrong()),
            seconds=60,
        )
