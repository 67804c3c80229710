"""Mirrors leadership into the status of the `DistributedLock`, for people and tools.

Nothing that safety rests on stands there, so nothing here may reach back into the election: a slow,
broken or hostile API server costs a log line, a metric and a later try. Only the newest wish is
kept; one request at a time; each is bounded in time and size. The token stands in every patch: the
API server refuses one that goes down, so a late patch of a former holder changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from leasekeeper.kubernetes.api import Failed, Reply
from leasekeeper_sidecar.leadership import Tenure
from leasekeeper_sidecar.log import Log, timestamp
from leasekeeper_sidecar.metrics import Counters

FIRST_BACKOFF = 0.5  # seconds: a restarted API server is back within a few
LONGEST_BACKOFF = 60.0  # a missing right is granted by a person; a thousand pods may wait for it
SUCCESSOR_FIRST = 0.1  # seconds; a hand-over takes a few milliseconds of them
LAST_WORD = 0.5  # seconds that a stopping sidecar spends on its last patch, after the release

Patch = Callable[[str, bytes], Awaitable[Reply]]

# What each refusal means, and whether it is worth another try. 422: a larger token is there
# already, or the resource changed its schema; trying again cannot help, and the nodes alone know
# who leads. Any other answer may be of something in between (a redirect to a page for logging in),
# and be over at the next try.
OUTCOMES = {
    401: ("unauthorized", True),
    403: ("forbidden", True),
    404: ("not-found", True),
    409: ("conflict", True),
    422: ("refused", False),
    429: ("throttled", True),
}


@dataclass(frozen=True, slots=True)
class Wish:
    """What the status should say."""

    holder: str
    token: int
    acquired: float

    def patch(self) -> bytes:
        status: dict[str, object] = {"holder": self.holder, "token": self.token}
        if self.holder:
            status["acquireTime"] = timestamp(self.acquired)
        return json.dumps({"status": status}).encode()


def classify(status: int) -> tuple[str, bool]:
    """The outcome's name, and whether to try again."""
    if 200 <= status < 300:
        return "ok", False
    return OUTCOMES.get(status, ("server-error" if status >= 500 else "rejected", True))


class Mirror:
    """Runs beside the elector; `tenure` is called in its loop and returns at once."""

    def __init__(
        self,
        *,
        lock: str,
        patch: Patch,
        counters: Counters,
        log: Log,
        on_refused: Callable[[], Awaitable[str]],
        first_backoff: float = FIRST_BACKOFF,
    ) -> None:
        namespace, name = lock.split("/")
        self._path = (
            f"/apis/leasekeeper.dev/v1alpha1/namespaces/{namespace}/distributedlocks/{name}/status"
        )
        self._lock = lock
        self._patch = patch
        self._counters = counters
        self._log = log
        self._on_refused = on_refused
        self._first_backoff = first_backoff
        self._wish: Wish | None = None
        self._last: Wish | None = None
        self._news = asyncio.Event()
        self._said = ""

    @property
    def pending(self) -> bool:
        return self._wish is not None

    def tenure(self, tenure: Tenure | None) -> None:
        """A tenure that is over has nothing left to say: the next holder says the next thing."""
        self._wish = None
        if tenure is not None:
            holder = tenure.claim.holder
            self._wish = self._last = Wish(holder, tenure.grant.token, tenure.acquired)
        self._news.set()

    def released(self) -> None:
        """The lease was given back: nobody holds it, as far as we know. Under a pause, or if all
        pods are ill, nobody else comes to say so.

        The token stays: it never goes down and is never taken away. If somebody else leads already,
        with a larger token, the API server refuses this patch, and that is as it should be.
        """
        if self._last is not None and self._wish is None:
            self._wish = Wish("", self._last.token, 0)
            self._news.set()

    async def run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            wish = self._wish
            if wish is not None and not wish.holder:
                await self._let_a_successor_speak()
            if wish is not None and wish is self._wish:
                await self._fulfil(wish)

    async def _let_a_successor_speak(self) -> None:
        """The status then passes from name to name, without a moment in which it says "nobody",
        unless the successor's patch is slow; and the work for the patch is done when the machine
        has nothing more urgent to do.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SUCCESSOR_FIRST):
                await self._news.wait()

    async def farewell(self) -> None:
        """As the process ends: what `released` wished is tried once, briefly."""
        self._wish = None
        if self._last is None:
            return
        await asyncio.sleep(SUCCESSOR_FIRST)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORD):
                outcome, _, _ = await self._request(Wish("", self._last.token, 0))
                self._counters.mirror[f"farewell-{outcome}"] += 1

    async def _fulfil(self, wish: Wish) -> None:
        backoff = self._first_backoff
        while self._wish is wish:
            outcome, again, detail = await self._request(wish)
            if not wish.holder:
                outcome = f"farewell-{outcome}"
            self._counters.mirror[outcome] += 1
            if outcome != "farewell-refused":
                self._say(outcome, wish, detail)
            if not again:
                if self._wish is wish:
                    self._wish = None
                    if not wish.holder:
                        self._last = None  # nothing is left to take out at the end
                if outcome == "refused":
                    self._log.event(
                        "looked-at-nodes", lock=self._lock, token=wish.token, **await self._look()
                    )
                return
            # Jitter, or every pod of a restarted API server would come back in the same instant.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff * random.uniform(0.5, 1.0)):
                    await self._news.wait()
            backoff = min(backoff * 2, LONGEST_BACKOFF)

    async def _request(self, wish: Wish) -> tuple[str, bool, str]:
        try:
            reply = await self._patch(self._path, wish.patch())
        except TimeoutError:
            return "timeout", True, "no answer in time"
        except Failed as wrong:
            return "unreachable", True, str(wrong)
        outcome, again = classify(reply.status)
        return outcome, again, "" if outcome == "ok" else f"{reply.status} {reply.message}".strip()

    async def _look(self) -> dict[str, str]:
        try:
            return {"nodes": await self._on_refused()}
        except Exception as wrong:  # noqa: BLE001  a look for people, in a task of its own
            return {"failed": repr(wrong)}

    def _say(self, outcome: str, wish: Wish, detail: str) -> None:
        """One line for each new outcome, not one for each try."""
        said = f"{outcome} {wish.token}"
        if said != self._said:
            self._said = said
            name = "mirrored" if outcome in ("ok", "farewell-ok") else "not-mirrored"
            self._log.event(name, lock=self._lock, token=wish.token, outcome=outcome, detail=detail)
