"""A file that somebody replaces while an agent runs: a key of a mounted Secret or ConfigMap."""

from __future__ import annotations

import os

from leasekeeper.lease import ConfigurationError


class WatchedFile:
    """Looked at often: a stat costs microseconds, and a mounted file changes without a signal."""

    def __init__(self, path: str, *, what: str, advice: str) -> None:
        self.path = path
        self._name = f"{what} {path}"
        self._advice = advice
        self._signature: tuple[int, ...] = ()

    def read_if_changed(self) -> str | None:
        """None: it is the same as at the last look. Raises ConfigurationError, once for each
        version of the file, if it cannot be read.
        """
        try:
            found = os.stat(self.path)
            signature = (found.st_ino, found.st_mtime_ns, found.st_size)
            if signature == self._signature:
                return None
            self._signature = signature
            with open(self.path, encoding="utf-8") as file:
                return file.read()
        except UnicodeDecodeError:
            raise ConfigurationError(f"{self._name}: not a text") from None
        except OSError as wrong:
            if self._signature == (0,):
                return None
            self._signature = (0,)
            raise ConfigurationError(f"{self._name}: {wrong.strerror}; {self._advice}") from None
