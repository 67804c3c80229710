"""Kubernetes, etcd, CoreDNS and the pause program, built from their Go modules.

go.mod and go.sum fix every source by its checksum. All six Kubernetes programs are one binary that
looks at the name it is called by: one link step instead of six, 139 MB instead of 489.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localkube import cache, toolchain
from localkube.pins import HERE, Pins, module_version
from localkube.progress import Progress
from localkube.sandbox import TIED
from localkube.shell import environment, run_logged

KUBERNETES = HERE / "go" / "k8s"
COREDNS = HERE / "go" / "coredns"

KUBERNETES_PROGRAMS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubectl",
)


@dataclass(frozen=True)
class Binaries:
    """Where each program is."""

    kubernetes: Path
    """The folder with Kubernetes' programs, etcd and pause."""
    coredns: Path
    helm: Path


def build_all(pins: Pins, progress: Progress) -> Binaries:
    toolchain.install_packages(pins, progress)
    return Binaries(
        kubernetes=kubernetes(pins, progress),
        coredns=coredns(pins, progress) / "coredns",
        helm=toolchain.helm(pins, progress),
    )


def kubernetes(pins: Pins, progress: Progress) -> Path:
    version = module_version(KUBERNETES / "go.mod", "k8s.io/kubernetes")
    major, minor, _ = version.removeprefix("v").split(".")
    package = "k8s.io/component-base/version"
    stamps = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    flags = [f"-X {package}.{name}={value}" for name, value in stamps.items()]
    return module(f"kubernetes {version}", KUBERNETES, flags, pins, progress)


def coredns(pins: Pins, progress: Progress) -> Path:
    version = module_version(COREDNS / "go.mod", "github.com/coredns/coredns")
    return module(f"coredns {version}", COREDNS, [], pins, progress)


def module(
    label: str,
    source: Path,
    stamps: Sequence[str],
    pins: Pins,
    progress: Progress,
    packages: str = "./...",
    tags: str = "",
) -> Path:
    """Builds every main package of a module; returns the folder with its programs. The compiler's
    own version is no part of the key: a patch release of Go on the machine is no reason to compile
    Kubernetes for ten minutes."""
    name = label.split()[0]
    flags = ["-trimpath", "-buildvcs=false", "-mod=readonly", f"-ldflags=-s -w {' '.join(stamps)}"]
    flags += [f"-tags={tags}"] if tags else []
    files = [file for file in source.rglob("*") if file.is_file()]
    key = cache.key_of(cache.key_of_files(source, files), *flags)

    def make(folder: Path) -> None:
        _compile(label, source, [*flags, "-o", f"{folder}/", packages], pins, progress)
        if (folder / "hyper").exists():
            for program in KUBERNETES_PROGRAMS:
                (folder / program).symlink_to("hyper")

    with progress.part(label) as part:
        folder, part.cached = cache.ensure(name, key, make)
    return folder


def _compile(
    label: str, source: Path, arguments: list[str], pins: Pins, progress: Progress
) -> None:
    go = toolchain.go(pins, progress)
    progress.say(f"building {label} (cold: Kubernetes 6 to 12 minutes, others 1 to 3)")
    # GOTOOLCHAIN=local: nothing is fetched that go.sum does not know.
    # GOROOT is emptied because a caller's would point at another toolchain than the one chosen.
    env = environment(CGO_ENABLED="0", GOFLAGS="", GOTOOLCHAIN="local", GOROOT="", GOWORK="off")
    run_logged(
        [*TIED, "nice", "-n", "5", str(go), "build", "-v", *arguments],
        log=cache.root() / "log" / f"go-{source.name}.log",
        progress=progress,
        label=f"{label}: go build",
        cwd=source,
        env=env,
    )
