"""The patch for pods that ask for a lock, applied to pods of several shapes."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest
from leasekeeper_operator.injection import Denied, inject, wanted_locks

from tests.operator.samples import SETTINGS, patched

Object = dict[str, Any]
LEADER = {"name": "leasekeeper-leader", "mountPath": "/var/run/lock", "readOnly": True}


def pod(lock: str | None = "orders", **spec: Any) -> Object:
    metadata: Object = {"generateName": "orders-"}
    if lock is not None:
        metadata["annotations"] = {"leasekeeper.dev/lock": lock}
    return {"metadata": metadata, "spec": {"containers": [{"name": "app"}], **spec}}


def injected(original: Object) -> Object:
    before = copy.deepcopy(original)
    after = patched(original, inject(original, SETTINGS))
    assert original == before, "a pure function"
    return after


def test_a_pod_without_the_annotation_is_left_alone() -> None:
    assert wanted_locks(pod(None)) == []
    assert inject(pod(None), SETTINGS) == []


def test_the_smallest_pod_gets_sidecar_volumes_mount_and_label() -> None:
    after = injected(pod())
    (sidecar,) = after["spec"]["initContainers"]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("leasekeeper", "Always")
    assert (sidecar["image"], sidecar["imagePullPolicy"]) == (SETTINGS.sidecar_image, "Never")
    assert after["spec"]["containers"] == [{"name": "app", "volumeMounts": [LEADER]}]
    assert after["metadata"]["labels"] == {"leasekeeper.dev/lock": "orders"}
    volumes = {volume["name"]: volume for volume in after["spec"]["volumes"]}
    assert volumes["leasekeeper-lock"]["secret"]["secretName"] == "leasekeeper-orders"
    assert volumes["leasekeeper-leader"]["emptyDir"]["medium"] == "Memory"


def test_a_pod_with_several_locks_gets_a_secret_for_each() -> None:
    after = injected(pod("orders, stock"))
    (sidecar,) = after["spec"]["initContainers"]
    environment = {v["name"]: v.get("value") for v in sidecar["env"]}
    assert environment["LEASEKEEPER_CONFIG"] == (
        "/etc/leasekeeper/orders/lock.json,/etc/leasekeeper/stock/lock.json"
    )
    mounts = {mount["mountPath"]: mount["name"] for mount in sidecar["volumeMounts"]}
    secrets = {
        volume["name"]: volume["secret"]["secretName"]
        for volume in after["spec"]["volumes"]
        if "secret" in volume
    }
    for lock in ("orders", "stock"):
        assert secrets[mounts[f"/etc/leasekeeper/{lock}"]] == f"leasekeeper-{lock}"
    assert after["metadata"]["labels"] == {"leasekeeper.dev/lock": "orders"}
    assert inject(after, SETTINGS) == [], "asked a second time, nothing is missing"


@pytest.mark.parametrize("text", ["orders,orders", "orders,", ",", "orders,UPPER"])
def test_a_list_of_locks_that_makes_no_sense_is_denied(text: str) -> None:
    with pytest.raises(Denied):
        inject(pod(text), SETTINGS)


def test_a_pod_chooses_settings_of_its_sidecar_by_annotations() -> None:
    original = pod()
    original["metadata"]["annotations"] |= {
        "leasekeeper.dev/on-lost": "http://127.0.0.1:8080/lost",
        "leasekeeper.dev/health-period": "2",
        "leasekeeper.dev/mirror": "none",
    }
    (sidecar,) = injected(original)["spec"]["initContainers"]
    environment = {v["name"]: v.get("value") for v in sidecar["env"]}
    assert environment["LEASEKEEPER_ON_LOST"] == "http://127.0.0.1:8080/lost"
    assert environment["LEASEKEEPER_HEALTH_PERIOD"] == "2"
    assert environment["LEASEKEEPER_MIRROR"] == "kubernetes", "not for the pod to choose"


def asks_for_health(path: str, **spec: Any) -> Object:
    original = pod(**spec)
    original["metadata"]["annotations"]["leasekeeper.dev/health"] = path
    return original


def test_a_health_file_gets_a_volume_that_the_app_writes_and_the_sidecar_reads() -> None:
    mount = {"name": "leasekeeper-health", "mountPath": "/run/app"}
    after = injected(asks_for_health("/run/app/well", initContainers=[{"name": "first"}]))
    sidecar, first = after["spec"]["initContainers"]
    (app,) = after["spec"]["containers"]
    assert mount | {"readOnly": True} in sidecar["volumeMounts"]
    assert app["volumeMounts"] == first["volumeMounts"] == [LEADER, mount]
    assert [v["name"] for v in after["spec"]["volumes"]].count("leasekeeper-health") == 1
    assert inject(after, SETTINGS) == []


@pytest.mark.parametrize("address", ["http://127.0.0.1:8080/well", ""])
def test_without_a_health_file_there_is_no_volume_for_it(address: str) -> None:
    volumes = injected(asks_for_health(address))["spec"]["volumes"]
    assert "leasekeeper-health" not in {volume["name"] for volume in volumes}


@pytest.mark.parametrize(
    "path",
    [
        *("/well", "/run/app/../lock/well", "//run/well", "/run/app/", "/run/a:b/well"),
        *("/var/run/lock/well", "/var/run/lock/sub/well", "/var/run/well"),
        "/etc/leasekeeper/well",
    ],
)
def test_a_health_file_where_it_cannot_be_is_refused(path: str) -> None:
    with pytest.raises(Denied, match=r"leasekeeper.dev/health.*as in /var/run/health/well"):
        inject(asks_for_health(path), SETTINGS)


def test_a_container_that_uses_the_place_of_the_health_file_is_refused() -> None:
    container = {"name": "app", "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]}
    with pytest.raises(Denied, match=r"'tmp' at /tmp, where the health file belongs"):
        inject(asks_for_health("/tmp/well", containers=[container]), SETTINGS)


def test_the_sidecar_is_told_what_the_architecture_says() -> None:
    (sidecar,) = injected(pod())["spec"]["initContainers"]
    environment = {v["name"]: v.get("value") or v["valueFrom"] for v in sidecar["env"]}
    assert environment == {
        "LEASEKEEPER_CONFIG": "/etc/leasekeeper/lock.json",
        "LEASEKEEPER_LEADER_DIR": "/var/run/lock",
        "LEASEKEEPER_STATE_DIR": "/var/run/leasekeeper",
        "LEASEKEEPER_HTTP_PORT": "8090",
        "LEASEKEEPER_LOCAL_PORT": "4040",
        "LEASEKEEPER_MIRROR": "kubernetes",
        "LEASEKEEPER_POD_NAME": _field("metadata.name"),
        "LEASEKEEPER_POD_NAMESPACE": _field("metadata.namespace"),
        "LEASEKEEPER_POD_UID": _field("metadata.uid"),
    }
    assert sidecar["startupProbe"]["httpGet"] == {"path": "/readyz", "port": 8090}
    writable = {m["mountPath"] for m in sidecar["volumeMounts"] if not m.get("readOnly")}
    assert writable == {"/var/run/lock", "/var/run/leasekeeper"}


def _field(path: str) -> Object:
    return {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}


def test_the_sidecar_meets_the_restricted_profile() -> None:
    (sidecar,) = injected(pod())["spec"]["initContainers"]
    context = sidecar["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] > 0
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}


def test_the_sidecar_stands_first_and_everybody_else_reads_the_file() -> None:
    other = {"name": "data", "mountPath": "/data"}
    original = pod(
        initContainers=[{"name": "migrate", "volumeMounts": [other]}, {"name": "warm"}],
        containers=[{"name": "app", "volumeMounts": [other]}, {"name": "logs"}],
        volumes=[{"name": "data", "emptyDir": {}}],
    )
    after = injected(original)["spec"]
    assert [c["name"] for c in after["initContainers"]] == ["leasekeeper", "migrate", "warm"]
    assert after["initContainers"][1]["volumeMounts"] == [other, LEADER]
    assert after["initContainers"][2]["volumeMounts"] == [LEADER]
    assert after["containers"][0]["volumeMounts"] == [other, LEADER]
    assert after["containers"][1]["volumeMounts"] == [LEADER]
    assert after["volumes"][0] == {"name": "data", "emptyDir": {}}


def test_labels_and_annotations_stay() -> None:
    original = pod()
    original["metadata"]["labels"] = {"app": "orders"}
    metadata = injected(original)["metadata"]
    assert metadata["labels"] == {"app": "orders", "leasekeeper.dev/lock": "orders"}
    assert metadata["annotations"]["leasekeeper.dev/lock"] == "orders"


def test_a_second_call_changes_nothing() -> None:
    assert inject(injected(pod()), SETTINGS) == []


def test_a_container_that_another_webhook_added_gets_the_file_at_the_second_call() -> None:
    once = injected(pod())
    once["spec"]["containers"].append({"name": "mesh"})
    once["spec"]["initContainers"].insert(0, {"name": "mesh-init"})
    twice = injected(once)["spec"]
    assert twice["containers"][1]["volumeMounts"] == [LEADER]
    assert twice["initContainers"][0]["volumeMounts"] == [LEADER]
    assert [c["name"] for c in twice["initContainers"]] == ["mesh-init", "leasekeeper"]


@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_a_foreign_container_of_that_name_is_refused(field: str) -> None:
    with pytest.raises(Denied, match=r"already has a container named 'leasekeeper': rename"):
        inject(pod("orders", **{field: [{"name": "leasekeeper"}]}), SETTINGS)


def test_a_foreign_volume_of_that_name_is_refused() -> None:
    with pytest.raises(Denied, match=r"already has a volume named 'leasekeeper-state': rename"):
        inject(pod(volumes=[{"name": "leasekeeper-state"}]), SETTINGS)


def test_a_container_that_uses_the_place_of_the_leader_file_is_refused() -> None:
    mount = {"name": "locks", "mountPath": "/var/run/lock/"}
    with pytest.raises(Denied, match=r"'app' already mounts the volume 'locks' at /var/run/lock"):
        inject(pod(containers=[{"name": "app", "volumeMounts": [mount]}]), SETTINGS)


@pytest.mark.parametrize("name", ["", "Orders", "a/b", "-a", "a" * 64, "a b"])
def test_a_name_that_no_lock_can_have_is_refused(name: str) -> None:
    with pytest.raises(Denied, match="cannot be the name of a DistributedLock"):
        inject(pod(name), SETTINGS)


def test_a_list_of_ten_thousands_of_locks_is_refused_at_once() -> None:
    """As long as annotations may be. The whole operator would stand still for minutes."""
    endless = ",".join(f"{number:x}" for number in range(40_000))
    began = time.monotonic()
    with pytest.raises(Denied, match=r"names 40000 locks, and a pod can ask for 32 at most"):
        inject(pod(endless), SETTINGS)
    refused = time.monotonic() - began
    began = time.monotonic()
    [endless.count(name) for name in endless.split(",")[:1000]]  # a fortieth of what was done
    assert refused < time.monotonic() - began


def test_a_refusal_does_not_repeat_a_quarter_of_a_megabyte() -> None:
    with pytest.raises(Denied) as denied:
        inject(pod("x" * 250_000), SETTINGS)
    assert len(str(denied.value)) < 1000


@pytest.mark.parametrize("text", ["", ".", "..", ",", "No_Name", "x" * 64])
def test_a_pod_that_runs_names_no_lock_that_cannot_be(text: str) -> None:
    """Its annotation was edited, and the watch asks for what it says. The API server's answer to an
    empty name is a list: the key failed for ever."""
    assert wanted_locks(pod(text)) == []


def test_a_pod_that_runs_names_no_ten_thousands_of_locks() -> None:
    assert len(wanted_locks(pod(",".join(f"{number:x}" for number in range(40_000))))) == 32
