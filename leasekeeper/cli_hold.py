"""`leasekeeper hold -- CMD`: runs a command while holding a lock.

A hold ends in one of these ways; in each, the command has ended before the lock is given back:

    the command ends          the lock is given back; its exit status is ours
    the lock is lost          SIGTERM, and SIGKILL before another may lead; exit 123
    asked to give it up       (a step-down, a pause) as by a loss: given back after the time to stop
    SIGTERM, SIGINT, SIGHUP   passed on to the command, which has --grace seconds; then as above
    hold itself is paused     a watcher (cli_watcher.py) stops the command in the same time; 123
    hold itself is killed     the kernel kills the command; the lease runs out

What no lease can prevent: if this whole machine is paused past the lease, the command goes on for a
moment after it wakes up; and it goes on if all but the command is paused, the watcher, too. The
token in LEASEKEEPER_TOKEN is for resources that check it.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys

from leasekeeper.cli_target import (
    HOW_TO_REACH,
    NoNode,
    Target,
    add_options,
    discover,
    read_target,
)
from leasekeeper.cli_watcher import LEFT_FOR_THE_KERNEL, Watcher
from leasekeeper.clock import Clock, Deadline, SystemClock
from leasekeeper.descendants import Descendants
from leasekeeper.elector import Elector
from leasekeeper.lease import LONGEST, Candidate, ConfigurationError, Grant, Renewed, Timings
from leasekeeper.redlock.membership import Membership
from leasekeeper.redlock.store import RedlockStore

EXIT_LOST, EXIT_NOT_IN_TIME, EXIT_FAILED, EXIT_CANNOT_RUN, EXIT_NOT_FOUND = 123, 124, 125, 126, 127

_HOLD = f"""\
Waits for a lock, runs CMD while holding it, and gives it back when CMD ends. CMD finds the fencing
token in LEASEKEEPER_TOKEN, and LEASEKEEPER_LOCK and LEASEKEEPER_HOLDER beside it. If the lock is
lost, CMD and all that it started are stopped before anybody else can hold it; and so is what CMD
leaves behind when it ends. Not stopped is who took a session of its own, as a daemon does.
A second process watches, and stops CMD in time if hold itself is paused (Ctrl-Z, SIGSTOP). If these
two are paused and CMD is not, or all three and then go on, CMD works past the lease for a while:
only a resource that checks the token notices.

{HOW_TO_REACH}
exit codes:
  that of CMD (128 + n if signal n ended it), or
  123  the lock was lost, and CMD stopped or not started
  124  the lock was not free within --wait
  125  hold itself failed: an option or a file cannot be used, or no node could be asked
  126, 127  CMD cannot be run, or is not there

examples:
  leasekeeper hold --config lock.json -- ./nightly-report.sh
  leasekeeper hold shop/report --nodes 10.0.0.1:6379,10.0.0.2:6379,10.0.0.3:6379 \\
      --password-file report.password --wait 30 -- psql -f report.sql
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    hold = commands.add_parser(
        "hold",
        help="run a command while holding a lock",
        description=_HOLD,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="leasekeeper hold [LOCK] [options] -- CMD [ARG…]",
    )
    hold.add_argument("lock", metavar="LOCK", nargs="?", help="NAMESPACE/NAME")
    add_options(hold)
    hold.add_argument(
        "--name", default=_host_name(), help="what others see as the holder (%(default)s)"
    )
    hold.add_argument(
        "--wait", type=_seconds, metavar="SECONDS", help="for the lock (for ever; 0: one try)"
    )
    hold.add_argument("--lease", type=_seconds, metavar="SECONDS", help="without --config (15)")
    hold.add_argument(
        "--grace", type=_seconds, default=10.0, help="seconds between SIGTERM and SIGKILL (10)"
    )
    hold.add_argument("--json", action="store_true", help="say on stderr what happens, as JSON")


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return number


def _host_name() -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()) or "unknown"


class _Listener:
    """The audience of the elector: keeps the grant, and wakes up who waits for it or its end."""

    def __init__(self, watcher: Watcher, clock: Clock, time_to_stop: float) -> None:
        self._watcher, self._clock, self._time_to_stop = watcher, clock, time_to_stop
        self.grant: Grant | None = None
        self.end: Deadline | None = None
        """Of a tenure that is over: no later may the command be there."""
        self.won = asyncio.Event()
        self.answered = asyncio.Event()
        self.over = asyncio.Event()
        self.why = ""

    def leading(self, grant: Grant) -> None:
        if not self.over.is_set():  # a second tenure is not this hold's
            self.grant = grant
            self._watcher.renewed(grant)
            self.won.set()

    def not_leading(self, why: str) -> None:
        self.why = why
        if self.grant is not None and not self.over.is_set():
            now = self._clock.now()
            # Asked to step down, the elector gives the lease back so much later: most of a renewed
            # lease is still ahead then.
            given_back = Deadline(now, self._time_to_stop)
            self.end = min(self.grant.lease_end, given_back, key=lambda end: end.left(now))
            self._watcher.over(self.end)
        self.over.set()

    def standing_by(self, holder: str | None) -> None:
        self.answered.set()

    def renewal(self, outcome: Renewed) -> None:
        pass


def run(options: argparse.Namespace) -> int:
    try:
        if not options.command_line:
            raise ConfigurationError("which command? leasekeeper hold … -- CMD [ARG…]")
        if not options.name or "/" in options.name or re.search(r"\s", options.name):
            raise ConfigurationError("--name must not be empty nor contain a slash or a space")
        target = read_target(options)
        below, on_a_terminal = Descendants(), os.isatty(0)
        watcher = Watcher(below, grace=options.grace, group=not on_a_terminal)
        hold = _Hold(options, target, below, watcher, on_a_terminal=on_a_terminal)
        code = asyncio.run(hold.run())
        watcher.end()
        return code
    except (ConfigurationError, NoNode) as wrong:
        print(f"leasekeeper: {wrong}", file=sys.stderr)
        return EXIT_FAILED


class _Hold:
    def __init__(
        self,
        options: argparse.Namespace,
        target: Target,
        below: Descendants,
        watcher: Watcher,
        *,
        on_a_terminal: bool,
    ) -> None:
        self._options = options
        self._target = target
        self._timings = target.timings or _timings(options.lease)
        self._clock = SystemClock()
        self._stop = asyncio.Event()
        self._signal = signal.SIGTERM
        # On a terminal the command stays in our group, or it could not read from there.
        self._on_a_terminal = on_a_terminal
        self._below = below
        self._watcher = watcher
        self._running = False

    async def run(self) -> int:
        target = self._target
        listener = _Listener(self._watcher, self._clock, self._timings.time_to_stop)
        store = RedlockStore(
            membership=await self._membership(),
            lock=target.lock,
            candidate=Candidate(self._options.name, secrets.token_hex(8), secrets.token_hex(8)),
            timings=self._timings,
            clock=self._clock,
            username=target.username,
            password=target.password,
            tls=target.tls,
        )
        elector = Elector(store=store, timings=self._timings, clock=self._clock, audience=listener)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
        election = asyncio.ensure_future(elector.run())
        try:
            return await self._hold(listener)
        finally:
            elector.stop()
            await election
            await store.close()

    async def _membership(self) -> Membership:
        """Asked of the nodes also where a file says it: a wrong password should be heard of now."""
        try:
            found = await asyncio.to_thread(discover, self._target)
        except NoNode as nobody:
            if self._target.membership is None:
                raise
            self._say("waiting", f"no node lets us in yet: {nobody}")
        return self._target.membership or found

    def _on_signal(self, number: signal.Signals) -> None:
        if number == signal.SIGINT and self._running and self._on_a_terminal:
            return  # Ctrl-C: the terminal has told the command itself, which decides what it means
        self._signal = number
        self._stop.set()

    async def _hold(self, listener: _Listener) -> int:
        if not await self._won(listener):
            self._say("not-in-time", f"the lock was not free within {self._options.wait:g} s")
            return EXIT_NOT_IN_TIME
        if self._stop.is_set() or listener.grant is None:
            return 128 + self._signal
        self._say("held", f"token {listener.grant.token}", token=listener.grant.token)
        try:
            child = await self._start(listener.grant)
        except subprocess.SubprocessError:
            self._say("lost", "the lock was lost before the command began")
            return EXIT_LOST
        except FileNotFoundError as wrong:
            print(f"leasekeeper: {wrong.filename}: not found", file=sys.stderr)
            return EXIT_NOT_FOUND
        except OSError as wrong:
            print(f"leasekeeper: {self._options.command_line[0]}: {wrong}", file=sys.stderr)
            return EXIT_CANNOT_RUN
        return await self._watch(child, listener)

    async def _won(self, listener: _Listener) -> bool:
        if await _first(listener.won, self._stop, within=self._options.wait):
            return True
        # However short the wait is: whether a lock is free is known when the nodes were asked once.
        await _first(listener.won, listener.answered, self._stop)
        return listener.won.is_set() or self._stop.is_set()

    async def _start(self, grant: Grant) -> asyncio.subprocess.Process:
        environment = {
            "LEASEKEEPER_TOKEN": str(grant.token),
            "LEASEKEEPER_LOCK": grant.lock,
            "LEASEKEEPER_HOLDER": self._options.name,
        }
        libc, parent = ctypes.CDLL(None), os.getpid()

        def begin() -> None:
            libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)
            self._watcher.begins(grant)
            # In the last moment before the program is there: any of us may have been paused.
            if grant.deadline.passed(self._clock.now()):
                raise TimeoutError  # becomes a SubprocessError of the parent

        kept = {k: v for k, v in os.environ.items() if k != "LEASEKEEPER_PASSWORD"}
        return await asyncio.create_subprocess_exec(
            *self._options.command_line,
            env={**kept, **environment},
            preexec_fn=begin,
            process_group=None if self._on_a_terminal else 0,
        )

    async def _watch(self, child: asyncio.subprocess.Process, listener: _Listener) -> int:
        self._running = True
        self._below.command = self._watcher.command = child.pid
        if listener.grant and not listener.over.is_set():
            self._watcher.renewed(listener.grant)
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._below.reap)
        ended = asyncio.Event()
        waiting = asyncio.ensure_future(child.wait())
        waiting.add_done_callback(lambda _: ended.set())
        await _first(ended, listener.over, self._stop)
        if self._stop.is_set() and not ended.is_set() and not listener.over.is_set():
            self._below.send(self._signal)
            await _first(ended, listener.over, within=self._options.grace)
        lost = listener.over.is_set() and not ended.is_set()
        if not ended.is_set():
            await self._end(ended, listener)
        # What it started must not go on without the lock.
        if left := await self._below.kill():
            numbers = ", ".join(map(str, left))
            self._say("not-stopped", f"what CMD started could not be stopped: {numbers}")
        code = await waiting
        if lost or self._watcher.acted():
            why = listener.why or "paused past the deadline"
            self._say("lost", f"the lock is lost ({why}); the command was stopped")
            return EXIT_LOST
        return code if code >= 0 else 128 - code

    async def _end(self, ended: asyncio.Event, listener: _Listener) -> None:
        """SIGTERM, and SIGKILL after the grace, but in time before anybody else can lead."""
        grace = self._options.grace
        if listener.end is not None:
            left = listener.end.left(self._clock.now()) - LEFT_FOR_THE_KERNEL
            grace = max(0.0, min(grace, left))
            self._below.send(signal.SIGTERM)
            await _first(ended, within=grace)
        self._below.send(signal.SIGKILL)

    def _say(self, event: str, sentence: str, **fields: object) -> None:
        lock = self._target.lock
        if self._options.json:
            text = json.dumps({"event": event, "lock": lock, "sentence": sentence, **fields})
        else:
            text = f"leasekeeper: {lock}: {sentence}"
        print(text, file=sys.stderr, flush=True)


def _timings(lease: float | None) -> Timings:
    """The defaults, or all of them in the same proportion to a lease."""
    default = Timings()
    ratio = 1.0 if lease is None else lease / default.lease_duration
    return Timings(
        lease_duration=default.lease_duration * ratio,
        renew_deadline=default.renew_deadline * ratio,
        retry_period=default.retry_period * ratio,
    )


async def _first(*events: asyncio.Event, within: float | None = None) -> bool:
    """Whether one of them happened within that time."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait(waits, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        for wait in waits:
            wait.cancel()
