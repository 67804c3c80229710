"""The peers: built once, outside the checkout, from what go.sum and the pins fix."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from localkube import cache, pins, toolchain
from localkube.progress import Progress
from localkube.shell import environment

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements-peers.txt"
GO = HERE / "go"


@dataclass(frozen=True, slots=True)
class Peers:
    python: Path
    """An interpreter that has redlock-py and pottery."""
    delayproxy: Path
    redsync: Path
    election: Path
    etcd: Path


def peers() -> Peers:
    progress = Progress()
    python = _environment(progress)
    folder = _programs(progress)
    return Peers(
        python=python,
        delayproxy=folder / "delayproxy",
        redsync=folder / "redsync",
        election=folder / "election",
        etcd=folder / "etcd",
    )


def _environment(progress: Progress) -> Path:
    # A virtual environment knows its own path, so it is made where it stays, and marked when whole.
    key = cache.key_of(REQUIREMENTS.read_bytes(), sys.version)
    folder = cache.root() / "bench-python" / key
    python = folder / "bin" / "python"
    if not (folder / "made").exists():
        progress.say("installing redlock-py and pottery")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]
        subprocess.run([str(python), *install, str(REQUIREMENTS)], check=True)
        (folder / "made").touch()
    return python


def _programs(progress: Progress) -> Path:
    def make(folder: Path) -> None:
        progress.say("building redsync, etcd and the proxy (cold: a few minutes)")
        go = toolchain.go(pins.load(), progress)
        flags = ["-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags=-s -w"]
        env = environment(CGO_ENABLED="0", GOFLAGS="", GOTOOLCHAIN="local", GOROOT="", GOWORK="off")
        command = [str(go), "build", *flags, "-o", f"{folder}/", "./..."]
        subprocess.run(command, check=True, cwd=GO, env=env)

    files = [file for file in GO.rglob("*") if file.is_file()]
    return cache.ensure("bench-go", cache.key_of_files(GO, files), make)[0]
