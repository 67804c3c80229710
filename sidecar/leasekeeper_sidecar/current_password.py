"""The password of a lock as it stands in `lock.json` now: the operator replaces it while we run."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from leasekeeper.lease import ConfigurationError
from leasekeeper.redlock.watched_file import WatchedFile


class CurrentPassword:
    """Asked for each new connection. What cannot be read, or is no password, changes nothing: the
    last one stays, and whether it is still right the nodes tell.
    """

    def __init__(self, path: str, lock: str, first: str) -> None:
        self._file = WatchedFile(path, what="lock", advice="the last password stays")
        self._lock = lock
        self._last = first

    def __call__(self) -> str:
        with suppress(ConfigurationError):
            if (text := self._file.read_if_changed()) is not None:
                self._last = password_in(text, self._lock) or self._last
        return self._last


def password_in(text: str, lock: str) -> str:
    """Of that lock; empty: there is none."""
    try:
        data: Any = json.loads(text)
        for one in data if isinstance(data, list) else [data]:
            if one["lock"] == lock and isinstance(one["redlock"]["password"], str):
                return str(one["redlock"]["password"])
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    return ""
