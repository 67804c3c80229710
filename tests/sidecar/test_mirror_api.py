"""The mirror of a real sidecar against a real kube-apiserver, with our resource and its rules.

(What an API server cannot be made to do at will, slowness, 409 and nonsense, is in test_mirror.py.)
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kube_lease import control_plane
from servers import wait_until

if TYPE_CHECKING:
    from control_plane import ControlPlane

    from tests.sidecar.conftest import Cast, Pod

pytestmark = pytest.mark.parametrize("ensemble", ["valkey"], indirect=True)

CRDS = Path(__file__).resolve().parents[2] / "crds"
NAMESPACE = "test"


@dataclass
class Api:
    plane: ControlPlane
    account: Path

    def kubectl(self, *arguments: str, given: Any = None) -> str:
        command = [str(self.plane.kubectl), "--kubeconfig", str(self.plane.kubeconfig)]
        text = None if given is None else json.dumps(given)
        done = subprocess.run(
            [*command, "-n", NAMESPACE, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self, lock: str) -> dict[str, Any]:
        found = json.loads(self.kubectl("get", "distributedlock", lock, "-o", "json"))
        return dict(found.get("status", {}))

    def allow(self, lock: str) -> None:
        """As the operator does it."""
        metadata = {"name": lock, "namespace": NAMESPACE}
        rule = {
            "apiGroups": ["leasekeeper.dev"],
            "resources": ["distributedlocks/status"],
            "resourceNames": [lock],
            "verbs": ["patch"],
        }
        subject = {"kind": "ServiceAccount", "name": "app", "namespace": NAMESPACE}
        group = "rbac.authorization.k8s.io"
        role = {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]}
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": lock},
            "subjects": [subject],
        }
        for document in (role, binding):
            self.kubectl("apply", "-f", "-", given=document)

    def give_account(self, pod: Pod) -> None:
        host, _, port = self.plane.server.removeprefix("https://").rpartition(":")
        pod.environment |= {
            "LEASEKEEPER_MIRROR": "kubernetes",
            "LEASEKEEPER_ACCOUNT_DIR": str(self.account),
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
        }


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    account = tmp_path_factory.mktemp("account")
    with control_plane() as plane:
        made = Api(plane, account)
        made.kubectl("create", "namespace", NAMESPACE)
        made.kubectl("create", "serviceaccount", "app")
        made.kubectl("apply", "--server-side", "-f", str(CRDS))
        made.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        wait_until(lambda: "distributedlocks" in made.kubectl("api-resources"), "our resources")
        (account / "token").write_text(made.kubectl("create", "token", "app"))
        (account / "ca.crt").write_bytes((plane.directory / "pki/ca.crt").read_bytes())
        yield made


def test_a_tenure_reaches_the_status_and_nothing_that_the_api_says_reaches_the_election(
    api: Api, cast: Cast
) -> None:
    """403 without the right, 200 with it, the farewell, 422 for a token that went down, 404."""
    name = cast.lock.partition("/")[2]
    lock = {
        "apiVersion": "leasekeeper.dev/v1alpha1",
        "kind": "DistributedLock",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {},
    }
    api.kubectl("create", "-f", "-", given=lock)
    cast.be_patient()
    first, second, third = cast.make(3)
    for pod in (first, second, third):
        api.give_account(pod)

    def outcomes(pod: Pod) -> list[str]:
        return [event["outcome"] for event in pod.events("not-mirrored")]

    first.start()
    wait_until(lambda: outcomes(first) == ["forbidden"], "403 to be told")
    assert first.leads
    api.allow(name)
    wait_until(lambda: first.events("mirrored"), "the right to be used", patience=60)
    token = first.verdict().token
    status = api.status(name)
    assert (status["holder"], status["token"]) == (first.name, token)
    assert status["acquireTime"] == first.said()["acquired"]

    first.send(signal.SIGTERM)
    assert first.wait() == 0
    assert (api.status(name)["holder"], api.status(name)["token"]) == ("", token)

    larger = json.dumps({"status": {"token": token + 1_000_000}})
    api.kubectl("patch", "dlock", name, "--subresource=status", "--type=merge", "-p", larger)
    second.start()
    wait_until(lambda: second.events("looked-at-nodes"), "a look at the nodes")
    assert outcomes(second) == ["refused"]
    assert second.leads, "only the nodes depose"
    second.send(signal.SIGTERM)
    assert second.wait() == 0

    api.kubectl("delete", "dlock", name)
    third.start()
    wait_until(lambda: outcomes(third) == ["not-found"], "404 to be told")
    third.wait_renewed()
    assert third.leads
