"""Makes of a run's record what people read: `report.html` and `summary.md`.

python3 -m tests.cluster.report FOLDER      anew, of record.jsonl and watched.jsonl there
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Span:
    """A tenure or a fault, on the boot clock."""

    text: str
    began: float
    ended: float
    lock: str = ""
    token: int = 0
    gaps: tuple[tuple[float, float], ...] = ()
    """Of a tenure: when its file said no in between."""

    @property
    def seconds(self) -> float:
        return self.ended - self.began - sum(end - begin for begin, end in self.gaps)

    def pieces(self) -> list[Span]:
        """The times between the gaps."""
        begins = (self.began, *(end for _, end in self.gaps))
        ends = (*(begin for begin, _ in self.gaps), self.ended)
        return [
            replace(self, began=began, ended=ended, gaps=())
            for began, ended in zip(begins, ends, strict=True)
        ]

    def within(self, began: float, ended: float) -> bool:
        return self.began < ended and self.ended > began


@dataclass(frozen=True)
class HandOver:
    cause: str
    after: float
    gap: float
    old: str
    new: str


@dataclass
class Scenario:
    id: str
    chapter: str
    title: str
    began: float
    ended: float
    outcome: str
    control: str = ""
    lock: str = ""
    """Of a control: the one of which two leaders had to be found."""
    tenures: list[Span] = field(default_factory=list)
    faults: list[Span] = field(default_factory=list)
    hand_overs: list[HandOver] = field(default_factory=list)
    measured: list[tuple[str, str]] = field(default_factory=list)
    sentences: list[tuple[str, str]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass
class Run:
    scenarios: list[Scenario]
    tenures: list[Span]
    wrong: list[str]
    """What the watcher found, without what the controls had to produce."""
    sweeps: int
    longest_gap: float
    """Between two of the watcher's sweeps, in seconds: what lasts longer than two is not missed."""
    finished: bool
    """Whether the watcher said its last word: otherwise nobody knows what it did not see."""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        passed = all(one.outcome == "passed" for one in self.scenarios)
        return bool(self.scenarios) and passed and self.finished and not self.wrong

    @property
    def began(self) -> float:
        return min((one.began for one in self.scenarios), default=0.0)

    @property
    def ended(self) -> float:
        return max((one.ended for one in self.scenarios), default=0.0)

    @property
    def faults(self) -> list[Span]:
        return [fault for one in self.scenarios for fault in one.faults]

    @property
    def controls(self) -> list[Scenario]:
        return [one for one in self.scenarios if one.control and one.outcome == "passed"]

    def chapters(self) -> list[tuple[str, list[Scenario]]]:
        """In the order of the issue's numbers."""
        found: dict[str, list[Scenario]] = {}
        for one in self.scenarios:
            found.setdefault(one.chapter, []).append(one)
        return sorted(found.items())

    def causes(self) -> list[tuple[str, list[HandOver]]]:
        """Hand-overs by their cause, in the order in which the causes came first."""
        found: dict[str, list[HandOver]] = {}
        for one in self.scenarios:
            for done in one.hand_overs:
                found.setdefault(done.cause, []).append(done)
        return list(found.items())


def read(folder: Path) -> Run:
    record = _lines(folder / "record.jsonl")
    watched = _lines(folder / "watched.jsonl")
    end = max((line["at"] for line in (*record, *watched)), default=0.0)
    tenures = _tenures(watched, end)
    scenarios = [_scenario(line, record, tenures) for line in record if line["event"] == "scenario"]
    wanted = tuple(f"two leaders of {one.lock}:" for one in scenarios if one.control)
    wrong = [
        line["text"]
        for line in watched
        if line["event"] == "wrong" and not line["text"].startswith(wanted)
    ]
    (summary,) = [line for line in watched if line["event"] == "summary"] or [{}]
    facts = [line for line in record if line["event"] == "environment"]
    return Run(
        scenarios,
        tenures,
        wrong,
        sweeps=summary.get("sweeps", 0),
        longest_gap=summary.get("longestGap", 0.0),
        finished=bool(summary),
        environment=facts[-1]["facts"] if facts else {},
    )


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _tenures(watched: Sequence[dict[str, Any]], end: float) -> list[Span]:
    found: dict[tuple[str, str, int], Span] = {}
    for line in watched:
        if line["event"] not in ("leads", "ends"):
            continue
        key = (line["lock"], line["pod"], line["token"])
        known = found.get(key)
        if known is None:
            known = Span(line["holder"], line["at"], end, lock=line["lock"], token=line["token"])
        elif line["event"] == "leads":
            known = replace(known, ended=end, gaps=(*known.gaps, (known.ended, line["at"])))
        found[key] = replace(known, ended=line["last"]) if line["event"] == "ends" else known
    return sorted(found.values(), key=lambda one: one.began)


def _scenario(
    line: dict[str, Any], record: Sequence[dict[str, Any]], tenures: Sequence[Span]
) -> Scenario:
    began, ended = line["from"], line["to"]
    made = Scenario(
        *(line["id"], line["chapter"], line["title"], began, ended, line["outcome"]),
        control=line.get("control", ""),
        lock=line.get("lock", ""),
    )
    lock = f"{line.get('namespace', '')}/"
    made.tenures = [t for t in tenures if t.lock.startswith(lock) and t.within(began, ended)]
    for other in record:
        if other["scenario"] != line["id"]:
            continue
        if other["event"] == "fault":
            made.faults.append(Span(other["text"], other["from"], other["to"]))
        elif other["event"] == "hand-over":
            fields = (other[name] for name in ("cause", "after", "gap", "old", "new"))
            made.hand_overs.append(HandOver(*fields))
        elif other["event"] == "measured":
            value = f"{other['value']:.2f} {other['unit']}"
            made.measured.append((other["what"], value))
        elif other["event"] == "sentence":
            made.sentences.append((other["given"], other["said"]))
    made.faults.sort(key=lambda fault: fault.began)
    return made


def duration(seconds: float) -> str:
    """Three digits that mean something."""
    if seconds < 0.0095:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 0.95:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {seconds % 60:.0f} s"


def verdict(run: Run) -> str:
    failed = sum(one.outcome != "passed" for one in run.scenarios)
    if not run.scenarios:
        outcome = "nothing ran"
    elif failed:
        outcome = f"{failed} scenario{'s' * (failed > 1)} failed"
    else:
        outcome = "all scenarios passed"
    if run.wrong:
        return f"{outcome}; SAFETY WAS LOST"
    if not run.finished:
        return f"{outcome}; the watcher did not finish"
    return f"{outcome}; never two leaders, no token went down"


def markdown(run: Run) -> str:
    """The summary: one screen, for a pull request or a terminal."""
    facts = "; ".join(f"{name} {value}" for name, value in run.environment.items())
    lines = [
        "# The product on a real cluster",
        "",
        f"**{verdict(run).capitalize()}.** {len(run.scenarios)} scenarios, {len(run.faults)} faults"
        f" and {len(run.tenures)} tenures in {duration(run.ended - run.began)}. The watcher read"
        f" all leader files {run.sweeps:,} times; its longest pause was"
        f" {duration(run.longest_gap)}. Controls (a protection removed, two leaders must be"
        f" found): {len(run.controls)}.",
        "",
        *([facts + ".", ""] if facts else []),
        "| what happened | times | new leader after (median) | longest | nobody led (median) |",
        "| --- | --- | --- | --- | --- |",
    ]
    for cause, done in run.causes():
        after, gap = [one.after for one in done], [one.gap for one in done]
        cells = (
            *(cause, str(len(done)), duration(statistics.median(after)), duration(max(after))),
            duration(statistics.median(gap)),
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| scenario | outcome | took |", "| --- | --- | --- |"]
    for chapter, scenarios in run.chapters():
        lines.append(f"| **{chapter}** | | |")
        for one in scenarios:
            note = f" (control: {one.control})" if one.control else ""
            lines.append(f"| {one.title}{note} | {one.outcome} | {duration(one.seconds)} |")
    lines += ["", *(f"- **wrong:** {text}" for text in run.wrong)]
    return "\n".join(lines).rstrip() + "\n"


def write(folder: Path) -> Path:
    """Both pages; returns the one for the browser."""
    from tests.cluster import report_page

    run = read(folder)
    (folder / "summary.md").write_text(markdown(run))
    page = folder / "report.html"
    page.write_text(report_page.html(run))
    return page


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
