"""Up, down, and what lies between: the life of a cluster seen from the ordinary shell."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from localkube import cgroups, pki, processes
from localkube.binaries import KUBERNETES_PROGRAMS, Binaries
from localkube.images import Image
from localkube.pins import HERE
from localkube.progress import Progress
from localkube.shell import ClusterError, capture, tail
from localkube.topology import (
    API_PORT,
    CONTROL_PLANE_IP,
    KUBERNETES_SERVICE_IP,
    Cluster,
)

UP_SECONDS = 300.0
"""Longer than the init's own patience, so that its reason is the one that is told."""

WRAPPER = """\
#!/bin/sh
# Runs {what} in the network of the test cluster "{name}". Only the network: with the mount
# namespace, the working directory would change too.
if ! grep -qsF '{folder}' /proc/{init}/cmdline; then
	echo 'the cluster "{name}" is not running' >&2
	exit 1
fi
export {mark}='{folder}' KUBECACHEDIR='{folder}/kubecache'
: "${{KUBECONFIG:={kubeconfig}}}"
export KUBECONFIG
exec nsenter -t {init} -n -- {command} "$@"
"""


@contextmanager
def locked(cluster: Cluster, progress: Progress) -> Iterator[None]:
    """One `up`, `down` or `load` a cluster at a time."""
    cluster.folder.parent.mkdir(parents=True, exist_ok=True)
    with (cluster.folder.parent / f".{cluster.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say(f"another command works on the cluster {cluster.name!r}: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_up(cluster: Cluster) -> bool:
    return cluster.ready.exists() and processes.init_of(cluster) is not None


def ended_components(cluster: Cluster) -> list[str]:
    """Those of a cluster that is up which have ended since, on purpose or not."""
    init = processes.init_of(cluster)
    living = processes.inside(init) if init is not None else {}
    files = sorted(cluster.pids.iterdir())
    return [file.name for file in files if int(file.read_text()) not in living]


def up(cluster: Cluster, programs: Binaries, images: Sequence[Image], progress: Progress) -> None:
    """Starts the cluster and returns when everything in it is ready."""
    if cluster.failed.exists() or processes.init_of(cluster) is None:
        if cluster.folder.exists():
            progress.say("removing what an earlier cluster left")
            remove(cluster)
        _prepare(cluster, programs, images)
        progress.say("certificates made")
        _launch(cluster)
    _follow(cluster, progress)
    _write_wrappers(cluster)


def _prepare(cluster: Cluster, programs: Binaries, images: Sequence[Image]) -> None:
    folders = (cluster.logs, cluster.pids, cluster.start)
    for folder in (*folders, cluster.programs, cluster.images, cluster.wrappers):
        folder.mkdir(parents=True)
    for name in KUBERNETES_PROGRAMS:
        _link((programs.kubernetes / name).resolve(), cluster.programs / name)
    _link(programs.kubernetes / "etcd", cluster.programs / "etcd")
    _link(programs.helm, cluster.programs / "helm")
    for number, image in enumerate(images):
        _link(image.archive, cluster.images / f"{number:02}.tar")
    server = f"https://{CONTROL_PLANE_IP}:{API_PORT}"
    people = [pki.Identity("proxy", "/CN=system:kube-proxy")]
    people += [pki.node_identity(node.name, node.ip) for node in cluster.nodes]
    pki.create(
        cluster.pki,
        server=server,
        server_ips=[CONTROL_PLANE_IP, KUBERNETES_SERVICE_IP],
        identities=[*pki.CONTROL_PLANE, *people],
    )
    cgroups.create(cluster)


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # the cache is on another file system
        shutil.copy2(source, target)


def _launch(cluster: Cluster) -> None:
    """The init outlives this command; its death is the death of everything in the cluster."""
    namespaces = ("--mount", "--propagation", "private", "--pid", "--net", "--ipc")
    unshare = ("unshare", *namespaces, "--fork", "--kill-child", "--mount-proc")
    with (cluster.logs / "init.log").open("ab") as log:
        subprocess.Popen(
            [*unshare, sys.executable, str(HERE / processes.INIT), str(cluster.folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
        )


def _follow(cluster: Cluster, progress: Progress) -> None:
    """Shows the init's progress until it is ready, has failed, or is gone."""
    told = 0
    deadline = time.monotonic() + UP_SECONDS
    while True:
        done = cluster.ready.exists()
        lines = cluster.progress.read_text().splitlines() if cluster.progress.exists() else []
        for line in lines[told:]:
            progress.say(line)
        told = len(lines)
        if done:
            return
        if cluster.failed.exists():
            raise ClusterError(_post_mortem(cluster, cluster.failed.read_text().strip()))
        if not processes.of_cluster(cluster):
            raise ClusterError(_post_mortem(cluster, "the init ended"))
        if time.monotonic() > deadline:
            raise ClusterError(_post_mortem(cluster, "not ready in time"))
        time.sleep(0.1)


def _post_mortem(cluster: Cluster, reason: str) -> str:
    named = cluster.logs / f"{reason.split()[0]}.log"
    log = named if named.exists() else cluster.logs / "init.log"
    return f"{reason}; all logs are in {cluster.logs}; the end of {log.name}:\n{tail(log)}"


def _write_wrappers(cluster: Cluster) -> None:
    init = processes.init_of(cluster)
    commands = {
        "kubectl": f"'{cluster.programs}/kubectl'",
        "helm": f"'{cluster.programs}/helm'",
        "in-cluster-network": "",
    }
    for name, command in commands.items():
        text = WRAPPER.format(
            what=name if command else "a command",
            name=cluster.name,
            folder=cluster.folder,
            init=init,
            mark=processes.CLIENT_MARK,
            kubeconfig=cluster.kubeconfig,
            command=command,
        )
        path = cluster.wrappers / name
        path.write_text(text)
        path.chmod(0o755)


def environment_lines(cluster: Cluster) -> list[str]:
    """For `eval`. The PATH is extended once, however often this is evaluated."""
    if not is_up(cluster):
        raise ClusterError(f"the cluster {cluster.name!r} is not up: `cluster.py up` starts it")
    own = str(cluster.wrappers)
    others = [part for part in os.environ.get("PATH", "").split(":") if part != own]
    return [
        f"export KUBECONFIG='{cluster.kubeconfig}'",
        f"export PATH='{':'.join([own, *others])}'",
    ]


def load(cluster: Cluster, images: Sequence[Image], progress: Progress) -> None:
    """Imports images into every node of a running cluster."""
    if not is_up(cluster):
        raise ClusterError(f"the cluster {cluster.name!r} is not up: `cluster.py up` starts it")
    for image in images:
        for node in cluster.nodes:
            ctr = ["ctr", "-a", str(node.containerd_socket), "-n", "k8s.io", "images", "import"]
            capture([*ctr, str(image.archive)])
        progress.say(f"{image.tag} imported on {len(cluster.nodes)} nodes")


def down(cluster: Cluster, progress: Progress) -> None:
    """Ends the cluster, whatever state it is in, and checks that nothing is left."""
    leftovers = remove(cluster)
    if leftovers:
        raise ClusterError("left behind:\n" + "\n".join(f"  {line}" for line in leftovers))
    progress.say(f"cluster {cluster.name!r} is down: no process, mount, namespace or cgroup left")


def remove(cluster: Cluster) -> list[str]:
    """Init first: its end is the end of all in its namespaces. Returns what would not go."""
    init = processes.init_of(cluster)
    spaces: set[str] = set()
    if init is not None:
        members = processes.inside(init).values()
        spaces = {str(processes.namespace(pid, "net")) for pid in members}
    processes.kill(processes.of_cluster(cluster))
    processes.kill([*processes.clients_of(cluster), *cgroups.members(cluster)])
    cgroups.remove(cluster)
    leftovers = _leftovers(cluster, spaces)
    if not leftovers:
        shutil.rmtree(cluster.folder, ignore_errors=True)
        if cluster.folder.exists():
            leftovers.append(f"folder {cluster.folder}")
    return leftovers


def _leftovers(cluster: Cluster, spaces: set[str]) -> list[str]:
    """`spaces` are the network namespaces that the cluster had when it was still alive."""
    suspects = {*processes.of_cluster(cluster), *processes.clients_of(cluster)}
    found = [f"process {pid}" for pid in sorted(suspects | cgroups.members(cluster))]
    found += [f"cgroup {folder}" for folder in cgroups.folders(cluster)]
    seen: set[str | None] = set()
    for pid in processes.all_pids():
        if processes.namespace(pid, "net") in spaces:
            found.append(f"process {pid} in the cluster's network namespace")
        space = processes.namespace(pid, "mnt")
        if space not in seen:
            seen.add(space)
            found += [f"mount {path} (seen by process {pid})" for path in _mounts(pid, cluster)]
    return found


def _mounts(pid: int, cluster: Cluster) -> list[str]:
    try:
        lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    except OSError:
        return []
    inside = f"{cluster.folder}/"
    return [line.split()[4] for line in lines if f"{line.split()[4]}/".startswith(inside)]
