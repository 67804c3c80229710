"""A real API server with our resources, and a service account as a pod has it: for the mirror."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from control_plane import ControlPlane

CRDS = Path(__file__).resolve().parents[2] / "crds"
PATIENCE = 60.0


@dataclass(frozen=True)
class LockApi:
    plane: ControlPlane
    namespace: str
    account: Path
    """A folder with `token` and `ca.crt`."""

    @classmethod
    def prepare(cls, plane: ControlPlane, namespace: str, account: Path) -> Self:
        made = cls(plane, namespace, account)
        made.kubectl("create", "namespace", namespace)
        made.kubectl("create", "serviceaccount", "app")
        made.kubectl("apply", "--server-side", "-f", str(CRDS))
        made.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        end = time.monotonic() + PATIENCE
        while "distributedlocks" not in made.kubectl("api-resources"):
            assert time.monotonic() < end, "our resources are not served"
            time.sleep(0.2)
        account.mkdir(exist_ok=True)
        (account / "token").write_text(made.kubectl("create", "token", "app"))
        (account / "ca.crt").write_bytes((plane.directory / "pki/ca.crt").read_bytes())
        return made

    def kubectl(self, *arguments: str, given: Any = None) -> str:
        command = [str(self.plane.kubectl), "--kubeconfig", str(self.plane.kubeconfig)]
        text = None if given is None else json.dumps(given)
        done = subprocess.run(
            [*command, "-n", self.namespace, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def create(self, lock: str) -> None:
        resource = {
            "apiVersion": "leasekeeper.dev/v1alpha1",
            "kind": "DistributedLock",
            "metadata": {"name": lock, "namespace": self.namespace},
            "spec": {},
        }
        self.kubectl("create", "-f", "-", given=resource)

    def status(self, lock: str) -> dict[str, Any]:
        found = json.loads(self.kubectl("get", "distributedlock", lock, "-o", "json"))
        return dict(found.get("status", {}))

    def allow(self, lock: str) -> None:
        """As the operator does it."""
        metadata = {"name": lock, "namespace": self.namespace}
        rule = {
            "apiGroups": ["leasekeeper.dev"],
            "resources": ["distributedlocks/status"],
            "resourceNames": [lock],
            "verbs": ["patch"],
        }
        subject = {"kind": "ServiceAccount", "name": "app", "namespace": self.namespace}
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

    @property
    def environment(self) -> dict[str, str]:
        """Of a sidecar that mirrors here."""
        host, _, port = self.plane.server.removeprefix("https://").rpartition(":")
        return {
            "LEASEKEEPER_MIRROR": "kubernetes",
            "LEASEKEEPER_ACCOUNT_DIR": str(self.account),
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
        }
