"""The chart, installed by helm as a user does it, and the default ensemble that comes with it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cluster.client import Client, condition, until
from tests.cluster.workload import LEASE, PATIENCE, make_namespace

SYSTEM, ENSEMBLE = "leasekeeper", "default"
CHART = Path(__file__).resolve().parents[2] / "charts" / "leasekeeper"
CRDS = CHART / "crds"
LONGEST_LEASE, QUARANTINE = LEASE, 2 * LEASE
CRD = "distributedlocks.leasekeeper.dev"
AGENTS_PASSWORD = "/etc/leasekeeper/credentials/agent"
SELECTED = ("-l", f"leasekeeper.dev/ensemble={ENSEMBLE}")


def images(version: str) -> tuple[str, ...]:
    return tuple(
        f"{part}.image.{value}"
        for part in ("operator", "sidecar")
        for value in (
            f"repository=localhost/leasekeeper-{part}",
            f"tag={version}",
            "pullPolicy=Never",
        )
    )


IMAGES = images("dev")
SHORT = (
    f"defaultEnsemble.longestLeaseSeconds={LONGEST_LEASE}",
    f"defaultEnsemble.restartDelaySeconds={QUARANTINE}",
)
USUAL = (*IMAGES, *SHORT)


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
        if self._client.run("kubectl", "get", "crd", CRD).returncode == 0:  # of an earlier run
            self.update_crds()
        self.helm("install")
        self._there = True
        self.wait_until_open()

    def ensure_earlier(self, chart: Path, version: str) -> None:
        """An earlier version, from its own chart, with its own CRDs and images."""
        self.remove()
        crds = [file.name.partition("_")[2].removesuffix(".yaml") for file in CRDS.glob("*.yaml")]
        names = [f"{kind}.leasekeeper.dev" for kind in crds]
        self._client.kubectl("delete", "crd", *names, "--ignore-not-found", seconds=180)
        make_namespace(self._client, SYSTEM)
        self.helm("install", chart=chart, usual=(*images(version), *SHORT))
        self._there = True
        self.wait_until_open()

    def update_crds(self) -> None:
        """As the chart's README has it: helm installs CRDs, and never changes them."""
        self._client.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRDS))

    def helm(
        self, verb: str, *values: str, usual: Sequence[str] = USUAL, chart: Path = CHART
    ) -> None:
        """`install` or `upgrade`, with these values beside the usual ones."""
        settings = [part for value in (*usual, *values) for part in ("--set", value)]
        options = ("--namespace", SYSTEM, *settings, "--wait", "--timeout=5m")
        self._client.helm(verb, "leasekeeper", str(chart), *options, seconds=330)

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
        return self._client.kubectl(*self._cli(number, password, *command))

    def takes(self, number: int, password: str) -> bool:
        """Whether the server lets its agent's user in by it."""
        done = self._client.run("kubectl", *self._cli(number, password, "PING"))
        assert done.stdout or "WRONGPASS" in done.stderr, done.stderr
        return done.stdout.strip() == "PONG"

    def _cli(self, number: int, password: str, *command: str) -> tuple[str, ...]:
        cli = ("valkey-cli", "-s", "/run/leasekeeper/server.sock", "--user", "agent")
        script = ("env", f"REDISCLI_AUTH={password}", *cli, *command)
        pod = f"{ENSEMBLE}-{number}-0"
        return ("-n", SYSTEM, "exec", pod, "-c", "server", "--", *script)

    def agent_has(self, number: int, password: str) -> bool:
        """Whether the kubelet has brought it to the agent's file."""
        show = ("exec", f"{ENSEMBLE}-{number}-0", "-c", "agent", "--", "cat", AGENTS_PASSWORD)
        return self._client.kubectl("-n", SYSTEM, *show) == password
