"""Namespaces for builds, so that a killed build leaves no process and no mount behind."""

from __future__ import annotations

TIED = ("setpriv", "--pdeathsig", "KILL", "--")
"""Prefix: the program dies with the thread that started it, even when that is killed with -9."""


def sandboxed(*argv: str) -> list[str]:
    """The command with processes and mounts of its own, all gone when it ends or we do:
    debootstrap mounts /proc in its target, and buildah its layers."""
    namespaces = ("--mount", "--propagation", "private", "--pid", "--mount-proc", "--fork")
    return [*TIED, "unshare", *namespaces, "--kill-child", "--", *argv]
