"""What the status says when a lock is given back, and when the process ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from leasekeeper_sidecar import mirror

from leasekeeper.kubernetes import api as kube_api
from tests.sidecar.fake_api import PATIENCE, FakeApi, bench, serving


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[FakeApi]:
    async with serving(tmp_path) as api:
        yield api


async def test_a_farewell_leaves_the_token_and_takes_the_holder_away(api: FakeApi) -> None:
    async with bench(api) as at:
        at.lead(7)
        await at.until("ok")
        at.mirror.tenure(None)
        await at.mirror.farewell()
    assert api.status["holder"] == ""
    assert api.status["token"] == 7


async def test_a_successor_speaks_before_a_farewell(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody who looks at the status sees it without a holder in between."""
    monkeypatch.setattr(mirror, "SUCCESSOR_FIRST", PATIENCE)
    async with bench(api) as at, bench(api) as successor:
        at.lead(7)
        await at.until("ok")
        at.mirror.tenure(None)
        farewell = asyncio.create_task(at.mirror.farewell())
        successor.lead(8, "orders-1")
        await successor.until("ok")
        monkeypatch.undo()
        farewell.cancel()
        await at.mirror.farewell()
    assert [request["body"]["status"]["token"] for request in api.requests] == [7, 8, 7]
    assert (api.status["holder"], api.status["token"]) == ("orders-1", 8)
    assert at.counters.mirror["farewell-refused"] == 1


async def test_a_farewell_does_not_wait_for_a_silent_server(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "LAST_WORD", 0.2)
    async with bench(api) as at:
        at.lead(7)
        await at.until("ok")
        api.answers = [0]
        began = asyncio.get_running_loop().time()
        await at.mirror.farewell()
        assert asyncio.get_running_loop().time() - began < kube_api.PATIENCE / 2


async def test_a_lock_that_was_given_back_names_nobody_though_the_process_goes_on(
    api: FakeApi,
) -> None:
    """Under a pause nobody else comes to say so. An API server that is down is tried again."""
    async with bench(api) as at:
        at.lead(7)
        await at.until("ok")
        api.answers = [503]
        at.mirror.tenure(None)
        at.mirror.released()
        await at.until("farewell-ok")
        assert (api.status["holder"], api.status["token"]) == ("", 7)
        await at.mirror.farewell()
    assert len(api.requests) == 3, "what was said is not said again at the end"
    assert at.counters.mirror == {"ok": 1, "farewell-server-error": 1, "farewell-ok": 1}


async def test_who_leads_again_at_once_is_not_taken_out(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "SUCCESSOR_FIRST", PATIENCE)
    async with bench(api) as at:
        at.lead(7)
        await at.until("ok")
        at.mirror.tenure(None)
        at.mirror.released()
        await asyncio.sleep(0.05)
        at.lead(8)
        await at.until("ok", 2)
    assert [r["body"]["status"]["holder"] for r in api.requests] == ["orders-0", "orders-0"]


async def test_a_successor_that_was_faster_is_no_reason_to_look_or_to_try_again(
    api: FakeApi, capfd: pytest.CaptureFixture[str]
) -> None:
    async with bench(api) as at, bench(api) as successor:
        at.lead(7)
        await at.until("ok")
        at.mirror.tenure(None)
        at.mirror.released()
        successor.lead(8, "orders-1")
        await at.until("farewell-refused")
        await asyncio.sleep(0.1)
        assert not at.mirror.pending
    assert (api.status["holder"], api.status["token"]) == ("orders-1", 8)
    assert len(api.requests) == 3
    assert not at.looks
    assert "not-mirrored" not in capfd.readouterr().err


async def test_a_stop_says_farewell_once_though_the_release_wished_it_already(
    api: FakeApi,
) -> None:
    async with bench(api) as at:
        at.lead(7)
        await at.until("ok")
        at.mirror.tenure(None)
        at.mirror.released()
        await at.mirror.farewell()
        await asyncio.sleep(2 * mirror.SUCCESSOR_FIRST)
    assert [r["body"]["status"]["holder"] for r in api.requests] == ["orders-0", ""]


async def test_who_never_led_says_no_farewell(api: FakeApi) -> None:
    async with bench(api) as at:
        at.mirror.released()
        await at.mirror.farewell()
    assert not api.requests
