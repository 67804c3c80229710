"""Runs the sidecar in the shipped image: its files, its interpreter, its user; no runtime."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

from localkube import images, pins
from localkube.progress import Progress

USER = 65532  # as in the Dockerfile


def sidecar() -> Path:
    """The archive of the sidecar's image, built if need be."""
    built = images.project_only(pins.load(), Progress())
    return next(image.archive for image in built if "sidecar" in image.tag)


def unpack(archive: Path, folder: Path) -> int:
    """The root of an image. Returns the size of its layers."""
    size = 0
    with tarfile.open(archive) as outer:
        manifest = json.load(outer.extractfile("manifest.json"))  # type: ignore[arg-type]
        for layer in manifest[0]["Layers"]:
            packed = outer.extractfile(layer)
            assert packed is not None
            with tarfile.open(fileobj=packed) as inner:
                for member in inner:
                    name = Path(member.name).name
                    if name.startswith(".wh."):  # what a lower layer had, and this one has not
                        _remove((folder / member.name).with_name(name[4:]))
                        continue
                    size += member.size
                    if not member.isdev():
                        inner.extract(member, folder, filter="fully_trusted")
    return size


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def command(root: Path, home: Path) -> list[str]:
    """The image's entry point as its user, with /proc, and `home` at the same path inside. Each
    program of this line becomes the next one, so that the process that was started is the sidecar.
    """
    inside = root / home.relative_to("/")
    inside.mkdir(parents=True, exist_ok=True)
    mounts = f"mount --bind /proc {root}/proc && mount --bind {home} {inside}"
    enter = f"exec chroot --userspec={USER}:{USER} {root} /opt/leasekeeper/bin/leasekeeper-sidecar"
    return ["unshare", "--mount", "sh", "-c", f"{mounts} && {enter}"]
