"""What the chart has beside the operator: monitoring, network policy, `helm test`, namespaces."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from leasekeeper_operator.injection import CONTAINER, HTTP_PORT, inject
from leasekeeper_operator.metrics import Metrics
from leasekeeper_operator.model import ensemble_key
from leasekeeper_sidecar.metrics import Counters, Reading, page

from tests.chart.conftest import CHART, REPOSITORY, Render, one
from tests.operator.samples import SETTINGS, patched

HERE = Path(__file__).parent
ALERTS = CHART / "files" / "alerts.yaml"
DASHBOARD = CHART / "files" / "dashboard.json"
MONITORING = tuple(
    f"monitoring.{part}.enabled=true"
    for part in ("serviceMonitor", "podMonitor", "prometheusRule", "dashboard")
)


def test_the_readme_is_made_from_the_values() -> None:
    command = [sys.executable, str(REPOSITORY / "charts" / "generate_readme.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_readme_that_is_not_what_the_values_say_is_found() -> None:
    module = runpy.run_path(str(REPOSITORY / "charts" / "generate_readme.py"))
    readme, values = (CHART / "README.md").read_text(), (CHART / "values.yaml").read_text()
    assert module["generated"](readme, values) == readme
    assert module["generated"](readme, values.replace("replicas: 2", "replicas: 3")) != readme


# -- monitoring ----------------------------------------------------------------------------------


def test_nothing_of_the_prometheus_operator_is_made_unasked(render: Render) -> None:
    kinds = {manifest["kind"] for manifest in render()}
    assert not kinds & {"ServiceMonitor", "PodMonitor", "PrometheusRule", "NetworkPolicy"}
    assert "ConfigMap" not in kinds


def test_the_monitor_finds_the_operators_metrics(render: Render) -> None:
    manifests = render(*MONITORING, 'monitoring.labels={"release": "prometheus"}')
    monitor, service = one(manifests, "ServiceMonitor"), one(manifests, "Service")
    labels = service["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (endpoint,) = monitor["spec"]["endpoints"]
    ports = {port["name"]: port["targetPort"] for port in service["spec"]["ports"]}
    container = one(manifests, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    numbers = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert numbers[ports[endpoint["port"]]] == 8081
    for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule"):
        assert one(manifests, kind)["metadata"]["labels"]["release"] == "prometheus"


def test_the_monitor_finds_every_injected_sidecar(render: Render) -> None:
    pod = {
        "metadata": {"annotations": {"leasekeeper.dev/lock": "orders"}},
        "spec": {"containers": [{"name": "app", "image": "a"}]},
    }
    injected = patched(pod, inject(pod, SETTINGS))
    monitor = one(render(*MONITORING), "PodMonitor")["spec"]
    (wanted,) = monitor["selector"]["matchExpressions"]
    assert (wanted["operator"], wanted["key"] in injected["metadata"]["labels"]) == ("Exists", True)
    sidecar = next(c for c in injected["spec"]["initContainers"] if c["name"] == CONTAINER)
    (port,) = sidecar["ports"]
    assert [end["port"] for end in monitor["podMetricsEndpoints"]] == [port["name"]]
    assert port["containerPort"] == HTTP_PORT
    assert monitor["namespaceSelector"] == {"any": True}


def test_rule_and_dashboard_are_the_files(render: Render) -> None:
    manifests = render(*MONITORING)
    assert one(manifests, "PrometheusRule")["spec"] == yaml.safe_load(ALERTS.read_text())
    dashboard = one(manifests, "ConfigMap")
    assert json.loads(dashboard["data"]["leasekeeper.json"]) == json.loads(DASHBOARD.read_text())
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"


def expressions() -> list[str]:
    rules = [r["expr"] for g in yaml.safe_load(ALERTS.read_text())["groups"] for r in g["rules"]]
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return rules + [target["expr"] for panel in panels for target in panel["targets"]]


def test_alerts_and_dashboard_ask_for_metrics_that_there_are() -> None:
    reading = Reading("shop/orders", "orders", True, 7, 1.0, 1.0, False, Counters(), 2, True)
    reading.counters.count_answer("0", 0.1)

    key = ensemble_key("lk", "default")
    operator = Metrics(
        leads=lambda: True,
        writes=lambda: 0,
        waiting=lambda: 0,
        failing=lambda: 0,
        nodes=lambda: {key: (5, 5)},
    )
    operator.observe("LockEnsemble", "done", 0.1)
    exported = page([reading], 0).decode() + operator.text().decode()
    names = set(re.findall(r"^(leasekeeper_\w+)", exported, re.MULTILINE))
    asked = set(re.findall(r"leasekeeper_\w+", " ".join(expressions())))
    assert len(asked) > 10
    assert asked <= names


@pytest.fixture(scope="session")
def promtool() -> Path:
    """Without its service discoveries, which are most of it and have no part in rules."""
    from localkube import binaries, pins
    from localkube.progress import Progress

    package = "github.com/prometheus/prometheus/cmd/promtool"
    source = HERE / "go" / "promtool"
    built = binaries.module(
        "promtool", source, [], pins.load(), Progress(), packages=package, tags="remove_all_sd"
    )
    return built / "promtool"


def run(promtool: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(promtool), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def verdict(
    promtool: Path, folder: Path, rules: dict[str, Any]
) -> subprocess.CompletedProcess[str]:
    (folder / "alerts.yaml").write_text(yaml.safe_dump(rules, allow_unicode=True))
    (folder / "test.yaml").write_text((HERE / "alerts_test.yaml").read_text())
    return run(promtool, folder, "test", "rules", "test.yaml")


def test_every_alert_fires_when_it_must_and_not_before(promtool: Path, tmp_path: Path) -> None:
    rules = yaml.safe_load(ALERTS.read_text())
    assert run(promtool, ALERTS.parent, "check", "rules", "alerts.yaml").returncode == 0
    done = verdict(promtool, tmp_path, rules)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = yaml.safe_load((HERE / "alerts_test.yaml").read_text())["tests"]
    looks = [look for case in cases for look in case["alert_rule_test"]]
    names = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert {look["alertname"] for look in looks if look["exp_alerts"]} == names
    assert {look["alertname"] for look in looks if not look["exp_alerts"]} == names


def test_control_an_alert_that_comes_later_or_never_is_found(
    promtool: Path, tmp_path: Path
) -> None:
    rules = yaml.safe_load(ALERTS.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            honest = rule["for"]
            rule["for"] = "40m"
            assert verdict(promtool, tmp_path, rules).returncode != 0, rule["alert"]
            rule["for"] = "0m"
            assert verdict(promtool, tmp_path, rules).returncode != 0, rule["alert"]
            rule["for"] = honest


def test_the_dashboards_queries_can_be_parsed(promtool: Path, tmp_path: Path) -> None:
    asked = [{"record": f"a:{n}", "expr": expr} for n, expr in enumerate(expressions())]
    rules = {"groups": [{"name": "all", "rules": asked}]}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    done = run(promtool, tmp_path, "check", "rules", "--lint=none", "rules.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


# -- network, probe, namespaces ------------------------------------------------------------------


def test_the_network_policy_lets_in_who_asks_the_webhook_and_who_scrapes(render: Render) -> None:
    manifests = render(
        "networkPolicy.enabled=true",
        'networkPolicy.metricsFrom=[{"podSelector": {"matchLabels": {"app": "prometheus"}}}]',
    )
    policy, pod = one(manifests, "NetworkPolicy"), one(manifests, "Deployment")["spec"]["template"]
    labels = pod["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    names = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    webhook, metrics = policy["spec"]["ingress"]
    assert {webhook["ports"][0]["port"], metrics["ports"][0]["port"]} <= names
    assert "from" not in webhook
    assert metrics["from"] == [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]


def test_the_probe_asks_for_its_own_lock_and_is_no_operator(render: Render) -> None:
    manifests = render(tests=True)
    job, probe_lock = one(manifests, "Job"), one(manifests, "DistributedLock")
    probe = job["spec"]["template"]
    annotations = probe["metadata"]["annotations"]
    assert annotations == {"leasekeeper.dev/lock": probe_lock["metadata"]["name"]}
    for manifest in (job, probe_lock):
        assert manifest["metadata"]["annotations"]["helm.sh/hook"] == "test"
        assert manifest["metadata"]["namespace"] == "system"
    selector = one(manifests, "Service")["spec"]["selector"]
    assert not selector.items() <= probe["metadata"]["labels"].items()
    assert probe["spec"]["securityContext"]["runAsNonRoot"]
    assert probe["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"]
    assert probe["spec"]["restartPolicy"] == "Never"
    # Nobody tries again to make a bare pod that the webhook refused, or did not answer for.
    assert not [manifest for manifest in manifests if manifest["kind"] == "Pod"]


def test_without_a_default_ensemble_there_is_nothing_to_probe(render: Render) -> None:
    kinds = [m["kind"] for m in render("defaultEnsemble.enabled=false", tests=True)]
    assert not {"Job", "DistributedLock"} & {*kinds}


def test_an_installation_for_some_namespaces_has_rights_in_these_only(render: Render) -> None:
    manifests = render('watchNamespaces=["shop", "stock"]')
    roles = {m["metadata"]["name"]: m for m in manifests if m["kind"] == "ClusterRole"}
    bound = one(manifests, "ClusterRoleBinding")["roleRef"]["name"]
    (rule,) = roles[bound]["rules"]
    assert rule["resources"] == ["mutatingwebhookconfigurations"]
    (all_rights,) = roles.keys() - {bound}
    places = {
        manifest["metadata"]["namespace"]
        for manifest in manifests
        if manifest["kind"] == "RoleBinding" and manifest["roleRef"]["name"] == all_rights
    }
    assert places == {"shop", "stock", "system"}
    webhook = one(manifests, "MutatingWebhookConfiguration")["webhooks"][0]
    asked = webhook["namespaceSelector"]["matchExpressions"][1]
    assert set(asked["values"]) == places
    container = one(manifests, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert environment["LEASEKEEPER_WATCH_NAMESPACES"] == "shop,stock"
