"""How long an acquire takes, of a lock that is known to be free, over a network of 1 ms."""

from __future__ import annotations

import socket
import time

from benchmarks.result import Row, at_most, note, percentile
from benchmarks.rig import DELAY, PEER_USER, Rig, boot, run

LOCK = "acquire"
PAUSE = 0.001  # between two attempts: a task that locks has something else to do, too
START = 2.5  # seconds until all workers have connected and warmed up


def measure(rig: Rig) -> list[Row]:
    with rig.proxy() as addresses:
        trips = _round_trips(addresses[0], rig.password, 200)
        times, hung = _all_nodes(rig, addresses), _two_hung(rig, addresses)
    trip = 1000 * percentile(trips, 50)
    ours = times["ours"]
    name = "acquire p50, 1 ms round trip"
    rows = [
        at_most(name, "ms", ours, 1.0, "redsync", times["redsync"]),
        at_most(name, "ms", ours, 1.3, "one round trip, as PING finds it", trip),
        at_most(name, "ms", ours, 1.3, "one round trip, nominal", 2000 * DELAY),
    ]
    rows += [note(name, "ms", ours, peer, times[peer]) for peer in list(times)[2:]]
    name = "… with 2 of 5 nodes hung"
    rows.append(at_most(name, "ms", hung["ours"], 1.2, "ours, all nodes well", ours))
    rows += [note(name, "ms", hung["ours"], peer, hung[peer]) for peer in list(hung)[1:]]
    return rows


def _all_nodes(rig: Rig, addresses: list[str]) -> dict[str, float]:
    job = {"addresses": addresses, "warm_up": 50, "hold": PAUSE, "start_at": 0.0}
    many = {**job, "count": 100 if rig.quick else 500}
    few = {**job, "count": 20 if rig.quick else 100}
    workers = {
        "ours": rig.ours("acquire", "bench/acquire", **many),
        "redsync": rig.redsync("acquire", LOCK, **many),
        "redsync, fail-fast": rig.redsync("acquire", LOCK, variant="fail-fast", **many),
        "redlock-py": rig.python_peer("redlock-py", "acquire", LOCK, **few),
        "pottery": rig.python_peer("pottery", "acquire", LOCK, **few),
    }
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    for _ in range(2 if rig.quick else 5):
        for name, worker in workers.items():
            seconds[name] += run([worker], 60)[0]["seconds"]
    return {name: 1000 * percentile(found, 50) for name, found in seconds.items()}


def _two_hung(rig: Rig, addresses: list[str]) -> dict[str, float]:
    """They stop answering while connections to them stand: worse than nodes that are gone."""
    job = {"addresses": addresses, "warm_up": 50, "hold": PAUSE}
    counts = {"ours": 100 if rig.quick else 500, "redsync": 3, "redsync, fail-fast": 3}
    seconds: dict[str, list[float]] = {name: [] for name in counts}
    for _ in range(1 if rig.quick else 3):
        for name, count in counts.items():
            start_at = boot() + START
            more = {**job, "count": count, "start_at": start_at}
            if name == "ours":
                worker = rig.ours("acquire", "bench/acquire", **more)
            else:
                variant = name.partition(", ")[2]
                worker = rig.redsync("acquire", LOCK, variant=variant, **more)
            seconds[name] += _hang_at_start(rig, worker, start_at)
    return {name: 1000 * percentile(found, 50) for name, found in seconds.items()}


def _hang_at_start(rig: Rig, worker: list[str], start_at: float) -> list[float]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(run, [worker], 60)
        time.sleep(max(0.0, start_at - 0.1 - boot()))
        with rig.hung(2):
            found: list[float] = working.result()[0]["seconds"]
    return found


def _round_trips(address: str, password: str, count: int) -> list[float]:
    """Of the smallest request that there is, from a blocking client."""
    host, _, port = address.rpartition(":")
    found = []
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(f"AUTH {PEER_USER} {password}\r\n".encode())
        assert connection.recv(100).startswith(b"+OK")
        for _ in range(count):
            began = time.perf_counter()
            connection.sendall(b"PING\r\n")
            connection.recv(100)
            found.append(time.perf_counter() - began)
            time.sleep(PAUSE)
    return found
