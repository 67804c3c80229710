"""`leasekeeper demo`: starts a world, breaks it, watches it hold, and counts what went wrong."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable

from leasekeeper.demo.engine import Demo, Event, Feed
from leasekeeper.demo.processes import guarded_home
from leasekeeper.demo.world import world

NODES = 5
WITHOUT_HANDS = 30.0
"""Seconds that a run takes if nobody is there to end it."""


def printer(*, as_json: bool, stop: Callable[[], None]) -> Callable[[Event], None]:
    """One line an event. A reader that went away, or a closed terminal, ends the demo."""

    def tell(event: Event) -> None:
        line = json.dumps(event) if as_json else f"{event['at']:7.2f} s  {event['sentence']}"
        try:
            print(line, flush=True)
        except OSError:
            stop()

    return tell


async def _run(options: argparse.Namespace) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    tell = printer(as_json=options.json, stop=stop.set)
    feed = Feed()
    with guarded_home() as home:
        async with world(
            home,
            nodes=NODES,
            candidates=options.candidates,
            lease=options.lease,
            on_vote=feed.add,
        ) as running:
            chaos = True if options.chaos is None else options.chaos
            demo = Demo(running, feed, seed=options.seed, chaos=chaos, tell=tell)
            demo.say(
                "started",
                f"{NODES} nodes and {options.candidates} candidates in {home};"
                f" look at {running.candidates[0].leader_file}",
                home=str(home),
            )
            await demo.run(options.seconds or WITHOUT_HANDS, stop)
    with contextlib.suppress(OSError):
        print(json.dumps(demo.summary()), flush=True)
    return 1 if demo.wrong else 0


def main(options: argparse.Namespace) -> int:
    """Exit code 0 if nothing overlapped and every token was larger than the one before."""
    code = asyncio.run(_run(options))
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        return code
    # Nobody reads any more; the interpreter would complain about it at its own end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
