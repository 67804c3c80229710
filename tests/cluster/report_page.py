"""`report.html`: one file that needs no network, for a browser."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from tests.cluster import timeline
from tests.cluster.report import HandOver, Run, Scenario, duration, verdict

HERE = Path(__file__).resolve().parent

HATCH = (
    '<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>'
    '<pattern id="nobody" width="6" height="6" patternUnits="userSpaceOnUse"'
    ' patternTransform="rotate(45)"><line x1="0" y1="0" x2="0" y2="6" stroke="var(--gap)"'
    ' stroke-width="2.4" opacity="0.55"/></pattern></defs></svg>'
)

HOW = (
    "How to read it. A bar is a tenure: one pod, one token, for as long as its leader file said yes"
    " by the rule that apps go by. Hatched: nobody led. Red: what was done to the cluster. One"
    " watcher outside the pods read all files on one clock, the kernel’s boot clock, which all pods"
    " of this machine share: two bars of one lock at one instant would be two leaders."
)


def html(run: Run) -> str:
    body = "".join(
        [
            _head(run),
            "<h2>The whole run</h2>",
            f"<article>{timeline.overview(run)}</article>",
            f'<p class="soft">{HOW}</p>',
            _hand_overs(run),
            *(_chapter(name, scenarios) for name, scenarios in run.chapters()),
            _foot(run),
        ]
    )
    style, script = ((HERE / f"report.{kind}").read_text() for kind in ("css", "js"))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Leasekeeper on a real cluster</title><style>{style}</style></head>"
        f'<body>{HATCH}<main>{body}</main><div id="now"></div><script>{script}</script></body>'
        "</html>\n"
    )


def _head(run: Run) -> str:
    kind = "good" if run.good else "bad"
    spans = sum(tenure.seconds for tenure in run.tenures)
    tiles = [
        (str(len(run.scenarios)), "scenarios"),
        (str(len(run.faults)), "faults"),
        (str(len(run.tenures)), f"tenures, {duration(spans)} in all"),
        (str(len(run.wrong)), "times two leaders, or a token that went down"),
        (f"{run.sweeps:,}", f"sweeps over all files, longest pause {duration(run.longest_gap)}"),
        (str(len(run.controls)), "controls: protection removed, two leaders found"),
    ]
    facts = " · ".join(f"{escape(k)} {escape(v)}" for k, v in run.environment.items())
    wrong = "".join(f'<p class="verdict bad">{escape(text)}</p>' for text in run.wrong)
    return (
        "<h1>Leasekeeper on a real cluster</h1>"
        f'<p class="soft">{facts}</p>'
        f'<p class="verdict {kind}">{escape(verdict(run).capitalize())}.</p>'
        f'{wrong}<div class="tiles">{_tiles(tiles)}</div>'
    )


def _tiles(tiles: Iterable[tuple[str, str]]) -> str:
    return "".join(f'<div class="tile"><b>{n}</b><span>{text}</span></div>' for n, text in tiles)


def _hand_overs(run: Run) -> str:
    causes = run.causes()
    if not causes:
        return ""
    longest = max(one.after for _, done in causes for one in done) or 1.0
    rows = "".join(_cause(cause, done, longest) for cause, done in causes)
    return (
        "<h2>Hand-over times</h2><article><div class=scroll><table><tr><th>what happened</th>"
        '<th class="n">times</th><th class="n">new leader after</th><th class="n">nobody led for'
        f"</th><th></th></tr>{rows}</table></div>"
        '<p class="soft">Medians. The lease of these workloads is 4 s, and a leader stops 3 s after'
        " its last good renewal. Blue: from the fault to the new leader. Grey: without any.</p>"
        "</article>"
    )


def _cause(cause: str, done: Sequence[HandOver], longest: float) -> str:
    after = statistics.median(one.after for one in done)
    gap = statistics.median(one.gap for one in done)
    bars = (
        f'<i style="width:{100 * after / longest:.1f}%"></i>'
        f'<i class="gone" style="width:{100 * gap / longest:.1f}%"></i>'
    )
    return (
        f'<tr><td>{escape(cause)}</td><td class="n">{len(done)}</td>'
        f'<td class="n">{duration(after)}</td><td class="n">{duration(gap)}</td>'
        f'<td class="bar">{bars}</td></tr>'
    )


def _chapter(name: str, scenarios: Sequence[Scenario]) -> str:
    """Scenarios that did nothing to the cluster and changed no leader are lines, not pictures."""
    loud = [one for one in scenarios if one.faults or one.hand_overs or one.outcome != "passed"]
    quiet = [one for one in scenarios if one not in loud]
    return f"<h2>{escape(name)}</h2>" + "".join(map(_scenario, loud)) + _quiet(quiet)


def _scenario(one: Scenario) -> str:
    facts = [
        f"{escape(done.cause)}: new leader after <b>{duration(done.after)}</b>,"
        f" nobody for <b>{duration(done.gap)}</b>"
        for done in one.hand_overs
    ]
    facts += [f"{escape(what)}: <b>{escape(value)}</b>" for what, value in one.measured]
    listed = "".join(f"<span>{fact}</span>" for fact in facts)
    said = f"<details><summary>what was said</summary>{_said(one.sentences)}</details>"
    control = f'<span class="badge control">control: {escape(one.control)}</span>'
    return (
        f'<article class="{one.outcome}" id="{escape(one.id)}"><header><h3>{escape(one.title)}</h3>'
        f"{control if one.control else ''}{_badge(one)}"
        f'<span class="took">{duration(one.seconds)}</span></header>'
        f'<div class="facts">{listed}</div>{timeline.scenario(one)}'
        f"{said if one.sentences else ''}</article>"
    )


def _badge(one: Scenario) -> str:
    return f'<span class="badge {one.outcome}">{one.outcome}</span>'


def _quiet(scenarios: Sequence[Scenario]) -> str:
    if not scenarios:
        return ""
    rows = "".join(
        f"<tr><td>{escape(one.title)}</td><td>{_badge(one)}</td>"
        f'<td class="n">{duration(one.seconds)}</td></tr>'
        for one in scenarios
        if not one.sentences
    )
    sentences = [pair for one in scenarios for pair in one.sentences]
    table = f'<article><div class="scroll"><table>{rows}</table></div></article>' if rows else ""
    if not sentences:
        return table
    title = "the sentence that the user sees"
    return f"{table}<article><h3>{title}</h3>{_said(sentences)}</article>"


def _said(sentences: Sequence[tuple[str, str]]) -> str:
    rows = "".join(
        f'<tr><td>{escape(given)}</td><td class="said">{escape(said)}</td></tr>'
        for given, said in sentences
    )
    return f'<div class="scroll"><table>{rows}</table></div>'


def _foot(run: Run) -> str:
    return (
        "<footer>Made by <code>make cluster-test</code> from record.jsonl and watched.jsonl beside"
        f" this file; summary.md has the same in short. The run took"
        f" {duration(run.ended - run.began)}.</footer>"
    )
