"""The chart, installed by helm as a user does it, and the default ensemble that comes with it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.cluster.client import Client, condition, until
from tests.cluster.workload import LEASE, PATIENCE, make_namespace

SYSTEM, ENSEMBLE = "leasekeeper", "default"
CHART = Path(__file__).resolve().parents[2] / "charts" / "leasekeeper"
LONGEST_LEASE, QUARANTINE = LEASE, 2 * LEASE
CRD = "distributedlocks.leasekeeper.dev"
SELECTED = ("-l", f"leasekeeper.dev/ensemble={ENSEMBLE}")

IMAGES = (
    "operator.image.repository=localhost/leasekeeper-operator",
    "operator.image.tag=dev",
    "operator.image.pullPolicy=Never",
    "sidecar.image.repository=localhost/leasekeeper-sidecar",
    "sidecar.image.tag=dev",
    "sidecar.image.pullPolicy=Never",
)
SHORT = (
    f"defaultEnsemble.longestLeaseSeconds={LONGEST_LEASE}",
    f"defaultEnsemble.restartDelaySeconds={QUARANTINE}",
)


class Installation:
    """One for all scenarios, made by the first that needs it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._there = False

    def ensure(self) -> None:
        if self._there:
            return
        self.remove()  # what an earlier run on the same cluster may have left
        make_namespace(self._client, SYSTEM)
        self._update_crds()
        self.helm("install")
        self._there = True
        self.wait_until_open()

    def _update_crds(self) -> None:
        """Of an earlier run, if there are any: helm installs CRDs, and never changes them."""
        if self._client.run("kubectl", "get", "crd", CRD).returncode == 0:
            apply = ("apply", "--server-side", "--force-conflicts", "-f", str(CHART / "crds"))
            self._client.kubectl(*apply)

    def helm(self, verb: str, *values: str) -> None:
        """`install` or `upgrade`, with these values beside the usual ones."""
        settings = [part for value in (*IMAGES, *SHORT, *values) for part in ("--set", value)]
        options = ("--namespace", SYSTEM, *settings, "--wait", "--timeout=5m")
        self._client.helm(verb, "leasekeeper", str(CHART), *options, seconds=330)

    def remove(self) -> None:
        """With whatever is in the namespace."""
        release = ("leasekeeper", "--namespace", SYSTEM)
        self._client.run("helm", "uninstall", *release, "--ignore-not-found")
        self._client.kubectl("delete", "namespace", SYSTEM, "--ignore-not-found", seconds=180)
        self._there = False

    def uninstall(self) -> None:
        """As the chart's README has it."""
        release = ("leasekeeper", "--namespace", SYSTEM)
        self._client.helm("uninstall", *release, "--wait")
        self._there = False

    # -- the ensemble ----------------------------------------------------------------------------

    def nodes(self) -> list[dict[str, Any]]:
        """The pods of the nodes, by their number."""
        found = self._client.items(SYSTEM, "pods", *SELECTED)
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def node(self, number: int) -> dict[str, Any]:
        return self._client.get(SYSTEM, "pod", f"{ENSEMBLE}-{number}-0")

    def wait_until_open(self) -> None:
        """All nodes vote, and the kubelets know it."""

        def everything() -> bool:
            nodes = self.nodes()
            seen = self.status().get("openNodes") == len(nodes) == 5
            return seen and all(condition(pod, "Ready") == "True" for pod in nodes)

        until("all nodes are open", everything, seconds=QUARANTINE + 2 * PATIENCE, every=0.5)

    def status(self) -> dict[str, Any]:
        found = self._client.get(SYSTEM, "lockensemble", ENSEMBLE)
        status: dict[str, Any] = found.get("status", {})
        return status

    def agent(self, number: int) -> dict[str, Any] | None:
        """What the agent says of itself, through the API server's proxy; None while it does not."""
        pod = f"{ENSEMBLE}-{number}-0"
        path = f"/api/v1/namespaces/{SYSTEM}/pods/{pod}:8080/proxy/status"
        # Without a limit of ours, a pod that is just going costs the API server half a minute.
        done = self._client.run("kubectl", "get", "--raw", path, "--request-timeout=3s")
        if done.returncode != 0:
            return None
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def open_again(self, number: int, before: dict[str, Any]) -> dict[str, Any]:
        """Waits until the node votes with another memory than before."""

        def opened() -> dict[str, Any] | None:
            found = self.agent(number)
            if found is None or not found["open"] or found["life"] == before["life"]:
                return None
            return found

        seconds = QUARANTINE + 2 * PATIENCE
        return until(f"node {number} is open again", opened, seconds=seconds, every=0.5)

    def logged(self, number: int, event: str) -> float:
        """When the agent logged the event last, by the container runtime's clock."""
        pod = f"{ENSEMBLE}-{number}-0"
        said = self._client.kubectl("-n", SYSTEM, "logs", pod, "-c", "agent", "--timestamps")
        for line in reversed(said.splitlines()):
            stamp, _, text = line.partition(" ")
            if text.split(" ")[0] == event:
                whole, _, fraction = stamp.removesuffix("Z").partition(".")
                seconds = time.mktime(time.strptime(whole, "%Y-%m-%dT%H:%M:%S"))
                return seconds + float(f"0.{fraction or 0}")
        raise AssertionError(f"{pod} never logged {event}")

    def secret(self, name: str, key: str) -> str:
        template = f"go-template={{{{index .data {json.dumps(key)} | base64decode}}}}"
        return self._client.kubectl("-n", SYSTEM, "get", "secret", name, "-o", template)

    def command(self, number: int, *command: str) -> str:
        """To the server itself, with all rights: what no user should do."""
        password = self.secret(f"{ENSEMBLE}-credentials", "agent")
        cli = ("valkey-cli", "-s", "/run/leasekeeper/server.sock", "--user", "agent")
        script = ("env", f"REDISCLI_AUTH={password}", *cli, *command)
        pod = f"{ENSEMBLE}-{number}-0"
        return self._client.kubectl("-n", SYSTEM, "exec", pod, "-c", "server", "--", *script)
