"""One candidate as a process of its own, for tests that kill and freeze it.

    python candidate_process.py NAME '{"lock": …, "timings": …, "store": …}' [--blind]

Prints what its audience hears, one JSON object a line, with times on the boot clock, which all
processes of a machine share. `--blind` is the control: a candidate that does not end at its
deadline. Ends on SIGTERM with a release.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import sys
import time
from dataclasses import replace
from typing import Any

from leasekeeper_sidecar.reader import Problems, Reader
from leasekeeper_sidecar.stores import StoreSettings, read

from leasekeeper.clock import Deadline, SystemClock
from leasekeeper.elector import Elector
from leasekeeper.lease import Candidate, Grant, Renewed, Timings


class Reporter:
    """Says what it hears, and until when its lease is good."""

    def say(self, event: str, **more: Any) -> None:
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        print(json.dumps({"event": event, "at": now, **more}), flush=True)

    def leading(self, grant: Grant) -> None:
        until = grant.deadline.start.boot + grant.deadline.after
        self.say("leading", token=grant.token, until=until)

    def not_leading(self, why: str) -> None:
        self.say("not-leading", why=why)

    def standing_by(self, holder: str | None) -> None:
        self.say("standby", holder=holder)

    def renewal(self, outcome: Renewed) -> None:
        if not isinstance(outcome, Grant):
            self.say("renewal", outcome=type(outcome).__name__, why=str(outcome))


def blind(store: Any) -> None:
    """The control: whatever the store grants is believed for a long time."""
    acquire, renew = store.acquire, store.renew

    def believed(outcome: Any) -> Any:
        if isinstance(outcome, Grant):
            return replace(outcome, deadline=Deadline(outcome.deadline.start, 1000.0))
        return outcome

    async def acquire_blindly() -> Any:
        return believed(await acquire())

    async def renew_blindly(grant: Grant) -> Any:
        return believed(await renew(grant))

    store.acquire, store.renew = acquire_blindly, renew_blindly


def checked(told: dict[str, Any], timings: Timings) -> StoreSettings:
    if told["store"] == "kubernetes":
        from kube_lease import LeaseSettings

        return LeaseSettings(**told["kubernetes"])
    problems = Problems()
    settings = read(Reader(told, "lock.json", problems), timings)
    if settings is None:
        sys.exit("\n".join(problems.found))
    return settings


async def main(name: str, told: dict[str, Any], is_blind: bool) -> None:
    timings = Timings(**told["timings"])
    settings = checked(told, timings)
    clock = SystemClock()
    candidate = Candidate(name, "uid", secrets.token_hex(4))
    store = settings.make(lock=told["lock"], candidate=candidate, timings=timings, clock=clock)
    if is_blind:
        blind(store)
    reporter = Reporter()
    elector = Elector(store=store, timings=timings, clock=clock, audience=reporter)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, elector.stop)
    reporter.say("started")
    await elector.run()
    await store.close()
    reporter.say("stopped")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2]), "--blind" in sys.argv))
