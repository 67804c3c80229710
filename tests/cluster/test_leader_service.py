"""6. The leader-only Service: a client that asks every 10 ms sees one leader, and tokens that grow.

The app behind it applies the reader's rule to each request; what the Service does alone, and too
late by nature (an address travels through API server and kube-proxy), is only to find it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from localkube import processes

from leasekeeper.demo.history import now
from tests.cluster.asker import APP, Answer, Asker, regressions
from tests.cluster.client import Client, until
from tests.cluster.faults import Faults, pause
from tests.cluster.installation import Installation
from tests.cluster.recorder import Recorder
from tests.cluster.watcher import Watcher
from tests.cluster.workload import (
    LEASE,
    PATIENCE,
    TIMINGS,
    Tenure,
    Workload,
    example,
    make_namespace,
)

NAMESPACE = "leader-service"
PORT = 80
HTTP = {"name": "http", "port": PORT, "targetPort": 8000}


@pytest.fixture(scope="module")
def site(
    client: Client, watcher: Watcher, recorder: Recorder, installation: Installation
) -> Iterator[Workload]:
    """Three pods of an app that answers, and a Service that leads to the one that leads."""
    workload = Workload(client, watcher, recorder, NAMESPACE)
    make_namespace(client, NAMESPACE)
    lock, deployment = example()
    lock["spec"] = {**TIMINGS, "service": {"name": "leader", "ports": [HTTP]}}
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container["image"] = "localhost/leasekeeper-sidecar:dev"  # there is a Python in it
    container["command"] = ["python3.13", "-c", APP]
    container["resources"] = {"limits": {"memory": "64Mi"}}
    client.apply(NAMESPACE, lock)
    workload.wait("dlock/orders", "condition=Ready")
    client.apply(NAMESPACE, deployment)
    workload.settle()
    yield workload
    workload.remove()


@pytest.fixture
def asker(client: Client, site: Workload, recorder: Recorder, tmp_path: Path) -> Iterator[Asker]:
    recorder.namespace(NAMESPACE)
    kubelet = processes.component_pid(client.cluster, f"{client.cluster.nodes[0].name}.kubelet")
    assert kubelet is not None
    address = client.get(NAMESPACE, "service", "leader")["spec"]["clusterIP"]
    with Asker(tmp_path / "answers.jsonl", kubelet, address, PORT) as running:
        yield running


def answered_by(asker: Asker, leader: Tenure) -> Answer:
    """The first answer with this tenure's token."""

    def found() -> Answer | None:
        return next((one for one in asker.answers() if one.token == leader.token), None)

    return until(f"the Service leads to {leader.holder}", found, seconds=PATIENCE)


def check(site: Workload, asker: Asker, recorder: Recorder, old: Tenure, new: Tenure) -> None:
    """After all is quiet again, and a lease more: whoever could answer with an old token has had
    its time to do so."""
    first = answered_by(asker, new)
    site.settle()
    pause(LEASE)
    leader, since = site.settle(), now()
    until("it is asked again", lambda: asker.answers()[-1].asked > since)
    answers = asker.answers()
    assert regressions(answers) == []
    latest = [one for one in answers if one.token][-1]
    assert latest.token == max(one.token for one in answers) == leader.token
    assert latest.asked > since - LEASE, "the Service leads to somebody who leads"
    last = max(one.answered for one in answers if one.token == old.token)
    good = sum(1 for one in answers if one.token)
    recorder.measured(f"{good} of {len(answers)} questions answered; gap", first.asked - last, "s")


def test_the_leaders_pod_is_deleted(
    site: Workload, asker: Asker, faults: Faults, recorder: Recorder
) -> None:
    old = site.settle()
    answered_by(asker, old)
    deleted = faults.delete(site.pod(old.holder))
    done = site.next_leader(old, deleted, "pod deleted, behind a leader-only Service")
    check(site, asker, recorder, done.old, done.new)


@pytest.mark.long
def test_the_leaders_sidecar_is_frozen(
    site: Workload, asker: Asker, faults: Faults, recorder: Recorder
) -> None:
    """The Service leads to it until the operator knows better; its app refuses by itself."""
    old = site.settle()
    answered_by(asker, old)
    with faults.frozen(site.pod(old.holder), "leasekeeper") as since:
        done = site.next_leader(old, since, "sidecar frozen, behind a leader-only Service")
        answered_by(asker, done.new)
    check(site, asker, recorder, done.old, done.new)


@pytest.mark.long
def test_a_rolling_update(client: Client, site: Workload, asker: Asker, recorder: Recorder) -> None:
    old = site.settle()
    answered_by(asker, old)
    with recorder.fault("kubectl rollout restart deployment/orders"):
        client.kubectl("-n", NAMESPACE, "rollout", "restart", "deployment/orders")
        new = site.settle()
    check(site, asker, recorder, old, new)
