"""The connections of the operator's watches are swallowed: they stand, and nothing comes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tcp_proxy import TcpProxy

from tests.operator.conftest import Cluster, eventually
from tests.operator.test_operator import Operator, webhook_configuration

# Only the time after which silence is death is shorter, so that the test need not wait a minute.
SHORT_SILENCE = """
from leasekeeper_operator import watches
from leasekeeper_operator.main import main
watches.SILENCE_SECONDS = {seconds}
main()
"""


class BehindProxy(Operator):
    proxy: TcpProxy

    def kubeconfig(self) -> str:
        path = Path(super().kubeconfig())
        config = yaml.safe_load(path.read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self.proxy.port}"
        path.write_text(yaml.safe_dump(config))
        return str(path)


@pytest.mark.parametrize("noticing", [True, False])
async def test_a_watch_that_is_cut_silently_is_noticed(
    cluster: Cluster, tmp_path: Path, noticing: bool
) -> None:
    """And the control: with a silence that never ends, the operator stays blind."""
    operator = BehindProxy(cluster, tmp_path)
    operator.program = ("-c", SHORT_SILENCE.format(seconds=4 if noticing else 3600))
    operator.grant()
    cluster.run("delete", "dlock,lens", "--all", "--all-namespaces")
    cluster.apply(webhook_configuration(operator.namespace))
    namespace = operator.namespace

    def published(name: str) -> bool:
        return cluster.get(namespace, "secret", f"leasekeeper-{name}") is not None

    with TcpProxy(int(cluster.server.rpartition(":")[2])) as operator.proxy:
        # A long lease: an operator that lost it would begin anew, and see everything by that.
        operator.start(LEASEKEEPER_ELECTION_LEASE_SECONDS="600")
        try:
            await eventually(lambda: operator.ready, "the operator to be ready")
            cluster.ensemble(namespace, "default", nodes=3)
            cluster.lock(namespace, "before")
            await eventually(lambda: published("before"), "the watches to work")
            # The ensemble's first look tells all locks, also those that no watch has shown.
            looked = f"nodes-open ensemble={namespace}/default"
            await eventually(lambda: looked in operator.log.read_text(), "the first look")
            operator.proxy.swallow()
            cluster.lock(namespace, "after")
            if noticing:
                await eventually(lambda: published("after"), "the lock to be seen", patience=90)
            else:
                with pytest.raises(TimeoutError):
                    await eventually(lambda: published("after"), "nothing", patience=20)
            assert operator.metrics()["leasekeeper_operator_leading"] == 1
            assert operator.log.read_text().count("elected") == 1
        finally:
            operator.stop()
    kinds = "clusterrole,clusterrolebinding,mutatingwebhookconfiguration"
    cluster.run("delete", kinds, operator.namespace)
