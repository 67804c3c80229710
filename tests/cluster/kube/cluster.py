"""A real Kubernetes on this machine, for the tests: two nodes in namespaces. See README.md."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from localkube import binaries, cgroups, images, lifecycle, logs, pins
from localkube.progress import Progress
from localkube.shell import ClusterError
from localkube.topology import Cluster


def build(_: argparse.Namespace, progress: Progress) -> None:
    binaries.build_all(pins.load(), progress)
    progress.table()


def build_images(_: argparse.Namespace, progress: Progress) -> None:
    pinned = pins.load()
    images.build_all(pinned, binaries.build_all(pinned, progress), progress)
    progress.table()


def up(arguments: argparse.Namespace, progress: Progress) -> None:
    cluster = Cluster(arguments.name)
    with lifecycle.locked(cluster, progress):
        if lifecycle.is_up(cluster):
            progress.say(f"cluster {cluster.name!r} is already up (`load` brings changed images)")
            for name in lifecycle.ended_components(cluster):
                progress.say(f"but {name} has ended since: `down` and `up` make a new one")
            return
        cgroups.check()
        pinned = pins.load()
        programs = binaries.build_all(pinned, progress)
        made = images.build_all(pinned, programs, progress)
        with progress.part("start"):
            lifecycle.up(cluster, programs, made, progress)
        progress.table()


def down(arguments: argparse.Namespace, progress: Progress) -> None:
    cluster = Cluster(arguments.name)
    with lifecycle.locked(cluster, progress):
        lifecycle.down(cluster, progress)


def env(arguments: argparse.Namespace, _: Progress) -> None:
    print("\n".join(lifecycle.environment_lines(Cluster(arguments.name))))


def load(arguments: argparse.Namespace, progress: Progress) -> None:
    cluster = Cluster(arguments.name)
    with lifecycle.locked(cluster, progress):
        lifecycle.load(cluster, images.project_only(pins.load(), progress), progress)


def collect_logs(arguments: argparse.Namespace, progress: Progress) -> None:
    logs.collect(Cluster(arguments.name), arguments.folder.absolute(), progress)


COMMANDS = {
    "build": (build, "build or fetch every program that the cluster runs"),
    "images": (build_images, "build every image, the project's own included (implies build)"),
    "up": (up, "start a cluster, ready when this returns (implies images)"),
    "down": (down, "end a cluster in any state, and check that nothing of it is left"),
    "env": (env, "print export lines for a shell's eval: KUBECONFIG, and kubectl and helm on PATH"),
    "load": (load, "rebuild the project's images and import them into a running cluster"),
    "logs": (collect_logs, "collect logs, events and descriptions of everything in one folder"),
}


def cluster_name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?", text):
        raise argparse.ArgumentTypeError("use 1 to 20 of a-z, 0-9 and -, none of - at an end")
    return text


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        description=__doc__,
        epilog="The cache is $LEASEKEEPER_CACHE, or leasekeeper in the user's cache folder; the "
        "clusters' folders are in $LEASEKEEPER_CLUSTERS, or /var/lib/leasekeeper. Needs root.",
    )
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for name, (function, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(function=function)
        if name not in ("build", "images"):
            command.add_argument(
                "--name",
                type=cluster_name,
                default="default",
                help="which cluster; several run side by side (default: %(default)s)",
            )
        if name == "logs":
            command.add_argument("folder", type=Path, metavar="DIR", help="made if missing")
    return top


def main() -> int:
    arguments = parser().parse_args()
    progress = Progress()
    if os.geteuid() != 0:
        print("cluster.py: namespaces, mounts and cgroups need root", file=sys.stderr)
        return 1
    try:
        arguments.function(arguments, progress)
    except ClusterError as error:
        print(f"cluster.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("cluster.py: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
