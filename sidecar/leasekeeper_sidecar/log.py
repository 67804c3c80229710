"""One line for each transition: a stable event name first, then key=value.

A log line must never hold up a renewal. Standard error is a pipe to the container runtime; when
nobody empties it, a write blocks. So a line is written only if the pipe has room for it, and what
was dropped is counted and said later.
"""

from __future__ import annotations

import json
import os
import re
import select
import time

# POSIX promises that a pipe that polls writable takes this much at once, whole and without blocking
# (PIPE_BUF).
_LONGEST = 4096
_PLAIN = re.compile(r"[\w./:@+,%-]+", re.ASCII)


def timestamp(wall: float) -> str:
    """RFC 3339 in UTC, to the millisecond, rounded down: an end must not look later than it is."""
    milliseconds = int(wall * 1000)
    seconds, rest = divmod(milliseconds, 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest:03d}Z"


class Log:
    """Writes events to a file descriptor, as text or as JSON."""

    def __init__(self, fd: int = 2, *, as_json: bool = False) -> None:
        self._fd = fd
        self._as_json = as_json
        self._dropped = 0
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    def event(self, name: str, **fields: object) -> None:
        """Empty fields are left out. `at` is there because a transition without its time is worth
        little.
        """
        if self._dropped:
            fields["dropped"] = self._dropped
        known = {"at": timestamp(time.time()), **fields}
        line = self._format(name, {k: v for k, v in known.items() if v is not None and v != ""})
        if self._write(line.encode()[: _LONGEST - 1] + b"\n"):
            self._dropped = 0
        else:
            self._dropped += 1

    def _format(self, name: str, fields: dict[str, object]) -> str:
        if self._as_json:
            return json.dumps({"event": name, **fields}, default=str)
        return " ".join([name, *(f"{key}={_text(value)}" for key, value in fields.items())])

    def _write(self, line: bytes) -> bool:
        try:
            if not self._poll.poll(0):
                return False
            os.write(self._fd, line)
        except OSError:
            return False  # nobody listens: nothing that the election could do about it
        return True


def _text(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
