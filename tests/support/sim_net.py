"""Servers and the network between them and their clients.

A connection keeps the order of its messages in each direction, and loses none while it stands. When
it breaks, what is on its way may still be carried out: now, much later, or never. Two connections
know nothing of each other's order. That is all that TCP promises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sim_kernel import Kernel, MachineClocks, Process
from sim_lua import Machine, Memory

from leasekeeper.redlock import functions
from leasekeeper.redlock.membership import Membership
from leasekeeper.redlock.registry import parse_vector
from leasekeeper.redlock.server_config import REQUIRED

Reply = Any
"""A list of texts, one text, or an Error."""
OnReply = Callable[[Reply], object]
OnExecute = Callable[["Server", str, Sequence[str], Sequence[str]], None]

QUIET = ("lk1_tick", "lk1_state")
"""Functions that every agent calls all the time, and that change nothing that is checked."""
_SETTINGS = [
    part
    for pair in (*REQUIRED.items(), ("dir", "/data"), ("dbfilename", ""), ("appenddirname", ""))
    for part in pair
]


@dataclass(frozen=True, slots=True)
class Error:
    """The server's answer is an error."""

    text: str


class Server(Process):
    """One process of an unmodified server."""

    def __init__(self, kernel: Kernel, pod: Pod, machine: Machine, on_execute: OnExecute) -> None:
        super().__init__(kernel, kernel.fresh(f"server{pod.node}."), pod.clocks)
        self.node = pod.node
        self.memory = Memory(machine, self._listeners)
        self.run_id = kernel.fresh("run")
        self.channels: list[Channel] = []
        self.highest = 0
        """The largest F that this memory has had."""
        self._on_execute = on_execute

    def execute(self, command: Sequence[str]) -> Reply:
        if command[0] == "FCALL":
            return self._fcall(command)
        if command[0] == "FUNCTION":
            return self._function(command)
        if command[0] == "INFO":
            return f"run_id:{self.run_id}\r\nrole:master\r\n"
        if command[0] == "CONFIG":
            return _SETTINGS
        if command[0] == "HGET":
            return self.memory.get(command[1], command[2])
        if command[:2] == ("ACL", "USERS"):
            return []
        return Error(f"ERR unknown command {command[0]}")

    def _fcall(self, command: Sequence[str]) -> Reply:
        name, keys = command[1], int(command[2])
        key, args = (command[3], command[4:]) if keys else (None, command[3:])
        reply = self.memory.fcall(name, key, *args)
        if reply is None:
            self.kernel.seen[f"{name} not found"] += 1
            return Error("ERR Function not found")
        if self.kernel.trace is not None and name not in QUIET:
            self.kernel.say(self.name, f"{name}{tuple(args)} -> {reply}")
        if name not in QUIET or reply[0] == "REFUSED":
            self.kernel.seen[f"{name} {reply[0]}"] += 1
            self._on_execute(self, name, args, reply)
        if name == "lk1_release":
            for topic, message in self.memory.published():
                for channel in self.channels:
                    if channel.topic == topic:
                        channel.push(message)
        return list(reply)

    def _function(self, command: Sequence[str]) -> Reply:
        if command[1] == "LOAD":
            self.memory.load(command[3].partition("\n")[0].partition("name=")[2])
            return "OK"
        if command[1] == "DELETE":
            self.memory.delete(command[2])
            return "OK"
        return [command[3]] if self.memory.loaded(command[3]) else []

    def _listeners(self, topic: str) -> int:
        """What PUBLISH answers: a client that closed its connection is not among them."""
        return sum(channel.topic == topic for channel in self.channels)

    def fence(self, lock: str) -> int:
        """F: where a node knows nothing of a lock, its floor."""
        known = self.memory.get(f"lk:lock:{lock}", "fence")
        return int(known or self.memory.get("lk:node", "floor") or 0)

    @property
    def incarnation(self) -> int:
        return int(self.memory.get("lk:node", "incarnation") or 0)

    @property
    def vector(self) -> dict[str, int]:
        return parse_vector(self.memory.get("lk:node", "vector") or "")

    @property
    def open(self) -> bool:
        marked = self.memory.get("lk:node", "open") == "1"
        return self.alive and marked and self.memory.loaded(functions.VOTE)

    def votes_by(self, membership: Membership) -> bool:
        get = self.memory.get
        joined = get("lk:node", "joined") and get("lk:node", "epoch") == membership.epoch
        return bool(joined) and self.node in membership.ids and self.open

    def die(self) -> None:
        super().die()
        for channel in self.channels:
            channel.break_off()
        self.channels = []


@dataclass
class Pod:
    """A server and its agent on one machine, under the name of a node. A ghost is a pod whose name
    another one has taken.
    """

    node: str
    host: str
    clocks: MachineClocks
    server: Server | None = None
    agents: list[Process] = field(default_factory=list)

    @property
    def reachable(self) -> bool:
        return self.server is not None and self.server.alive and not self.server.paused


class Network:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.pods: dict[str, Pod] = {}
        self.ghosts: dict[str, list[Pod]] = {}
        self.channels: list[Channel] = []
        self.latency = (0.0003, 0.003)
        self.late = 0.0
        """How probable it is that a message is late, and by how much at most."""
        self.latest = 0.0
        self.straggle = 2.0
        """How late at most a message of a broken connection arrives."""
        self.led_astray: dict[str, float] = {}
        """By host: how probable it is that it finds a ghost; 0.4 where nothing is said."""
        self.held: dict[tuple[str, str], Held] = {}
        self._cuts: dict[tuple[str, str], float] = {}

    def cut(self, host: str, node: str, seconds: float) -> None:
        """Nothing gets through between them; `*` stands for everybody."""
        self._cuts[host, node] = self.kernel.now + seconds

    def hold(self, host: str, node: str) -> Held:
        """What is sent from now on between them is on its way for as long as the caller likes."""
        self.held[host, node] = held = Held(self, (host, node))
        return held

    def heal(self) -> None:
        self._cuts.clear()
        self.late = self.latest = 0.0
        for held in list(self.held.values()):
            held.let_go()

    def cut_until(self, host: str, node: str) -> float:
        until = self._cuts.get
        return max(until((host, node), 0.0), until((host, "*"), 0.0), until(("*", node), 0.0))

    def arrival(self, host: str, node: str) -> float:
        chance, (low, high) = self.kernel.dice.random, self.latency
        delay = low + (high - low) * chance()
        if self.late and chance() < self.late:
            delay += chance() * self.latest
        if self._cuts:
            return max(self.kernel.now, self.cut_until(host, node)) + delay
        return self.kernel.now + delay

    def route(self, node: str, host: str) -> Pod | None:
        """Where a new connection to this node goes; it may still find a ghost."""
        ghosts = self.ghosts.get(node)
        if ghosts and self.kernel.dice.random() < self.led_astray.get(host, 0.4):
            return self.kernel.dice.choice(ghosts)
        return self.pods.get(node)

    def connect(
        self, client: Process, server: Server, on_reset: Callable[[], None], *, local: bool = False
    ) -> Channel:
        channel = Channel(self, client, server, on_reset, local=local)
        server.channels.append(channel)
        self.channels.append(channel)
        if len(self.channels) > 200:
            self.channels = [channel for channel in self.channels if channel.open]
        return channel


class Held:
    """Messages between a host and a node that do not arrive yet."""

    def __init__(self, network: Network, pair: tuple[str, str]) -> None:
        self._network = network
        self._pair = pair
        self.messages: list[tuple[Channel, Sequence[str], OnReply]] = []

    def has(self, function: str) -> bool:
        return any(command[1] == function for _, command, _ in self.messages)

    def stop(self) -> None:
        """What is sent from now on is not held; what was, still is."""
        self._network.held.pop(self._pair, None)

    def let_go(self, most: int | None = None) -> None:
        """They arrive, whatever has become of their connection; all but the first are lost, if
        there are more than `most`.
        """
        self.stop()
        when = self._network.arrival(*self._pair)
        for channel, command, on_reply in self.messages[:most]:
            self._network.kernel.at(when, channel.arrive, command, on_reply, True)
        self.messages = []


class Channel:
    """One connection."""

    def __init__(
        self,
        network: Network,
        client: Process,
        server: Server,
        on_reset: Callable[[], None],
        *,
        local: bool,
    ) -> None:
        self._network = network
        self._kernel = network.kernel
        self.client = client
        self.server = server
        self.open = True
        self.topic = ""
        self.on_push: Callable[[str], object] | None = None
        self._on_reset = on_reset
        self._name = "local" if local else client.host
        self._up = self._down = 0.0

    def send(self, command: Sequence[str], on_reply: OnReply) -> None:
        if self._network.held:
            held = self._network.held.get((self._name, self.server.node))
            if held is not None:
                held.messages.append((self, command, on_reply))
                return
        self._up = max(self._up, self._network.arrival(self._name, self.server.node))
        self._kernel.at(self._up, self.arrive, command, on_reply, False)

    def arrive(self, command: Sequence[str], on_reply: OnReply, straggler: bool) -> None:
        if not self.open and not straggler:
            fate = self._kernel.dice.random()
            if fate < 0.3:
                self._kernel.seen["message lost"] += 1
                return
            if fate < 0.7:
                self._kernel.seen["message of a broken connection, late"] += 1
                delay = self._kernel.dice.random() * self._network.straggle
                self._kernel.after(delay, self.arrive, command, on_reply, True)
                return
        server = self.server
        if server.alive and not server.pauses:
            self._execute(command, on_reply)
        else:
            server.deliver(self._execute, command, on_reply)

    def _execute(self, command: Sequence[str], on_reply: OnReply) -> None:
        reply = self.server.execute(command)
        if self.open:
            self._back(on_reply, reply)

    def push(self, message: str) -> None:
        if self.open and self.on_push is not None:
            self._back(lambda _: self.on_push and self.on_push(message), None)

    def _back(self, on_reply: OnReply, reply: Reply) -> None:
        self._down = max(self._down, self._network.arrival(self._name, self.server.node))
        self._kernel.at(self._down, self._received, on_reply, reply)

    def _received(self, on_reply: OnReply, reply: Reply) -> None:
        if self.open:
            self.client.deliver(on_reply, reply)

    def break_off(self) -> None:
        """The client learns of it when it learns of it."""
        if self.open:
            when = self._network.arrival(self._name, self.server.node)
            self._kernel.at(when, self.client.deliver, self.reset)

    def reset(self) -> None:
        if self.open:
            self.open = False
            self._on_reset()

    def close(self) -> None:
        """By the client: it hears no more of it."""
        self.open = False
        if self in self.server.channels:
            self.server.channels.remove(self)
