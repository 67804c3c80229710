"""An operator for some namespaces: it serves these, and asks for nothing elsewhere."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest
import yaml

from tests.operator.conftest import Cluster, eventually
from tests.operator.test_operator import README, Operator, forbidden


@pytest.fixture
def served(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """Bound by RoleBindings in its own namespace and in one other; no webhook."""
    cluster.run("delete", "dlock,lens", "--all", "--all-namespaces")
    operator = Operator(cluster, tmp_path_factory.mktemp("namespaced"))
    blocks = re.findall(r"```yaml\n((?:rules|namespaced):.*?)```", README.read_text(), re.DOTALL)
    text = "".join(blocks).replace("<LEASEKEEPER_ELECTION_LEASE>", "leasekeeper-operator")
    rights = yaml.safe_load(text)
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
    rules = [rule for rules in rights.values() for rule in rules]
    cluster.apply({**role, "metadata": {"name": operator.namespace}, "rules": rules})
    yield operator
    operator.stop()
    cluster.run("delete", "clusterrole", operator.namespace)


async def test_it_serves_its_namespaces_and_asks_for_nothing_elsewhere(
    cluster: Cluster, served: Operator
) -> None:
    shop, elsewhere = cluster.namespace(), cluster.namespace()
    group = f"--group=system:serviceaccounts:{served.namespace}"
    for namespace in (served.namespace, shop):
        bind = ("create", "rolebinding", "leasekeeper", f"--clusterrole={served.namespace}", group)
        cluster.run("-n", namespace, *bind)
    served.start(LEASEKEEPER_WATCH_NAMESPACES=shop, LEASEKEEPER_WEBHOOK_SERVICE="")
    await eventually(lambda: served.ready, "the operator to be ready")
    for namespace in (elsewhere, shop):
        cluster.lock(namespace)
    cluster.ensemble(served.namespace, "default", nodes=3, allowedNamespaces=["*"])
    await eventually(lambda: cluster.get(shop, "secret", "leasekeeper-orders"), "its Secret")
    await asyncio.sleep(1)  # longer than a reconciliation of what it must not see
    assert cluster.get(elsewhere, "secret", "leasekeeper-orders") is None
    assert forbidden(served) == []
    assert "Traceback" not in served.log.read_text()
