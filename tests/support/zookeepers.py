"""Candidates over ZooKeeper, and three real servers that are one ZooKeeper."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import ExitStack
from typing import Any

from backends import TIMINGS
from databases import ZooKeeper
from servers import free_port, wait_until

from leasekeeper.clock import SystemClock
from leasekeeper.lease import Candidate, Grant, LeaseStore
from leasekeeper.zookeeper.store import ZooKeeperStore


class Stores:
    """Candidates outside of the conformance suite's settings."""

    def __init__(self) -> None:
        self.made: list[ZooKeeperStore] = []

    def __call__(self, port: int, lock: str = "shop/orders", **more: Any) -> ZooKeeperStore:
        options: dict[str, Any] = {"timings": TIMINGS, "tick": ZooKeeper.TICK}
        options |= {"clock": SystemClock(), **more}
        candidate = Candidate("a", "uid", secrets.token_hex(4))
        hosts = options.pop("hosts", f"127.0.0.1:{port}")
        self.made.append(ZooKeeperStore(hosts=hosts, lock=lock, candidate=candidate, **options))
        return self.made[-1]


async def won(candidate: LeaseStore) -> Grant:
    async with asyncio.timeout(30):
        await candidate.ready()
        while not isinstance(outcome := await candidate.acquire(), Grant):
            await asyncio.sleep(0.02)
    return outcome


class Three:
    """A `Backend` as far as its settings."""

    def __init__(self, stack: ExitStack, tick: float = ZooKeeper.TICK) -> None:
        self._tick = tick
        lines = [f"server.{i}=127.0.0.1:{free_port()}:{free_port()}" for i in (1, 2, 3)]
        self.servers = [ZooKeeper(i, lines, tick=tick) for i in (1, 2, 3)]
        for server in self.servers:
            stack.callback(server.close)
            server.prepare()
            server.launch()
        wait_until(lambda: all(s.answers() for s in self.servers), "three servers", 60)

    @property
    def hosts(self) -> str:
        return ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def settings(self, lock: str, *servers: ZooKeeper) -> dict[str, Any]:
        """Of a candidate that knows these servers; none: all."""
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers) or self.hosts
        return {"store": "zookeeper", "zookeeper": {"hosts": hosts, "tickSeconds": self._tick}}

    @property
    def leader(self) -> ZooKeeper:
        found: ZooKeeper = wait_until(
            lambda: next((s for s in self.servers if s.running and s.leads), None), "a leader", 60
        )
        return found

    @property
    def follower(self) -> ZooKeeper:
        leader = self.leader
        return next(s for s in self.servers if s is not leader)
