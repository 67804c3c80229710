"""Reads `lock.json` key by key; what is wrong with a key becomes a problem that names it."""

from __future__ import annotations

from typing import Any


class Problems:
    """All that is wrong with a configuration, one line each, so that it is read at once."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def add(self, key: str, what: str) -> None:
        self.found.append(f"{key}: {what}")


class Reader:
    """Looks up dotted keys; what is wrong becomes a problem with that key."""

    def __init__(self, data: Any, path: str, problems: Problems, file: str = "") -> None:
        """`path`: how problems name the place; `file`: where it stands."""
        self._data = data
        self.path = path
        self.file = file or path
        self.problems = problems

    def value(self, key: str) -> Any:
        found = self._data
        for part in key.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return found

    def text(self, key: str) -> str:
        found = self.value(key)
        if isinstance(found, str) and found:
            return found
        self.problems.add(f"{self.path}: {key}", "must be a text that is not empty")
        return ""

    def number(self, key: str, default: float) -> float | None:
        found = self.value(key)
        if found is None:
            return default
        if isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found < 1e9:
            return float(found)
        self.problems.add(f"{self.path}: {key}", f"{found!r} is not a number of seconds")
        return None

    def port(self, key: str, default: int) -> int:
        found = self.value(key)
        if found is None:
            return default
        if isinstance(found, int) and not isinstance(found, bool) and 0 < found < 65536:
            return found
        self.problems.add(f"{self.path}: {key}", f"{found!r} is not a port")
        return 0

    def only(self, key: str, *names: str) -> None:
        """The object at `key` has no others: a misspelt setting is not silently left out."""
        found = self.value(key)
        for name in found.keys() - set(names) if isinstance(found, dict) else ():
            self.problems.add(
                f"{self.path}: {key}.{name}", f"no such key; there are {', '.join(names)}"
            )
