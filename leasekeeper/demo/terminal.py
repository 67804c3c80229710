"""The live view in a terminal, and its keys."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from leasekeeper.demo.engine import Demo, Event
from leasekeeper.demo.faults import KINDS
from leasekeeper.demo.snapshot import condition, snapshot

_TIME = 9
NOTE = 4.0  # seconds that a complaint stands where the keys are
FRAMES = 8  # a second: seconds to a deadline should be seen to run
SPAN = 60.0  # seconds of the timeline
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red", "white")
_NODE_STYLE = {"open": "green", "quarantine": "yellow", "recovering": "yellow", "down": "red"}
_EVENT_STYLE = {"fault": "yellow", "leads": "bold green", "wrong": "bold red", "refused": "red"}


def colour(name: str) -> str:
    """Of a candidate, by its number; each view of it has the same."""
    number = name.rpartition("-")[2]
    return COLOURS[(int(number) - 1) % len(COLOURS)] if number.isdigit() else "white"


def draw(
    state: dict[str, Any],
    events: Sequence[Event],
    chosen: str,
    note: str,
    *,
    size: tuple[int, int],
) -> RenderableType:
    """One frame, for a terminal of that width and height."""
    width, height = size
    people = len(state["candidates"])
    used = 1 + max(people, len(state["nodes"])) + 3 + people + 2 + 2
    return Group(
        _headline(state),
        _side_by_side(_nodes(state), _candidates(state, chosen)),
        Panel(_Timeline(state), title="who led, in the last minute", border_style="dim"),
        _events(events, width, max(2, height - used)),
        help_line(state, note, width),
    )


def _headline(state: dict[str, Any]) -> Text:
    counts = state["counts"]
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append_text(Text(" leasekeeper demo ", "bold reverse"))
    text.append(f" {state['at']:.0f} s  tenures {counts['tenures']}  faults {counts['faults']}  ")
    for name in ("overlaps", "regressions"):
        text.append(f"{name} {counts[name]}", "bold red" if counts[name] else "bold green")
        text.append("  ")
    text.append(f"journal {counts['journal']}, {counts['refused']} refused", "dim")
    return text


def _side_by_side(left: RenderableType, right: RenderableType) -> Table:
    grid = Table.grid(expand=True)
    grid.add_column(ratio=7)
    grid.add_column(ratio=8)
    grid.add_row(left, right)
    return grid


def _table(columns: int) -> Table:
    """One line a row, however narrow the terminal is."""
    table = Table.grid(padding=(0, 1), expand=True)
    for _ in range(columns):
        table.add_column(no_wrap=True, overflow="ellipsis")
    return table


def _nodes(state: dict[str, Any]) -> Panel:
    table = _table(3)
    table.add_row(Text("node", "dim"), Text("state", "dim"), Text("votes for", "dim"))
    for node in state["nodes"]:
        what = node["state"]
        style = _NODE_STYLE.get(what, "dim")
        if node["rests"]:
            what += f" {node['rests']:.1f}"
        if node["ahead"]:
            what += " +1 h"
        holder = node["holder"]
        table.add_row(node["name"], Text(what, style), Text(holder or "–", colour(holder)))
    return Panel(table, title=f"nodes: {state['quorum']} votes are a lease", border_style="dim")


def _candidates(state: dict[str, Any], chosen: str) -> Panel:
    table = _table(4)
    heads = ("candidate", "state", "token", "deadline")
    table.add_row(*(Text(head, "dim") for head in heads))
    for candidate in state["candidates"]:
        name, said = candidate["name"], condition(candidate)
        bad = said not in ("leads", "stands by")
        style = "bold green" if said == "leads" else "bold red" if bad else "dim"
        table.add_row(
            Text(name, f"{colour(name)}{' reverse' if name == chosen else ''}"),
            Text(said, style),
            f"…{candidate['token'] % 1_000_000:06}" if candidate["leads"] else "",
            f"{candidate['left']:.1f} s" if candidate["leads"] else "",
        )
    return Panel(table, title="candidates", border_style="dim")


class _Timeline:
    """One row a candidate; as wide as it is given."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    def __rich_console__(self, console: Console, options: Any) -> Iterator[RenderableType]:
        width = max(10, options.max_width - 13)
        end = max(SPAN, self._state["at"])
        for candidate in self._state["candidates"]:
            name = candidate["name"]
            cells = ["·"] * width
            for tenure in self._state["tenures"]:
                if tenure["holder"] == name:
                    first = int((tenure["from"] - end + SPAN) / SPAN * width)
                    last = int((tenure["to"] - end + SPAN) / SPAN * width)
                    for cell in range(max(0, first), min(width, last + 1)):
                        cells[cell] = "█"
            row = Text("".join(cells), "dim")
            row.highlight_regex("█+", colour(name))
            yield Text.assemble((f"{name:<12} ", colour(name)), row)


def _events(events: Sequence[Event], width: int, room: int) -> Table:
    """The newest that there is room for; long sentences take several lines."""
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(justify="right", width=_TIME, style="dim")
    table.add_column(ratio=1)
    shown: list[Event] = []
    for event in reversed(events):
        room -= math.ceil(len(event["sentence"]) * 1.1 / (width - _TIME - 4))  # words break early
        if room < 0:
            break
        shown.insert(0, event)
    for event in shown:
        style = _EVENT_STYLE.get(event["event"], "")
        table.add_row(f"{event['at']:.1f} s", Text(event["sentence"], style))
    for _ in range(room):
        table.add_row("", "")
    return table


SHORT = {"kill-all-nodes": "kill all", "clock": "clock"}
"""Labels of faults that are too long for a line of keys."""


def keys_of(state: dict[str, Any]) -> list[tuple[str, str]]:
    """Each with what it does, the way out first: what does not fit is cut at the end."""
    kinds = [kind for kind in KINDS if kind.name != "clock" or state["clocks"]]
    faults = [(kind.key, SHORT.get(kind.name, kind.label)) for kind in kinds]
    return [("q", "quit"), *faults, ("x", "calm" if state["chaos"] else "chaos"), ("1–9", "who")]


def help_line(state: dict[str, Any], note: str, width: int) -> Text:
    """One line from 117 columns on; on a narrow terminal two."""
    if note:
        return Text(f" {note}", "bold yellow")
    keys = keys_of(state)
    whole = sum(len(f"{key} {label}  ") for key, label in keys) - 1
    gap = "  " if whole <= width else " "
    text, at = Text(" ", no_wrap=True, overflow="ellipsis"), 1
    for key, label in keys:
        if at + len(f"{key} {label}") > width:
            text.append("\n ")
            at = 1
        text.append(key, "bold reverse")
        text.append(f" {label}{gap}")
        at += len(f"{key} {label}{gap}")
    return text


class Terminal:
    """Draws until it is stopped, and does what the keys say."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self.events: deque[Event] = deque(maxlen=200)
        self._stop = stop
        self._chosen = ""
        self._note, self._note_until = "", 0.0
        self._work: set[asyncio.Task[None]] = set()

    def tell(self, event: Event) -> None:
        self.events.append(event)
        self._note = ""

    async def run(self, demo: Demo) -> None:
        console = Console()
        with _pauses(console), _keys(lambda key: self._press(demo, key)), _screen(console) as live:
            while True:
                if time.monotonic() > self._note_until:
                    self._note = ""
                shown = (snapshot(demo), self.events, self._chosen, self._note)
                frame = draw(*shown, size=(console.width, console.height))
                try:
                    live.update(frame, refresh=True)
                except OSError:  # the terminal is gone
                    self._stop()
                    return
                await asyncio.sleep(1 / FRAMES)

    def _press(self, demo: Demo, key: str) -> None:
        key = key.lower()
        if key in ("q", "\x03", "\x04", ""):
            self._stop()
        elif key == "x":
            demo.switch_chaos()
        elif key.isdigit():
            self._choose(demo, int(key))
        elif found := [kind for kind in KINDS if kind.key == key]:
            target = self._chosen if found[0].target == "candidate" else ""
            task = asyncio.ensure_future(self._cause(demo, found[0].name, target))
            self._work.add(task)
            task.add_done_callback(self._work.discard)

    def _choose(self, demo: Demo, number: int) -> None:
        names = ["", *(candidate.name for candidate in demo.world.candidates)]
        if number < len(names):
            self._chosen, self._note = names[number], ""

    async def _cause(self, demo: Demo, name: str, target: str) -> None:
        self._note = await demo.faults.cause(name, target)
        self._note_until = time.monotonic() + NOTE


def _screen(console: Console) -> Live:
    return Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop")


@contextmanager
def _pauses(console: Console) -> Iterator[None]:
    """Ctrl-Z hands the terminal back as it was. And whoever stopped us, by `fg` it comes back with
    what a shell makes of it: keys that wait for Enter, and no screen of ours.
    """
    keyboard, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(keyboard)

    def show(ours: bool) -> None:
        with suppress(OSError, termios.error):  # the terminal is gone
            console.set_alt_screen(ours)
            console.show_cursor(not ours)
            if ours:
                tty.setcbreak(keyboard)
            else:
                termios.tcsetattr(keyboard, termios.TCSADRAIN, before)

    def pause() -> None:
        show(False)
        os.kill(os.getpid(), signal.SIGSTOP)

    loop.add_signal_handler(signal.SIGTSTP, pause)
    loop.add_signal_handler(signal.SIGCONT, show, True)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGCONT)
        loop.remove_signal_handler(signal.SIGTSTP)


@contextmanager
def _keys(press: Callable[[str], None]) -> Iterator[None]:
    """Each key as it is pressed, without Enter; the terminal is put back as it was."""
    keyboard, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(keyboard)

    def read() -> None:
        try:
            text = os.read(keyboard, 64)
        except OSError:
            text = b""
        if not text:  # the terminal is gone
            loop.remove_reader(keyboard)
            press("")
        elif not text.startswith(b"\x1b"):  # an arrow, or another key that we have no use for
            for key in text.decode("utf-8", "ignore"):
                press(key)

    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, read)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
