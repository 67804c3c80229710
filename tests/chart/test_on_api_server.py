"""What a real API server makes of the chart: the objects, the admission policy, the webhook's
conditions. No nodes: pods are only objects here, and that is all that a token is bound to."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from leasekeeper_sidecar.config import SETTINGS

from tests.chart.conftest import CHART, REPOSITORY, Render, one

if TYPE_CHECKING:
    from control_plane import ControlPlane

EXAMPLES = sorted((REPOSITORY / "examples").glob("*.yaml"))
OPERATOR = ("system", "lk-leasekeeper-operator")


class Cluster:
    """kubectl against the control plane, as an administrator or with the token of a pod."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    def kubectl(
        self, *arguments: str, given: Any = None, token: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        access: tuple[str, ...] = ("--kubeconfig", str(self.plane.kubeconfig))
        if token:  # beside the administrator's client certificate the token would not count
            ca = self.plane.directory / "pki" / "ca.crt"
            server = ("--server", self.plane.server, "--certificate-authority", str(ca))
            access = ("--kubeconfig", "/dev/null", *server, "--token", token)
        text = given if given is None or isinstance(given, str) else yaml.safe_dump_all(given)
        return subprocess.run(
            [str(self.plane.kubectl), *access, *arguments],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def do(self, *arguments: str, given: Any = None) -> str:
        done = self.kubectl(*arguments, given=given)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def token(self, namespace: str, account: str, pod: str | None = None) -> str:
        bound = ("--bound-object-kind", "Pod", "--bound-object-name", pod) if pod else ()
        return self.do("-n", namespace, "create", "token", account, *bound).strip()

    def patch_status(self, token: str, status: dict[str, Any]) -> str:
        """The API server's objection, or nothing."""
        patch = ("patch", "dlock", "orders", "--subresource=status", "--type=merge")
        body = json.dumps({"status": status})
        done = self.kubectl("-n", "shop", *patch, "-p", body, token=token)
        return "" if done.returncode == 0 else done.stderr


def pod(namespace: str, name: str, account: str = "default", **annotations: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "annotations": annotations},
        "spec": {"serviceAccountName": account, "containers": [{"name": "a", "image": "a"}]},
    }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, render: Render) -> Iterator[Cluster]:
    from control_plane import ControlPlane

    with ControlPlane(tmp_path_factory.mktemp("plane")) as plane:
        made = Cluster(plane)
        made.do("apply", "--server-side", "-f", str(CHART / "crds"))
        made.do("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        for namespace in ("system", "shop", "other"):
            made.do("create", "namespace", namespace)
            made.do("-n", namespace, "create", "serviceaccount", "default")
        made.do("apply", "--validate=strict", "-f", "-", given=render())
        rights = ("--verb=patch,get", "--resource=distributedlocks/status,distributedlocks")
        made.do("create", "clusterrole", "writer", *rights)
        everyone = "--group=system:serviceaccounts"
        made.do("create", "clusterrolebinding", "writer", "--clusterrole=writer", everyone)
        pods = [pod("shop", "a"), pod("shop", "b"), pod("other", "a"), pod(*OPERATOR, OPERATOR[1])]
        made.do("apply", "-f", "-", given=pods)
        yield made


FORGED = "with a token of no pod of this namespace"


def forge(cluster: Cluster) -> str:
    """Another name each time: what does not change is not looked at."""
    name = f"nobody-{time.monotonic_ns()}"
    return cluster.patch_status(cluster.token("shop", "default"), {"holder": name})


def until(true: Callable[[], bool], what: str) -> None:
    """A policy is in force, or out of it, some time after the API server accepted the change."""
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, f"waited in vain: {what}"


@pytest.fixture
def lock(cluster: Cluster) -> Iterator[Cluster]:
    """A new lock `shop/orders`, led by pod a with token 7, and the policy in force."""
    spec = {"apiVersion": "leasekeeper.dev/v1alpha1", "kind": "DistributedLock"}
    metadata = {"namespace": "shop", "name": "orders"}
    cluster.do("apply", "-f", "-", given=[{**spec, "metadata": metadata, "spec": {}}])
    operator = cluster.token(*OPERATOR)
    status = {"holder": "a", "token": 7, "acquireTime": "2026-01-02T03:04:05Z", "nodes": "5/5"}
    assert cluster.patch_status(operator, status) == ""
    until(lambda: FORGED in forge(cluster), "the admission policy came into force")
    assert cluster.patch_status(operator, status) == ""
    yield cluster
    cluster.do("-n", "shop", "delete", "dlock", "orders")


def test_a_pod_writes_itself_as_holder(lock: Cluster) -> None:
    token = lock.token("shop", "default", "b")
    time_of_b = "2026-01-02T03:05:05Z"
    assert lock.patch_status(token, {"holder": "b", "token": 8, "acquireTime": time_of_b}) == ""


def test_a_forged_holder_is_refused_with_a_sentence_that_names_both(lock: Cluster) -> None:
    said = lock.patch_status(lock.token("shop", "default", "b"), {"holder": "c", "token": 8})
    assert "only the pod c itself may write this" in said
    assert "of the pod b" in said


@pytest.mark.parametrize(
    "status",
    [
        {"token": 8},
        {"holder": ""},
        {"holder": None},
        {"acquireTime": "2026-01-02T03:05:05Z"},
        {"acquireTime": None},
        {"holder": "a", "token": 8},
    ],
    ids=str,
)
def test_only_the_holder_changes_what_says_that_it_leads(
    lock: Cluster, status: dict[str, Any]
) -> None:
    """The late word of a former holder must not hide the present one."""
    assert "only the pod a itself" in lock.patch_status(lock.token("shop", "default", "b"), status)
    assert lock.patch_status(lock.token("shop", "default", "a"), status) == ""


def test_a_token_of_no_pod_is_refused(lock: Cluster) -> None:
    said = lock.patch_status(lock.token("shop", "default"), {"holder": "a", "token": 8})
    assert FORGED in said


def test_control_without_the_policy_anybody_forges_a_holder(lock: Cluster, render: Render) -> None:
    binding = one(render(), "ValidatingAdmissionPolicyBinding")
    lock.do("delete", binding["kind"], binding["metadata"]["name"])
    until(lambda: forge(lock) == "", "the policy went out of force")
    lock.do("apply", "-f", "-", given=[binding])


def test_a_pod_of_that_name_in_another_namespace_is_refused(lock: Cluster) -> None:
    said = lock.patch_status(lock.token("other", "default", "a"), {"holder": "a", "token": 8})
    assert "system:serviceaccount:other:default, with a token of no pod" in said


@pytest.mark.parametrize(
    "status",
    [
        {"nodes": "0/5"},
        {"nodes": None},
        {"quorum": 1},
        {"holder": "b", "token": 8, "observedGeneration": 3},
    ],
    ids=str,
)
def test_the_rest_of_the_status_is_the_operators(lock: Cluster, status: dict[str, Any]) -> None:
    said = lock.patch_status(lock.token("shop", "default", "b"), status)
    assert "a pod may change holder, token and acquireTime only" in said
    assert lock.patch_status(lock.token(*OPERATOR, OPERATOR[1]), status) == ""


@pytest.mark.parametrize("file", EXAMPLES, ids=[file.name for file in EXAMPLES])
def test_examples_are_applied(cluster: Cluster, file: Path) -> None:
    """Each in a namespace of its own, without a warning of the restricted profile; a second time
    changes nothing.
    """
    namespace = f"example-{file.stem}"
    cluster.do("create", "namespace", namespace)
    profile = "pod-security.kubernetes.io"
    cluster.do("label", "namespace", namespace, f"{profile}/warn=restricted")
    cluster.do("-n", namespace, "create", "serviceaccount", "default")
    apply = ("-n", namespace, "apply", "--validate=strict", "-f", str(file))
    first = cluster.kubectl(*apply)
    assert (first.returncode, first.stderr) == (0, ""), "not even a warning"
    assert first.stdout.count(" created\n") == len(list(yaml.safe_load_all(file.read_text())))

    def generations() -> list[int | None]:
        found = json.loads(cluster.do("-n", namespace, "get", "-f", str(file), "-o", "json"))
        return [item["metadata"].get("generation") for item in found["items"]]

    before = generations()
    cluster.do(*apply)
    assert generations() == before


def shown(page: str) -> list[dict[str, Any]]:
    """What a page shows of objects that this API server has."""
    text = (REPOSITORY / page).read_text()
    blocks = re.findall(r"^```yaml\n(apiVersion:.*?)^```", text, re.MULTILINE | re.DOTALL)
    found = [document for block in blocks for document in yaml.safe_load_all(block)]
    return [one for one in found if one["apiVersion"] in ("v1", "leasekeeper.dev/v1alpha1")]


@pytest.mark.parametrize(
    ("page", "kind"),
    [("docs/stores.md", "Pod"), ("charts/leasekeeper/README.md", "LockEnsemble")],
)
def test_what_pages_show_is_applied(cluster: Cluster, page: str, kind: str) -> None:
    """Without a warning of the restricted profile."""
    (manifest,) = shown(page)
    assert manifest["kind"] == kind
    namespace = manifest["metadata"].setdefault("namespace", "shown")
    cluster.do("create", "namespace", namespace)
    cluster.do("label", "namespace", namespace, "pod-security.kubernetes.io/warn=restricted")
    cluster.do("-n", namespace, "create", "serviceaccount", "default")
    done = cluster.kubectl("apply", "--validate=strict", "-f", "-", given=[manifest])
    assert (done.returncode, done.stderr) == (0, "")


def test_a_sidecar_that_is_written_by_hand_is_told_what_it_must_be_told() -> None:
    (pod,) = shown("docs/stores.md")
    (sidecar,) = pod["spec"]["initContainers"]
    given = {entry["name"] for entry in sidecar["env"]}
    settings = {setting.variable: setting.default for setting in SETTINGS}
    assert given <= settings.keys()
    assert {name for name, default in settings.items() if default is None} <= given
    mounted = {mount["mountPath"] for mount in sidecar["volumeMounts"]}
    folders = {settings[f"LEASEKEEPER_{name}_DIR"] for name in ("LEADER", "STATE")}
    assert mounted == {*folders, str(Path(settings["LEASEKEEPER_CONFIG"] or "").parent)}


def test_a_dead_webhook_stops_only_pods_that_ask_for_a_lock(
    cluster: Cluster, render: Render
) -> None:
    cluster.do("label", "namespace", "other", "leasekeeper.dev/injection=disabled")
    asking = {"leasekeeper.dev/lock": "orders"}
    refused = cluster.kubectl("create", "-f", "-", given=[pod("shop", "asks", **asking)])
    assert refused.returncode != 0
    assert 'failed calling webhook "inject.leasekeeper.dev"' in refused.stderr
    cluster.do("create", "-f", "-", given=[pod("shop", "asks-not"), pod("other", "x", **asking)])


def test_the_webhook_takes_an_authority_beside_what_helm_wrote(
    cluster: Cluster, render: Render
) -> None:
    """The operator applies `caBundle` under a name of its own; an upgrade must not take it away."""
    ours = one(render(), "MutatingWebhookConfiguration")
    name, webhook = ours["metadata"]["name"], ours["webhooks"][0]["name"]
    applied = {
        "apiVersion": ours["apiVersion"],
        "kind": ours["kind"],
        "metadata": {"name": name},
        "webhooks": [{"name": webhook, "clientConfig": {"caBundle": _AUTHORITY}}],
    }
    server_side = ("apply", "--server-side", "--field-manager=leasekeeper-operator", "-f", "-")
    cluster.do(*server_side, given=[applied])
    cluster.do("apply", "-f", "-", given=render("webhook.timeoutSeconds=5"))
    found = json.loads(cluster.do("get", ours["kind"], name, "-o", "json"))["webhooks"][0]
    assert (found["clientConfig"]["caBundle"], found["timeoutSeconds"]) == (_AUTHORITY, 5)


_AUTHORITY = "TEFU"  # what is in it is not looked at before a call
