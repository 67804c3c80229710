"""Whether something still runs as leader, though the file says no.

A sidecar that is ended alone, while its app runs on, must not give the lease back before the app
has stopped. It cannot see the app's processes. So whoever works as leader holds a lock on the file
`busy`, which the kernel takes away however the process ends:

    app:      lock `busy` (shared), then read the leader file, then work
    sidecar:  leader file says no, then look whether `busy` is locked, then release

In whichever order the two meet, either the app reads no, or the sidecar sees the lock. In a native
sidecar the app has ended first, nothing is locked, and nobody waits.
"""

from __future__ import annotations

import asyncio
import fcntl
import os

FILE = "busy"
LOOK_EVERY = 0.02  # seconds; an app that stops is not made to look slow, and nothing spins


class Busy:
    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, FILE)

    def install(self) -> None:
        """Never replaced: a lock is on a file, not on a name."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            os.fchmod(fd, 0o644)
        finally:
            os.close(fd)

    async def over(self) -> None:
        """Returns when nobody holds it."""
        while self._held():  # noqa: ASYNC110  nobody tells: the kernel drops the lock
            await asyncio.sleep(LOOK_EVERY)

    def _held(self) -> bool:
        """By flock, or by fcntl: the two do not know of each other, and Java has only the second.
        A file that cannot be opened is held by nobody.
        """
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
        return False
