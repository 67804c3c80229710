"""The Kubernetes Lease store: one `coordination.k8s.io/v1` Lease is one lock.

An elector of client-go on the same Lease and ours exclude each other. The decisions, and why they
are safe, are in `record.py`. Here is what is left: when to read, when to write, and for how long.

- Every write is a compare-and-swap on uid and resourceVersion. 409 means "read again", not "lost".
- Validity counts from before the first byte of the write that counts, and is checked after it.
- A call has half of what is left of the lease: one that hangs leaves time for another, over a new
  connection.
- A write without an answer may have been made: an attempt that ends so is taken back.

In this store the API server is in the path of renewal: while it is away, leaders end at their
deadline. The rights it needs: `create`, and for the one name `get`, `update` and `watch`, on
`leases`.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from leasekeeper.clock import Clock, Deadline, Instant
from leasekeeper.kubernetes.api import Failed, Object, Reply
from leasekeeper.kubernetes.record import (
    LARGEST_TOKEN,
    TOKEN,
    Lease,
    Sighting,
    deposed,
    free_in,
    made,
    next_token,
    released,
    renewed,
    see,
    taken,
)
from leasekeeper.lease import (
    Acquired,
    AlreadyGone,
    Candidate,
    Causes,
    Grant,
    Held,
    Lost,
    Observation,
    Released,
    ReleaseOutcome,
    Renewed,
    Request,
    Timings,
    Unavailable,
    Unknown,
)
from leasekeeper.redlock import requests

T = TypeVar("T")

SERVER = "api-server"
"""Under which its causes stand: there is one "node"."""


class Api(Protocol):
    """What the store asks of a client: `leasekeeper.kubernetes.api.ApiServer`."""

    async def request(
        self, method: str, path: str, body: bytes = b"", *, timeout: float, keep: bool = False
    ) -> Reply: ...

    def watch(self, path: str, *, timeout: float) -> AsyncIterator[Object]: ...

    def close(self) -> None: ...


class KubernetesStore:
    """A `LeaseStore` for one Lease and one candidate. The client is the store's own."""

    def __init__(
        self,
        *,
        api: Api,
        namespace: str,
        name: str,
        candidate: Candidate,
        timings: Timings,
        clock: Clock,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._candidate = candidate
        self._timings = timings
        self._clock = clock
        space = quote(namespace, safe="")
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{space}/leases"
        self._path = f"{self._leases}/{quote(name, safe='')}"
        self._attempt = 0
        self._seen: Sighting | None = None
        self._mine: Lease | None = None  # as our last good write left it
        self._woken: Lease | None = None  # as the watch showed it: free
        self._background: set[asyncio.Task[Any]] = set()

    async def ready(self) -> None:
        while True:
            try:
                await self._read(self._timings.retry_period)
                return
            except (Failed, TimeoutError):
                await asyncio.sleep(self._timings.retry_period / 4)

    # -- acquire ---------------------------------------------------------------------------------

    async def acquire(self) -> Acquired:
        self._attempt += 1
        attempt = f"{self._candidate.id}/{self._attempt}"
        try:
            return await self._try(attempt)
        except (Failed, TimeoutError) as wrong:
            return Unavailable(_causes(wrong))

    async def _try(self, attempt: str) -> Acquired:
        budget = Deadline(self._clock.now(), self._timings.renew_deadline)
        lease, self._woken = self._woken, None
        while True:
            lease = lease or await self._read_or_make(budget)
            seen = self._see(lease)
            wait = free_in(seen, self._candidate.id, self._timings.ttl, self._clock.now())
            if wait > 0 and not lease.holder:
                return Unavailable({SERVER: "the Lease is new, and rests"}, retry_in=wait)
            if wait > 0:
                return Held(by=_candidate_of(lease.holder), free_in=wait)
            if lease.request is not None and lease.request.kind == requests.PAUSE:
                return Unavailable({SERVER: "paused by request"})
            token = next_token(lease)
            if token > LARGEST_TOKEN:
                why = f"the token {token} is too large: look at the annotation {TOKEN}"
                return Unavailable({SERVER: why})
            grant = await self._take(lease, attempt, token, budget)
            if grant is not None:
                return grant
            lease = None

    async def _take(
        self, lease: Lease, attempt: str, token: int, budget: Deadline
    ) -> Grant | Unavailable | None:
        """None: somebody was faster; read again."""
        began = self._clock.now()
        body = taken(lease, attempt, token, self._timings.ttl, self._clock.wall())
        grant = self._grant(attempt, token, began)
        held = fate_known = False
        try:
            written = await self._write(body, self._share(budget))
            fate_known = written is None
            if written is None:
                return None
            if grant.deadline.passed(self._clock.now()):
                return Unavailable({SERVER: "the answer came too late: the deadline had passed"})
            self._mine, held = written, True
            return grant
        finally:
            # Also when the caller was cancelled. A write that is still on its way may come after
            # it, and costs the others one lease.
            if not held and not fate_known:
                self._spawn(self._give_back(grant))

    async def _read_or_make(self, budget: Deadline) -> Lease:
        while True:
            lease = await self._read(self._share(budget))
            if lease is not None:
                return lease
            body = json.dumps(made(self._namespace, self._name)).encode()
            reply = await self._api.request(
                "POST", self._leases, body, timeout=self._share(budget), keep=True
            )
            if reply.status != 409:
                return Lease.parse(_object(reply))

    # -- renew -----------------------------------------------------------------------------------

    async def renew(self, grant: Grant) -> Renewed:
        if grant.deadline.passed(self._clock.now()):
            return Lost("the deadline had passed before the renewal began")
        try:
            return await self._keep(grant)
        except (Failed, TimeoutError) as wrong:
            return Unknown(_causes(wrong))

    async def _keep(self, grant: Grant) -> Renewed:
        known = self._mine if self._mine is not None and self._mine.holder == grant.id else None
        lease = known
        while True:
            if lease is None:
                lease = await self._read(self._share(grant.deadline))
                if lost := deposed(lease, grant, known):
                    return lost
                assert lease is not None, "deposed() says so"
            began = self._clock.now()
            body = renewed(lease, grant.token, self._timings.ttl, self._clock.wall())
            written = await self._write(body, self._share(grant.deadline))
            if grant.deadline.passed(self._clock.now()):
                return Lost("the deadline passed while the API server answered")
            if written is not None:
                self._mine = written
                return self._grant(grant.id, grant.token, began, written.request)
            lease = None

    # -- release, wake-up, observe ---------------------------------------------------------------

    async def release(self, grant: Grant) -> ReleaseOutcome:
        return await asyncio.shield(self._spawn(self._give_back(grant)))

    async def _give_back(self, grant: Grant) -> ReleaseOutcome:
        budget = Deadline(self._clock.now(), self._timings.retry_period)
        lease = self._mine if self._mine is not None and self._mine.holder == grant.id else None
        try:
            while True:
                lease = lease or await self._read(self._share(budget))
                if lease is None or lease.holder != grant.id:
                    return AlreadyGone()
                body = released(lease, grant.token, self._clock.wall())
                if await self._write(body, self._share(budget)) is not None:
                    self._mine = None
                    return Released()
                lease = None
        except (Failed, TimeoutError) as wrong:
            return Unknown(_causes(wrong))

    async def freed(self) -> None:
        if not await self._hear_of_a_release():
            # The watch could not be had, or ended. A look at once, again and again, would be a
            # busy loop against a server that has trouble.
            await asyncio.sleep(self._timings.retry_period)

    async def _hear_of_a_release(self) -> bool:
        query = f"watch=1&fieldSelector=metadata.name%3D{quote(self._name, safe='')}"
        query += f"&timeoutSeconds={math.ceil(self._timings.ttl) + 1}"
        if self._seen is not None:
            query += f"&resourceVersion={self._seen.lease.version}"
        events = self._api.watch(f"{self._leases}?{query}", timeout=self._timings.retry_period)
        try:
            async with aclosing(events) as listening:  # type: ignore[type-var]
                async for event in listening:
                    if self._is_free(event):
                        return True
        except (Failed, TimeoutError):
            pass
        return False

    def _is_free(self, event: Object) -> bool:
        """Raises Failed for an event that says that the watch is over."""
        if event.get("type") not in ("ADDED", "MODIFIED", "DELETED"):
            raise Failed(f"the watch ended: {event}")
        if event["type"] == "DELETED":
            return True
        lease = Lease.parse(event.get("object") or {})
        self._see(lease)
        if not lease.holder:
            self._woken = lease  # one round trip less: it is taken as it was shown, or not at all
        return not lease.holder

    async def observe(self) -> Observation:
        try:
            lease = await self._read(self._timings.retry_period)
        except (Failed, TimeoutError) as wrong:
            return Observation(holder=None, token=0, left=0.0, nodes=_causes(wrong))
        if lease is None:
            return Observation(holder=None, token=0, left=0.0, nodes={SERVER: "no such Lease"})
        left = free_in(self._see(lease), None, self._timings.ttl, self._clock.now())
        said = f"held by {lease.holder}" if lease.holder else "free"
        return Observation(
            holder=lease.holder or None,
            token=lease.token,
            left=max(left, 0.0),
            nodes={SERVER: f"{said}, version {lease.version}"},
        )

    async def close(self) -> None:
        """What is being taken back is bounded, and waited for."""
        await asyncio.gather(*self._background, return_exceptions=True)
        self._api.close()

    # -- shared ----------------------------------------------------------------------------------

    def _see(self, lease: Lease) -> Sighting:
        self._seen = see(self._seen, lease, self._clock.now())
        return self._seen

    async def _read(self, timeout: float) -> Lease | None:
        """None: there is none."""
        reply = await self._api.request("GET", self._path, timeout=timeout, keep=True)
        return None if reply.status == 404 else Lease.parse(_object(reply))

    async def _write(self, obj: Object, timeout: float) -> Lease | None:
        """Replaces exactly the version that `obj` was made from; none: it is not there any more.

        The uid stands in it, too: without one, a PUT makes a Lease that was deleted.
        """
        body = json.dumps(obj, separators=(",", ":")).encode()
        reply = await self._api.request("PUT", self._path, body, timeout=timeout, keep=True)
        return None if reply.status in (404, 409) else Lease.parse(_object(reply))

    def _share(self, budget: Deadline) -> float:
        left = budget.left(self._clock.now())
        if left <= 0:
            raise TimeoutError
        return left / 2

    def _grant(self, id_: str, token: int, began: Instant, request: Request | None = None) -> Grant:
        return Grant(
            lock=f"{self._namespace}/{self._name}",
            id=id_,
            token=token,
            deadline=Deadline(began, self._timings.renew_deadline),
            lease_end=Deadline(began, self._timings.lease_end),
            request=request,
        )

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def _object(reply: Reply) -> Object:
    if reply.status >= 300:
        raise Failed(f"{reply.status} {reply.message}".strip())
    return reply.object


def _causes(wrong: Exception) -> Causes:
    return {SERVER: "no answer in time" if isinstance(wrong, TimeoutError) else str(wrong)}


def _candidate_of(holder: str) -> str:
    """Our own ids end with the number of the attempt; those of client-go are as they are."""
    parts = holder.split("/")
    ours = len(parts) == 4 and parts[3].isdigit()
    return holder.rpartition("/")[0] if ours else holder
