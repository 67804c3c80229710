"""Every image that the cluster runs, as a docker archive in the cache.

There is no image registry where the tests run. So the images that a user would pull (Debian,
Valkey, CoreDNS, pause) are made here, as stand-ins under the names that users would write.
"""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localkube import buildah, cache
from localkube.binaries import Binaries
from localkube.pins import HERE, REPOSITORY, Pins
from localkube.progress import Progress
from localkube.sandbox import sandboxed
from localkube.shell import run_logged
from localkube.topology import COREDNS_IMAGE, PAUSE_IMAGE

DOCKERFILES = HERE / "dockerfiles"
VALKEY_IMAGE = "docker.io/valkey/valkey:8.1"
APP_IMAGE = "localhost/app:1"
EXAMPLES_IMAGE = "localhost/examples:1"

PROJECT_TARGETS = ("sidecar", "operator")
"""The stages of the repository's Dockerfile that become images."""


@dataclass(frozen=True)
class Image:
    tag: str
    archive: Path
    fresh: bool
    """Made by this call, not found in the cache."""


def build_all(pins: Pins, programs: Binaries, progress: Progress) -> list[Image]:
    """The small ones first: they are imported in this order, and DNS can start meanwhile."""
    images = [
        _static("pause", PAUSE_IMAGE, programs.kubernetes / "pause", progress),
        _static("coredns", COREDNS_IMAGE, programs.coredns, progress),
    ]
    base = _base(pins, progress)
    images += [
        _on_base("app", APP_IMAGE, base, progress),
        _on_base("valkey", VALKEY_IMAGE, base, progress),
        *project(base, progress),
    ]
    return images


def project_only(pins: Pins, progress: Progress) -> list[Image]:
    return project(_base(pins, progress), progress)


def examples(pins: Pins, progress: Progress) -> Image:
    """What the pods of examples/ run, beside a shell. Not part of `up`: one test needs it, and
    every other cluster would wait for it."""
    return _on_base("examples", EXAMPLES_IMAGE, _base(pins, progress), progress)


def _image(
    name: str, tag: str, key: str, make: Callable[[Path], None], progress: Progress
) -> Image:
    with progress.part(f"image {tag}") as part:

        def make_and_tell(folder: Path) -> None:
            progress.say(f"building image {tag}")
            make(folder)

        folder, part.cached = cache.ensure(f"image-{name}", key, make_and_tell)
    return Image(tag, folder / "image.tar", fresh=not part.cached)


def _base(pins: Pins, progress: Progress) -> Image:
    """By debootstrap, 1 to 2 minutes."""
    tag = f"docker.io/library/debian:{pins.base_suite}-slim"
    dockerfile, script = DOCKERFILES / "base.Dockerfile", DOCKERFILES / "base.sh"
    serial = str(pins.base_serial)
    key = cache.key_of(tag, serial, dockerfile.read_bytes(), script.read_bytes())

    def make(folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=folder) as context:
            run_logged(
                sandboxed(str(script), pins.base_suite, context),
                log=cache.root() / "log" / "debootstrap.log",
                progress=progress,
                label=f"debootstrap {pins.base_suite}",
            )
            buildah.build(Path(context), dockerfile, tag, folder / "image.tar", progress)

    return _image("base", tag, key, make, progress)


def _static(name: str, tag: str, program: Path, progress: Progress) -> Image:
    dockerfile = DOCKERFILES / "static.Dockerfile"
    key = cache.key_of(tag, dockerfile.read_bytes(), program.parent.name)

    def make(folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=folder) as context:
            shutil.copy2(program, Path(context) / "program")
            buildah.build(Path(context), dockerfile, tag, folder / "image.tar", progress)

    return _image(name, tag, key, make, progress)


def _on_base(name: str, tag: str, base: Image, progress: Progress) -> Image:
    dockerfile = DOCKERFILES / f"{name}.Dockerfile"
    key = cache.key_of(tag, dockerfile.read_bytes(), base.archive.parent.name)

    def make(folder: Path) -> None:
        from_base = (base.tag, base.archive)
        with tempfile.TemporaryDirectory(dir=folder) as context:
            archive = folder / "image.tar"
            buildah.build(Path(context), dockerfile, tag, archive, progress, base=from_base)

    return _image(name, tag, key, make, progress)


def earlier(repository: Path, version: str, pins: Pins, progress: Progress) -> list[Image]:
    """The project's images as they were, from a checkout of that time: one test needs them."""
    return project(_base(pins, progress), progress, repository, version)


def project(
    base: Image, progress: Progress, repository: Path = REPOSITORY, version: str = "dev"
) -> list[Image]:
    """The project's own images, from the Dockerfile that users build them from."""
    if not (repository / "Dockerfile").exists():
        progress.say("no Dockerfile in the repository: the project's own images are left out")
        return []
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        _snapshot(repository, context)
        images = [
            _project_image(f"{target}:{version}", base, context, progress)
            for target in PROJECT_TARGETS
        ]
    if any(image.fresh for image in images):
        buildah.prune()
    return images


def sidecar_with(stores: str, pins: Pins, progress: Progress) -> Image:
    """The sidecar's image with the drivers of further stores, as a user builds it."""
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        _snapshot(REPOSITORY, context)
        return _project_image("sidecar:stores", _base(pins, progress), context, progress, stores)


def _project_image(
    name: str, base: Image, context: Path, progress: Progress, stores: str = ""
) -> Image:
    tag, target = f"localhost/leasekeeper-{name}", name.partition(":")[0]
    files = [file for file in context.rglob("*") if file.is_file()]
    key = cache.key_of(tag, stores, cache.key_of_files(context, files), base.archive.parent.name)

    def make(folder: Path) -> None:
        buildah.build(
            context,
            context / "Dockerfile",
            tag,
            folder / "image.tar",
            progress,
            target=target,
            base=(base.tag, base.archive),
            arguments={"STORES": stores} if stores else None,
        )

    return _image(name.replace(":", "-") if stores else target, tag, key, make, progress)


def _snapshot(repository: Path, context: Path) -> None:
    """Copies the Dockerfile and the files that it copies in. Built from the copy, an image is what
    its key says, whoever edits the repository meanwhile; and the list is read from the Dockerfile,
    because one kept by hand would one day miss a file, and a stale image would be tested."""
    dockerfile = repository / "Dockerfile"
    files = {dockerfile, repository / ".dockerignore", repository / ".containerignore"}
    text = dockerfile.read_text().replace("\\\n", " ")
    for line in re.findall(r"^\s*(?:COPY|ADD)\s+(.*)$", text, re.M | re.I):
        words = shlex.split(line)
        if any(word.startswith("--from") for word in words):
            continue
        for pattern in [word for word in words if not word.startswith("--")][:-1]:
            for found in repository.glob(pattern.removeprefix("./").rstrip("/")):
                files.update(found.rglob("*") if found.is_dir() else [found])
    for file in files:
        if file.is_file() and "__pycache__" not in file.parts:
            copy = context / file.relative_to(repository)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, copy)
