"""The whole operator as a process, with the rights of its README and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube_lease import fresh_lease
from leasekeeper_operator.webhook import LINGER_SECONDS
from servers import free_port

from tests.operator.conftest import REPOSITORY, Cluster, Refusal, eventually

Object = dict[str, Any]
README = REPOSITORY / "operator" / "leasekeeper_operator" / "README.md"


class Operator:
    """A child process; its kubeconfig is that of a service account."""

    program: tuple[str, ...] = ("-m", "leasekeeper_operator.main")

    def __init__(
        self, cluster: Cluster, home: Path, namespace: str = "", account: str = "operator"
    ) -> None:
        self.cluster = cluster
        self.namespace = namespace or cluster.namespace()
        self.account = account
        self.home = home
        home.mkdir(exist_ok=True)
        self.port = free_port()
        self.metrics_port = free_port()
        self.log = home / "operator.log"
        self._child: subprocess.Popen[bytes] | None = None

    def grant(self) -> None:
        blocks = re.findall(r"```yaml\n(rules:.*?)```", README.read_text(), re.DOTALL)
        (rules,) = (yaml.safe_load(block)["rules"] for block in blocks)
        (election,) = re.findall(r"```yaml\n(namespaced:.*?)```", README.read_text(), re.DOTALL)
        election = election.replace("<LEASEKEEPER_ELECTION_LEASE>", "leasekeeper-operator")
        for rule in rules:
            if "resourceNames" in rule:
                rule["resourceNames"] = [self.namespace]
        rbac = "rbac.authorization.k8s.io"
        subject = {"kind": "Group", "name": f"system:serviceaccounts:{self.namespace}"}
        role = {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole"}
        name = {"metadata": {"name": self.namespace}}
        self.cluster.apply({**role, **name, "rules": rules})
        place = {"metadata": {"name": "election", "namespace": self.namespace}}
        own = yaml.safe_load(election)["namespaced"]
        self.cluster.apply({**role, "kind": "Role", **place, "rules": own})
        self.cluster.apply(fresh_lease(self.namespace, "leasekeeper-operator"))
        bind = ("create", "rolebinding", "election", "--role=election")
        self.cluster.run("-n", self.namespace, *bind, f"--group={subject['name']}")
        self.cluster.apply(
            {
                "apiVersion": f"{rbac}/v1",
                "kind": "ClusterRoleBinding",
                **name,
                "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": self.namespace},
                "subjects": [subject],
            }
        )

    def kubeconfig(self) -> str:
        with contextlib.suppress(Refusal):
            self.cluster.run("-n", self.namespace, "create", "serviceaccount", self.account)
        token = self.cluster.run("-n", self.namespace, "create", "token", self.account).strip()
        config = yaml.safe_load(Path(self.cluster.kubeconfig).read_text())
        config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
        path = self.home / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return str(path)

    def start(self, **more: str) -> None:
        environment = {
            "PATH": os.environ["PATH"],
            "KUBECONFIG": self.kubeconfig(),
            "LEASEKEEPER_NAMESPACE": self.namespace,
            "LEASEKEEPER_SIDECAR_IMAGE": "example.test/sidecar:1",
            "LEASEKEEPER_WEBHOOK_SERVICE": "hook",
            "LEASEKEEPER_WEBHOOK_CONFIGURATION": self.namespace,
            "LEASEKEEPER_WEBHOOK_PORT": str(free_port()),
            "LEASEKEEPER_HTTP_PORT": str(self.port),
            "LEASEKEEPER_METRICS_PORT": str(self.metrics_port),
            **more,
        }
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, *self.program],
                env=environment,
                stdout=log,
                stderr=log,
            )

    @property
    def ready(self) -> bool:
        assert self._child is not None
        assert self._child.poll() is None, self.log.read_text()
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/readyz", timeout=2
            ) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def metrics(self) -> dict[str, float]:
        address = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(address, timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def resident_mib(self) -> float:
        assert self._child is not None
        status = Path(f"/proc/{self._child.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
        return int(line.split()[1]) / 1024

    def stop(self) -> float:
        """How long a graceful end took."""
        if self._child is None:
            return 0.0
        started = time.monotonic()
        self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child = None
        return time.monotonic() - started


@pytest.fixture(scope="module")
def operator(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    operator = Operator(cluster, tmp_path_factory.mktemp("operator"))
    operator.grant()
    # It serves the whole cluster, and the tests before have left their resources there.
    cluster.run("delete", "dlock,lens", "--all", "--all-namespaces")
    cluster.apply(webhook_configuration(operator.namespace))
    operator.start()
    try:
        yield operator
    finally:
        operator.stop()
        kinds = "clusterrole,clusterrolebinding,mutatingwebhookconfiguration"
        cluster.run("delete", kinds, operator.namespace)


def webhook_configuration(name: str) -> Object:
    """As the chart's, but for a kind that nobody makes: the server's Service is not here."""
    rule = {
        "apiGroups": ["leasekeeper.dev"],
        "apiVersions": ["*"],
        "resources": ["nothing"],
        "operations": ["CREATE"],
    }
    webhook = {
        "name": "inject.leasekeeper.dev",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": {"name": "hook", "namespace": name, "path": "/inject"}},
        "rules": [rule],
        "sideEffects": "None",
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [webhook],
    }


def forbidden(operator: Operator) -> list[str]:
    return [line for line in operator.log.read_text().splitlines() if "forbidden" in line.lower()]


async def test_it_becomes_ready(operator: Operator) -> None:
    await eventually(lambda: operator.ready, "the operator to be ready")


async def test_the_api_server_is_told_which_authority_to_trust(operator: Operator) -> None:
    found = operator.cluster.get("", "mutatingwebhookconfiguration", operator.namespace) or {}
    (webhook,) = found["webhooks"]
    assert webhook["clientConfig"]["caBundle"]
    assert webhook["clientConfig"]["service"]["name"] == "hook"  # the chart's part stays
    assert webhook["rules"][0]["resources"] == ["nothing"]


async def test_a_lock_that_is_created_is_published(operator: Operator) -> None:
    cluster, namespace = operator.cluster, operator.namespace
    cluster.ensemble(namespace, "default", nodes=3)
    cluster.lock(namespace)  # `spec: {}`: on the default ensemble
    for kind, name in (
        ("secret", "leasekeeper-orders"),
        ("rolebinding", "leasekeeper-orders"),
        ("statefulset", "default-2"),
        ("networkpolicy", "default"),
    ):
        await eventually(lambda k=kind, n=name: cluster.get(namespace, k, n), f"{kind} {name}")  # type: ignore[misc]

    def condition() -> Any:
        status = (cluster.get(namespace, "dlock", "orders") or {}).get("status", {})
        return status.get("conditions")

    conditions = await eventually(condition, "conditions")
    reasons = {c["type"]: c["reason"] for c in conditions}
    assert (reasons["Ready"], reasons["QuorumAvailable"]) == ("NoQuorum", "NoQuorum")
    assert forbidden(operator) == []


async def test_its_metrics_say_who_leads_what_is_done_and_what_is_open(operator: Operator) -> None:
    page = await asyncio.to_thread(operator.metrics)
    assert page["leasekeeper_operator_leading"] == 1
    assert page["leasekeeper_operator_failing"] == 0
    assert page["leasekeeper_operator_writes_total"] > 0
    assert page['leasekeeper_operator_reconciles_total{kind="DistributedLock",outcome="done"}'] > 0
    assert page['leasekeeper_operator_reconcile_seconds_count{kind="LockEnsemble"}'] > 0
    where = f'{{ensemble="default",namespace="{operator.namespace}"}}'
    assert page[f"leasekeeper_ensemble_nodes{where}"] == 3
    assert page[f"leasekeeper_ensemble_nodes_open{where}"] == 0


async def test_what_is_deleted_by_hand_comes_back_by_itself(operator: Operator) -> None:
    cluster, namespace = operator.cluster, operator.namespace
    for kind, name in (
        ("secret", "leasekeeper-orders"),
        ("service", "default-1"),
        ("configmap", "default-membership"),
    ):
        before = cluster.get(namespace, kind, name)
        assert before is not None
        cluster.run("-n", namespace, "delete", kind, name)

        def again(kind: str = kind, name: str = name, uid: str = before["metadata"]["uid"]) -> bool:
            found = cluster.get(namespace, kind, name)
            return found is not None and bool(found["metadata"]["uid"] != uid)

        await eventually(again, f"{kind} {name} to be made again")


async def test_a_statefulset_edited_by_hand_comes_back_by_itself(operator: Operator) -> None:
    cluster, namespace = operator.cluster, operator.namespace
    cluster.patch(namespace, "statefulset", "default-0", {"spec": {"replicas": 0}})

    def replicas() -> bool:
        found = cluster.get(namespace, "statefulset", "default-0") or {}
        return bool(found["spec"]["replicas"] == 1)

    await eventually(replicas, "the StatefulSet to be brought back")


async def test_kopf_leaves_no_trace_on_users_objects(operator: Operator) -> None:
    for kind, name in (("dlock", "orders"), ("lens", "default")):
        metadata = (operator.cluster.get(operator.namespace, kind, name) or {})["metadata"]
        assert "finalizers" not in metadata
        assert "annotations" not in metadata


FORBIDDEN = [
    # What would make it an administrator.
    "create clusterrole x --verb=get --resource=pods",
    "create clusterrolebinding x --clusterrole=cluster-admin --user=x",
    "create role x --verb=get --resource=secrets",
    "create rolebinding x --clusterrole=cluster-admin --user=x",
    "create serviceaccount x",
    "create token default",
    # What is the users' own.
    "create namespace x",
    "delete namespace default",
    "get nodes",
    "run x --image=x",
    "create deployment x --image=x",
    "create configmap other --from-literal=a=b",
    "delete configmap kube-root-ca.crt",
    "delete dlock --all",
    "delete lens --all",
    "delete statefulset --all",
    'patch dlock orders --type=merge -p {"spec":{"paused":true}}',
    "get mutatingwebhookconfiguration",
    "get crd",
]
ALLOWED = {
    "create role x --verb=get --resource=secrets",  # no more than it has: nobody can grant that
    "create configmap other --from-literal=a=b",
}


@pytest.mark.parametrize("command", FORBIDDEN)
async def test_what_it_must_not_do_is_forbidden(operator: Operator, command: str) -> None:
    """By trying it, with its token. What it may do without need is named, too."""
    trial = () if command.startswith(("get", "create token")) else ("--dry-run=server",)
    config = operator.home / "kubeconfig"
    asked = ("--kubeconfig", str(config), "-n", operator.namespace, *command.split(" "), *trial)
    done = await asyncio.to_thread(
        subprocess.run,
        [operator.cluster.kubectl, *asked],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    refused = done.returncode != 0 and "forbidden" in done.stderr.lower()
    assert refused == (command not in ALLOWED), done.stderr + done.stdout


async def test_nothing_is_written_at_rest(operator: Operator) -> None:
    """Counted by the API server itself: no request of a kind that writes, not even one without
    effect."""

    def writes() -> Object:
        kinds = "secrets|statefulsets|lockensembles|distributedlocks|roles"
        verbs = "APPLY|PATCH|PUT|POST|DELETE"
        pattern = re.compile(rf'apiserver_request_total{{.*resource="({kinds})".*verb="({verbs})"')
        lines = operator.cluster.run("get", "--raw", "/metrics").splitlines()
        return {line.split(" ")[0]: line.split(" ")[1] for line in lines if pattern.match(line)}

    await asyncio.sleep(3)  # for what the tests before have set in motion
    before = await asyncio.to_thread(writes)
    assert before
    await asyncio.sleep(12)  # two looks and more
    assert await asyncio.to_thread(writes) == before


async def test_a_lock_that_is_deleted_is_cleaned_up(operator: Operator) -> None:
    cluster, namespace = operator.cluster, operator.namespace
    cluster.run("-n", namespace, "delete", "dlock", "orders")
    await eventually(
        lambda: cluster.get(namespace, "secret", "leasekeeper-orders") is None,
        "the lock's Secret to go",
    )


async def test_it_says_what_it_did_with_the_events_name_first(operator: Operator) -> None:
    lines = operator.log.read_text().splitlines()
    events = {line.split()[3] for line in lines if len(line.split()) > 3}
    assert {"started", "passwords-made", "lock-published", "lock-gone"} <= events
    assert forbidden(operator) == []
    assert "Traceback" not in operator.log.read_text()


async def test_it_is_small_and_ends_when_its_webhook_has_had_its_time(operator: Operator) -> None:
    assert operator.resident_mib() < 120
    assert LINGER_SECONDS <= await asyncio.to_thread(operator.stop) < LINGER_SECONDS + 5
    assert "stopped" in operator.log.read_text()


def test_help_names_every_setting() -> None:
    command = [sys.executable, "-m", "leasekeeper_operator.main", "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    from leasekeeper_operator.settings import Settings

    for field in Settings.__dataclass_fields__:
        assert f"LEASEKEEPER_{field.upper()}" in text
        assert f"`LEASEKEEPER_{field.upper()}`" in README.read_text()


def test_a_setting_that_is_missing_is_named() -> None:
    command = [sys.executable, "-m", "leasekeeper_operator.main"]
    done = subprocess.run(command, capture_output=True, text=True, env={}, check=False)
    assert done.returncode == 1
    assert done.stderr == "leasekeeper-operator: LEASEKEEPER_NAMESPACE must be set\n"


def test_resources_are_json() -> None:
    from leasekeeper_operator.settings import Settings

    told = {"LEASEKEEPER_NAMESPACE": "a", "LEASEKEEPER_SIDECAR_IMAGE": "b"}
    wanted = {"limits": {"memory": "1Gi"}}
    given = Settings.from_environment({**told, "LEASEKEEPER_SIDECAR_RESOURCES": json.dumps(wanted)})
    assert given.sidecar_resources == wanted
