"""A program on a pseudo-terminal, for tests."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Callable

PATIENCE = 60.0


class Screen:
    """What the program wrote to its terminal so far."""

    def __init__(self, command: list[str], **environment: str) -> None:
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30", **environment},
            start_new_session=True,
        )
        os.close(theirs)
        self.text = ""

    def until(self, true: Callable[[str], object], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not true(self.text):
            assert time.monotonic() < end, f"waited in vain for {what}:\n{self.text[-3000:]}"
            if select.select([self.ours], [], [], 0.1)[0]:
                try:
                    data = os.read(self.ours, 65536).decode("utf-8", "ignore")
                except OSError:  # the other end was closed
                    data = ""
                self.text += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", data)

    def press(self, key: str) -> None:
        os.write(self.ours, key.encode())
