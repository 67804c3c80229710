"""A process that leads and does nothing else: what `leasekeeper`'s user has in memory.

Each time that the lease is won or renewed, a line with the start of its round on the boot clock and
the time of the call goes to stdout.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from leasekeeper.clock import SystemClock
from leasekeeper.elector import Elector
from leasekeeper.lease import Candidate, Grant, Renewed, Timings
from leasekeeper.redlock.membership import Membership
from leasekeeper.redlock.store import RedlockStore


class Printer:
    def leading(self, grant: Grant) -> None:
        print(grant.deadline.start.boot, time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)

    def not_leading(self, why: str) -> None: ...
    def standing_by(self, holder: str | None) -> None: ...
    def renewal(self, outcome: Renewed) -> None: ...


async def main() -> None:
    job = json.loads(sys.argv[1])
    timings = Timings(**job["timings"])
    store = RedlockStore(
        membership=Membership.from_json(job["membership"]),
        lock=job["lock"],
        candidate=Candidate(job["name"], "uid", job["nonce"]),
        timings=timings,
        clock=SystemClock(),
        username=f"lock:{job['lock']}",
        password=job["password"],
    )
    await Elector(store=store, timings=timings, clock=SystemClock(), audience=Printer()).run()


asyncio.run(main())
