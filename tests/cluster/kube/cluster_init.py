"""Process 1 of a cluster: everything runs below it, in namespaces of its own.

    unshare --mount --pid --net ... python3 cluster_init.py RUN-FOLDER

When it ends, however it ends, the kernel ends every process, mount, link and network namespace of
the cluster. It tells how far it is in files of the run folder (see topology.Cluster): `progress`,
then `ready` or `failed`. After a failure it stays, so that logs and kubectl can tell why.

It has one thread, and it alone waits for children: whatever loses its parent comes to process 1.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from localkube import cgroups, components, network, nodes
from localkube.api import Api
from localkube.components import Component
from localkube.pins import HERE
from localkube.topology import API_PORT, CONTROL_PLANE_IP, SERVICE_RANGE, Cluster, Node

PATIENCE_SECONDS = 240.0
"""Six times what it takes on two idle cores: only a cluster that will never come up gets here."""


class Failed(Exception):
    """The cluster will not come up; the message says why."""


class Init:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._begun = time.monotonic()
        self._api = Api(cluster.pki, CONTROL_PLANE_IP, API_PORT)
        self._components: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
        self._known: dict[str, Component] = {}
        self._jobs: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}

    def boot(self) -> None:
        """The order matters where it says so; all else starts as early as it can."""
        cluster = self._cluster
        network.isolate(cluster)
        network.connect(cluster)
        programs, pki = cluster.programs, cluster.pki
        self._start(components.etcd(programs, cluster.folder / "etcd"))
        self._start(
            components.api_server(
                programs,
                pki,
                bind="0.0.0.0",
                advertise=CONTROL_PLANE_IP,
                port=API_PORT,
                service_range=SERVICE_RANGE,
            )
        )
        for node in cluster.nodes:
            nodes.write_configuration(cluster, node)
            self._start(nodes.containerd(node))
        for node in cluster.nodes:
            self._wait(f"{node.name}.containerd", node.containerd_socket.exists)
            self._import_images(node)
        # Before the server has its RBAC rules in place, the controller manager would exit.
        self._wait("API server", self._api.ready)
        self._start(components.controller_manager(programs, pki))
        self._start(components.scheduler(programs, pki))
        for node in cluster.nodes:
            self._start(nodes.kubelet(cluster, node))
            self._start(nodes.kube_proxy(cluster, node))
        self._wait_for_everything()

    def _wait_for_everything(self) -> None:
        names = {node.name for node in self._cluster.nodes}
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        # A pod that starts before its image is there waits ten seconds before it looks again.
        self._wait("images", lambda: not self._jobs)
        kubectl = [
            str(self._cluster.programs / "kubectl"),
            f"--kubeconfig={self._cluster.kubeconfig}",
        ]
        manifest = str(HERE / "manifests" / "base.yaml")
        self._job("base.yaml", [*kubectl, "apply", "--server-side", "-f", manifest])
        self._wait("nodes", lambda: self._api.ready_nodes() >= names)
        self._wait("base.yaml", lambda: not self._jobs)
        self._wait("default service account", lambda: self._api.get(account) is not None)
        self._wait("DNS", lambda: self._api.available("kube-system", "coredns"))

    def _import_images(self, node: Node) -> None:
        """One job a node, in the order of the archives' names."""
        archives = sorted(str(file) for file in self._cluster.images.glob("*.tar"))
        ctr = f"ctr -a {node.containerd_socket} -n k8s.io images import"
        script = f"until ctr -a {node.containerd_socket} version; do sleep 0.1; done\n"
        script += "for archive; do " + ctr + ' "$archive" || exit 1; done\n'
        self._job(f"{node.name}.import", ["sh", "-c", script, "import", *archives])

    def _start(self, component: Component) -> None:
        child = self._spawn(component.name, component.argv)
        self._components[child.pid] = (component.name, child)
        self._known[component.name] = component
        (self._cluster.pids / component.name).write_text(f"{child.pid}\n")

    def _job(self, name: str, argv: Sequence[str]) -> None:
        child = self._spawn(name, argv)
        self._jobs[child.pid] = (name, child)

    def _spawn(self, name: str, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        with (self._cluster.logs / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait(self, what: str, true: Callable[[], bool]) -> None:
        while not true():
            self._reap(os.WNOHANG)
            if time.monotonic() - self._begun > PATIENCE_SECONDS:
                raise Failed(f"{what}: not ready after {PATIENCE_SECONDS:.0f} s")
            time.sleep(0.1)
        self.say(f"{what} ready")

    def _reap(self, options: int) -> None:
        """Collects who has ended. A component never should, a job only with success."""
        while True:
            try:
                pid, status = os.waitpid(-1, options)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            if pid in self._components:
                name, _ = self._components.pop(pid)
                raise Failed(f"{name} ended (exit {code})")
            if pid in self._jobs:
                name, _ = self._jobs.pop(pid)
                if code != 0:
                    raise Failed(f"{name} failed (exit {code})")

    def say(self, text: str) -> None:
        with self._cluster.progress.open("a") as progress:
            progress.write(text + "\n")

    def watch(self) -> None:
        """For ever. A component that ends from now on is a line in the init's log and no more:
        tests end them on purpose, and ask for them again by a file in the folder `start`."""
        while True:
            try:
                self._reap(os.WNOHANG)
            except Failed as ended:
                print(f"{time.strftime('%H:%M:%S')} {ended}", flush=True)
            for name in set(os.listdir(self._cluster.start)) & set(self._known):
                self._start(self._known[name])
                (self._cluster.start / name).unlink()
            time.sleep(0.1)


def main() -> None:
    folder = Path(sys.argv[1])
    cluster = Cluster(folder.name)
    # Process 1 is not ended by a signal that it has no handler for.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    cgroups.join_host(cluster)
    init = Init(cluster)
    try:
        init.boot()
        cluster.ready.touch()
    except (Failed, OSError, subprocess.CalledProcessError) as error:
        print(error, flush=True)
        cluster.failed.write_text(f"{error}\n")
    init.watch()


if __name__ == "__main__":
    main()
