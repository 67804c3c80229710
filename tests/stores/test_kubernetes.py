"""The Kubernetes Lease store on a real API server: what only that can show."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from kube_lease import control_plane
from lease_locks import Lock, given_back, renewed, won

from leasekeeper.kubernetes import record
from leasekeeper.kubernetes import store as store_module
from leasekeeper.lease import (
    AlreadyGone,
    Grant,
    Lost,
)

if TYPE_CHECKING:
    from control_plane import ControlPlane

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with control_plane() as running:
        yield running


@pytest.fixture
def lock(plane: ControlPlane) -> Lock:
    return Lock.make(plane)


async def test_kubectl_shows_the_holder_and_the_token(lock: Lock) -> None:
    store = lock.store("pod-a")
    grant = await won(store)
    line = lock.kubectl("get", "lease", lock.name, "--no-headers").split()
    assert line[1] == grant.id
    assert line[1].startswith("pod-a/")
    assert lock.object()["metadata"]["annotations"]["leasekeeper.dev/token"] == str(grant.token)
    await given_back(store, grant)
    assert lock.object()["spec"]["holderIdentity"] == ""
    await store.close()


async def test_tokens_rise_across_deletions(lock: Lock) -> None:
    tokens = []
    for turn in range(4):
        store = lock.store(f"pod-{turn}")
        tokens.append((await won(store)).token)
        lock.kubectl("delete", "lease", lock.name)
        await store.close()
    assert tokens == sorted(set(tokens))


async def test_a_late_write_does_not_make_a_lease_that_was_deleted(lock: Lock) -> None:
    """A PUT on a Lease that is not there makes one; only the uid in it keeps it from that."""
    store = lock.store("pod-a")
    grant = await won(store)
    lock.kubectl("delete", "lease", lock.name)
    assert await store.renew(grant) == Lost("the Lease was deleted")
    assert await store.release(grant) == AlreadyGone()
    assert lock.name not in lock.kubectl("get", "leases", "-o=name")
    await store.close()


async def test_control_without_the_uid_a_late_write_makes_it_again(
    lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = lock.store("pod-a")
    grant = await won(store)
    lock.kubectl("delete", "lease", lock.name)

    def without_uid(*arguments: Any) -> Any:
        obj = record.renewed(*arguments)
        del obj["metadata"]["uid"]
        del obj["metadata"]["resourceVersion"]
        return obj

    monkeypatch.setattr(store_module, "renewed", without_uid)
    assert isinstance(await store.renew(grant), Grant)
    await store.close()


async def test_a_label_of_somebody_else_is_no_loss_and_stays(lock: Lock) -> None:
    store = lock.store("pod-a")
    grant = await won(store)
    lock.kubectl("label", "lease", lock.name, "team=orders")
    assert isinstance(await store.renew(grant), Grant)
    assert lock.object()["metadata"]["labels"] == {"team": "orders"}
    await store.close()


async def test_a_step_down_by_kubectl_reaches_the_holder(lock: Lock) -> None:
    store = lock.store("pod-a")
    grant = await won(store)
    lock.kubectl("annotate", "lease", lock.name, f"leasekeeper.dev/request=1 step-down {grant.id}")
    asked = (await renewed(store, grant)).request
    assert asked is not None
    assert (asked.kind, asked.target) == ("step-down", grant.id)
    await store.close()


# -- in a sidecar --------------------------------------------------------------------------------


def rules_of_the_docs(lease: str) -> Any:
    text = (REPOSITORY / "docs" / "stores.md").read_text().partition("## A Kubernetes Lease")[2]
    block = text.partition("```yaml")[2].partition("```")[0]
    return yaml.safe_load(block.replace("[orders]", f"[{lease}]"))["rules"]


def test_a_sidecar_leads_by_it_with_the_rights_of_the_docs_and_no_more(
    lock: Lock, tmp_path: Path
) -> None:
    place = {"namespace": "default", "name": lock.name}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": place}
    (tmp_path / "role.yaml").write_text(
        yaml.safe_dump({**role, "rules": rules_of_the_docs(lock.name)})
    )
    lock.kubectl("apply", "-f", str(tmp_path / "role.yaml"))
    lock.kubectl("create", "serviceaccount", lock.name)
    bound = (f"--role={lock.name}", f"--serviceaccount=default:{lock.name}")
    lock.kubectl("create", "rolebinding", lock.name, *bound)
    fresh = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {**place, "annotations": {record.FRESH: "true"}},
    }
    (tmp_path / "lease.yaml").write_text(yaml.safe_dump(fresh))
    lock.kubectl("apply", "-f", str(tmp_path / "lease.yaml"))
    (tmp_path / "token").write_text(lock.kubectl("create", "token", lock.name))
    shutil.copy(lock.plane.directory / "pki" / "ca.crt", tmp_path / "ca.crt")
    for folder in ("leader", "state"):
        (tmp_path / folder).mkdir()
    host, _, port = lock.plane.server.removeprefix("https://").partition(":")
    config = {
        "version": 1,
        "lock": f"default/{lock.name}",
        "store": "kubernetes",
        "kubernetes": {"accountDir": str(tmp_path)},
    }
    environment = {
        "PATH": os.environ["PATH"],
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": port,
        "LEASEKEEPER_CONFIG_JSON": json.dumps(config),
        "LEASEKEEPER_POD_NAME": "pod-a",
        "LEASEKEEPER_POD_UID": "uid-a",
        "LEASEKEEPER_LEADER_DIR": str(tmp_path / "leader"),
        "LEASEKEEPER_STATE_DIR": str(tmp_path / "state"),
        "LEASEKEEPER_HTTP_PORT": "0",
        "LEASEKEEPER_LOCAL_PORT": "0",
        "LEASEKEEPER_MIRROR": "none",
    }
    file = tmp_path / "leader" / "leader"
    with (tmp_path / "log").open("wb") as log:
        command = [sys.executable, "-m", "leasekeeper_sidecar"]
        child = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 60
        while not file.exists() or not json.loads(file.read_text())["leader"]:
            assert child.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < end, "it does not lead"
            time.sleep(0.05)
        led = json.loads(file.read_text())
        lease = lock.object()
        assert lease["spec"]["holderIdentity"].startswith("pod-a/uid-a/")
        assert lease["metadata"]["annotations"]["leasekeeper.dev/token"] == str(led["token"])
    finally:
        child.terminate()
        child.wait(30)
    assert lock.object()["spec"]["holderIdentity"] == "", "it was not given back"
    assert "403" not in (tmp_path / "log").read_text()
