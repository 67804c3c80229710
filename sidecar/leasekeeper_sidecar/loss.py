"""`onLost`: tells the app over HTTP that its leadership is over.

One call, from the moment the file says no until the lease ends: after that another pod may lead,
and the app has to have stopped by itself. An app that answers when its work has stopped makes a
stopping sidecar give the lease back at that moment.
"""

from __future__ import annotations

import asyncio
import json

from leasekeeper.clock import Clock
from leasekeeper.lease import Grant
from leasekeeper_sidecar.log import Log
from leasekeeper_sidecar.loopback import Address, NoAnswer
from leasekeeper_sidecar.metrics import Counters


class LossCall:
    def __init__(self, address: Address, *, clock: Clock, counters: Counters, log: Log) -> None:
        self._address = address
        self._clock = clock
        self._counters = counters
        self._log = log
        self._calls: set[asyncio.Task[None]] = set()

    def __call__(self, grant: Grant, why: str) -> None:
        """Returns at once; the call goes out in the next turn of the loop."""
        call = asyncio.ensure_future(self._call(grant, why))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def answered(self) -> None:
        """Returns when no call is under way."""
        if self._calls:
            await asyncio.wait(self._calls)

    async def _call(self, grant: Grant, why: str) -> None:
        body = json.dumps({"lock": grant.lock, "token": grant.token, "why": why}).encode()
        left = max(0.0, grant.lease_end.left(self._clock.now()))
        try:
            status = await self._address.ask("POST", body, left)
            outcome, detail = ("ok", "") if status < 300 else ("refused", f"status {status}")
        except TimeoutError:
            outcome, detail = "timeout", "no answer before the lease ended"
        except NoAnswer as wrong:
            outcome, detail = "unreachable", str(wrong)
        self._counters.loss_calls[outcome] += 1
        if outcome != "ok":
            self._log.event(
                "on-lost-failed", lock=grant.lock, token=grant.token, outcome=outcome, why=detail
            )
