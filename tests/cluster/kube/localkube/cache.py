"""The cache outside the checkout: one folder an artefact and key, published whole or not at all.

    CACHE/NAME/KEY/...      complete: made under another name and moved here by one rename
    CACHE/NAME/.making-*    left by a killed build; removed by the next one, which holds the lock
    CACHE/NAME/.lock        one builder an artefact; a second waits and then finds it made

The key is a hash over everything the artefact is made from, so that a changed pin or source makes
a new one beside the old, and going back to an earlier commit finds the earlier one again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

KEEP = 3
"""Entries kept of each artefact: the one in use, and those of two other branches or checkouts."""


def root() -> Path:
    """The cache's folder: $LEASEKEEPER_CACHE, or `leasekeeper` in the user's cache folder."""
    own = os.environ.get("LEASEKEEPER_CACHE")
    if own:
        return Path(own).absolute()
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(user).absolute() / "leasekeeper"


def key_of(*parts: str | bytes) -> str:
    """A short hash of the parts, each with its length so that they cannot run into each other."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()[:16]


def key_of_files(base: Path, files: Iterable[Path]) -> str:
    """A hash of the files' names below `base`, their modes and their contents."""
    parts: list[str | bytes] = []
    for file in sorted(files):
        executable = "x" if os.access(file, os.X_OK) else "-"
        parts += [str(file.relative_to(base)), executable, file.read_bytes()]
    return key_of(*parts)


def ensure(name: str, key: str, make: Callable[[Path], None]) -> tuple[Path, bool]:
    """The folder of the artefact, made by `make(folder)` if it is not there; and if it was."""
    home = root() / name
    final = home / key
    home.mkdir(parents=True, exist_ok=True)
    if _found(final):
        return final, True
    with (home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _found(final):
            return final, True
        for stale in home.glob(".making-*"):
            shutil.rmtree(stale, ignore_errors=True)
        making = Path(tempfile.mkdtemp(prefix=".making-", dir=home))
        try:
            making.chmod(0o755)
            make(making)
            making.rename(final)
        finally:
            shutil.rmtree(making, ignore_errors=True)
        _prune(home)
    return final, False


def _found(final: Path) -> bool:
    if not final.is_dir():
        return False
    os.utime(final)  # what is used is kept
    return True


def _prune(home: Path) -> None:
    entries = [entry for entry in home.iterdir() if not entry.name.startswith(".")]
    for old in sorted(entries, key=lambda entry: entry.stat().st_mtime)[:-KEEP]:
        shutil.rmtree(old, ignore_errors=True)
