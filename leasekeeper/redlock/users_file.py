"""The file of the locks' ACL users, a line for each: `NAMESPACE/NAME SHA256-OF-PASSWORD`.

A lock that is given a new password has two lines until the old one is taken away. The operator
numbers what it writes, in a line `# edition N`: a mounted file may be old, and an agent that has
read a later one lets nobody in by an earlier one any more."""

from __future__ import annotations

import re
from collections.abc import Mapping

from leasekeeper.lease import ConfigurationError
from leasekeeper.redlock.watched_file import WatchedFile

_LINE = re.compile(r"([a-z0-9.-]+/[a-z0-9.-]+)\s+([0-9a-f]{64})")
_EDITION = re.compile(r"^# edition ([0-9]{1,16})$", re.MULTILINE)


Digests = Mapping[str, frozenset[str]]
"""Of the passwords of each lock."""


def parse(text: str, source: str) -> dict[str, frozenset[str]]:
    """Digests by lock. A bad line spoils the file: half of it would cut off the other locks."""
    found: dict[str, frozenset[str]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise ConfigurationError(
                f"{source}, line {number}: must be NAMESPACE/NAME, a space, and the SHA-256 of the"
                " lock's password in hexadecimal"
            )
        found[match[1]] = found.get(match[1], frozenset()) | {match[2]}
    return found


def edition_line(edition: int) -> str:
    return f"# edition {edition}\n"


def edition_of(text: str) -> int:
    """0: it is not numbered."""
    match = _EDITION.search(text)
    return int(match[1]) if match else 0


class UsersFile:
    def __init__(self, path: str) -> None:
        self._file = WatchedFile(
            path,
            what="users file",
            advice="name a file that can be read, an empty one if there are no locks yet",
        )
        self.users: Digests = {}
        self.edition = 0
        """Of the file that `users` is from."""

    def changed(self) -> bool:
        """Reads the file if it is another one than at the last look; whether `users` is new.
        Raises ConfigurationError, once for each version of the file, if it cannot be used; `users`
        stays what it was.
        """
        text = self._file.read_if_changed()
        if text is None:
            return False
        self.users, self.edition = parse(text, self._file.path), edition_of(text)
        return True
