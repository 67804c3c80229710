"""The cluster from the user's side: kubectl, helm, YAML; and a look from the host's side."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from localkube import processes, topology

T = TypeVar("T")


_PATCH = """
import json, ssl, sys, urllib.error, urllib.request
given = json.load(sys.stdin)
headers = {"Authorization": f"Bearer {given['bearer']}",
           "Content-Type": "application/merge-patch+json"}
request = urllib.request.Request(given["url"], given["body"].encode(), headers, method="PATCH")
context = ssl.create_default_context(cafile=given["authority"])
try:
    urllib.request.urlopen(request, context=context, timeout=20)
except urllib.error.HTTPError as refused:
    print(json.load(refused)["message"])
"""


class CommandError(AssertionError):
    """A command failed that should not have; the sentence is what the user would have read."""


class Client:
    """kubectl and helm in the cluster's network."""

    def __init__(self, cluster: topology.Cluster) -> None:
        self.cluster = cluster

    def run(
        self, program: str, *arguments: str, given: str | None = None, seconds: float = 120
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.cluster.wrappers / program), *arguments],
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )

    def _must(self, program: str, *arguments: str, given: str | None, seconds: float) -> str:
        done = self.run(program, *arguments, given=given, seconds=seconds)
        if done.returncode != 0:
            raise CommandError(f"{program} {' '.join(arguments)}: {done.stderr or done.stdout}")
        return done.stdout

    def kubectl(self, *arguments: str, given: str | None = None, seconds: float = 120) -> str:
        return self._must("kubectl", *arguments, given=given, seconds=seconds)

    def helm(self, *arguments: str, seconds: float = 300) -> str:
        return self._must("helm", *arguments, given=None, seconds=seconds)

    def get(self, namespace: str, *what: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self.kubectl("-n", namespace, "get", *what, "-o", "json")
        )
        return found

    def items(self, namespace: str, *what: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get(namespace, *what)["items"]
        return found

    def apply(self, namespace: str, *manifests: dict[str, Any]) -> None:
        self.kubectl("-n", namespace, "apply", "-f", "-", given=yaml.safe_dump_all(manifests))

    def is_leader(self, namespace: str, pod: str) -> int | None:
        """The token, as the app's own container is told by the script beside the file."""
        ask = ("/var/run/lock/is-leader", "--token")
        done = self.run("kubectl", "-n", namespace, "exec", pod, "-c", "app", "--", *ask)
        if done.returncode not in (0, 1):
            raise CommandError(f"is-leader in {pod}: {done.stderr}")
        return int(done.stdout) if done.returncode == 0 else None

    def patch_status(self, bearer: str, namespace: str, lock: str, **fields: Any) -> str:
        """As a sidecar does it, with its rights: kubectl would want to read the lock first.
        Returns the API server's objection, or nothing."""
        path = (
            f"/apis/leasekeeper.dev/v1alpha1/namespaces/{namespace}/distributedlocks/{lock}/status"
        )
        server = f"{topology.CONTROL_PLANE_IP}:{topology.API_PORT}"
        given = json.dumps(
            {
                "url": f"https://{server}{path}",
                "authority": str(self.cluster.pki / "ca.crt"),
                "bearer": bearer,
                "body": json.dumps({"status": fields}),
            }
        )
        done = self.run("in-cluster-network", sys.executable, "-c", _PATCH, given=given)
        if done.returncode != 0:
            raise CommandError(done.stderr)
        return done.stdout

    def kubelet_roots(self) -> list[str]:
        """Seen through the mount namespace of the cluster's init: the pods' volumes are there."""
        init = processes.init_of(self.cluster)
        return [f"/proc/{init}/root{node.folder}/kubelet" for node in self.cluster.nodes]


def until(what: str, look: Callable[[], T | None], seconds: float = 180, every: float = 0.1) -> T:
    """The first answer that is not None or False."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found is not None and found is not False:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain: {what}")
        time.sleep(every)


def condition(thing: dict[str, Any], kind: str) -> str:
    """`True`, `False`, `Unknown`, or empty if the condition is not there."""
    for found in thing.get("status", {}).get("conditions", []):
        if found["type"] == kind:
            return str(found["status"])
    return ""


def load(file: Path) -> list[dict[str, Any]]:
    return [part for part in yaml.safe_load_all(file.read_text()) if part]
