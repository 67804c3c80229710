"""The record of a run: what each scenario did to the cluster, and what came of it.

One line of JSON an event, all on the boot clock, the clock of the watcher's own lines: so faults
and tenures can be put on one line of time. `report.py` makes the pages that people read of it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from leasekeeper.demo.history import now


class Recorder:
    """Appends to `record.jsonl`. One scenario at a time."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.file = folder / "record.jsonl"
        self._file = self.file.open("w", buffering=1)
        self._scenario: dict[str, Any] = {}

    def begin(self, scenario: str, *, chapter: str, title: str) -> None:
        self._scenario = {"id": scenario, "chapter": chapter, "title": title, "from": now()}

    @property
    def begun(self) -> bool:
        return bool(self._scenario)

    def end(self, outcome: str) -> None:
        self._say("scenario", **self._scenario, to=now(), outcome=outcome)
        self._scenario = {}

    def namespace(self, name: str) -> None:
        """The tenures of this namespace's locks belong to the scenario."""
        self._scenario["namespace"] = name

    def must_be_found(self, why: str, lock: str) -> None:
        """A control: two leaders of this lock are what it has to produce."""
        self._scenario["control"], self._scenario["lock"] = why, lock

    @contextlib.contextmanager
    def fault(self, text: str) -> Iterator[float]:
        """A fault that lasts as long as the block does. Yields when it began."""
        began = now()
        try:
            yield began
        finally:
            self._say("fault", text=text, **{"from": began, "to": now()})

    def moment(self, text: str) -> float:
        """A fault that has no length, such as a kill. Returns when it was."""
        at = now()
        self._say("fault", text=text, **{"from": at, "to": at})
        return at

    def hand_over(self, cause: str, **fields: Any) -> None:
        self._say("hand-over", cause=cause, **fields)

    def measured(self, what: str, value: float, unit: str) -> None:
        self._say("measured", what=what, value=value, unit=unit)

    def sentence(self, given: str, said: str) -> None:
        """What the user did, and what the user reads."""
        self._say("sentence", given=given, said=" ".join(said.split()))

    def environment(self, **facts: str) -> None:
        """Where this run was, for whoever compares its figures with another's."""
        self._say("environment", facts=facts)

    def close(self) -> None:
        self._file.close()

    def _say(self, event: str, **fields: Any) -> None:
        scenario = fields.get("id") or self._scenario.get("id")
        rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in fields.items()}
        line = {"event": event, "at": round(now(), 4), "scenario": scenario, **rounded}
        self._file.write(json.dumps(line) + "\n")
