"""What the operator makes of what people write."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from leasekeeper_operator.manifests import ensemble_objects, lock_secret, role, role_binding
from leasekeeper_operator.manifests.ensemble import (
    edition_in,
    known_locks,
    network_policy,
    parse_users,
    users_secret,
)
from leasekeeper_operator.manifests.lock import ensemble_of, password_of
from leasekeeper_operator.manifests.node import server_command, stateful_set
from leasekeeper_operator.manifests.service import can_serve, leader_slice
from leasekeeper_operator.rotation import Rotating

from leasekeeper.redlock import users, users_file
from leasekeeper.redlock.membership import Membership
from tests.operator.samples import PASSWORDS, ensemble, lock

Object = dict[str, Any]


def objects(**spec: Any) -> dict[tuple[str, str], Object]:
    made = ensemble_objects(
        ensemble(**spec),
        PASSWORDS,
        operator_namespace="lk-system",
        agent_image="example.test/sidecar:1",
        pull_policy="Never",
    )
    return {(obj["kind"], obj["metadata"]["name"]): obj for obj in made}


def pod(**spec: Any) -> Object:
    found: Object = objects(**spec)["StatefulSet", "main-0"]["spec"]["template"]["spec"]
    return found


def container(name: str, **spec: Any) -> Object:
    (found,) = [c for c in pod(**spec)["containers"] if c["name"] == name]
    return dict(found)


def text(secret: Object, key: str) -> str:
    return base64.b64decode(secret["data"][key]).decode()


def test_each_node_is_a_stateful_set_and_a_service_of_its_own() -> None:
    made = objects(nodes=3)
    assert [n for kind, n in made if kind == "StatefulSet"] == ["main-0", "main-1", "main-2"]
    assert [n for kind, n in made if kind == "Service"] == ["main-0", "main-1", "main-2"]
    for i in range(3):
        labels = {"leasekeeper.dev/ensemble": "main", "leasekeeper.dev/node": str(i)}
        stateful = made["StatefulSet", f"main-{i}"]["spec"]
        assert stateful["replicas"] == 1
        assert stateful["selector"]["matchLabels"] == labels
        assert labels.items() <= stateful["template"]["metadata"]["labels"].items()
        assert made["Service", f"main-{i}"]["spec"]["selector"] == labels


@pytest.mark.parametrize(
    ("limit", "said"),
    [("128Mi", "64mb"), ("1Gi", "512mb"), (2**28, "128mb"), ("none that can be", "64mb")],
)
def test_half_of_the_memory_limit_is_for_locks(limit: str | int, said: str) -> None:
    secret = objects(resources={"limits": {"memory": limit}})["Secret", "main-server"]
    assert f"\nmaxmemory {said}\n" in text(secret, "server.conf")


@pytest.mark.parametrize("limit", ["1e999999999", "NaN", "Infinity", "-1Gi", 0])
def test_a_limit_that_is_no_amount_of_memory_stops_nobody(limit: str | int) -> None:
    """The API server refuses most of them in the StatefulSet, and the status says so; who writes
    out the first one needs all memory there is, and hours."""
    secret = objects(resources={"limits": {"memory": limit}})["Secret", "main-server"]
    assert "\nmaxmemory 64mb\n" in text(secret, "server.conf")


def test_a_careless_rollout_restart_restarts_nothing() -> None:
    assert objects()["StatefulSet", "main-0"]["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_nodes_in_quarantine_can_be_reached_by_name() -> None:
    assert objects()["Service", "main-0"]["spec"]["publishNotReadyAddresses"] is True


def test_the_membership_names_every_service() -> None:
    data = objects(nodes=3)["ConfigMap", "main-membership"]["data"]["membership.json"]
    membership = Membership.from_json(json.loads(data))
    assert [n.address for n in membership.nodes] == [f"main-{i}.store.svc:6379" for i in range(3)]
    assert (membership.max_ttl, membership.quarantine) == (30, 32)


def test_everything_goes_when_the_ensemble_goes_and_nothing_holds_up_its_deletion() -> None:
    for obj in objects().values():
        (owner,) = obj["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("LockEnsemble", "e-1", True)
        assert "blockOwnerDeletion" not in owner


@pytest.mark.parametrize("name", ["server", "agent"])
def test_containers_meet_the_restricted_profile(name: str) -> None:
    context = container(name)["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context["readOnlyRootFilesystem"] is True
    assert pod()["automountServiceAccountToken"] is False


def test_the_agent_is_told_what_the_architecture_says() -> None:
    agent = container("agent")
    environment = {variable["name"]: variable["value"] for variable in agent["env"]}
    assert agent["command"] == ["leasekeeper", "node-agent"]
    assert environment["LEASEKEEPER_NODE"] == "0"
    assert environment["LEASEKEEPER_HTTP"] == ":8080"
    assert "LEASEKEEPER_REGISTRY" not in environment  # births are the operator's
    mounts = {m["mountPath"] for m in agent["volumeMounts"]}
    socket = environment["LEASEKEEPER_SERVER"].removeprefix("unix://")
    for variable in ("MEMBERSHIP", "CREDENTIALS", "USERS"):
        path = environment[f"LEASEKEEPER_{variable}"]
        assert any(path == m or path.startswith(f"{m}/") for m in mounts), path
    conf = text(objects()["Secret", "main-server"], "server.conf")
    assert f"unixsocket {socket}" in conf


def test_the_agent_cannot_read_the_operators_password() -> None:
    (volume,) = [v for v in pod()["volumes"] if v["name"] == "credentials"]
    assert {item["key"] for item in volume["secret"]["items"]} == {"agent", "peer"}


def test_the_servers_configuration_has_digests_only() -> None:
    conf = text(objects()["Secret", "main-server"], "server.conf")
    for password in (PASSWORDS.agent, PASSWORDS.peer, PASSWORDS.operator):
        assert password not in conf
        assert users.digest(password) in conf


def test_the_servers_folder_is_empty_and_read_only() -> None:
    conf = text(objects()["Secret", "main-server"], "server.conf")
    (mount,) = [m for m in container("server")["volumeMounts"] if m["name"] == "data"]
    assert f"dir {mount['mountPath']}\n" in conf
    assert mount["readOnly"] is True


def test_a_slow_server_is_not_killed_for_it() -> None:
    assert not [key for key in container("server") if "Probe" in key]
    assert container("agent")["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container("agent")["livenessProbe"]["httpGet"]["path"] == "/healthz"


@pytest.mark.parametrize(
    ("image", "command"),
    [
        ("docker.io/valkey/valkey:8.1", "valkey-server"),
        ("redis:8", "redis-server"),
        ("redis.example.test:5000/mirror/valkey@sha256:0123", "valkey-server"),
        ("example.test/library/redis@sha256:0123", "redis-server"),
    ],
)
def test_the_command_follows_the_images_own_name(image: str, command: str) -> None:
    assert server_command(image) == [command]
    assert container("server", image=image)["args"] == ["/etc/leasekeeper/server.conf"]


def test_a_command_of_ones_own_wins() -> None:
    assert container("server", command=["/opt/kv"])["command"] == ["/opt/kv"]


def test_placement_is_handed_on() -> None:
    wanted = {
        "nodeSelector": {"disk": "none"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "priorityClassName": "high",
    }
    assert wanted.items() <= pod(**wanted).items()
    assert not (wanted.keys() - {"affinity"}) & pod().keys()


def test_nodes_are_spread_but_all_start_on_one_machine() -> None:
    """One spread constraint: with a second one, for zones, the scheduler would ignore both on
    machines without a zone."""
    (spread,) = pod()["topologySpreadConstraints"]
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    ((kind, (wish,)),) = pod()["affinity"]["podAntiAffinity"].items()
    assert kind.startswith("preferred")
    assert wish["podAffinityTerm"]["topologyKey"] == "topology.kubernetes.io/zone"


def test_another_configuration_is_another_revision() -> None:
    def template(configuration: str) -> Object:
        made = stateful_set(
            ensemble(), "0", agent_image="i", pull_policy="", configuration=configuration
        )
        return dict(made["spec"]["template"])

    assert template("a") == template("a") != template("b")


def test_one_node_at_a_time_may_be_evicted() -> None:
    budget = objects()["PodDisruptionBudget", "main"]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"] == {"leasekeeper.dev/ensemble": "main"}


def sources(policy: Object) -> list[Object]:
    (rule,) = [r for r in policy["spec"]["ingress"] if r["ports"][0]["port"] == 6379]
    return list(rule["from"])


def test_servers_are_reached_by_peers_operator_and_candidates() -> None:
    peers, operator, candidates = sources(network_policy(ensemble(), "lk-system"))
    assert peers == {"podSelector": {"matchLabels": {"leasekeeper.dev/ensemble": "main"}}}
    assert operator["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": "lk-system"
    }
    (expression,) = candidates["namespaceSelector"]["matchExpressions"]
    assert expression["values"] == ["store"]
    assert candidates["podSelector"]["matchExpressions"][0]["key"] == "leasekeeper.dev/lock"


def test_allowed_namespaces_are_in_the_policy() -> None:
    named = sources(network_policy(ensemble(allowedNamespaces=["a"]), "lk-system"))[2]
    assert named["namespaceSelector"]["matchExpressions"][0]["values"] == ["a", "store"]
    everybody = sources(network_policy(ensemble(allowedNamespaces=["*"]), "lk-system"))[2]
    assert everybody["namespaceSelector"] == {}


def test_the_agent_understands_the_users_file() -> None:
    one, two, three = (frozenset({users.digest(password)}) for password in "abc")
    lines = {"shop/orders": one, "shop/stock": two | three}
    secret = users_secret(ensemble(), lines, ["shop/left"], edition=1_795_050_124_000)
    assert users_file.parse(text(secret, "users"), "file") == lines == parse_users(secret)
    assert known_locks(secret) == {*lines, "shop/left"}
    assert users_file.edition_of(text(secret, "users")) == 1_795_050_124_000 == edition_in(secret)


def test_a_lock_is_published_as_the_architecture_says() -> None:
    secret = lock_secret(lock(), ensemble(), Rotating("pass"))
    assert secret["metadata"]["name"] == "leasekeeper-orders"
    published = json.loads(text(secret, "lock.json"))
    assert published["version"] == 1
    assert published["lock"] == "shop/orders"
    assert published["store"] == "redlock"
    assert published["timings"]["renewDeadlineSeconds"] == 10
    assert published["redlock"]["username"] == "lock:shop/orders"
    assert Membership.from_json(published["redlock"]["membership"]) == ensemble().membership
    assert password_of(secret) == "pass"
    assert ensemble_of(secret) == ("store", "main")


def test_the_role_allows_one_thing_on_one_lock() -> None:
    (rule,) = role(lock())["rules"]
    assert rule == {
        "apiGroups": ["leasekeeper.dev"],
        "resources": ["distributedlocks/status"],
        "resourceNames": ["orders"],
        "verbs": ["patch"],
    }


def test_the_role_is_bound_to_the_namespace_or_to_named_accounts() -> None:
    (everybody,) = role_binding(lock())["subjects"]
    assert everybody["name"] == "system:serviceaccounts:shop"
    (named,) = role_binding(lock(serviceAccountNames=["till"]))["subjects"]
    assert named == {"kind": "ServiceAccount", "name": "till", "namespace": "shop"}


def test_with_tls_no_port_is_plain_and_both_containers_see_the_files_at_one_path() -> None:
    made = objects(tls={})
    configuration = text(made["Secret", "main-server"], "server.conf").splitlines()
    assert {"port 0", "tls-port 6379"} <= {*configuration}
    mounts = [
        {m["mountPath"] for m in container(name, tls={})["volumeMounts"] if m["name"] == "tls"}
        for name in ("server", "agent")
    ]
    assert mounts == [{"/etc/leasekeeper-tls"}] * 2
    (volume,) = [v for v in pod(tls={})["volumes"] if v["name"] == "tls"]
    assert (
        volume["secret"]["secretName"] == "main-tls"
    )  # and never main-ca: no pod has the CA's key
    environment = {e["name"]: e["value"] for e in container("agent", tls={})["env"]}
    assert environment["LEASEKEEPER_TLS_CA"] == "/etc/leasekeeper-tls/ca.crt"
    assert "main-ca" not in json.dumps(pod(tls={}))


def test_with_tls_a_lock_is_told_whom_to_trust() -> None:
    secret = lock_secret(lock(), ensemble(tls={}), Rotating("secret"), "PEM of the CA")
    assert text(secret, "ca.crt") == "PEM of the CA"
    assert json.loads(text(secret, "lock.json"))["redlock"]["tls"] == {"caFile": "ca.crt"}
    plain = lock_secret(lock(), ensemble(), Rotating("secret"))
    assert {*plain["data"]} == {"lock.json"}
    assert "tls" not in json.loads(text(plain, "lock.json"))["redlock"]


def candidate_pod(**metadata: Any) -> Object:
    ready = {"type": "Ready", "status": "True"}
    facts = {"name": "a", "namespace": "shop", "uid": "u", **metadata}
    return {"metadata": facts, "status": {"conditions": [ready]}}


@pytest.mark.parametrize(
    ("metadata", "serves"),
    [
        ({"labels": {"leasekeeper.dev/lock": "orders"}}, True),
        (
            {
                "labels": {"leasekeeper.dev/lock": "stock"},
                "annotations": {"leasekeeper.dev/lock": "stock,orders"},
            },
            True,
        ),
        ({"labels": {"leasekeeper.dev/lock": "stock"}}, False),
        ({}, False),
        ({"labels": {"leasekeeper.dev/lock": "orders"}, "uid": "another"}, False),
        ({"labels": {"leasekeeper.dev/lock": "orders"}, "deletionTimestamp": "now"}, False),
    ],
)
def test_traffic_goes_only_to_the_holders_own_pod(metadata: Object, serves: bool) -> None:
    assert can_serve(candidate_pod(**metadata), lock(), "u") is serves


def test_two_families_have_a_slice_each() -> None:
    pod = candidate_pod()
    pod["status"]["podIPs"] = [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]
    pod["spec"] = {}
    routed = lock(service={"name": "leader", "ports": [PORT]})
    addresses = {
        family: leader_slice(routed, family, pod)["endpoints"][0]["addresses"]
        for family in ("IPv4", "IPv6")
    }
    assert addresses == {"IPv4": ["10.0.0.1"], "IPv6": ["fd00::1"]}
    assert leader_slice(routed, "IPv4", None)["endpoints"] == []


PORT = {"name": "main", "port": 80, "targetPort": 8080, "protocol": "TCP"}
