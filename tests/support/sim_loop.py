"""An event loop for one simulated process: asyncio's tasks and futures, on that process's clock.

Each process has a loop of its own, so that one can be paused while the others go on. There is no
input, no output and no waiting: the kernel delivers, and the loop runs until nobody is ready.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, cast

from sim_kernel import Callback, Process, Timer, cancel

_set_running_loop: Any = asyncio._set_running_loop
SLACK = 1e-9  # a timer that is due within a rounding error is due


class Handle:
    __slots__ = ("args", "callback", "context", "timer", "when")

    def __init__(self, callback: Callback, args: tuple[Any, ...], context: Context | None) -> None:
        self.callback: Callback | None = callback
        self.args = args
        self.context = context
        self.when = 0.0
        self.timer: Timer | None = None

    def cancel(self) -> None:
        self.callback = None
        self.args = ()
        if self.timer is not None:
            cancel(self.timer)
            self.timer = None

    def cancelled(self) -> bool:
        return self.callback is None


class ProcessLoop:
    """What asyncio's tasks, futures and timeouts ask of a loop, and no more."""

    def __init__(self, process: Process, on_error: Callable[[BaseException], None]) -> None:
        self._process = process
        self._kernel = process.kernel
        self._clocks = process.clocks
        self._on_error = on_error
        self._ready: deque[Handle] = deque()
        self._running = False
        self._tasks: list[asyncio.Task[Any]] = []

    # -- what asyncio asks of a loop -------------------------------------------------------------

    def time(self) -> float:
        return self._clocks.raw()

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        handle = Handle(callback, args, context)
        self._ready.append(handle)
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_at(self._clocks.raw() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        handle = Handle(callback, args, context)
        handle.when = when
        self._arm(handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=cast(Any, self))

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> Any:
        task = asyncio.Task(coro, loop=cast(Any, self), name=name or "task")
        if len(self._tasks) > 40:
            self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(task)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if self._process.alive:
            self._on_error(error or RuntimeError(str(context.get("message"))))

    # -- driven by the kernel --------------------------------------------------------------------

    def _arm(self, handle: Handle) -> None:
        due = max(self._kernel.now + 1e-6, self._clocks.true_of_raw(handle.when))
        handle.timer = self._kernel.at(due, self._process.deliver, self._fire, handle)

    def _fire(self, handle: Handle) -> None:
        handle.timer = None  # they held each other
        if handle.callback is None:
            return
        if self._clocks.raw() < handle.when - SLACK:
            self._arm(handle)  # its clock stood still for a while
        else:
            self._ready.append(handle)

    def start(self, main: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self.create_task(main)
        self.handle(lambda: None, ())
        return task

    def handle(self, callback: Callback, args: tuple[Any, ...]) -> None:
        """Runs one thing that was delivered, and whatever becomes ready by it."""
        ready = self._ready
        process, run = self._process, self._run
        self._running = True
        _set_running_loop(self)
        try:
            callback(*args)
            while ready and process.alive:
                run(ready.popleft())
        finally:
            self._running = False
            _set_running_loop(None)

    def _run(self, handle: Handle) -> None:
        callback = handle.callback
        if callback is None:
            return
        try:
            if handle.context is None:
                callback(*handle.args)
            else:
                handle.context.run(callback, *handle.args)
        except BaseException as error:  # noqa: BLE001  the root of a process
            if self._process.alive:
                self._on_error(error)

    def unwind(self) -> None:
        """The process is dead: its coroutines come to an end, in which nothing has an effect."""
        self._running = True
        _set_running_loop(self)
        try:
            for _ in range(20):
                unfinished = [task for task in self._tasks if not task.done()]
                if not unfinished:
                    break
                for task in unfinished:
                    task.cancel()
                while self._ready:
                    self._run(self._ready.popleft())
        finally:
            self._running = False
            _set_running_loop(None)
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.exception()  # so that nobody complains that it was never looked at
