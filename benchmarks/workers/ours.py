"""Leasekeeper in the benchmarks: one job as JSON in the first argument, its result on stdout."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from typing import Any

from leasekeeper.clock import SystemClock
from leasekeeper.elector import Elector
from leasekeeper.lease import Candidate, Grant, Held, LeaseStore, Renewed, Timings
from leasekeeper.redlock.connections import SharedLinks, own_links
from leasekeeper.redlock.membership import Membership, Node
from leasekeeper.redlock.store import RedlockStore
from leasekeeper.redlock.transport import MakeLinks

Job = dict[str, Any]


def boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def timings_of(job: Job) -> Timings:
    return Timings(**job["timings"])


def proxied(job: Job, lock: str) -> MakeLinks | None:
    """Links to `addresses` instead of the nodes' own: the epoch covers the real ones."""
    if not job.get("addresses"):
        return None

    pairs = (address.rpartition(":") for address in job["addresses"])
    nodes = tuple(
        Node(str(number), host, int(port)) for number, (host, _, port) in enumerate(pairs)
    )
    links = own_links(
        username=f"lock:{lock}",
        password=job["password"],
        patience=timings_of(job).retry_period,
    )
    return lambda _nodes, channel, on_push: links(nodes, channel, on_push)


def store_of(job: Job, lock: str, name: str, links: MakeLinks | None = None) -> LeaseStore:
    candidate = Candidate(name, "uid", secrets.token_hex(4))
    if "settings" in job:
        from candidate_process import checked

        timings, clock = timings_of(job), SystemClock()
        settings = checked(job["settings"], timings)
        return settings.make(lock=lock, candidate=candidate, timings=timings, clock=clock)
    return RedlockStore(
        membership=Membership.from_json(job["membership"]),
        lock=lock,
        candidate=candidate,
        timings=timings_of(job),
        clock=SystemClock(),
        username=f"lock:{lock}",
        password=job["password"],
        links=links or proxied(job, lock),
    )


async def won(store: LeaseStore) -> Grant:
    """A lock that nobody else wants."""
    outcome = await store.acquire()
    if not isinstance(outcome, Grant):
        raise RuntimeError(f"a free lock was not granted: {outcome}")
    return outcome


async def timed(store: LeaseStore) -> tuple[float, Grant]:
    """How long the attempt took that won. A store that calls nobody leaves a lock that it gave back
    to others for a moment; that is no part of an acquire.
    """
    while True:
        began = time.perf_counter()
        outcome = await store.acquire()
        if not isinstance(outcome, Held) or outcome.by:
            assert isinstance(outcome, Grant), f"a free lock was not granted: {outcome}"
            return time.perf_counter() - began, outcome
        await asyncio.sleep(outcome.free_in)


async def acquire(job: Job) -> Job:
    store = store_of(job, job["lock"], "one")
    await store.ready()
    await asyncio.sleep(0.2)  # so that all nodes are connected, not only a quorum
    seconds = []
    for count in range(job["warm_up"] + job["count"]):
        if count == job["warm_up"]:
            await asyncio.sleep(max(0.0, job["start_at"] - boot()))
        took, grant = await timed(store)
        if count >= job["warm_up"]:
            seconds.append(took)
        await store.release(grant)
        await asyncio.sleep(job["hold"])
    await store.close()
    return {"seconds": seconds}


def shared_links(job: Job) -> SharedLinks | None:
    """None: each store has connections of its own."""
    if not job.get("shared_user"):
        return None
    return SharedLinks(
        Membership.from_json(job["membership"]),
        username=job["shared_user"],
        password=job["password"],
        patience=timings_of(job).retry_period,
    )


async def throughput(job: Job) -> Job:
    shared = shared_links(job)
    links = shared.borrow if shared else None
    stores = [store_of(job, f"{job['lock']}-{i}", "one", links) for i in range(job["tasks"])]
    for store in stores:
        await store.ready()
    await asyncio.sleep(max(0.5, job["start_at"] - boot()))
    pairs = 0
    end = boot() + job["seconds"]

    async def task(store: LeaseStore) -> None:
        nonlocal pairs
        while boot() < end:
            await store.release(await won(store))
            pairs += 1

    began = boot()
    await asyncio.gather(*(task(store) for store in stores))
    seconds = boot() - began
    await asyncio.gather(*(store.close() for store in stores))
    if shared:
        await shared.close()
    return {"pairs": pairs, "seconds": seconds}


class Contender:
    """Leads for `hold` seconds, gives the lock back, and stands for it again."""

    def __init__(
        self,
        job: Job,
        number: int,
        tenures: list[tuple[int, float, float]],
        links: MakeLinks | None,
    ) -> None:
        self.number = number
        self._job = job
        self._tenures = tenures
        self._store = store_of(job, job["lock"], str(number), links)
        self._began = 0.0
        self._ended = 0.0
        self._elector: Elector | None = None

    async def run(self) -> None:
        await self._store.ready()
        await asyncio.sleep(max(0.0, self._job["start_at"] - boot()))
        end = self._job["start_at"] + self._job["seconds"]
        loop = asyncio.get_running_loop()
        while boot() < end:
            self._began = 0.0
            self._elector = Elector(
                store=self._store,
                timings=timings_of(self._job),
                clock=SystemClock(),
                audience=self,
            )
            last = loop.call_later(end - boot(), self._elector.stop)
            await self._elector.run()
            last.cancel()
            if self._began:
                self._tenures.append((self.number, self._began, self._ended))
        await self._store.close()

    def leading(self, grant: Grant) -> None:
        if not self._began:
            self._began = boot()
            asyncio.get_running_loop().call_later(self._job["hold"], self._release)

    def _release(self) -> None:
        self._ended = boot()
        assert self._elector is not None
        self._elector.stop()

    def not_leading(self, why: str) -> None: ...
    def standing_by(self, holder: str | None) -> None: ...
    def renewal(self, outcome: Renewed) -> None: ...


async def contend(job: Job) -> Job:
    tenures: list[tuple[int, float, float]] = []
    first = job["first_task"]
    shared = shared_links(job)
    links = shared.borrow if shared else None
    contenders = [Contender(job, first + i, tenures, links) for i in range(job["tasks"])]
    await asyncio.gather(*(contender.run() for contender in contenders))
    if shared:
        await shared.close()
    return {"tenures": tenures}


KINDS = {"acquire": acquire, "throughput": throughput, "contend": contend}


def main() -> None:
    job = json.loads(sys.argv[1])
    print(json.dumps(asyncio.run(KINDS[job["kind"]](job))))


if __name__ == "__main__":
    main()
