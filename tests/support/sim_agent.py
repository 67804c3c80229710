"""The real agent, in a greenlet: where it would block, the kernel goes on with somebody else.

Its modules see other clocks, another `Connection` and another source of random bytes; not a line of
it is changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, cast
from unittest.mock import patch

import sim_lua
from greenlet import greenlet  # type: ignore[import-untyped]
from sim_kernel import Kernel, Process, Timer, cancel
from sim_net import Channel, Error, Network, Pod

from leasekeeper.redlock import agent, coordinator, functions, peers, serving, ticker
from leasekeeper.redlock.blocking import Broken, Refusal
from leasekeeper.redlock.membership import Membership
from leasekeeper.redlock.registry import Record
from leasekeeper.redlock.status_page import Status

_RESET, _TIMEOUT = object(), object()


class AgentProcess(Process):
    """One process of the agent. It asks the registry without waiting: what happens between two of
    its questions is what matters, and those are many.
    """

    current: ClassVar[AgentProcess]

    def __init__(
        self,
        kernel: Kernel,
        network: Network,
        pod: Pod,
        membership: Membership,
        registry: MemoryRegistry,
        within: float = 0.05,
    ) -> None:
        super().__init__(kernel, kernel.fresh(f"agent{pod.node}."), pod.clocks)
        self.host = pod.host
        self.network = network
        self.pod = pod
        self.error: BaseException | None = None
        self._waits = 0
        self._due: float | None = None
        """When the answer that is waited for is overdue."""
        self._alarm: Timer | None = None
        settings = agent.Settings(
            node=pod.node,
            server="local",
            membership=membership,
            agent_password=str,
            peer_password=str,
            registry=registry,
        )
        self._agent = settings
        self._greenlet = greenlet(self._main)
        self.wait: Callable[[], object] = self._greenlet.parent.switch
        """Gives the kernel its turn back; the value of the `wake` that was meant for this wait."""
        pod.agents.append(self)
        kernel.after(kernel.dice.random() * within, self.deliver, self.wake, 0, None)

    def _main(self, *_: object) -> None:
        status = cast(Status, _NoStatus())
        try:
            agent.Agent(self._agent, status).run()
        except Exception as error:  # noqa: BLE001  the root of a process
            self.error = error
            self.alive = False

    def wake(self, wait: int, value: object) -> None:
        if wait == self._waits:
            AgentProcess.current = self
            self._greenlet.switch(value)

    def expect(self) -> int:
        """The number of the wait that begins now: what was meant for an earlier one is ignored."""
        self._waits += 1
        return self._waits

    def sleep(self, seconds: float) -> None:
        due = self._after(max(seconds, 1e-6))
        self.kernel.at(due, self.deliver, self.wake, self.expect(), None)
        self.wait()

    def wait_at_most(self, seconds: float) -> object:
        """The answer, or _TIMEOUT. Nearly all answers come in time, so that one alarm stays set
        while they come and go, and is set anew only when it rings too early.
        """
        self._due = due = self._after(seconds)
        if self._alarm is None or self._alarm[0] > due:
            if self._alarm is not None:
                cancel(self._alarm)
            self._alarm = self.kernel.at(due, self._ring)
        answer = self.wait()
        self._due = None
        return answer

    def _ring(self) -> None:
        self._alarm = None
        if self._due is None:
            return
        if self._due > self.kernel.now:
            self._alarm = self.kernel.at(self._due, self._ring)
        else:
            self.deliver(self.wake, self._waits, _TIMEOUT)

    def _after(self, seconds: float) -> float:
        return self.clocks.true_of_raw(self.clocks.raw() + seconds)

    def die(self) -> None:
        if self.alive:
            super().die()
            self.kernel.say(self.name, "killed")
            AgentProcess.current = self
            self._greenlet.throw()
        if self in self.pod.agents:
            self.pod.agents.remove(self)


class _NoStatus:
    def update(self, **_: object) -> None: ...
    def turn(self) -> None: ...


class SimConnection:
    """As `blocking.Connection`: one question at a time, and none after a missing answer."""

    def __init__(
        self, address: object, user: str, password: str, *, timeout: float, tls: None
    ) -> None:
        self._process = AgentProcess.current
        self._timeout = timeout
        self._wait = 0
        network = self._process.network
        local = isinstance(address, str)
        node = self._process.pod.node if isinstance(address, str) else cast(Any, address)[0]
        pod = self._process.pod if local else network.route(node, self._process.host)
        name = "local" if local else self._process.host
        cut = network.cut_until(name, node) > self._process.kernel.now
        if pod is None or not pod.reachable or cut:
            refused = pod is not None and pod.server is not None and not pod.server.alive
            self._process.sleep(0.001 if refused else timeout)
            raise Broken("cannot connect")
        assert pod.server is not None
        self._channel: Channel = network.connect(
            self._process, pod.server, self._reset, local=local
        )

    def call(self, *command: str, timeout: float | None = None) -> Any:
        process = self._process
        if not self._channel.open:
            raise Broken("closed")
        self._wait = wait = process.expect()
        self._channel.send(command, lambda reply: process.wake(wait, reply))
        answer = process.wait_at_most(timeout or self._timeout)
        self._wait = 0
        if answer is _TIMEOUT or answer is _RESET:
            process.kernel.seen["agent: no answer"] += 1
            self.close()
            raise Broken("no answer in time" if answer is _TIMEOUT else "closed by the server")
        if isinstance(answer, Error):
            raise Refusal(answer.text)
        return answer

    def fcall(self, function: str, *args: str) -> Any:
        return self.call("FCALL", function, "0", *args)

    def close(self) -> None:
        self._channel.close()

    def _reset(self) -> None:
        if self._wait:
            self._process.wake(self._wait, _RESET)


class _Time:
    CLOCK_MONOTONIC_RAW = 4

    @staticmethod
    def sleep(seconds: float) -> None:
        AgentProcess.current.sleep(seconds)

    @staticmethod
    def monotonic() -> float:
        return AgentProcess.current.clocks.raw()

    @staticmethod
    def time() -> float:
        return AgentProcess.current.clocks.wall()

    @staticmethod
    def clock_gettime_ns(_: int) -> int:
        return int(AgentProcess.current.clocks.raw() * 1e9)


class _Os:
    @staticmethod
    def urandom(_: int) -> _Random:
        return _Random()


class _Random:
    def hex(self) -> str:
        return AgentProcess.current.kernel.fresh("r")


def _log(event: str, **fields: object) -> None:
    process = AgentProcess.current
    if process.kernel.trace is not None:
        process.kernel.say(process.name, f"{event} {fields}")


class MemoryRegistry:
    """Compare-and-swap, as the ensemble's status has it."""

    def __init__(self, seen: Counter[str]) -> None:
        self.record: Record | None = None
        self._seen = seen
        self.on_swap: Callable[[Record], None] = lambda _: None

    def read(self) -> Record | None:
        return self.record

    def compare_and_swap(self, expected: Record | None, new: Record) -> bool:
        if self.record != expected:
            return False
        if expected is None or new.generation > expected.generation:
            self._seen["total loss" if expected else "birth"] += 1
        self.record = new
        self.on_swap(new)
        return True


@contextmanager
def substituted() -> Iterator[None]:
    """The agent's modules on simulated ground."""
    replacements: list[tuple[object, str, object]] = [
        (agent, "time", _Time),
        (agent, "os", _Os),
        (agent, "log", _log),
        (agent, "Connection", SimConnection),
        (coordinator, "time", _Time),
        (serving, "time", _Time),
        (serving, "log", _log),
        (peers, "time", _Time),
        (peers, "Connection", SimConnection),
        (ticker, "time", _Time),
        (ticker, "os", _Os),
        (functions, "library", sim_lua.library),
    ]
    with ExitStack() as stack:
        for target, name, value in replacements:
            stack.enter_context(patch.object(target, name, value))
        yield
