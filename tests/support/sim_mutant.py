"""A protection taken away, by substitution: other text in a library of node functions, or another
function in a module of the core. The product has no switch for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest.mock import patch

from sim_lua import library
from sim_world import Outcome, Profile, run_schedule


@dataclass(frozen=True)
class Text:
    """Lua: `old` stands once in the library, and becomes `new`."""

    library: str
    old: str
    new: str


@dataclass(frozen=True)
class Part:
    """Python: the attribute `name` of `target` becomes `new`. A function of a module becomes so in
    every module of the core that has imported it: otherwise it is not taken away at all when its
    caller moves.
    """

    target: Any
    name: str
    new: Any
    is_there: bool = True
    """Otherwise it is made: a class attribute in front of what instances have."""

    def targets(self) -> list[Any]:
        if not isinstance(self.target, ModuleType):
            return [self.target]
        original = getattr(self.target, self.name)
        return [
            module
            for name, module in list(sys.modules.items())
            if name.startswith("leasekeeper") and vars(module).get(self.name) is original
        ]


@dataclass(frozen=True)
class Mutant:
    name: str
    profile: Profile
    """Where to look for it."""
    changes: tuple[Text | Part, ...]
    budget: int = 500
    """Schedules within which it must be caught."""

    def sources(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for change in self.changes:
            if isinstance(change, Text):
                source = found.get(change.library) or library(change.library)
                assert source.count(change.old) == 1, f"{self.name}: must stand once: {change.old}"
                found[change.library] = source.replace(change.old, change.new)
        return found

    @contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as stack:
            for change in self.changes:
                if isinstance(change, Part):
                    create = not change.is_there
                    for target in change.targets():
                        stack.enter_context(
                            patch.object(target, change.name, change.new, create=create)
                        )
            yield

    def run(self, seed: str, *, traced: bool = False) -> Outcome:
        with self.applied():
            return run_schedule(seed, self.profile, sources=self.sources(), traced=traced)

    def first_caught(self, prefix: str = "") -> Outcome | None:
        """The first schedule that shows what the protection is for; none: it survived."""
        for number in range(self.budget):
            outcome = self.run(f"{prefix}{self.name}:{number}")
            if outcome.violations:
                return outcome
        return None
