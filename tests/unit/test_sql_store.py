"""The SQL store in virtual time, over a database in memory. (tests/stores has the real ones.)"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from virtual_time import VirtualClock, run

from leasekeeper.lease import Candidate, Grant, Timings
from leasekeeper.sql.database import Claim, Look
from leasekeeper.sql.store import SqlStore

TIMINGS = Timings(lease_duration=15, renew_deadline=10, retry_period=2)
LATE = 0.05


class Row:
    """What all candidates share."""

    def __init__(self) -> None:
        self.holder, self.token, self.expires = "", 0, 0.0

    def take(self, claim: Claim) -> Look:
        now = asyncio.get_running_loop().time()
        free = not self.holder or self.expires <= now
        if free:
            self.holder, self.expires = claim.id, now + claim.ttl
            self.token = max(self.token, claim.seen) + 1
        return Look(now, self.holder, self.token, self.expires - now, exists=True, done=free)


class LateDatabase:
    """Runs a statement to take the lock a moment after it came, whether its sender is still there
    or not; to give it back, at once."""

    notifies = False

    def __init__(self, row: Row) -> None:
        self._row = row
        self.given_back: list[bool] = []

    async def open(self, resource: str, on_freed: Callable[[int | None], None]) -> None: ...

    async def take(self, claim: Claim) -> Look:
        answer: asyncio.Future[Look] = asyncio.get_running_loop().create_future()

        def run_it() -> None:
            look = self._row.take(claim)
            if not answer.done():
                answer.set_result(look)

        asyncio.get_running_loop().call_later(LATE, run_it)
        return await answer

    async def give_back(self, resource: str, id: str) -> bool:
        ours = self._row.holder == id
        if ours:
            self._row.holder = ""
        self.given_back.append(ours)
        return ours

    async def look(self, resource: str) -> Look:
        raise NotImplementedError

    async def extend(self, resource: str, id: str, token: int, ttl: float) -> Look:
        raise NotImplementedError

    def drop(self) -> None: ...

    async def close(self) -> None: ...


def store(database: LateDatabase, name: str) -> SqlStore:
    return SqlStore(
        database=database,
        lock="shop/orders",
        candidate=Candidate(name, "uid", f"nonce-of-{name}"),
        timings=TIMINGS,
        clock=VirtualClock(),
    )


def test_a_statement_that_runs_after_its_attempt_was_given_back_blocks_nobody() -> None:
    """Known bugs 13, 22 and 23: the connection was dropped with the attempt, and the server runs
    what it had sent after it ran what came on the next connection. Seen on MariaDB."""

    async def scenario() -> None:
        row = Row()
        database = LateDatabase(row)
        attempt = asyncio.create_task(store(database, "a").acquire())
        await asyncio.sleep(LATE / 2)
        attempt.cancel()
        await asyncio.wait([attempt])
        await asyncio.sleep(1)
        assert database.given_back == [False, True]
        assert row.holder == ""
        assert isinstance(await store(LateDatabase(row), "b").acquire(), Grant)

    run(scenario())


def test_what_was_given_back_is_not_given_back_again() -> None:
    async def scenario() -> None:
        row = Row()
        database = LateDatabase(row)
        attempt = asyncio.create_task(store(database, "a").acquire())
        await asyncio.sleep(LATE)
        attempt.cancel()
        row.holder = "a/uid/nonce-of-a/1"  # it was run, and its answer is on the way
        await asyncio.wait([attempt])
        await asyncio.sleep(1)
        assert database.given_back == [True]

    run(scenario())
