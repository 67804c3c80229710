"""8. Tenants: restricted pods, policies that select what they should, no foreign hands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.client import Client
from tests.cluster.faults import Faults, name_of
from tests.cluster.installation import LONGEST_LEASE, QUARANTINE, SYSTEM, Installation
from tests.cluster.recorder import Recorder
from tests.cluster.watcher import Watcher
from tests.cluster.workload import RESTRICTED, Workload, example, make_namespace

NEIGHBOUR = "neighbour"

# Runs in the neighbour's own pod, with everything that it was given: stdin is no terminal there, so
# the commands come as an argument. Prints a line for each answer.
SPEAK = """
import json, socket, sys
commands = json.loads(sys.argv[1])
given = json.load(open("/etc/leasekeeper/lock.json"))["redlock"]
node = given["membership"]["nodes"][0]
with socket.create_connection((node["host"], node["port"]), timeout=10) as link:
    answers = link.makefile("rb")
    for command in commands:
        words = [{"USER": given["username"], "PASSWORD": given["password"]}.get(w, w)
                 for w in command]
        said = b"*%d\\r\\n" % len(words)
        said += b"".join(b"$%d\\r\\n%b\\r\\n" % (len(w.encode()), w.encode()) for w in words)
        link.sendall(said)
        line = answers.readline().decode().strip()
        print(line)
        if line.startswith("*") and line != "*0":
            break
"""


@pytest.fixture(scope="module")
def neighbour(client: Client, installation: Installation) -> Iterator[str]:
    """A pod of another tenant, with a lock of the same name in its own namespace."""
    make_namespace(client, NEIGHBOUR)
    lock, deployment = example()
    deployment["spec"]["replicas"] = 1
    client.apply(NEIGHBOUR, lock, deployment)
    rollout = ("rollout", "status", "deployment/orders", "--timeout=120s")
    client.kubectl("-n", NEIGHBOUR, *rollout, seconds=150)
    (pod,) = client.items(NEIGHBOUR, "pods", "-l", "app=orders")
    yield str(pod["metadata"]["name"])
    client.kubectl("delete", "namespace", NEIGHBOUR, "--wait=false")


def speak(client: Client, pod: str, *commands: list[str]) -> list[str]:
    program = ("python3.13", "-c", SPEAK, json.dumps(commands))
    said = client.kubectl("-n", NEIGHBOUR, "exec", pod, "-c", "leasekeeper", "--", *program)
    return said.splitlines()


AUTH = ["AUTH", "USER", "PASSWORD"]


FOREIGN = (
    ["HGETALL", "lk:lock:tenants/orders"],
    ["DEL", "lk:lock:tenants/orders"],
    ["FCALL", "lk1_observe", "1", "lk:lock:tenants/orders"],
    ["FCALL", "lk1_release", "1", "lk:lock:tenants/orders", "x", "1"],
    ["SUBSCRIBE", "lk:freed:tenants/orders/x"],
    ["HSET", "lk:node", "open", "0"],
    ["KEYS", "*"],
    ["ACL", "LIST"],
    ["CONFIG", "GET", "*"],
    ["FUNCTION", "LIST"],
    ["FLUSHALL"],
)


def test_a_pod_of_another_tenant_cannot_touch_the_lock(
    client: Client, shop: Workload, neighbour: str, recorder: Recorder
) -> None:
    leader = shop.settle()
    hello, *answers = speak(client, neighbour, AUTH, *FOREIGN)
    assert hello == "+OK"
    for command, said in zip(FOREIGN, answers, strict=True):
        recorder.sentence(f"another tenant's pod says {' '.join(command)}", said)
        assert said.startswith("-NOPERM"), said
    assert shop.leads_still(leader)


def test_it_can_touch_its_own(client: Client, neighbour: str) -> None:
    """The control: the refusals above are not those of a password that is wrong anyway."""
    said = speak(
        client, neighbour, AUTH, ["FCALL", "lk1_observe", "1", f"lk:lock:{NEIGHBOUR}/orders"]
    )
    assert said[1].startswith(("*", "%"))


def test_without_a_password_nobody_is_heard(
    client: Client, neighbour: str, installation: Installation
) -> None:
    said = speak(client, neighbour, ["HGETALL", "lk:lock:tenants/orders"], ["AUTH", "default", ""])
    assert said[0].startswith("-NOAUTH")
    assert said[1].startswith("-WRONGPASS")


def test_its_service_account_has_no_rights_in_the_locks_namespace(
    client: Client, shop: Workload, neighbour: str
) -> None:
    account = f"--as=system:serviceaccount:{NEIGHBOUR}:default"
    for asked in ("patch distributedlocks/status", "get secrets", "get distributedlocks"):
        verb, what = asked.split()
        question = ("auth", "can-i", verb, what, account, "-n", shop.namespace)
        assert client.run("kubectl", *question).stdout.strip() == "no"


def test_a_forged_holder_is_refused(client: Client, shop: Workload, recorder: Recorder) -> None:
    """By another pod of the same workload, with the token that its containers have."""
    leader = shop.settle()
    before = shop.status()
    names = [pod["metadata"]["name"] for pod in shop.pods()]
    forger, victim = [name for name in names if name != leader.holder]
    bound = ("--bound-object-kind", "Pod", "--bound-object-name", forger)
    bearer = client.kubectl("-n", shop.namespace, "create", "token", "default", *bound).strip()
    forged = {"holder": victim, "token": leader.token + 1}
    said = client.patch_status(bearer, shop.namespace, "orders", **forged)
    recorder.sentence("a pod writes another pod's name into the status", said)
    assert f"only the pod {victim} itself may write this" in said
    assert f"of the pod {forger}" in said
    assert shop.status()["holder"] == before["holder"]


def test_restricted_pod_security_is_enforced_where_our_pods_run(
    client: Client, shop: Workload, installation: Installation
) -> None:
    """And it is enforced indeed: a pod that does not meet it is refused."""
    for name in (SYSTEM, shop.namespace):
        labels = client.get("default", "namespace", name)["metadata"]["labels"]
        assert RESTRICTED.items() <= labels.items()
        assert client.items(name, "pods")
    command = ("run", "loose", "--image=localhost/app:1", "--restart=Never")
    refused = client.run("kubectl", "-n", shop.namespace, *command)
    assert refused.returncode != 0
    assert 'violates PodSecurity "restricted' in refused.stderr


Place = tuple[str, str]
"""A pod: namespace and name."""


def selected(client: Client, namespace: str, what: str, selector: dict[str, Any]) -> set[str]:
    """What a policy's selector means, by the API server's own reading of it."""
    parts = [f"{key}={value}" for key, value in selector.get("matchLabels", {}).items()]
    for expression in selector.get("matchExpressions", []):
        key, operator = expression["key"], expression["operator"]
        values = ",".join(expression.get("values", []))
        parts.append({"Exists": key, "In": f"{key} in ({values})"}[operator])
    labels = ("-l", ",".join(parts)) if parts else ()
    return {one["metadata"]["name"] for one in client.items(namespace, what, *labels)}


def meant(client: Client, home: str, peer: dict[str, Any]) -> set[Place]:
    """The pods that a peer means, in a policy of the namespace `home`."""
    assert peer.keys() <= {"namespaceSelector", "podSelector"}, peer
    namespaces = {home}
    if "namespaceSelector" in peer:
        namespaces = selected(client, "default", "namespaces", peer["namespaceSelector"])
    pods = peer.get("podSelector", {})
    return {(where, pod) for where in namespaces for pod in selected(client, where, "pods", pods)}


def ports(rule: dict[str, Any]) -> set[tuple[str, int]]:
    return {(port["protocol"], port["port"]) for port in rule["ports"]}


def test_network_policies_select_what_they_should(
    client: Client, shop: Workload, installation: Installation, neighbour: str
) -> None:
    """Enforcement is the CNI's, and the one here has none: the objects are what can be tested."""
    policy = client.get(SYSTEM, "networkpolicy", "default")["spec"]
    nodes = {(SYSTEM, name_of(pod)) for pod in installation.nodes()}
    assert meant(client, SYSTEM, {"podSelector": policy["podSelector"]}) == nodes
    assert sorted(policy["policyTypes"]) == ["Egress", "Ingress"]

    servers, agents = policy["ingress"]
    assert (ports(servers), ports(agents)) == ({("TCP", 6379)}, {("TCP", 8080)})
    assert "from" not in agents, "kubelets and Prometheus come from anywhere"
    bystander = _bystander(client, shop)
    peers = [meant(client, SYSTEM, peer) for peer in servers["from"]]
    # By a peer of their own: the operator's is all of its namespace, and may be another one.
    assert nodes in peers
    allowed = set().union(*peers)
    operator = client.items(SYSTEM, "pods", "-l", "app.kubernetes.io/component=operator")
    assert operator
    assert {(SYSTEM, name_of(pod)) for pod in operator} <= allowed
    assert {(shop.namespace, name_of(pod)) for pod in shop.pods()} <= allowed
    assert (NEIGHBOUR, neighbour) in allowed, "the default ensemble is for all namespaces"
    assert (shop.namespace, bystander) not in allowed

    others, names = policy["egress"]
    assert [meant(client, SYSTEM, peer) for peer in others["to"]] == [nodes]
    assert ports(others) == {("TCP", 6379)}
    assert "to" not in names, "where DNS is differs from cluster to cluster"
    assert ports(names) == {("UDP", 53), ("TCP", 53)}


def _bystander(client: Client, shop: Workload) -> str:
    """A pod of the same namespace that asks for no lock."""
    _, deployment = example()
    template = deployment["spec"]["template"]
    del template["metadata"]["annotations"]
    template["metadata"]["labels"] = {"app": "bystander"}
    template["metadata"]["name"] = "bystander"
    client.apply(shop.namespace, {"apiVersion": "v1", "kind": "Pod", **template})
    return "bystander"


PLAIN = """
import json, socket
node = json.load(open("/etc/leasekeeper/lock.json"))["redlock"]["membership"]["nodes"][0]
with socket.create_connection((node["host"], node["port"]), timeout=10) as link:
    link.sendall(b"PING\\r\\n")
    try:
        print(link.recv(100))
    except OSError as refused:
        print(refused)
"""


@pytest.mark.long
def test_a_tenant_may_have_an_ensemble_of_its_own_with_tls(
    client: Client,
    watcher: Watcher,
    recorder: Recorder,
    faults: Faults,
    installation: Installation,
    neighbour: str,
) -> None:
    sealed = Workload(client, watcher, recorder, "sealed")
    recorder.namespace(sealed.namespace)
    spec = {"nodes": 3, "tls": {}, "longestLeaseSeconds": LONGEST_LEASE}
    ensemble = {
        "apiVersion": "leasekeeper.dev/v1alpha1",
        "kind": "LockEnsemble",
        "metadata": {"name": "votes"},
        "spec": {**spec, "restartPolicy": {"delaySeconds": QUARANTINE}},
    }
    try:
        sealed.declare(ensemble, ensembleRef={"name": "votes"})
        old = sealed.settle()
        (servers, _) = client.get(sealed.namespace, "networkpolicy", "votes")["spec"]["ingress"]
        allowed = set().union(*(meant(client, sealed.namespace, p) for p in servers["from"]))
        assert {(sealed.namespace, name_of(pod)) for pod in sealed.pods()} <= allowed
        assert (NEIGHBOUR, neighbour) not in allowed, "it is for its own namespace"
        ask = ("exec", old.holder, "-c", "leasekeeper", "--", "python3.13", "-c", PLAIN)
        assert "PONG" not in client.kubectl("-n", sealed.namespace, *ask)
        deleted = faults.delete(sealed.pod(old.holder))
        sealed.next_leader(old, deleted, "pod deleted, nodes with TLS")
        sealed.settle()
    finally:
        sealed.remove()
