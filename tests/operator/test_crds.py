"""Every rule of the CRDs, by the sentence that the API server says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.operator.conftest import CRDS, Cluster, Refusal, custom

Object = dict[str, Any]


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> str:
    return cluster.namespace()


def documents() -> list[Object]:
    return [yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("*.yaml"))]


def refused(cluster: Cluster, document: Object) -> str:
    with pytest.raises(Refusal) as refusal:
        cluster.apply(document)
    return str(refusal.value)


# -- what works with nothing said ------------------------------------------------------------------


@pytest.mark.parametrize("spec", [{}, None])
def test_an_empty_lock_works(cluster: Cluster, namespace: str, spec: Object | None) -> None:
    document = custom("DistributedLock", namespace, "empty", spec or {})
    if spec is None:
        del document["spec"]
    assert cluster.apply(document)["spec"] == {
        "leaseDurationSeconds": 15,
        "renewDeadlineSeconds": 10,
        "retryPeriodSeconds": 2,
        "lockDelaySeconds": 0,
        "paused": False,
        "passwordGeneration": 1,
        "labelHolder": False,
    }


def test_an_empty_ensemble_works(cluster: Cluster, namespace: str) -> None:
    spec = cluster.ensemble(namespace, "empty")["spec"]
    assert (spec["nodes"], spec["longestLeaseSeconds"]) == (5, 30)
    assert spec["restartPolicy"] == {"delaySeconds": 32}
    assert spec["image"] == "docker.io/valkey/valkey:8.1"


# -- what is refused at creation -------------------------------------------------------------------

LOCK_REFUSALS: list[tuple[Object, str]] = [
    ({"ensembleRef": {"name": ".."}}, "spec.ensembleRef.name in body should match"),
    (
        {"ensembleRef": {"name": "a", "namespace": ".."}},
        "spec.ensembleRef.namespace in body should match",
    ),
    (
        {"renewDeadlineSeconds": 12, "retryPeriodSeconds": 10},
        "spec.renewDeadlineSeconds must be greater than 1.2 × spec.retryPeriodSeconds, or one slow"
        " renewal would end the tenure. Raise the deadline or lower the retry period",
    ),
    (
        {"renewDeadlineSeconds": 3},
        "spec.renewDeadlineSeconds must be at least spec.retryPeriodSeconds + 2: readers of the"
        ' leader file have whole seconds, and would see "not the leader" for a moment before a'
        " renewal. Raise the deadline or lower the retry period",
    ),
    (
        {"leaseDurationSeconds": 10},
        "spec.leaseDurationSeconds, less 1 % and 10 ms for the drift of clocks, must be greater"
        " than spec.renewDeadlineSeconds: the holder must stop before others may win. Raise the"
        " lease duration or lower the deadline",
    ),
    (
        # 200 − 1 % − 10 ms is less than 199: one second is not enough for long leases.
        {"leaseDurationSeconds": 200, "renewDeadlineSeconds": 199},
        "spec.leaseDurationSeconds, less 1 % and 10 ms for the drift of clocks",
    ),
    (
        {"leaseDurationSeconds": 0},
        "spec.leaseDurationSeconds in body should be greater than or equal to 1",
    ),
    (
        {"leaseDurationSeconds": 3601},
        "spec.leaseDurationSeconds in body should be less than or equal to 3600",
    ),
    (
        {"retryPeriodSeconds": 0},
        "spec.retryPeriodSeconds in body should be greater than or equal to 1",
    ),
    (
        {"lockDelaySeconds": -1},
        "spec.lockDelaySeconds in body should be greater than or equal to 0",
    ),
    ({"serviceAccountNames": []}, "spec.serviceAccountNames in body should have at least 1 items"),
    ({"serviceAccountNames": ["a", "a"]}, 'duplicate entries for key [="a"]'),
    ({"ensembleRef": {}}, "spec.ensembleRef.name: Required value"),
    ({"ensembleRef": {"name": ""}}, "spec.ensembleRef.name in body should be at least 1 chars"),
    ({"leaseDuration": 15}, "field not declared in schema"),
]


@pytest.mark.parametrize(("spec", "sentence"), LOCK_REFUSALS)
def test_a_lock_is_refused(cluster: Cluster, namespace: str, spec: Object, sentence: str) -> None:
    assert sentence in refused(cluster, custom("DistributedLock", namespace, "bad", spec))


def test_the_smallest_timings_are_allowed(cluster: Cluster, namespace: str) -> None:
    cluster.lock(namespace, leaseDurationSeconds=4, renewDeadlineSeconds=3, retryPeriodSeconds=1)


def test_a_locks_name_must_fit_a_label(cluster: Cluster, namespace: str) -> None:
    sentence = refused(cluster, custom("DistributedLock", namespace, "a" * 64, {}))
    assert "metadata.name must not be longer than 63 characters" in sentence
    cluster.lock(namespace, "a" * 63)


ENSEMBLE_REFUSALS: list[tuple[Object, str]] = [
    (
        {"nodes": 4},
        "spec.nodes must be odd: an even number tolerates no more failures than the odd number"
        " below it. Use 3, 5, 7 or 9",
    ),
    ({"nodes": 1}, "spec.nodes in body should be greater than or equal to 3"),
    ({"nodes": 11}, "spec.nodes in body should be less than or equal to 9"),
    (
        {"longestLeaseSeconds": 32},
        "spec.restartPolicy.delaySeconds must be greater than 1.01 × spec.longestLeaseSeconds: a"
        " node that lost its memory must not vote while a lease that it granted may live. Raise"
        " the delay or lower the longest lease",
    ),
    (
        # 100 × 1.01 is 101: equal is not enough.
        {"longestLeaseSeconds": 100, "restartPolicy": {"delaySeconds": 101}},
        "spec.restartPolicy.delaySeconds must be greater than 1.01",
    ),
    ({"allowedNamespaces": ["a*"]}, "spec.allowedNamespaces[0] in body should match"),
    ({"image": ""}, "spec.image in body should be at least 1 chars"),
    (
        # The API server itself would count it out, for minutes, and so would who asks it to.
        {"resources": {"limits": {"memory": "1e999999999"}}},
        "spec.resources.limits.memory in body should match",
    ),
    ({"agentResources": {"requests": {"cpu": "NaN"}}}, "requests.cpu in body should match"),
    ({"imagePullPolicy": "Sometimes"}, 'Unsupported value: "Sometimes"'),
]


@pytest.mark.parametrize(("spec", "sentence"), ENSEMBLE_REFUSALS)
def test_an_ensemble_is_refused(
    cluster: Cluster, namespace: str, spec: Object, sentence: str
) -> None:
    assert sentence in refused(cluster, custom("LockEnsemble", namespace, "bad", spec))


@pytest.mark.parametrize("name", ["1st", "a.b", "a" * 41])
def test_an_ensembles_name_must_fit_a_service(cluster: Cluster, namespace: str, name: str) -> None:
    sentence = refused(cluster, custom("LockEnsemble", namespace, name, {}))
    assert "metadata.name must have at most 40 characters, lower-case letters" in sentence


INLINE_REFUSALS: list[tuple[str, Object, str]] = [
    (
        "bad",
        {"ensemble": {}, "ensembleRef": {"name": "a"}},
        "spec.ensemble and spec.ensembleRef exclude each other: a lock has one ensemble",
    ),
    (
        "bad",
        {"ensemble": {"longestLeaseSeconds": 14}},
        "spec.leaseDurationSeconds + spec.lockDelaySeconds must not exceed"
        " spec.ensemble.longestLeaseSeconds",
    ),
    ("bad", {"ensemble": {"nodes": 4}}, "spec.nodes must be odd"),
    (
        "a.b",
        {"ensemble": {}},
        "metadata.name of a lock with spec.ensemble must have at most 40 characters",
    ),
]


@pytest.mark.parametrize(("name", "spec", "sentence"), INLINE_REFUSALS)
def test_an_inline_ensemble_is_refused(
    cluster: Cluster, namespace: str, name: str, spec: Object, sentence: str
) -> None:
    assert sentence in refused(cluster, custom("DistributedLock", namespace, name, spec))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"ensemble": None}, "spec.ensemble cannot be added or taken away: two ensembles"),
        ({"ensemble": {"nodes": 3}}, "spec.nodes cannot be changed in v1alpha1"),
    ],
)
def test_an_inline_ensemble_is_held_to_the_rules_of_ensembles(
    cluster: Cluster, namespace: str, change: Object, sentence: str
) -> None:
    cluster.lock(namespace, "inline", ensemble={})
    with pytest.raises(Refusal, match=re.escape(sentence)):
        cluster.patch(namespace, "dlock", "inline", {"spec": change})


def test_an_inline_ensemble_has_the_schema_of_ensembles() -> None:
    schemas = {}
    for crd in documents():
        (version,) = crd["spec"]["versions"]
        properties = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
        schemas[crd["spec"]["names"]["kind"]] = properties
    inline = schemas["DistributedLock"]["properties"]["ensemble"]
    for part in ("properties", "x-kubernetes-validations"):
        assert inline[part] == schemas["LockEnsemble"][part]


PORTS = [{"port": 80, "targetPort": 8080}]
SERVICE_REFUSALS: list[tuple[Object, str]] = [
    ({"ports": PORTS}, "spec.service.name: Required value"),
    ({"name": "a"}, "spec.service.ports: Required value"),
    ({"name": "a", "ports": []}, "spec.service.ports in body should have at least 1 items"),
    ({"name": "A", "ports": PORTS}, "spec.service.name in body should match"),
    ({"name": "a", "ports": [*PORTS, *PORTS]}, "duplicate entries for key [name="),
    ({"name": "a", "ports": [{"port": 80}]}, "spec.service.ports[0].targetPort: Required value"),
]


@pytest.mark.parametrize(("service", "sentence"), SERVICE_REFUSALS)
def test_a_service_is_refused(
    cluster: Cluster, namespace: str, service: Object, sentence: str
) -> None:
    assert sentence in refused(
        cluster, custom("DistributedLock", namespace, "bad", {"service": service})
    )


@pytest.mark.parametrize("token", [0, 2**52])
def test_a_step_down_of_a_token_that_cannot_be_is_refused(
    cluster: Cluster, namespace: str, token: int
) -> None:
    spec = {"stepDown": {"token": token}}
    sentence = refused(cluster, custom("DistributedLock", namespace, "bad", spec))
    assert "spec.stepDown.token in body should be" in sentence


# -- what cannot be changed live -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"ensembleRef": {"name": "b"}}),
        ({"ensembleRef": {"name": "a"}}, {"ensembleRef": {"name": "b"}}),
        ({"ensembleRef": {"name": "a"}}, {"ensembleRef": None}),
        ({"ensembleRef": {"name": "a"}}, {"ensembleRef": {"namespace": "other"}}),
    ],
)
def test_a_lock_cannot_move(
    cluster: Cluster, namespace: str, before: Object, after: Object
) -> None:
    cluster.run("-n", namespace, "delete", "dlock", "moving", "--ignore-not-found")
    cluster.lock(namespace, "moving", **before)
    with pytest.raises(Refusal, match=r"spec.ensembleRef cannot be changed: two ensembles would"):
        cluster.patch(namespace, "dlock", "moving", {"spec": after})


def test_a_locks_timings_can_be_changed(cluster: Cluster, namespace: str) -> None:
    cluster.lock(namespace, "timed", ensembleRef={"name": "a"})
    changed = cluster.patch(namespace, "dlock", "timed", {"spec": {"leaseDurationSeconds": 20}})
    assert changed["spec"]["leaseDurationSeconds"] == 20


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"nodes": 3}, "spec.nodes"),
        ({"nodes": None}, "spec.nodes"),
        ({"longestLeaseSeconds": 10}, "spec.longestLeaseSeconds"),
        ({"restartPolicy": {"delaySeconds": 100}}, "spec.restartPolicy.delaySeconds"),
        ({"restartPolicy": None}, "spec.restartPolicy.delaySeconds"),
        ({"tls": {}}, "spec.tls"),
    ],
)
def test_what_nodes_must_agree_on_cannot_be_changed(
    cluster: Cluster, namespace: str, change: Object, field: str
) -> None:
    fixed = {"nodes": 7, "longestLeaseSeconds": 20, "restartPolicy": {"delaySeconds": 60}}
    cluster.ensemble(namespace, "fixed", **fixed)
    sentence = f"{field} cannot be changed in v1alpha1: .* Make another LockEnsemble"
    with pytest.raises(Refusal, match=sentence):
        cluster.patch(namespace, "lens", "fixed", {"spec": change})


# -- the status ------------------------------------------------------------------------------------


def status(cluster: Cluster, namespace: str, kind: str, name: str, status: Any) -> None:
    cluster.patch(namespace, kind, name, {"status": status}, "--subresource=status")


@pytest.mark.parametrize("change", [{"token": 6}, {"token": None}, None, {"token": 0}])
def test_a_token_cannot_go_down_or_be_taken_away(
    cluster: Cluster, namespace: str, change: Object | None
) -> None:
    cluster.lock(namespace, "fenced")
    status(cluster, namespace, "dlock", "fenced", {"token": 7, "holder": "a"})
    with pytest.raises(Refusal, match=r"status.token must not go down or be taken away: resources"):
        status(cluster, namespace, "dlock", "fenced", change)


def test_a_token_can_stay_and_grow_and_the_holder_can_go(cluster: Cluster, namespace: str) -> None:
    cluster.lock(namespace, "growing")
    for change in ({"token": 7, "holder": "a"}, {"holder": None}, {"token": 7}, {"token": 8}):
        status(cluster, namespace, "dlock", "growing", change)


def test_a_token_that_no_node_would_adopt_is_refused(cluster: Cluster, namespace: str) -> None:
    cluster.lock(namespace, "huge")
    with pytest.raises(
        Refusal, match="token in body should be less than or equal to 4503599627370495"
    ):
        status(cluster, namespace, "dlock", "huge", {"token": 2**52})


RECORD = {"generation": 2, "floor": 9, "incarnationFloor": 5, "lives": {"0": "a"}}


@pytest.mark.parametrize(
    "change",
    [None, {"generation": 1}, {"floor": 8}, {"incarnationFloor": 4}],
)
def test_a_birth_cannot_be_forgotten(
    cluster: Cluster, namespace: str, change: Object | None
) -> None:
    cluster.ensemble(namespace, "born")
    status(cluster, namespace, "lens", "born", {"registry": RECORD})
    with pytest.raises(Refusal, match=r"status.registry must not go back or be taken away"):
        status(cluster, namespace, "lens", "born", {"registry": change})


def test_passwords_have_no_way_back(cluster: Cluster, namespace: str) -> None:
    for make in (cluster.ensemble, cluster.lock):
        make(namespace, "rotated", passwordGeneration=2)
        with pytest.raises(Refusal, match=r"spec.passwordGeneration must not go down: each number"):
            make(namespace, "rotated", passwordGeneration=1)


def test_a_service_keeps_its_kind_of_address(cluster: Cluster, namespace: str) -> None:
    service = {"name": "leader", "ports": [{"port": 80, "targetPort": 8080}]}
    cluster.lock(namespace, "routed", service=service)
    with pytest.raises(Refusal, match=r"spec.service.headless cannot be changed: a Service keeps"):
        cluster.lock(namespace, "routed", service={**service, "headless": True})
    cluster.lock(namespace, "routed", service={**service, "name": "other", "headless": True})


# -- what people see -------------------------------------------------------------------------------


def test_the_columns_of_a_lock(cluster: Cluster, namespace: str) -> None:
    cluster.lock(namespace, "shown")
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Published",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    shown = {"holder": "pod-1", "token": 1763427723456, "nodes": "4/5", "conditions": [ready]}
    status(cluster, namespace, "dlock", "shown", shown)
    titles, row = cluster.run("-n", namespace, "get", "dlock", "shown").splitlines()
    assert titles.split() == ["NAME", "HOLDER", "TOKEN", "SINCE", "NODES", "READY", "AGE"]
    assert row.split()[:5] == ["shown", "pod-1", "1763427723456", "4/5", "True"]


def test_every_field_is_described() -> None:
    def undescribed(schema: Object, path: str) -> list[str]:
        found = [] if schema.get("description") else [path]
        for name, child in schema.get("properties", {}).items():
            found += undescribed(child, f"{path}.{name}")
        if "properties" in schema.get("items", {}):
            for name, child in schema["items"]["properties"].items():
                found += undescribed(child, f"{path}[].{name}")
        return found

    for crd in documents():
        (version,) = crd["spec"]["versions"]
        found = undescribed(version["schema"]["openAPIV3Schema"], crd["spec"]["names"]["kind"])
        assert [path for path in found if not path.endswith(".metadata")] == []


def test_explain_is_documentation(cluster: Cluster) -> None:
    text = cluster.run("explain", "dlock.spec.renewDeadlineSeconds")
    assert "still calls itself leader" in re.sub(r"\s+", " ", text)


def test_every_rule_is_tried_here() -> None:
    """A rule that is added without a test of its sentence fails here."""
    own = Path(__file__).read_text()
    plain = re.sub(r'"\s*\n\s*"', "", own)

    def messages(schema: Any) -> list[str]:
        if isinstance(schema, list):
            return [message for child in schema for message in messages(child)]
        if not isinstance(schema, dict):
            return []
        here = [rule["message"] for rule in schema.get("x-kubernetes-validations", [])]
        return here + [message for child in schema.values() for message in messages(child)]

    for crd in documents():
        for message in messages(crd["spec"]["versions"]):
            beginning = " ".join(message.split(" ")[:4])
            field = message.split(" ")[0]
            assert beginning in plain or f'"{field}"' in plain, beginning
