"""What `helm` makes of the chart: names, references between objects, security contexts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.chart.conftest import CHART, REPOSITORY, Render, one

Helm = Callable[..., subprocess.CompletedProcess[str]]

CHANGED = (
    'fullnameOverride="other"',
    'commonLabels={"team": "a"}',
    'imagePullSecrets=[{"name": "pull"}]',
    'operator.image={"repository": "example/op", "tag": "7"}',
    'operator.podAnnotations={"a": "b"}',
    'operator.podLabels={"c": "d"}',
    'operator.nodeSelector={"e": "f"}',
    'operator.tolerations=[{"operator": "Exists"}]',
    'operator.affinity={"nodeAffinity": {}}',
    'operator.priorityClassName="high"',
    'operator.serviceAccount={"name": "account", "annotations": {"g": "h"}}',
    f'sidecar.image={{"repository": "example/side", "digest": "sha256:{"0" * 64}"}}',
    'sidecar.resources={"limits": {"memory": "99Mi"}}',
    "webhook.timeoutSeconds=3",
    'defaultEnsemble={"nodes": 3, "longestLeaseSeconds": 4, "restartDelaySeconds": 8}',
    'defaultEnsemble.image="docker.io/library/redis:8"',
)


def test_lint_finds_nothing(helm: Helm) -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_object_has_the_recommended_labels_and_the_release_namespace(render: Render) -> None:
    for manifest in render():
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "leasekeeper", manifest["kind"]
        assert labels["app.kubernetes.io/instance"] == "lk"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert manifest["metadata"].get("namespace", "system") == "system"


@pytest.mark.parametrize("values", [(), CHANGED], ids=["defaults", "changed"])
def test_objects_name_each_other_rightly(render: Render, values: tuple[str, ...]) -> None:
    manifests = render(*values)
    account = one(manifests, "ServiceAccount")["metadata"]["name"]
    service = one(manifests, "Service")
    webhook = one(manifests, "MutatingWebhookConfiguration")
    pod = one(manifests, "Deployment")["spec"]["template"]
    container = pod["spec"]["containers"][0]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}

    assert pod["spec"]["serviceAccountName"] == account
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert service["spec"]["ports"][0]["targetPort"] in [p["name"] for p in container["ports"]]
    target = webhook["webhooks"][0]["clientConfig"]["service"]
    assert target["name"] == environment["LEASEKEEPER_WEBHOOK_SERVICE"]
    assert target["name"] == service["metadata"]["name"]
    assert environment["LEASEKEEPER_WEBHOOK_CONFIGURATION"] == webhook["metadata"]["name"]
    binding = one(manifests, "ClusterRoleBinding")
    assert binding["roleRef"]["name"] == one(manifests, "ClusterRole")["metadata"]["name"]
    assert binding["subjects"][0] == {
        "kind": "ServiceAccount",
        "name": account,
        "namespace": "system",
    }
    policy = one(manifests, "ValidatingAdmissionPolicy")
    assert f"'system:serviceaccount:system:{account}'" in str(policy["spec"]["matchConditions"])
    bound = one(manifests, "ValidatingAdmissionPolicyBinding")["spec"]
    assert bound == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}


def test_changed_values_reach_their_objects(render: Render) -> None:
    manifests = render(*CHANGED)
    deployment = one(manifests, "Deployment")
    pod = deployment["spec"]["template"]
    container = pod["spec"]["containers"][0]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}

    assert deployment["metadata"]["name"] == "other-operator"
    assert all(manifest["metadata"]["labels"]["team"] == "a" for manifest in manifests)
    assert container["image"] == "example/op:7"
    assert environment["LEASEKEEPER_SIDECAR_IMAGE"] == f"example/side@sha256:{'0' * 64}"
    resources = json.loads(environment["LEASEKEEPER_SIDECAR_RESOURCES"] or "")
    assert resources["limits"] == {"memory": "99Mi"}
    assert pod["metadata"]["annotations"] == {"a": "b"}
    assert pod["metadata"]["labels"]["c"] == "d"
    spec = pod["spec"]
    assert spec["nodeSelector"] == {"e": "f"}
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["affinity"] == {"nodeAffinity": {}}
    assert spec["priorityClassName"] == "high"
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert one(manifests, "ServiceAccount")["metadata"]["annotations"] == {"g": "h"}
    assert one(manifests, "MutatingWebhookConfiguration")["webhooks"][0]["timeoutSeconds"] == 3
    ensemble = one(manifests, "LockEnsemble")["spec"]
    assert (ensemble["nodes"], ensemble["longestLeaseSeconds"]) == (3, 4)
    assert ensemble["restartPolicy"] == {"delaySeconds": 8}
    assert ensemble["image"] == "docker.io/library/redis:8"
    assert ensemble["imagePullSecrets"] == [{"name": "pull"}]


def test_the_webhooks_certificate_can_be_somebody_elses(render: Render) -> None:
    def environment(*values: str) -> dict[str, str]:
        container = one(render(*values), "Deployment")["spec"]["template"]["spec"]["containers"][0]
        return {entry["name"]: entry.get("value") for entry in container["env"]}

    name = "LEASEKEEPER_WEBHOOK_CERTIFICATE"
    assert environment('webhook.certificateSecret="given"')[name] == "given"
    assert name not in environment()
    # The name in the README's Certificate is the one that the API server calls.
    service = one(render(), "Service")["metadata"]
    (host,) = re.findall(r"dnsNames: \[(.*)\]", (CHART / "README.md").read_text())
    assert host == "leasekeeper-operator.leasekeeper.svc"
    assert service["name"].endswith("-operator")


def test_the_default_ensemble_can_be_left_out(render: Render) -> None:
    kinds = [manifest["kind"] for manifest in render("defaultEnsemble.enabled=false")]
    assert "LockEnsemble" not in kinds


def test_the_default_ensemble_speaks_tls_where_that_is_asked_for(render: Render) -> None:
    assert "tls" not in one(render(), "LockEnsemble")["spec"]
    spec = one(render("defaultEnsemble.tls.enabled=true"), "LockEnsemble")["spec"]
    assert spec["tls"] == {}


def test_values_that_an_upgrade_reuses_from_before_there_was_tls_are_taken(render: Render) -> None:
    """`helm upgrade --reuse-values` brings none of the new keys."""
    assert "tls" not in one(render("defaultEnsemble.tls=null"), "LockEnsemble")["spec"]


def test_the_operator_meets_the_restricted_pod_security_standard(render: Render) -> None:
    pod = one(render(), "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert {"requests", "limits"} <= container["resources"].keys()


def test_a_dead_webhook_stops_only_pods_that_ask_for_a_lock(render: Render) -> None:
    webhook, asked = one(render(), "MutatingWebhookConfiguration")["webhooks"]
    assert asked["failurePolicy"] == "Ignore"  # a pause must work without it
    assert webhook["failurePolicy"] == "Fail"
    (condition,) = webhook["matchConditions"]
    assert "'leasekeeper.dev/lock' in object.metadata.annotations" in condition["expression"]
    assert webhook["namespaceSelector"]["matchExpressions"] == [
        {"key": "leasekeeper.dev/injection", "operator": "NotIn", "values": ["disabled"]}
    ]
    assert webhook["rules"][0]["operations"] == ["CREATE"]


def test_the_role_is_the_list_that_the_operator_is_tested_with(render: Render) -> None:
    readme = (REPOSITORY / "operator" / "leasekeeper_operator" / "README.md").read_text()
    (block,) = [b for b in re.findall(r"```yaml\n(.*?)```", readme, re.S) if "rules:" in b]
    manifests = render()
    name = one(manifests, "MutatingWebhookConfiguration")["metadata"]["name"]
    documented = yaml.safe_load(block.replace("<LEASEKEEPER_WEBHOOK_CONFIGURATION>", name))
    assert one(manifests, "ClusterRole")["rules"] == documented["rules"]


def test_the_right_to_patch_pods_is_given_where_it_is_asked_for(render: Render) -> None:
    def rights(*values: str) -> set[str]:
        rules = one(render(*values), "ClusterRole")["rules"]
        return {verb for rule in rules if "pods" in rule["resources"] for verb in rule["verbs"]}

    assert rights("operator.labelHolders=true") - rights() == {"patch"}


def test_the_election_has_the_rights_that_the_operators_readme_lists(render: Render) -> None:
    text = (REPOSITORY / "operator" / "leasekeeper_operator" / "README.md").read_text()
    (block,) = re.findall(r"```yaml\n(namespaced:.*?)```", text, re.DOTALL)
    manifests = render()
    container = one(manifests, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    lease = environment["LEASEKEEPER_ELECTION_LEASE"] or ""
    documented = yaml.safe_load(block.replace("<LEASEKEEPER_ELECTION_LEASE>", lease))
    role, binding = one(manifests, "Role"), one(manifests, "RoleBinding")
    assert role["rules"] == documented["namespaced"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    account = one(manifests, "ServiceAccount")["metadata"]["name"]
    assert [subject["name"] for subject in binding["subjects"]] == [account]


def test_only_an_installation_says_that_nobody_leads_yet(render: Render, helm: Helm) -> None:
    """An upgrade that finds the Lease deleted makes it anew, while a replica still leads: with this
    note on it, another one would lead at once."""
    note = {"leasekeeper.dev/fresh": "true"}
    assert one(render(), "Lease")["metadata"]["annotations"] == note
    done = helm("template", "lk", str(CHART), "--is-upgrade")
    assert done.returncode == 0, done.stderr
    upgraded = [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]
    assert "annotations" not in one(upgraded, "Lease")["metadata"]


def test_replicas_are_spread_and_evicted_one_at_a_time(render: Render) -> None:
    manifests = render()
    deployment = one(manifests, "Deployment")["spec"]
    pod = deployment["template"]
    budget = one(manifests, "PodDisruptionBudget")["spec"]
    assert deployment["replicas"] == 2
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    # One key only: the scheduler ignores machines that lack any of several, as zones often are.
    (spread,) = pod["spec"]["topologySpreadConstraints"]
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
    assert spread["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (wish,) = pod["spec"]["affinity"]["podAntiAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    labels = wish["podAffinityTerm"]["labelSelector"]["matchLabels"]
    assert labels.items() <= pod["metadata"]["labels"].items()


def test_a_single_replica_has_no_disruption_budget(render: Render) -> None:
    """It would keep every machine that it runs on from being drained."""
    kinds = [manifest["kind"] for manifest in render("operator.replicas=1")]
    assert "PodDisruptionBudget" not in kinds


def test_crds_are_those_of_the_repository() -> None:
    ours = {file.name: file.read_text() for file in (CHART / "crds").glob("*")}
    source = {file.name: file.read_text() for file in (REPOSITORY / "crds").glob("*.yaml")}
    assert source, "crds/ is empty"
    assert ours == source, "bring them over: cp crds/*.yaml charts/leasekeeper/crds/"


def test_the_next_step_names_the_namespace_and_the_ensemble(helm: Helm, tmp_path: Path) -> None:
    """`helm template` does not show the notes, and without a cluster nothing else renders them."""
    copy = shutil.copytree(CHART, tmp_path / "leasekeeper")
    shutil.copy(CHART / "templates" / "NOTES.txt", copy / "notes.txt")
    (copy / "templates" / "shown.yaml").write_text('{{ tpl (.Files.Get "notes.txt") . }}')
    show = ("template", "lk", str(copy), "--namespace", "system", "-s", "templates/shown.yaml")

    shown = helm(*show, "--debug").stdout
    assert "kubectl -n system wait lockensemble/default" in shown
    shown = helm(*show, "--debug", "--set", "defaultEnsemble.enabled=false").stdout
    assert "ensembleRef" in shown
    assert "wait lockensemble/default" not in shown
    assert "one called `default` in the namespace system serves the locks" in shown
