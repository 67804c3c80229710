"""4. An upgrade from the version before, with a running election: no leader notices.

There is no release yet. The version before is a commit, with its own chart, CRDs and images, built
as they were then. Raise it with each release.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest
from localkube import images, lifecycle, pins
from localkube.progress import Progress

from tests.cluster.client import Client, until
from tests.cluster.conftest import REPOSITORY
from tests.cluster.faults import Faults
from tests.cluster.installation import Installation
from tests.cluster.recorder import Recorder
from tests.cluster.watcher import Watcher
from tests.cluster.workload import PATIENCE, Workload

pytestmark = pytest.mark.long

BEFORE = "371b73e88e7143b0b9a37c4a965173400d3dcd5b"
"""Before passwords of locks were replaced, `spec.labelHolder` was there, and health files had a
volume: new fields in both CRDs, a new role, and other things in the locks' Secrets."""

NAMESPACE = "upgrade"


@pytest.fixture(scope="module")
def before(
    client: Client, chart: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """The whole product as it was: the chart, and the images that it names."""
    known = ["git", "-C", str(REPOSITORY), "cat-file", "-e", f"{BEFORE}^{{commit}}"]
    found = subprocess.run(known, check=False, capture_output=True, text=True)
    assert found.returncode == 0, (
        f"the version before is commit {BEFORE}, and this checkout does not have it: a shallow"
        f" clone needs `git fetch --unshallow`, an unpacked archive cannot have it ({found.stderr})"
    )
    checkout = tmp_path_factory.mktemp("before")
    archive = ["git", "-C", str(REPOSITORY), "archive", BEFORE]
    packed = subprocess.run(archive, check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "-x", "-C", str(checkout)], input=packed, check=True)
    progress = Progress()
    made = images.earlier(checkout, "before", pins.load(), progress)
    lifecycle.load(client.cluster, made, progress)
    chart.ensure_earlier(checkout / "charts" / "leasekeeper", "before")
    yield chart
    chart.remove()


@pytest.fixture
def shop(
    client: Client, watcher: Watcher, recorder: Recorder, before: Installation
) -> Iterator[Workload]:
    workload = Workload(client, watcher, recorder, NAMESPACE)
    workload.declare()
    yield workload
    workload.remove()


def sidecar_of(pod: dict[str, object]) -> str:
    spec: dict[str, list[dict[str, str]]] = pod["spec"]  # type: ignore[assignment]
    return spec["initContainers"][0]["image"].rpartition(":")[2]


def test_the_election_goes_on_and_old_and_new_sidecars_share_it(
    client: Client, shop: Workload, before: Installation, faults: Faults, recorder: Recorder
) -> None:
    leader = shop.settle()
    assert {sidecar_of(pod) for pod in shop.pods()} == {"before"}
    nodes = {node["metadata"]["uid"] for node in before.nodes()}
    births = before.status()["registry"]["generation"]
    with recorder.fault("upgrade from the version before: CRDs, then the chart"):
        before.update_crds()
        before.helm("upgrade")
        # Nodes get the new agent one at a time; each costs a quarantine.
        until("all nodes are new", lambda: _rolled(before, nodes), seconds=5 * PATIENCE, every=0.5)
    assert shop.leads_still(leader), "no leader notices"
    assert before.status()["registry"]["generation"] == births, "nothing was forgotten"
    assert {sidecar_of(pod) for pod in shop.pods()} == {"before"}, "pods are left alone"

    # A pod of the new kind beside two of the old.
    since = faults.delete(shop.pod(leader.holder))
    done = shop.next_leader(leader, since, "after an upgrade: a leader's pod is deleted")
    shop.settle()
    kinds = sorted(sidecar_of(pod) for pod in shop.pods())
    assert kinds == ["before", "before", "dev"]
    # An old leader hears what the new operator asks, and the new status is true.
    assert sidecar_of(shop.pod(done.new.holder)) == "before"
    wish = json.dumps({"spec": {"stepDown": {"token": done.new.token, "seconds": 30}}})
    asked = recorder.moment(f"kubectl patch dlock orders: {wish}")
    client.kubectl("-n", NAMESPACE, "patch", "dlock", "orders", "--type=merge", "-p", wish)
    done = shop.next_leader(done.new, asked, "after an upgrade: an old sidecar steps down")
    until("the status names the holder", lambda: shop.mirrored(done.new))

    with recorder.fault("kubectl rollout restart deployment/orders"):
        client.kubectl("-n", NAMESPACE, "rollout", "restart", "deployment/orders")
        last = shop.settle()
    assert {sidecar_of(pod) for pod in shop.pods()} == {"dev"}
    assert last.token > done.new.token


def _rolled(installation: Installation, before: set[str]) -> bool:
    status = installation.status()
    uids = {node["metadata"]["uid"] for node in installation.nodes()}
    return not uids & before and status["openNodes"] == status.get("updatedNodes") == 5
