"""redlock-py and pottery in the benchmarks; runs in the peers' own environment.

As in the other workers: one job as JSON in the first argument, its result as JSON on stdout."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

Job = dict[str, Any]


def boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def credentials(job: Job) -> list[dict[str, Any]]:
    return [
        {
            "host": address.rpartition(":")[0],
            "port": int(address.rpartition(":")[2]),
            "username": job["username"],
            "password": job["password"],
        }
        for address in job["addresses"]
    ]


def redlock_acquire(job: Job) -> Job:
    from redlock import Redlock

    manager = Redlock(credentials(job))
    seconds = []
    for count in range(job["warm_up"] + job["count"]):
        if count == job["warm_up"]:
            time.sleep(max(0.0, job["start_at"] - boot()))
        began = time.perf_counter()
        lock = manager.lock(job["lock"], 8000)
        if count >= job["warm_up"]:
            seconds.append(time.perf_counter() - began)
        assert lock, "a free lock was not granted"
        manager.unlock(lock)
        time.sleep(job["hold"])
    return {"seconds": seconds}


def redlock_throughput(job: Job) -> Job:
    """100 threads: redlock-py has nothing else."""
    from redlock import Redlock

    manager = Redlock(credentials(job))
    end = time.monotonic() + job["seconds"]
    pairs = [0] * job["tasks"]

    def task(number: int) -> None:
        while time.monotonic() < end:
            lock = manager.lock(f"{job['lock']}-{number}", 8000)
            assert lock, "a free lock was not granted"
            manager.unlock(lock)
            pairs[number] += 1

    began = time.monotonic()
    threads = [threading.Thread(target=task, args=(number,)) for number in range(job["tasks"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"pairs": sum(pairs), "seconds": time.monotonic() - began}


def pottery_lock(job: Job) -> Callable[[str], Any]:
    from pottery import AIORedlock
    from redis.asyncio import Redis

    masters = {Redis(**server) for server in credentials(job)}
    return lambda name: AIORedlock(key=name, masters=masters, auto_release_time=8)


async def pottery_acquire(job: Job) -> Job:
    lock = pottery_lock(job)(job["lock"])
    seconds = []
    for count in range(job["warm_up"] + job["count"]):
        if count == job["warm_up"]:
            await asyncio.sleep(max(0.0, job["start_at"] - boot()))
        began = time.perf_counter()
        assert await lock.acquire(), "a free lock was not granted"
        if count >= job["warm_up"]:
            seconds.append(time.perf_counter() - began)
        await lock.release()
        await asyncio.sleep(job["hold"])
    return {"seconds": seconds}


async def pottery_throughput(job: Job) -> Job:
    make = pottery_lock(job)
    pairs = 0
    end = time.monotonic() + job["seconds"]

    async def task(number: int) -> None:
        nonlocal pairs
        lock = make(f"{job['lock']}-{number}")
        while time.monotonic() < end:
            assert await lock.acquire(), "a free lock was not granted"
            await lock.release()
            pairs += 1

    began = time.monotonic()
    await asyncio.gather(*(task(number) for number in range(job["tasks"])))
    return {"pairs": pairs, "seconds": time.monotonic() - began}


KINDS: dict[tuple[str, str], Callable[[Job], Any]] = {
    ("redlock-py", "acquire"): redlock_acquire,
    ("redlock-py", "throughput"): redlock_throughput,
    ("pottery", "acquire"): pottery_acquire,
    ("pottery", "throughput"): pottery_throughput,
}


def main() -> None:
    job = json.loads(sys.argv[1])
    work = KINDS[job["variant"], job["kind"]]
    result = asyncio.run(work(job)) if asyncio.iscoroutinefunction(work) else work(job)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
