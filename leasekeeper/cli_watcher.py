"""The watcher of `hold`: stops the command in time when `hold` itself cannot.

A process that is paused alone (SIGSTOP, Ctrl-Z, a debugger, a slow disk under its memory) does not
notice, and its command would go on beside the next holder. So `hold` forks a watcher before there
is a command, and tells it each new lease:

    renewed                              deadline  a quarter                   lease end
    |--------------------------------------->|--------->|------------------------->|
                                  hold: SIGTERM         watcher: SIGTERM     SIGKILL

It has a session of its own: what is done to our process group or terminal does not reach it. It
ends when `hold` does, and if that was a SIGKILL, stops what was in the command's process group. If
the two are paused and the command is not, nobody here can act: that is what tokens are for.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import time

from leasekeeper.clock import Deadline, Instant, SystemClock
from leasekeeper.descendants import Descendants
from leasekeeper.lease import Grant

LEFT_FOR_THE_KERNEL = 0.1
"""Seconds between SIGKILL and the first moment at which another may lead."""

LOOK = 0.5
"""Seconds: waiting does not count the time in which the machine is suspended, the clock does."""

POLL = 0.02

_ORDER = struct.Struct("4dq")  # the beginning on two clocks, SIGTERM, SIGKILL, the command
_READY, _ACTED = b"r", b"a"


class Watcher:
    """As `hold` sees it. To be made before there is a thread: it forks."""

    def __init__(self, below: Descendants, *, grace: float, group: bool) -> None:
        """`group`: the command has a process group of its own."""
        _fill_the_standard_files()
        orders, self._orders = os.pipe()
        self._words, words = os.pipe()
        if os.fork() == 0:
            try:
                os.close(self._orders)
                _Watch(orders, words, below, grace=grace, group=group).run()
            finally:
                os._exit(0)
        os.close(orders)
        os.close(words)
        os.read(self._words, len(_READY))
        os.set_blocking(self._orders, False)
        os.set_blocking(self._words, False)
        self.command = 0

    def begins(self, grant: Grant) -> None:
        """Said by the process that becomes the command: `hold` may be killed before it can."""
        self.command = os.getpid()
        self.renewed(grant)

    def renewed(self, grant: Grant) -> None:
        time_to_stop = grant.lease_end.after - grant.deadline.after
        self._tell(grant.lease_end, grant.deadline.after + time_to_stop / 4)

    def over(self, end: Deadline) -> None:
        """`hold` knows, and asks the command to end before `end`. That is not done twice."""
        self._tell(end, end.after)

    def _tell(self, end: Deadline, stop: float) -> None:
        began, kill = end.start, end.after - LEFT_FOR_THE_KERNEL
        order = _ORDER.pack(began.boot, began.raw, stop, kill, self.command)
        # One that was paused for an hour has a full pipe, one that was killed has none.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._orders, order)

    def acted(self) -> bool:
        """Whether it stopped somebody."""
        with contextlib.suppress(BlockingIOError):
            return os.read(self._words, len(_ACTED)) == _ACTED
        return False

    def end(self) -> None:
        """There is no command any more."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._orders, bytes(_ORDER.size))
        os.close(self._orders)


def _fill_the_standard_files() -> None:
    """One that is closed (`hold ... <&-`) is the number that our next pipe would get: the watcher
    would take it for a standard file, close it, and be gone.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, and not the command's


class _Watch:
    """As it sees itself."""

    def __init__(
        self, orders: int, words: int, below: Descendants, *, grace: float, group: bool
    ) -> None:
        self._orders, self._words = orders, words
        self._below, self._grace, self._group = below, grace, group
        self._clock = SystemClock()
        self._stop: Deadline | None = None
        self._kill: Deadline | None = None
        self._asked: Instant | None = None

    def run(self) -> None:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):  # a reader of ours must not wait for us
            os.dup2(null, standard)
        os.write(self._words, _READY)
        while self._obey():
            pass
        if self._group and self._below.command:
            self._end_group()

    def _obey(self) -> bool:
        """One turn; whether `hold` is still there."""
        now = self._clock.now()
        due = self._due(now)
        # What came while we were paused counts before what was due: it may be a renewal.
        if select.select([self._orders], [], [], due)[0]:
            data = os.read(self._orders, _ORDER.size * 100)
            for boot, raw, stop, kill, command in _ORDER.iter_unpack(data):
                if command or not boot:  # a renewal may be told before `hold` knows of the command
                    self._below.command = command
                self._stop = Deadline(Instant(boot, raw), stop)
                self._kill = Deadline(Instant(boot, raw), kill)
            return bool(data)
        if due == 0:
            self._act(now)
            time.sleep(POLL)
        return True

    def _due(self, now: Instant) -> float:
        """In how many seconds there is something to do."""
        if self._stop is None or self._kill is None:
            return LOOK
        return max(0.0, min(LOOK, self._stop.left(now), self._kill.left(now)))

    def _act(self, now: Instant) -> None:
        if not self._below.living():
            return
        if self._asked is None:
            self._asked = now
            with contextlib.suppress(BrokenPipeError):
                os.write(self._words, _ACTED)  # first: whoever finds the command ended reads why
            self._below.send(signal.SIGTERM)
        if self._time_is_up(now):
            self._below.send(signal.SIGKILL)

    def _time_is_up(self, now: Instant) -> bool:
        if self._asked is None or self._kill is None:
            return False
        return self._kill.passed(now) or now.elapsed_since(self._asked) >= self._grace

    def _end_group(self) -> None:
        """`hold` was killed. The command is dead, too; not so what it had started."""
        self._asked = self._clock.now()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._below.command, signal.SIGTERM)
            while not self._time_is_up(self._clock.now()):
                time.sleep(POLL)
                os.killpg(self._below.command, 0)
            os.killpg(self._below.command, signal.SIGKILL)
