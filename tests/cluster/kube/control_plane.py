"""A bare control plane on loopback ports: etcd, API server, and if asked the controller manager.

For tests that want a real API and no nodes. Needs no namespaces, starts in a few seconds, and ends
with the `with` block, or with the thread that started it, even if that is killed.

    sys.path.insert(0, ".../tests/cluster/kube")
    from control_plane import ControlPlane

    with ControlPlane(tmp_path) as plane:
        subprocess.run([plane.kubectl, "--kubeconfig", plane.kubeconfig, "get", "namespaces"])

Webhooks are reached by `clientConfig.url` at a loopback address. Without the controller manager
nobody makes service accounts, collects garbage or finishes the deletion of namespaces; pods are
admitted without a service account then.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from localkube import binaries, components, pins, pki, toolchain
from localkube.api import Api
from localkube.components import Component
from localkube.progress import Progress
from localkube.sandbox import TIED
from localkube.shell import ClusterError, tail

LOOPBACK = "127.0.0.1"

PATIENCE_SECONDS = 60.0
"""It takes 4 s on two idle cores; the rest is for a machine busy with other tests."""

TRIES = 3
"""Free ports are looked for before they are used: another process may be faster, but hardly
three times."""


class ControlPlane:
    """One API server with an etcd of its own. `directory` should be short-lived: keys, data and
    logs are written there."""

    def __init__(
        self,
        directory: Path | str,
        controller_manager: bool = False,
        flags: Sequence[str] = (),
    ) -> None:
        """`flags`: further ones of the API server."""
        self.directory = Path(directory).absolute()
        self._with_controller_manager = controller_manager
        self._flags = flags
        self._programs = Path()
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []
        self.server = ""
        """The API server's address, once started."""

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.directory / "pki" / "admin.kubeconfig"

    @property
    def kubectl(self) -> Path:
        return self._programs / "kubectl"

    @property
    def processes(self) -> dict[str, int]:
        """The ids of what runs, by name."""
        return {name: child.pid for name, child in self._running}

    def __enter__(self) -> ControlPlane:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Builds what is missing, which takes minutes on a machine that never did."""
        progress, pinned = Progress(), pins.load()
        toolchain.install_packages(pinned, progress, only=("openssl",))
        self._programs = binaries.kubernetes(pinned, progress)
        for attempt in range(1, TRIES + 1):
            try:
                self._start_once()
                return
            except ClusterError:
                self.stop()
                if attempt == TRIES:
                    raise

    def _start_once(self) -> None:
        api_port, client_port, peer_port, manager_port = _free_ports(4)
        keys, data = self.directory / "pki", self.directory / f"etcd-{client_port}"
        self.server = f"https://{LOOPBACK}:{api_port}"
        pki.create(keys, server=self.server, server_ips=(), identities=pki.CONTROL_PLANE)
        self._run(
            components.etcd(self._programs, data, client_port=client_port, peer_port=peer_port)
        )
        # A loopback address may not be an endpoint: nobody announces this server as a service.
        extra = ["--endpoint-reconciler-type=none", *self._flags]
        if not self._with_controller_manager:
            extra.append("--disable-admission-plugins=ServiceAccount")
        self._api_server = components.api_server(
            self._programs,
            keys,
            bind=LOOPBACK,
            advertise=LOOPBACK,
            port=api_port,
            service_range="10.96.0.0/16",
            etcd_port=client_port,
            extra=tuple(extra),
        )
        api = self._start_api_server()
        if self._with_controller_manager:
            self._run(components.controller_manager(self._programs, keys, port=manager_port))
            account = "/api/v1/namespaces/default/serviceaccounts/default"
            self._wait("the controller manager", lambda: api.get(account) is not None)

    def _start_api_server(self) -> Api:
        self._run(self._api_server)
        api = Api(self.directory / "pki", LOOPBACK, int(self.server.rpartition(":")[2]))
        self._wait("the API server", api.ready)
        return api

    def _run(self, component: Component) -> None:
        logs = self.directory / "log"
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / f"{component.name}.log").open("ab") as log:
            child = subprocess.Popen(
                [*TIED, *component.argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._running.append((component.name, child))

    def _wait(self, what: str, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not true():
            for name, child in self._running:
                if child.poll() is not None:
                    end = tail(self.directory / "log" / f"{name}.log")
                    raise ClusterError(f"{name} ended (exit {child.returncode}):\n{end}")
            if time.monotonic() > deadline:
                raise ClusterError(f"{what} was not ready after {PATIENCE_SECONDS:.0f} s")
            time.sleep(0.05)

    def restart_api_server(self) -> None:
        """Killed, and started again on the same port and data."""
        index = [name for name, _ in self._running].index(self._api_server.name)
        _, child = self._running.pop(index)
        child.kill()
        child.wait()
        self._start_api_server()

    def stop(self) -> None:
        """By SIGKILL: there is nothing worth saving, and an orderly end takes seconds."""
        for _, child in reversed(self._running):
            child.kill()
        for _, child in self._running:
            child.wait()
        self._running.clear()


def _free_ports(count: int) -> list[int]:
    """Different from each other because all are held until the last is found."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            held = stack.enter_context(socket.socket())
            held.bind((LOOPBACK, 0))
            ports.append(held.getsockname()[1])
        return ports
