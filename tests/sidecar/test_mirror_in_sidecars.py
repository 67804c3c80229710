"""The mirror with the whole sidecar: who writes, and what a bad API server cannot hold up."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from leasekeeper_sidecar.host import Proc
from servers import wait_until

from tests.sidecar.fake_api import FakeApi, serving

if TYPE_CHECKING:
    from tests.sidecar.conftest import Cast, Pod


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[FakeApi]:
    async with serving(tmp_path) as api:
        yield api


def with_mirror(pod: Pod, api: FakeApi) -> Pod:
    pod.environment |= {
        "LEASEKEEPER_MIRROR": "kubernetes",
        "LEASEKEEPER_ACCOUNT_DIR": str(api.account),
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(api.port),
    }
    return pod.start()


async def test_the_holder_and_nobody_else_writes_the_status(api: FakeApi, cast: Cast) -> None:
    api.lock = cast.lock
    cast.be_patient()
    for pod in cast.make(3):
        with_mirror(pod, api)
    first = await asyncio.to_thread(cast.leader)
    await asyncio.to_thread(first.wait_renewed)
    await asyncio.to_thread(wait_until, lambda: api.requests, "the first patch")
    token = first.verdict().token
    assert [r["body"]["status"]["token"] for r in api.requests] == [token], "not on each renewal"
    assert api.status["holder"] == first.name
    first.send(signal.SIGTERM)
    second = await asyncio.to_thread(cast.leader, first)
    assert await asyncio.to_thread(first.wait) == 0
    await asyncio.to_thread(
        wait_until, lambda: api.status["token"] == second.verdict().token > token, "the next holder"
    )


async def test_an_ill_app_leaves_no_name_in_the_status(
    api: FakeApi, cast: Cast, tmp_path: Path
) -> None:
    well = tmp_path / "well"
    well.touch()
    cast.be_patient()
    api.lock = cast.lock
    (pod,) = cast.make(1)
    health = {"HEALTH": str(well), "HEALTH_PERIOD": "0.1"}
    pod.environment |= {f"LEASEKEEPER_{key}": value for key, value in health.items()}
    with_mirror(pod, api)
    await asyncio.to_thread(wait_until, lambda: api.status.get("holder") == pod.name, "the holder")
    token = api.status["token"]
    well.unlink()
    await asyncio.to_thread(wait_until, lambda: api.status["holder"] == "", "nobody's name")
    assert api.status["token"] == token
    assert pod.running


async def test_an_api_that_never_answers_holds_up_no_renewal_and_no_release(
    api: FakeApi, cast: Cast
) -> None:
    """Known bug 36. It is silent from the start: the leader is renewed all the same, and a stop
    hands over before the deadline, though the last word is never answered.
    """
    cast.be_patient()
    api.lock, api.answers = cast.lock, [0] * 50
    for pod in cast.make(2):
        with_mirror(pod, api)
    first = await asyncio.to_thread(cast.leader)
    token = first.verdict().token
    await asyncio.to_thread(first.wait_renewed, 5)
    assert first.verdict().token == token
    assert api.requests
    deadline_cs = first.said()["deadlineCs"]
    first.send(signal.SIGTERM)
    second = await asyncio.to_thread(cast.leader, first)
    assert Proc().uptime_cs() < deadline_cs
    assert await asyncio.to_thread(first.wait) == 0
    assert second.leads
