"""Tenures and faults on one line of time, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise

from tests.cluster.report import Run, Scenario, Span, duration

WIDTH, GUTTER, RIGHT = 1000.0, 210.0, 12.0
LANE, BAR = 26.0, 18.0
COLOURS = 6
"""Of holders; the style sheet has as many."""

STEPS = (0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300)
LETTER = 6.3  # the width of one at the size of the labels, with some room


class Axis:
    """From seconds on the boot clock to places on the picture."""

    def __init__(self, began: float, ended: float) -> None:
        self.began, self.ended = began, max(ended, began + 0.1)
        self._scale = (WIDTH - GUTTER - RIGHT) / (self.ended - self.began)

    def x(self, at: float) -> float:
        clipped = min(max(at, self.began), self.ended)
        return GUTTER + (clipped - self.began) * self._scale

    def ticks(self) -> list[float]:
        length = self.ended - self.began
        step = next((step for step in STEPS if length / step <= 12), 600)
        return [step * i for i in range(int(length / step) + 1)]


def scenario(one: Scenario) -> str:
    """A lane for each fault that lasts, one for all that are moments, and one for each pod that
    led, in the order in which they came."""
    axis = Axis(one.began, one.ended + 0.04 * one.seconds)
    lasting = [fault for fault in one.faults if fault.seconds > 0.05]
    moments = [fault for fault in one.faults if fault.seconds <= 0.05]
    pods = list(dict.fromkeys(tenure.text for tenure in one.tenures))
    rows = len(lasting) + len(moments) + len(pods)
    if not rows:
        return ""
    height = rows * LANE + 34
    parts = _grid(axis, rows * LANE + 8)
    if pods and not one.control:
        parts += _gaps(axis, one.tenures, (len(lasting) + len(moments)) * LANE, len(pods))
    for row, fault in enumerate(lasting):
        parts += _lane_name("fault", row) + _fault(axis, fault, row)
    for row, fault in enumerate(moments, len(lasting)):
        parts += _lane_name("fault", row) + _moment(axis, fault, row)
    first = len(lasting) + len(moments)
    for row, pod in enumerate(pods, first):
        parts += _lane_name(pod, row)
        for tenure in one.tenures:
            if tenure.text == pod:
                parts += _tenure(axis, tenure, row, (row - first) % COLOURS)
    return _svg(height, parts, f"timeline: {one.title}", _data(one.tenures, axis))


def overview(run: Run) -> str:
    """The whole run on one strip: a lane for each lock, and one for the faults."""
    axis = Axis(run.began, run.ended)
    locks = list(dict.fromkeys(tenure.lock for tenure in run.tenures))
    parts = _grid(axis, (len(locks) + 1) * LANE + 8)
    parts += _lane_name("faults", 0)
    for fault in run.faults:
        parts += _mark(axis, fault)
    for row, lock in enumerate(locks, 1):
        parts += _lane_name(lock, row)
        own = [tenure for tenure in run.tenures if tenure.lock == lock]
        pods = list(dict.fromkeys(tenure.text for tenure in own))
        for tenure in own:
            parts += _tenure(axis, tenure, row, pods.index(tenure.text) % COLOURS, named=False)
    return _svg((len(locks) + 1) * LANE + 34, parts, "the whole run", "")


def _svg(height: float, parts: Sequence[str], label: str, data: str) -> str:
    box = f"0 0 {WIDTH:g} {height:g}"
    inner = "".join(parts)
    return f'<svg viewBox="{box}" role="img" aria-label="{escape(label)}"{data}>{inner}</svg>'


def _data(tenures: Sequence[Span], axis: Axis) -> str:
    """For the script that names the second and the leader under the pointer."""
    spans = ";".join(
        f"{t.began - axis.began:.3f},{t.ended - axis.began:.3f},{t.text},{t.token}"
        for t in _pieces(tenures)
    )
    return (
        f' data-length="{axis.ended - axis.began:.3f}" data-left="{GUTTER:g}"'
        f' data-right="{WIDTH - RIGHT:g}" data-tenures="{escape(spans)}"'
    )


def _grid(axis: Axis, bottom: float) -> list[str]:
    parts = []
    for tick in axis.ticks():
        x = axis.x(axis.began + tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom:g}"/>')
        text = f"{tick:g} s" if tick < 120 else f"{tick / 60:g} min"
        parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 16:g}">{text}</text>')
    return parts


def _lane_name(name: str, row: int) -> list[str]:
    short = name if len(name) <= 30 else f"{name[:8]}…{name[-20:]}"
    y = row * LANE + 17
    return [f'<text class="lane" x="{GUTTER - 10:g}" y="{y:g}">{escape(short)}</text>']


def _rect(kind: str, left: float, right: float, row: int, title: str) -> str:
    width = max(right - left, 1.5)
    return (
        f'<rect class="{kind}" x="{left:.2f}" y="{row * LANE + 4:g}" width="{width:.2f}"'
        f' height="{BAR:g}" rx="3"><title>{escape(title)}</title></rect>'
    )


def _fault(axis: Axis, fault: Span, row: int) -> list[str]:
    left, right = axis.x(fault.began), axis.x(fault.ended)
    title = f"{fault.text}: {duration(fault.seconds)}"
    return [_rect("fault", left, right, row, title), _beside(fault.text, left, right, row)]


def _moment(axis: Axis, fault: Span, row: int) -> list[str]:
    x, middle = axis.x(fault.began), row * LANE + 13
    points = f"{x - 6:.1f},{middle:g} {x:.1f},{middle - 7:g} {x + 6:.1f},{middle:g}"
    points += f" {x:.1f},{middle + 7:g}"
    mark = (
        f'<polygon class="moment" points="{points}"><title>{escape(fault.text)}</title></polygon>'
    )
    return [mark, _beside(fault.text, x - 8, x + 8, row, inside=False)]


def _beside(text: str, left: float, right: float, row: int, *, inside: bool = True) -> str:
    """In the bar if there is room, else after it, else before it."""
    y, width = row * LANE + 17, len(text) * LETTER
    if inside and width < right - left:
        return f'<text class="in" x="{left + 6:.1f}" y="{y:g}">{escape(text)}</text>'
    if right + width < WIDTH - RIGHT:
        return f'<text class="by" x="{right + 5:.1f}" y="{y:g}">{escape(text)}</text>'
    return f'<text class="by end" x="{left - 5:.1f}" y="{y:g}">{escape(text)}</text>'


def _tenure(axis: Axis, tenure: Span, row: int, colour: int, *, named: bool = True) -> list[str]:
    title = f"{tenure.text} led with token {tenure.token} for {duration(tenure.seconds)}"
    parts = []
    for piece in tenure.pieces():
        left, right = axis.x(piece.began), axis.x(piece.ended)
        parts.append(_rect(f"tenure c{colour}", left, right, row, title))
    if named:
        left, right = axis.x(tenure.began), axis.x(tenure.pieces()[0].ended)
        label = f"token …{tenure.token % 10_000:04}"
        if len(label) * LETTER < right - left:
            y = row * LANE + 17
            parts.append(f'<text class="in" x="{left + 6:.1f}" y="{y:g}">{label}</text>')
    return parts


def _mark(axis: Axis, fault: Span) -> list[str]:
    left, right = axis.x(fault.began), axis.x(fault.ended)
    return [_rect("fault", left, max(right, left + 2), 0, fault.text)]


def _pieces(tenures: Sequence[Span]) -> list[Span]:
    return sorted((p for one in tenures for p in one.pieces()), key=lambda piece: piece.began)


def _gaps(axis: Axis, tenures: Sequence[Span], top: float, rows: int) -> list[str]:
    """Where nobody led between two tenures of a lock, or in one; shorter than a pixel is not
    drawn."""
    parts = []
    for before, after in pairwise(_pieces(tenures)):
        left, right = axis.x(before.ended), axis.x(after.began)
        if right - left < 1 or before.lock != after.lock:
            continue
        text = f"nobody led for {duration(after.began - before.ended)}"
        parts.append(
            f'<rect class="gap" x="{left:.2f}" y="{top:g}" width="{right - left:.2f}"'
            f' height="{rows * LANE:g}"><title>{text}</title></rect>'
        )
        label = duration(after.began - before.ended)
        if len(label) * LETTER < right - left:
            middle, y = (left + right) / 2, top + rows * LANE / 2 + 4
            parts.append(f'<text class="gaptext" x="{middle:.1f}" y="{y:g}">{label}</text>')
    return parts
