"""Everything that tells why a test failed, in one folder."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from localkube import processes
from localkube.progress import Progress
from localkube.shell import ClusterError
from localkube.topology import Cluster

QUESTIONS = {
    "nodes.txt": "get nodes -o wide",
    "pods.txt": "get pods -A -o wide",
    "events.txt": "get events -A --sort-by=.metadata.creationTimestamp",
    "describe-nodes.txt": "describe nodes",
    "describe-pods.txt": "describe pods -A",
}

UNTOLD = {"secrets", "events", "events.events.k8s.io", "endpoints", "componentstatuses"}
"""Kinds left out of objects.yaml: secrets because logs get published, events because they have a
file of their own, the others because they are deprecated."""


KEPT = "kept"
"""Beside `pods/`: logs of pods, also of those that are gone, if somebody keeps them (the tests'
watcher does). Collected as if they were still where they were."""


def collect(cluster: Cluster, target: Path, progress: Progress) -> None:
    """Files first: they are there even when the API server is not."""
    if not cluster.folder.exists():
        raise ClusterError(f"there is no cluster {cluster.name!r}")
    target.mkdir(parents=True, exist_ok=True)
    shutil.copytree(
        *(cluster.logs, target, False, shutil.ignore_patterns(KEPT)),
        ignore_dangling_symlinks=True,
        dirs_exist_ok=True,
    )
    if (cluster.logs / KEPT).exists():
        shutil.copytree(cluster.logs / KEPT, target / "pods", dirs_exist_ok=True)
    if processes.init_of(cluster) is None:
        progress.say(f"the cluster is not running: only the logs it left are in {target}")
        return
    for name, question in QUESTIONS.items():
        _ask(cluster, question.split(), target / name)
    kinds = _kinds(cluster)
    _ask(cluster, ["get", ",".join(kinds), "-A", "-o", "yaml"], target / "objects.yaml")
    progress.say(f"logs are in {target}")


def _kinds(cluster: Cluster) -> list[str]:
    argv = [str(cluster.wrappers / "kubectl"), "api-resources", "--verbs=list", "-o", "name"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return [kind for kind in done.stdout.split() if kind not in UNTOLD]


def _ask(cluster: Cluster, question: list[str], file: Path) -> None:
    """Whatever the answer is, an error included, it belongs in the file."""
    kubectl = [str(cluster.wrappers / "kubectl"), "--request-timeout=20s"]
    with file.open("wb") as out:
        subprocess.run([*kubectl, *question], stdout=out, stderr=subprocess.STDOUT, check=False)
