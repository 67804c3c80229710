"""A password in a file of its own: a key of a mounted Secret."""

from __future__ import annotations

from contextlib import suppress

from leasekeeper.lease import ConfigurationError


class PasswordFile:
    """Read anew each time that it is asked, because a Secret is replaced while an agent runs. A
    file that is gone or empty later changes nothing: the last password stays.
    """

    def __init__(self, path: str) -> None:
        """Raises ConfigurationError."""
        self._path = path
        self._last = self._read()

    def __call__(self) -> str:
        with suppress(ConfigurationError):  # whether the last one is still right, the server tells
            self._last = self._read()
        return self._last

    def _read(self) -> str:
        try:
            with open(self._path, encoding="utf-8") as file:
                password = file.read().strip()
        except (OSError, UnicodeDecodeError) as wrong:
            why = wrong.strerror if isinstance(wrong, OSError) else "not a text"
            raise ConfigurationError(f"{self._path}: {why}; it must hold one password") from None
        if not password:
            raise ConfigurationError(f"{self._path}: is empty; it must hold one password")
        return password
