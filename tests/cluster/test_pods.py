"""2. Pods with other wishes: two locks in one pod, a Job, an app that says when it is ill."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.client import Client, condition, until
from tests.cluster.installation import Installation
from tests.cluster.recorder import Recorder
from tests.cluster.watcher import Watcher
from tests.cluster.workload import PATIENCE, Tenure, Workload, example, gave_back, make_namespace

NAMESPACE = "pods"
HEALTHY = "/var/run/health/well"


class Site:
    """A namespace in which each test has a lock or two, and pods, of names of its own."""

    def __init__(self, client: Client, watcher: Watcher, recorder: Recorder) -> None:
        self.client, self._watcher, self._recorder = client, watcher, recorder

    def election(self, lock: str) -> Workload:
        self._recorder.namespace(NAMESPACE)
        return Workload(self.client, self._watcher, self._recorder, NAMESPACE, f"deployment/{lock}")

    def locks(self, *names: str) -> None:
        lock, _ = example()
        self.client.apply(NAMESPACE, *({**lock, "metadata": {"name": name}} for name in names))
        for name in names:
            self.election(name).wait(f"dlock/{name}", "condition=Ready")

    def deploy(self, name: str, command: str, **annotations: str) -> None:
        """Two pods of a Deployment of that name, with these annotations of ours."""
        template = pod_template(command, app=name, **annotations)
        self.client.apply(
            NAMESPACE,
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": name},
                "spec": {
                    "replicas": 2,
                    "selector": {"matchLabels": {"app": name}},
                    "template": template,
                },
            },
        )
        rollout = ("rollout", "status", f"deployment/{name}", f"--timeout={PATIENCE:.0f}s")
        self.client.kubectl("-n", NAMESPACE, *rollout, seconds=PATIENCE + 30)

    def asked(self, pod: str, *arguments: str) -> str:
        """What the app's own container says to a command; empty if it exits with another code."""
        return self.client.run(
            "kubectl", "-n", NAMESPACE, "exec", pod, "-c", "app", "--", *arguments
        ).stdout.strip()


def pod_template(command: str, app: str, **annotations: str) -> dict[str, Any]:
    _, deployment = example()
    template: dict[str, Any] = deployment["spec"]["template"]
    template["metadata"] = {
        "labels": {"app": app},
        "annotations": {
            f"leasekeeper.dev/{key.replace('_', '-')}": value for key, value in annotations.items()
        },
    }
    template["spec"].pop("topologySpreadConstraints")
    template["spec"]["containers"][0]["command"] = ["sh", "-c", command]
    return template


@pytest.fixture(scope="module")
def site(
    client: Client, watcher: Watcher, recorder: Recorder, installation: Installation
) -> Iterator[Site]:
    make_namespace(client, NAMESPACE)
    made = Site(client, watcher, recorder)
    yield made
    made.election("orders").remove()


def leads(election: Workload) -> Tenure:
    return until(f"a pod leads {election.lock}", election.leader, seconds=PATIENCE)


SLEEP = "trap 'exit 0' TERM; sleep infinity & wait"


def test_one_sidecar_holds_two_locks_each_on_its_own(site: Site, recorder: Recorder) -> None:
    """Asked to step down from one of them, the pod leads the other without a gap."""
    site.locks("goods", "stock")
    site.deploy("shop", SLEEP, lock="goods,stock")
    goods, stock = site.election("goods"), site.election("stock")
    kept, old = leads(goods), leads(stock)
    ask = "/var/run/lock/is-leader"
    assert site.asked(kept.holder, ask, "--lock", "goods", "--token") == str(kept.token)
    own = "/var/run/lock/stock/is-leader"
    assert site.asked(old.holder, own, "--token") == str(old.token)
    wish = json.dumps({"spec": {"stepDown": {"token": old.token}}})
    asked = recorder.moment(f"kubectl patch dlock stock: {wish}")
    site.client.kubectl("-n", NAMESPACE, "patch", "dlock", "stock", "--type=merge", "-p", wish)
    done = stock.next_leader(old, asked, "one of a pod's two locks: asked to step down")
    assert done.new.holder != old.holder
    assert goods.leads_still(kept)
    assert site.asked(old.holder, ask, "--lock", "stock") == ""
    until("both holders are in the status", lambda: stock.mirrored(done.new))
    assert goods.mirrored(kept)


def test_the_pods_of_a_job_work_one_after_the_other_and_are_done(site: Site) -> None:
    """The sidecar ends with the app, gives the lock back, and the pod counts as succeeded."""
    site.locks("nightly")
    work = "/var/run/lock/run-as-leader --grace 0 sh -c 'echo $LEASEKEEPER_TOKEN; sleep 1'"
    template = pod_template(work, app="nightly", lock="nightly")
    template["spec"]["restartPolicy"] = "Never"
    spec = {"completions": 2, "parallelism": 2, "backoffLimit": 0, "template": template}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "nightly"}, "spec": spec}
    site.client.apply(NAMESPACE, job)
    nightly = site.election("nightly")
    nightly.wait("job/nightly", "condition=Complete")
    pods = site.client.items(NAMESPACE, "pods", "-l", "app=nightly")
    assert [pod["status"]["phase"] for pod in pods] == ["Succeeded"] * 2
    for pod in pods:
        (sidecar,) = pod["status"]["initContainerStatuses"]
        assert sidecar["state"]["terminated"]["exitCode"] == 0, sidecar
    said = [
        site.client.kubectl("-n", NAMESPACE, "logs", pod["metadata"]["name"], "-c", "app")
        for pod in pods
    ]
    first, second = sorted(int(text) for text in said)
    led = sorted(nightly.tenures(), key=lambda one: one.began)
    assert [one.token for one in led] == [first, second]
    assert gave_back(*led), "and not waited for"
    until("nobody leads", lambda: nightly.leader() is None)


def test_an_app_that_says_that_it_is_ill_gives_way_and_comes_back(
    site: Site, recorder: Recorder
) -> None:
    """By a file that it takes away: the folder is a volume that injection made for it."""
    site.locks("patient")
    command = f"touch {HEALTHY}; {SLEEP}"
    site.deploy("patient", command, lock="patient", health=HEALTHY, health_period="0.5")
    patient = site.election("patient")
    old = patient.settle()
    site.client.kubectl("-n", NAMESPACE, "exec", old.holder, "-c", "app", "--", "rm", HEALTHY)
    ill = recorder.moment(f"{old.holder} says that it is ill")
    done = patient.next_leader(old, ill, "the app says that it is ill")
    assert done.new.holder != old.holder
    assert all(condition(pod, "Ready") == "True" for pod in patient.pods())
    # Alone in the race but ill, it does not lead; well again, it does.
    gone = recorder.moment(f"{done.new.holder} says that it is ill, too")
    exec_ = ("-n", NAMESPACE, "exec", "-c", "app")
    site.client.kubectl(*exec_, done.new.holder, "--", "rm", HEALTHY)
    until("nobody leads", lambda: patient.leader() is None)
    site.client.kubectl(*exec_, old.holder, "--", "touch", HEALTHY)
    again = patient.next_leader(done.new, gone, "well again")
    assert again.new.holder == old.holder
