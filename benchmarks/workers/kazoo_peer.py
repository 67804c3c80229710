"""kazoo's own recipes in the benchmarks: `Lock` and `Election`, one session and thread a task."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from kazoo.client import KazooClient

Tenures = list[tuple[int, float, float]]


def boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def contend(job: dict[str, Any], number: int, tenures: Tenures) -> None:
    client = KazooClient(job["hosts"], timeout=10)
    client.start()
    path = f"/bench/{job['variant']}"
    recipe = getattr(client, job["variant"])(path, str(number))
    time.sleep(max(0.0, job["start_at"] - boot()))
    end = job["start_at"] + job["seconds"]

    def lead() -> None:
        began = boot()
        time.sleep(job["hold"])
        tenures.append((number, began, boot()))

    while boot() < end:
        if job["variant"] == "Election":
            recipe.run(lead)
        else:
            recipe.acquire()
            lead()
            recipe.release()
    client.stop()
    client.close()


def main() -> None:
    job = json.loads(sys.argv[1])
    tenures: Tenures = []
    first = job["first_task"]
    tasks = [
        threading.Thread(target=contend, args=(job, first + i, tenures))
        for i in range(job["tasks"])
    ]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
    print(json.dumps({"tenures": tenures}))


if __name__ == "__main__":
    main()
