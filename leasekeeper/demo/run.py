"""`leasekeeper demo`: starts a world, breaks it, watches it hold, and counts what went wrong."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from leasekeeper.demo.engine import Demo, Event, Feed
from leasekeeper.demo.processes import guarded_home
from leasekeeper.demo.web import Web
from leasekeeper.demo.world import world
from leasekeeper.lease import ConfigurationError

NODES = 5
EXIT_HELD, EXIT_WRONG, EXIT_NOBODY_LED = 0, 1, 3
WITHOUT_HANDS = 30.0
"""Seconds that a run takes if nobody is there to end it."""


@dataclass(frozen=True)
class View:
    """Who shows a run: told each event, and running beside it."""

    tell: Callable[[Event], None]
    run: Callable[[Demo], Awaitable[None]]
    has_hands: bool
    """Somebody can press keys or buttons: it breaks nothing and ends never by itself."""


def _print_view(stop: Callable[[], None], *, as_json: bool) -> View:
    """One line an event. A reader that went away, or a closed terminal, ends the demo."""

    def tell(event: Event) -> None:
        line = json.dumps(event) if as_json else f"{event['at']:7.2f} s  {event['sentence']}"
        try:
            print(line, flush=True)
        except OSError:
            stop()

    async def nothing(_: Demo) -> None:
        await asyncio.Event().wait()

    return View(tell, nothing, has_hands=False)


def _view(options: argparse.Namespace, stop: Callable[[], None]) -> View:
    on_a_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    printing = _print_view(stop, as_json=options.json)
    if options.web:
        web = Web(printing.tell, options.port)
        return View(web.tell, web.run, has_hands=True)
    if options.json or not on_a_terminal:
        return printing
    try:
        from leasekeeper.demo.terminal import Terminal
    except ImportError as missing:
        raise ConfigurationError(
            f"the live view needs {missing.name}: pip install 'leasekeeper[demo]', or add --json"
        ) from None
    terminal = Terminal(stop)
    return View(terminal.tell, terminal.run, has_hands=True)


async def _run(options: argparse.Namespace) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    view, feed = _view(options, stop.set), Feed()
    settings = {"nodes": NODES, "candidates": options.candidates, "lease": options.lease}
    with guarded_home() as home:
        async with world(home, **settings, on_vote=feed.add) as running:
            chaos = not view.has_hands if options.chaos is None else options.chaos
            demo = Demo(running, feed, seed=options.seed, chaos=chaos, tell=view.tell)
            demo.say(
                "started",
                f"{NODES} nodes and {options.candidates} candidates in {home};"
                f" look at {running.candidates[0].leader_file}",
                home=str(home),
            )
            seconds = options.seconds or (None if view.has_hands else WITHOUT_HANDS)
            await _together(demo.run(seconds, stop), view.run(demo))
            # A run that was ended by hand may have been too short; one that had its time proves
            # nothing if there was never a leader who could have been two.
            in_vain = "" if demo.files.tenures or stop.is_set() else running.last_words()
    if in_vain:
        print(f"leasekeeper: nobody ever led, so nothing was shown; {in_vain}", file=sys.stderr)
    with contextlib.suppress(OSError):
        print(json.dumps(demo.summary()), flush=True)
    if demo.wrong:
        return EXIT_WRONG
    return EXIT_NOBODY_LED if in_vain else EXIT_HELD


async def _together(run: Awaitable[None], show: Awaitable[None]) -> None:
    """Until the run is over; a view that fails ends it, too."""
    both = [asyncio.ensure_future(run), asyncio.ensure_future(show)]
    try:
        done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if both[1] in done:
            await both[0]
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)


def main(options: argparse.Namespace) -> int:
    """Exit code 0 if somebody led, nothing overlapped, and every token was larger than the one
    before.
    """
    code = asyncio.run(_run(options))
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        return code
    # Nobody reads any more; the interpreter would complain about it at its own end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
