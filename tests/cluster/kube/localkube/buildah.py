"""Building images with no registry and no daemon, by buildah in a store of our own."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from localkube import cache
from localkube.progress import Progress
from localkube.sandbox import sandboxed
from localkube.shell import capture, environment, run_logged

CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"

PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")

KEEP_LAYERS_SECONDS = 3600.0
"""Long enough that checkouts that build in turns keep each other's layers."""


@contextmanager
def _store_lock() -> Iterator[None]:
    """One user of the store at a time, so that what a killed build left can be told from what a
    running one uses."""
    home = cache.root() / "buildah"
    home.mkdir(parents=True, exist_ok=True)
    with (home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _buildah(*arguments: str) -> list[str]:
    home = cache.root() / "buildah"
    # The run root must not outlive a reboot: buildah counts its mounts there.
    run_root = f"/run/leasekeeper/buildah-{cache.key_of(str(home))}"
    store = ["--storage-driver", "overlay", "--root", f"{home}/store", "--runroot", run_root]
    return sandboxed("buildah", *store, *arguments)


def build(
    context: Path,
    dockerfile: Path,
    tag: str,
    archive: Path,
    progress: Progress,
    *,
    target: str | None = None,
    base: tuple[str, Path] | None = None,
    arguments: Mapping[str, str] | None = None,
) -> None:
    """Builds a Dockerfile and writes the image with its tag as a docker archive.

    `base` is the name and the archive of the image that FROM asks for; `arguments` are for its ARG.
    """
    log = cache.root() / "log" / f"{archive.parent.parent.name}.log"
    chosen = ["--target", target] if target else []
    for name, value in (arguments or {}).items():
        chosen += ["--build-arg", f"{name}={value}"]
    with _store_lock(), tempfile.TemporaryDirectory() as scratch:
        capture(_buildah("rm", "--all"))
        if base is not None:
            _bring(*base)
        pip_conf = Path(scratch) / "pip.conf"
        pip_conf.write_text(_pip_configuration())
        run_logged(
            _buildah(
                *("build", "--layers", "--pull-never", "--isolation", "chroot"),
                *("--network", "host"),
                *("--volume", f"{CA_BUNDLE}:{CA_BUNDLE}:ro"),
                *("--volume", f"{pip_conf}:/etc/pip.conf:ro"),
                *(*chosen, "--tag", tag, "--file", str(dockerfile), str(context)),
            ),
            log=log,
            progress=progress,
            label=f"image {tag}",
            env=environment(TMPDIR=scratch),
        )
        capture(_buildah("push", "--quiet", tag, f"docker-archive:{archive}:{tag}"))


def _bring(name: str, archive: Path) -> None:
    """Puts the base image into the store under the name that FROM asks for. Which one is there is
    told by a second name with the key: another checkout may have another."""
    keyed = f"localhost/base:{archive.parent.name}"
    found = subprocess.run(_buildah("images", "-q", keyed), capture_output=True, check=False)
    if found.returncode != 0:
        capture(_buildah("pull", "--quiet", f"docker-archive:{archive}"))
        capture(_buildah("tag", name, keyed))
    capture(_buildah("tag", keyed, name))


def prune() -> None:
    """Removes the layers of earlier builds: each change of the sources leaves some 200 MB behind.
    To be called when all images have just been built: then the layers worth keeping have a young
    one on top of them, and buildah lists as dangling only those that have none."""
    with _store_lock():
        listed = json.loads(capture(_buildah("images", "--json", "--filter", "dangling=true")))
        limit = time.time() - KEEP_LAYERS_SECONDS
        if old := [image["id"] for image in listed if image["created"] < limit]:
            capture(_buildah("rmi", *old))


def _pip_configuration() -> str:
    """What pip is configured with on this machine, whatever that is: a build needs the same
    mirror and the same certificates. Written to no image: it is mounted for the build."""
    lines = ["[global]", f"cert = {CA_BUNDLE}"]
    probe = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        name, _, value = line.partition("=")
        setting = name.rpartition(".")[2]
        if setting in PIP_SETTINGS:
            lines.append(f"{setting} = {value.strip(chr(39))}")
    return "\n".join(lines) + "\n"
