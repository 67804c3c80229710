"""7. What cannot work is refused, in a sentence that says what to do; what runs stays as it is."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.cluster.client import Client, until
from tests.cluster.recorder import Recorder
from tests.cluster.workload import PATIENCE, TIMINGS, Workload, example

GROUP = "leasekeeper.dev/v1alpha1"


def lock(name: str = "mail", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name}
    return {"apiVersion": GROUP, "kind": "DistributedLock", "metadata": metadata, "spec": spec}


def ensemble(name: str = "votes", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name}
    return {"apiVersion": GROUP, "kind": "LockEnsemble", "metadata": metadata, "spec": spec}


def pod(annotation: str, **changes: Any) -> dict[str, Any]:
    _, deployment = example()
    template = deployment["spec"]["template"]
    template["metadata"]["name"] = "one"
    template["metadata"]["annotations"] = {"leasekeeper.dev/lock": annotation}
    template["spec"].update(changes)
    return {"apiVersion": "v1", "kind": "Pod", **template}


EMPTY: dict[str, Any] = {"emptyDir": {}}

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a misspelt field": (lock(leaseDurationSecond=4), 'unknown field "spec.leaseDurationSecond"'),
    "text for a number": (lock(leaseDurationSeconds="soon"), "spec.leaseDurationSeconds: Invalid"),
    "a lease of no length": (lock(leaseDurationSeconds=0), "greater than or equal to 1"),
    "a lease that ends before its deadline": (
        lock(leaseDurationSeconds=5, renewDeadlineSeconds=5, retryPeriodSeconds=1),
        "the holder must stop before others may win. Raise the lease duration or lower the",
    ),
    "a deadline too near to the retry period": (
        lock(leaseDurationSeconds=9, renewDeadlineSeconds=3, retryPeriodSeconds=2),
        "spec.renewDeadlineSeconds must be at least spec.retryPeriodSeconds + 2",
    ),
    "a name that is no label": (lock(name="m" * 64), "must not be longer than 63 characters"),
    "an ensemble without a name": (lock(ensembleRef={}), "spec.ensembleRef.name: Required value"),
    "an even number of nodes": (ensemble(nodes=4), "spec.nodes must be odd"),
    "one node": (ensemble(nodes=1), "spec.nodes: Invalid value: 1"),
    "a quarantine shorter than the lease": (
        ensemble(longestLeaseSeconds=30, restartPolicy={"delaySeconds": 30}),
        "a node that lost its memory must not vote while a lease that it granted may live",
    ),
    "an ensemble with a digit first": (ensemble(name="5nodes"), "begin with a letter"),
    "a pod with a lock that is not there": (
        pod("oders"),
        "there is no DistributedLock 'oders' in the namespace 'refusals': create it first, or "
        "correct the annotation leasekeeper.dev/lock",
    ),
    "a pod with a lock that cannot be": (pod("Or ders"), "cannot be the name of a DistributedLock"),
    "a pod with a volume of our name": (
        pod("orders", volumes=[{"name": "leasekeeper-leader", **EMPTY}]),
        "already has a volume named 'leasekeeper-leader': rename that volume",
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_yaml_is_refused_by_the_api_server(
    client: Client, shop: Workload, recorder: Recorder, mistake: str
) -> None:
    manifest, sentence = WRONG[mistake]
    said = refused(client, shop.namespace, manifest)
    recorder.sentence(mistake, said)
    assert sentence in said


def refused(client: Client, namespace: str, manifest: dict[str, Any]) -> str:
    apply = ("-n", namespace, "apply", "-f", "-")
    done = client.run("kubectl", *apply, given=yaml.safe_dump(manifest))
    assert done.returncode != 0, f"accepted: {manifest}"
    return done.stderr


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"ensembleRef": {"name": "other"}}, "spec.ensembleRef cannot be changed"),
        ({"renewDeadlineSeconds": 40}, "the holder must stop before others may win"),
    ],
    ids=["another ensemble", "a deadline after the lease"],
)
def test_a_change_that_cannot_be_made_leaves_the_election_as_it_was(
    client: Client,
    shop: Workload,
    recorder: Recorder,
    change: dict[str, Any],
    sentence: str,
) -> None:
    leader = shop.settle()
    said = refused(client, shop.namespace, lock("orders", **{**TIMINGS, **change}))
    recorder.sentence(f"a running lock is given {next(iter(change))}", said)
    assert sentence in said
    assert shop.leads_still(leader)


def test_a_token_that_goes_down_is_refused(
    client: Client, shop: Workload, recorder: Recorder
) -> None:
    """By the API server itself, also from an administrator."""
    leader = shop.settle()
    until("the status names the holder", lambda: shop.mirrored(leader))
    for value in ("1", "null"):
        patch = f'{{"status": {{"token": {value}}}}}'
        edit = ("patch", "dlock", "orders", "--subresource=status", "--type=merge", "-p", patch)
        done = client.run("kubectl", "-n", shop.namespace, *edit)
        assert done.returncode != 0
        recorder.sentence(f"status.token is set to {value} by hand", done.stderr)
        assert "status.token must not go down or be taken away" in done.stderr
    assert shop.mirrored(leader)


IN_THE_STATUS: dict[str, tuple[dict[str, Any], str]] = {
    "a lock on an ensemble that is not there": (
        lock("stray", ensembleRef={"name": "nowhere"}, **TIMINGS),
        "there is no LockEnsemble refusals/nowhere: create it, or name another one",
    ),
    "a lease longer than the ensemble allows": (
        lock("patient", leaseDurationSeconds=60, renewDeadlineSeconds=40),
        "must not exceed spec.longestLeaseSeconds (4) of LockEnsemble leasekeeper/default",
    ),
}


@pytest.mark.parametrize("mistake", IN_THE_STATUS)
def test_what_only_the_operator_can_know_stands_in_the_status(
    client: Client, shop: Workload, recorder: Recorder, mistake: str
) -> None:
    manifest, sentence = IN_THE_STATUS[mistake]
    name = manifest["metadata"]["name"]
    client.apply(shop.namespace, manifest)

    def said() -> str | None:
        message = not_ready(client.get(shop.namespace, "dlock", name))
        return message if message and sentence in message else None

    recorder.sentence(mistake, until(f"the status of {name} says so", said))


def not_ready(thing: dict[str, Any]) -> str:
    """The sentence of the condition Ready, while that is false."""
    for found in thing.get("status", {}).get("conditions", []):
        if found["type"] == "Ready" and found["status"] == "False":
            return str(found["message"])
    return ""


def test_a_deployment_whose_lock_is_missing_says_so(
    client: Client, shop: Workload, recorder: Recorder
) -> None:
    _, deployment = example()
    deployment["metadata"]["name"] = "lost"
    template = deployment["spec"]["template"]
    template["metadata"]["annotations"] = {"leasekeeper.dev/lock": "lost"}
    template["metadata"]["labels"] = {"app": "lost"}
    deployment["spec"]["selector"]["matchLabels"] = {"app": "lost"}
    client.apply(shop.namespace, deployment)

    def said() -> str | None:
        found = client.get(shop.namespace, "deployment", "lost")
        for condition in found.get("status", {}).get("conditions", []):
            if condition["type"] == "ReplicaFailure":
                return str(condition["message"])
        return None

    message = until("the Deployment says so", said, seconds=PATIENCE)
    recorder.sentence("kubectl describe deployment, whose lock is missing", message)
    assert "there is no DistributedLock 'lost' in the namespace 'refusals'" in message
    client.kubectl("-n", shop.namespace, "delete", "deployment", "lost", "--wait=false")


HOPELESS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "an image that is not there": (
        ensemble("typo", image="localhost/valky:8.1", imagePullPolicy="Never", nodes=3),
        ("localhost/valky:8.1",),
    ),
    "no room in the cluster": (
        ensemble("giant", resources={"requests": {"memory": "4Ti"}}, nodes=3),
        ("Insufficient memory",),
    ),
}


@pytest.mark.parametrize("mistake", HOPELESS)
@pytest.mark.long
def test_an_ensemble_that_cannot_start_says_why(
    client: Client, shop: Workload, recorder: Recorder, mistake: str
) -> None:
    """In its own status: who asks for votes should not have to find the right pod to ask why."""
    manifest, words = HOPELESS[mistake]
    name = manifest["metadata"]["name"]
    client.apply(shop.namespace, manifest)

    def said() -> str | None:
        status = client.get(shop.namespace, "lockensemble", name).get("status", {})
        messages = [
            str(c["message"]) for c in status.get("conditions", []) if c["status"] != "True"
        ]
        return next((text for text in messages if all(word in text for word in words)), None)

    recorder.sentence(mistake, until(f"{name} says why", said, seconds=PATIENCE))
    client.kubectl("-n", shop.namespace, "delete", "lockensemble", name, "--wait=false")
