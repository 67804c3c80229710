"""What the sidecar says over HTTP: to the app on loopback, to the kubelet and Prometheus on the
pod's address.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping

from leasekeeper_sidecar import metrics
from leasekeeper_sidecar.http import Answer, Route, Stream
from leasekeeper_sidecar.leadership import Leadership

HEARTBEAT = 10.0  # seconds; proxies and clients give up on silent streams after 30 to 60


def local_pages(locks: Mapping[str, Leadership], *, stream_name: str) -> dict[str, Route]:
    """For the app: by the lock's name under `/locks`, and an only lock at the root as well.
    `stream_name` is fresh for every process, so that ids of two differ.
    """

    async def names() -> Answer:
        return Answer(200, json.dumps({"locks": list(locks)}).encode() + b"\n")

    routes: dict[str, Route] = {"/locks": names}
    for name, leadership in locks.items():
        pages = _pages_of(leadership, stream_name)
        routes |= {f"/locks/{name}{path.rstrip('/')}": page for path, page in pages.items()}
        if len(locks) == 1:
            routes |= pages
    return routes


def _pages_of(leadership: Leadership, stream_name: str) -> dict[str, Route]:
    async def name() -> Answer:
        # What users of leader-elector have: {"name": HOLDER}; empty: unknown. With the end of what
        # it says, or how old it is: they do not look at more than the name, others may.
        said = leadership.current().fields()
        more = ("expires", "expiresUnix", "deadlineCs") if said["leader"] else ("seen",)
        answer = {"name": said["holder"], **{key: said[key] for key in more}}
        return Answer(200, json.dumps(answer).encode() + b"\n")

    async def leader() -> Answer:
        claim = leadership.current()
        return Answer(200 if claim.leader else 503, claim.to_json().encode())

    async def events() -> Stream:
        return Stream(_events(leadership, stream_name))

    return {"/": name, "/leader": leader, "/events": events}


async def _events(leadership: Leadership, stream_name: str) -> AsyncIterator[bytes]:
    """Every event is the whole truth with its deadline, so a slow client misses nothing by getting
    only the newest.
    """
    while True:
        version = leadership.version
        data = leadership.current().to_json()
        yield f"id: {stream_name}-{version}\nevent: leader\ndata: {data}\n".encode()
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT):
                    await leadership.change(version)
                break
            except TimeoutError:
                yield b": still here\n\n"


def pod_pages(
    *,
    overdue: Callable[[], float],
    ready: Callable[[], bool],
    patience: float,
    page: Callable[[], bytes],
) -> dict[str, Route]:
    """For the kubelet and Prometheus. Nothing here depends on leadership or on the nodes: a standby
    is healthy and ready, also while no node can be reached. `ready`: it takes part in the election.
    """

    async def healthz() -> Answer:
        late = overdue()
        if late <= patience:
            return Answer(200, b"ok\n", "text/plain")
        return Answer(503, f"the election loop is {late:.1f} s overdue\n".encode(), "text/plain")

    async def readyz() -> Answer:
        if ready():
            return Answer(200, b"ok\n", "text/plain")
        return Answer(503, b"the sidecar has stopped taking part\n", "text/plain")

    async def metrics_() -> Answer:
        return Answer(200, page(), metrics.CONTENT_TYPE)

    return {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics_}
