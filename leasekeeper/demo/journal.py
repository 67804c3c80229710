"""The journal that all apps append to, as the resource that they share would look at it.

Each line is a piece of work: token, app, and when the app began and ended asking whether it leads.
Two questions are asked of it:

- Did two apps believe at the same time that they lead, or a later one with a smaller token? That is
  judged by when they *asked*, and must never be.
- Did work arrive behind that of a larger token? That is the process that was paused between its
  question and its work, which no lease can prevent. The resource refuses it by the token.
"""

from __future__ import annotations

from pathlib import Path

from leasekeeper.demo.history import History, Reading


class Journal:
    """Reads what was appended since the last look."""

    def __init__(self, path: Path, lock: str) -> None:
        self.path = path
        self.history = History()
        self.entries = 0
        self.refused = 0
        self._lock = lock
        self._offset = 0
        self._largest = 0

    def look(self) -> list[str]:
        """Takes in new lines; a sentence for each one that the resource refuses."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        found = (self._take(line) for line in whole.decode().splitlines())
        return [sentence for sentence in found if sentence]

    def _take(self, line: str) -> str:
        token_text, app, began, ended = line.split()
        token = int(token_text)
        self.entries += 1
        self.history.see(Reading(self._lock, app, app, token, float(began), float(ended)))
        if token < self._largest:
            self.refused += 1
            return (
                f"the journal refuses work of {app} with token {token}: it has seen"
                f" {self._largest}. {app} was paused between its question and its work"
            )
        self._largest = token
        return ""
