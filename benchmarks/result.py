"""Rows of the table: what was measured, what it is held against, and whether that is met."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One figure against one peer (or a fixed bound)."""

    figure: str
    unit: str
    ours: float
    against: str
    theirs: float | None
    target: str = ""
    """Empty: for information."""
    met: bool | None = None
    missed_by: float = 0.0
    """By which part of the target: 0.25 is a quarter too slow."""

    @property
    def ratio(self) -> float | None:
        return self.ours / self.theirs if self.theirs else None

    @property
    def verdict(self) -> str:
        if self.met is None:
            return ""
        return "met" if self.met else f"missed by {self.missed_by:.0%}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}


def at_most(
    figure: str, unit: str, ours: float, limit: float, against: str, theirs: float | None = None
) -> Row:
    """`ours` ≤ `limit` × `theirs`; without a peer, ≤ `limit`."""
    bound = limit * theirs if theirs is not None else limit
    target = f"≤ {limit:g} ×" if theirs is not None else f"≤ {limit:g} {unit}"
    return Row(figure, unit, ours, against, theirs, target, ours <= bound, ours / bound - 1)


def at_least(figure: str, unit: str, ours: float, limit: float, against: str, theirs: float) -> Row:
    """`ours` ≥ `limit` × `theirs`."""
    bound = limit * theirs
    return Row(
        figure, unit, ours, against, theirs, f"≥ {limit:g} ×", ours >= bound, 1 - ours / bound
    )


def note(figure: str, unit: str, ours: float, against: str, theirs: float | None) -> Row:
    return Row(figure, unit, ours, against, theirs)


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest rank; of no values: not a number."""
    if not values:
        return math.nan
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, max(0, math.ceil(percent / 100 * len(ranked)) - 1))]


def table(rows: Sequence[Row]) -> str:
    """As Markdown, so that it can be pasted."""
    lines = [("figure", "ours", "peer", "ratio", "target", "")]
    for row in rows:
        theirs = row.against
        if row.theirs is not None:
            theirs += f" {_number(row.theirs)} {row.unit}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        ours = f"{_number(row.ours)} {row.unit}"
        lines.append((row.figure, ours, theirs, ratio, row.target, row.verdict))
    widths = [max(len(line[column]) for line in lines) for column in range(6)]
    lines.insert(1, tuple("-" * width for width in widths))  # type: ignore[arg-type]
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def write(path: Path, rows: Sequence[Row], circumstances: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"circumstances": circumstances, "rows": [row.to_json() for row in rows]}
    path.write_text(json.dumps(content, indent=1) + "\n")
