"""Files that are whole or absent: written aside and renamed.

No fsync: a kill does not lose what is in the page cache, and after a crash of the machine the boot
id is another one, which makes every one of these files worthless anyway.
"""

from __future__ import annotations

import contextlib
import os


def replace(path: str, data: bytes, mode: int) -> None:
    """Readers see the old contents or the new ones. The name aside is fixed, so that kills leave no
    litter behind.
    """
    folder, name = os.path.split(path)
    aside = os.path.join(folder, f".{name}.new")
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        os.fchmod(fd, mode)  # whatever the umask of the image is
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        # On a full volume the room must be there again for the next, perhaps shorter, try.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
        raise
    finally:
        os.close(fd)
    os.replace(aside, path)


def remove(path: str) -> None:
    """Absent afterwards, or an OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
