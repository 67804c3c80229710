"""1. Every manifest of examples/, applied as it stands there, does what its comment says.

The chart has its own values here, and the locks their own timings: nothing is shortened. What a
user has and this cluster has not is brought: images under the published names, volumes for the
StatefulSet, a database for PostgreSQL. The programs of docs/app-contract.md, in five languages, are
run by tests/sidecar: a pod would add nothing but an image for each.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from localkube import processes

from tests.cluster.client import Client, load, until
from tests.cluster.conftest import REPOSITORY
from tests.cluster.faults import Faults
from tests.cluster.installation import IMAGES, Installation
from tests.cluster.published import bring_debian, bring_python_and_postgresql
from tests.cluster.recorder import Recorder
from tests.cluster.watcher import Watcher
from tests.cluster.workload import PATIENCE, Tenure, Workload, make_namespace

pytestmark = pytest.mark.long

NAMESPACE = "examples"
EXAMPLES = REPOSITORY / "examples"
OWNERS = {
    "deployment.yaml": "deployment/orders",
    "postgresql.yaml": "deployment/orders-writer",
    "service.yaml": "deployment/catalog",
    "singleton.yaml": "deployment/cleanup",
    "statefulset.yaml": "statefulset/ledger",
}
COMMAND = re.compile(r"^#   kubectl (.+?)(?:  .*)?$", re.MULTILINE)

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 65534,
    "seccompProfile": {"type": "RuntimeDefault"},
}
LOGIN = {"PGHOST": "database", "PGDATABASE": "postgres", "PGUSER": "owner", "PGPASSWORD": "secret"}
DATABASE = """
set -eu
echo "$PGPASSWORD" > /data/password
initdb --pgdata=/data/db --username="$PGUSER" --pwfile=/data/password --auth=scram-sha-256
echo 'host all all all scram-sha-256' >> /data/db/pg_hba.conf
exec postgres -D /data/db -c listen_addresses='*' -c unix_socket_directories=/data
"""
POST = """
import sys, urllib.error, urllib.request
try:
    with urllib.request.urlopen(sys.argv[1], data=b"", timeout=5) as answer:
        print(answer.status, answer.read().decode())
except urllib.error.HTTPError as refused:
    print(refused.code, refused.read().decode())
"""


class Site:
    """All examples side by side in one namespace."""

    def __init__(self, client: Client, make: Callable[[str], Workload]) -> None:
        self.client = client
        self.make = make

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        return self.client.kubectl("-n", NAMESPACE, *arguments, given=given)

    def follow(self, *arguments: str, seconds: float) -> str:
        """A command that only ends by hand, for so long."""
        kubectl = [str(self.client.cluster.wrappers / "kubectl"), "-n", NAMESPACE, *arguments]
        with subprocess.Popen(kubectl, stdout=subprocess.PIPE, text=True) as running:
            try:
                return running.communicate(timeout=seconds)[0]
            except subprocess.TimeoutExpired:
                running.kill()
                return running.communicate()[0]

    def said(self, pod: str) -> list[str]:
        return self.kubectl("logs", pod).splitlines()


@pytest.fixture(scope="module")
def site(
    client: Client, watcher: Watcher, recorder: Recorder, chart: Installation
) -> Iterator[Site]:
    chart.remove()
    client.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", seconds=180)
    bring_debian(client)
    bring_python_and_postgresql(client)
    make_namespace(client, "leasekeeper")
    chart.helm("install", usual=IMAGES)
    make_namespace(client, NAMESPACE)
    volumes = bring_volumes(client)
    bring_database(client)
    for name in OWNERS:
        client.kubectl("-n", NAMESPACE, "apply", "-f", str(EXAMPLES / name))
    yield Site(client, lambda owner: Workload(client, watcher, recorder, NAMESPACE, owner))
    client.kubectl("delete", "namespace", NAMESPACE, seconds=300)
    client.kubectl("delete", "pv", *volumes)
    chart.remove()


def bring_volumes(client: Client) -> list[str]:
    """What a cluster with a provisioner makes by itself: one for each claim."""
    made = []
    init = processes.init_of(client.cluster)
    for number in range(3):
        node = client.cluster.nodes[number % 2]
        folder = node.folder / f"volume-{number}"
        Path(f"/proc/{init}/root{folder}").mkdir(exist_ok=True)
        hostname = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node.name]}
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [hostname]}]}},
        }
        metadata = {"name": f"examples-{number}"}
        client.apply(
            "default",
            {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec},
        )
        made.append(f"examples-{number}")
    return made


def bring_database(client: Client) -> None:
    """And the Secret, and, as its owner, the schema: what the comment of postgresql.yaml asks."""
    metadata = {"name": "database", "labels": {"app": "database"}}
    container = {
        "name": "database",
        "image": "postgres:17-alpine",
        "command": ["sh", "-c", DATABASE],
        "env": [{"name": name, "value": value} for name, value in LOGIN.items()],
        "readinessProbe": {"exec": {"command": ["pg_isready", "-h", "127.0.0.1"]}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "securityContext": RESTRICTED,
    }
    volumes = [{"name": "data", "emptyDir": {}}]
    spec = {"containers": [container], "volumes": volumes}
    client.apply(
        NAMESPACE,
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"selector": {"app": "database"}, "ports": [{"port": 5432}]},
        },
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "orders-database"},
            "stringData": LOGIN,
        },
    )
    ready = ("wait", "pod/database", "--for=condition=Ready", f"--timeout={PATIENCE:.0f}s")
    client.kubectl("-n", NAMESPACE, *ready, seconds=PATIENCE + 30)
    _, config, _ = load(EXAMPLES / "postgresql.yaml")
    schema = ("exec", "-i", "database", "--", "psql", "-v", "ON_ERROR_STOP=1", "-f", "-")
    client.kubectl("-n", NAMESPACE, *schema, given=config["data"]["schema.sql"])


def deleted(site: Site, pods: Workload, faults: Faults) -> tuple[Tenure, Tenure]:
    """The leader's pod, and who leads after it."""
    old = pods.settle()
    since = faults.delete(pods.pod(old.holder))
    done = pods.next_leader(old, since, "pod of an example deleted")
    return done.old, done.new


# -- the tests -------------------------------------------------------------------------------------


def test_every_example_is_tried_and_the_commands_of_its_comment_work(site: Site) -> None:
    assert sorted(OWNERS) == sorted(file.name for file in EXAMPLES.glob("*.yaml"))
    for name, owner in OWNERS.items():
        leader = site.make(owner).settle()
        for command in COMMAND.findall((EXAMPLES / name).read_text()):
            arguments = command.replace("examples/", f"{EXAMPLES}/").split()
            if arguments[-1] == "-f":
                assert leader.holder in site.follow(*arguments, seconds=15)
            else:
                assert owner.partition("/")[2] in site.kubectl(*arguments), command


def test_deployment_one_of_the_three_prints(site: Site, faults: Faults) -> None:
    pods = site.make(OWNERS["deployment.yaml"])

    def prints(leader: Tenure) -> bool:
        return f"I lead with token {leader.token}" in site.said(leader.holder)

    first = pods.settle()
    until("the leader prints", lambda: prints(first))
    others = [pod["metadata"]["name"] for pod in pods.pods()]
    others.remove(first.holder)
    assert [site.said(name) for name in others] == [[], []]
    _, second = deleted(site, pods, faults)
    until("the next leader prints", lambda: prints(second))


def test_singleton_the_job_runs_in_one_pod_and_ends_when_that_does_not_lead(
    site: Site, faults: Faults
) -> None:
    pods = site.make(OWNERS["singleton.yaml"])

    def cleaned(leader: Tenure) -> bool:
        return f"cleaning up, with token {leader.token}" in site.said(leader.holder)

    def runs(pod: str) -> bool:
        """The job itself: run-as-leader has its name among its arguments."""
        pids = faults.pids(pods.pod(pod), "app")
        lines = [Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in pids]
        return ["sh", "/job/every-hour", ""] in lines

    old = pods.settle()
    until("the job runs", lambda: cleaned(old) and runs(old.holder))
    (waiting,) = [n for p in pods.pods() if (n := p["metadata"]["name"]) != old.holder]
    assert site.said(waiting) == []
    assert not runs(waiting)
    wish = json.dumps({"spec": {"stepDown": {"token": old.token}}})
    site.kubectl("patch", "dlock", "cleanup", "--type=merge", "-p", wish)
    new = until("the other pod leads", lambda: _other(pods, old))
    until("it works at once", lambda: cleaned(new) and runs(waiting))
    until("the job of the old leader has ended", lambda: not runs(old.holder))


def _other(pods: Workload, old: Tenure) -> Tenure | None:
    leader = pods.leader()
    return leader if leader is not None and leader.holder != old.holder else None


def test_service_leads_to_the_leader_and_the_others_refuse(site: Site, faults: Faults) -> None:
    pods = site.make(OWNERS["service.yaml"])
    kubelet = processes.component_pid(
        site.client.cluster, f"{site.client.cluster.nodes[0].name}.kubelet"
    )

    def post(address: str) -> str:
        argv = [
            "nsenter",
            "-t",
            str(kubelet),
            "-n",
            "--",
            "python3",
            "-c",
            POST,
            f"http://{address}",
        ]
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()

    service = site.client.get(NAMESPACE, "service", "catalog-writer")["spec"]["clusterIP"]
    first = pods.settle()
    until("the Service leads to the leader", lambda: post(service) == f"200 {first.token}")
    for pod in pods.pods():
        if pod["metadata"]["name"] != first.holder:
            assert post(f"{pod['status']['podIP']}:8080") == "503 another pod leads"
    selected = ("endpointslices", "-l", "kubernetes.io/service-name=catalog-writer")
    (slice_,) = site.client.items(NAMESPACE, *selected)
    (endpoint,) = slice_["endpoints"]
    assert endpoint["addresses"] == [pods.pod(first.holder)["status"]["podIP"]]
    _, second = deleted(site, pods, faults)
    until("the Service follows", lambda: post(service) == f"200 {second.token}")


def test_statefulset_one_writes_and_after_an_unclean_end_the_lock_delay_passes(
    site: Site, faults: Faults
) -> None:
    pods = site.make(OWNERS["statefulset.yaml"])
    lock, *_ = load(EXAMPLES / "statefulset.yaml")
    timings: dict[str, int] = lock["spec"]

    def ledger() -> list[list[str]]:
        """All copies, merged by token: in each entry token, time and writer."""
        read = ("sh", "-c", "[ ! -e /data/ledger ] || cat /data/ledger")
        names = [pod["metadata"]["name"] for pod in pods.pods()]
        copies = [site.kubectl("exec", name, "-c", "writer", "--", *read) for name in names]
        return sorted(line.split() for copy in copies for line in copy.splitlines())

    def wrote(leader: Tenure) -> bool:
        return any(entry[0] == str(leader.token) for entry in ledger())

    old = pods.settle()
    until("the leader writes", lambda: wrote(old))
    with faults.pods_cut_off([pods.pod(old.holder)], "leasekeeper") as since:
        done = pods.next_leader(old, since, "writer of examples/statefulset.yaml cut off")
        until("the next one writes", lambda: wrote(done.new))
    assert done.new.holder != old.holder
    # From the deadline on: the rest of the lease, and the delay; less one look of the watcher.
    rest = timings["leaseDurationSeconds"] - timings["renewDeadlineSeconds"]
    assert done.gap > rest + timings["lockDelaySeconds"] - 1
    writers: dict[str, set[str]] = {}
    for token, _, writer in ledger():
        writers.setdefault(token, set()).add(writer)
    assert all(len(names) == 1 for names in writers.values()), writers


def test_postgresql_refuses_the_token_of_an_earlier_leader(site: Site, faults: Faults) -> None:
    pods = site.make(OWNERS["postgresql.yaml"])

    def rows() -> list[dict[str, Any]]:
        query = "SELECT coalesce(json_agg(work ORDER BY done), '[]') FROM work"
        found = site.kubectl("exec", "database", "--", "psql", "-Atc", query)
        parsed: list[dict[str, Any]] = json.loads(found)
        return parsed

    def worked(leader: Tenure) -> bool:
        mine = [row for row in rows() if row["token"] == leader.token]
        return bool(mine) and all(row["worker"] == leader.holder for row in mine)

    pods.settle()
    old, new = deleted(site, pods, faults)
    until("the new leader works", lambda: worked(new))
    late = f"psql -v ON_ERROR_STOP=1 -v token={old.token} -v worker=late -f /sql/work.sql"
    kubectl = ("kubectl", "-n", NAMESPACE, "exec", new.holder, "-c", "writer", "--", "sh", "-c")
    done = site.client.run(*kubectl, late)
    assert done.returncode != 0
    assert f"token {old.token} is old: a later leader of orders was here" in done.stderr
    tokens = [row["token"] for row in rows()]
    assert tokens == sorted(tokens)
    assert "late" not in {row["worker"] for row in rows()}
