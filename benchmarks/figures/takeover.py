"""How long after the end of a killed holder's lease the next one leads."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks.result import Row, at_most, note
from benchmarks.rig import HOLDER, Rig, boot, command, run, timings_json
from leasekeeper.lease import Timings

TIMINGS = Timings(lease_duration=1.5, renew_deadline=1.0, retry_period=0.3)
START = 3.0  # until the waiters' processes have connected
LOOK = 0.8  # how long they wait before the holder is killed
MARGIN = 0.020
LOCK = "bench/takeover"


def measure(rig: Rig) -> list[Row]:
    wake_up = rig.membership.cap / 2  # W, as in the agent
    bound = 1000 * (2 * rig.membership.cap + wake_up + MARGIN)
    rows = []
    for waiters in (1, 10, 50):
        times = [1000 * _takeover(rig, waiters) for _ in range(2 if rig.quick else 8)]
        figure = f"takeover past the end of the lease, {waiters} waiters"
        rows.append(at_most(f"{figure}, worst", "ms", max(times), bound, "2C + W + 20 ms"))
        rows.append(note(f"{figure}, median", "ms", sorted(times)[len(times) // 2], "", None))
    return rows


def _takeover(rig: Rig, waiters: int) -> float:
    """Seconds from the end of the lease (its last round's start + duration) to the next leader."""
    timings = {"timings": timings_json(TIMINGS)}
    holder = rig.our_job("", LOCK, name="holder", nonce=secrets.token_hex(4)) | timings
    with subprocess.Popen(
        command([sys.executable, str(HOLDER)], holder), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it leads
            start_at = boot() + START
            workers = _waiters(rig, waiters, start_at)
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(run, workers, 60)
                time.sleep(max(0.0, start_at + LOOK - boot()))
                process.kill()
                renewals = process.stdout.read().splitlines()
                results = waiting.result()
        finally:
            process.kill()
    lease_end = float(renewals[-1].split()[0]) + TIMINGS.lease_duration
    began = [float(tenure[1]) for result in results for tenure in result["tenures"]]
    return min(began) - lease_end


def _waiters(rig: Rig, waiters: int, start_at: float) -> list[list[str]]:
    processes = min(waiters, 5)
    job = {
        "timings": timings_json(TIMINGS),
        "start_at": start_at,
        "hold": 60.0,  # whoever wins keeps it until all stop
        "seconds": LOOK + TIMINGS.lease_duration + 1.0,
    }
    share = waiters // processes
    return [
        rig.ours("contend", LOCK, tasks=share, first_task=number * share, **job)
        for number in range(processes)
    ]
