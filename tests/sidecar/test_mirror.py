"""The mirror against a TLS server of the test's own, which checks every request.

(A real kube-apiserver with the resource's rules is in test_mirror_api.py; the admission policy,
which needs the chart, is in tests/cluster.)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from leasekeeper.kubernetes import api as kube_api
from tests.sidecar.fake_api import PATIENCE, FakeApi, bench, certificate, serving


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[FakeApi]:
    async with serving(tmp_path) as api:
        yield api


async def test_a_new_tenure_is_written_once(api: FakeApi) -> None:
    async with bench(api) as at:
        at.lead(7)
        await at.until("ok")
        await asyncio.sleep(0.1)
    assert api.status == {
        "holder": "orders-0",
        "token": 7,
        "acquireTime": "2025-11-18T01:02:03.456Z",
    }
    assert len(api.requests) == 1
    assert not at.mirror.pending


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (401, "unauthorized"),
        (403, "forbidden"),
        (404, "not-found"),
        (409, "conflict"),
        (429, "throttled"),
        (500, "server-error"),
        (503, "server-error"),
    ],
)
async def test_a_refusal_is_counted_and_tried_again(
    api: FakeApi, status: int, outcome: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Known bug 36: none of them has any effect but a log line, a metric and a later try."""
    api.answers = [status, status]
    async with bench(api) as at:
        at.lead(7)
        await at.until("ok")
    assert at.counters.mirror == {outcome: 2, "ok": 1}
    logged = [line for line in capfd.readouterr().err.splitlines() if "not-mirrored" in line]
    assert len(logged) == 1, "one line for the outcome, not one for each try"
    assert f"outcome={outcome}" in logged[0]
    assert f"the reason for {status}" in logged[0]


def answer(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.mark.parametrize(
    ("raw", "outcome"),
    [
        (answer("307 X", b"", "Location: https://elsewhere.example/"), "rejected"),
        (answer("418 X", b"[7]"), "rejected"),
        (answer("500 X", b"[" * 200_000), "server-error"),
        (answer("500 X", b"\xff\x00" * 1000), "server-error"),
        (answer("200 X", b"x" * 3_000_000), "unreachable"),
        (answer("200 X", b"{}", "X: " + "y" * 1_000_000), "unreachable"),
        (answer("200 X", b"{}")[:-1], "unreachable"),
        (b"HTTP/1.1 100 X\r\n\r\n" * 10 + answer("503 X", b""), "server-error"),
        (b"\x16\x03\x01 rubbish\r\n\r\n", "unreachable"),
        (b"", "unreachable"),
    ],
    ids=lambda it: None if isinstance(it, bytes) else it,
)
async def test_whatever_is_answered_is_an_outcome_and_the_next_try_is_made(
    api: FakeApi, raw: bytes, outcome: str
) -> None:
    """No redirect is followed: the token would go with it."""
    api.raw = [raw]
    async with bench(api) as at:
        at.lead(7)
        await at.until("ok")
    assert at.counters.mirror == {outcome: 1, "ok": 1}


async def test_a_refused_token_is_a_look_at_the_nodes_and_no_further_try(
    api: FakeApi, capfd: pytest.CaptureFixture[str]
) -> None:
    """Only the nodes depose: anybody who may write a status could otherwise depose every leader."""
    api.answers = [422]
    async with bench(api) as at:
        at.lead(7)
        await at.until("refused")
        await asyncio.sleep(0.2)
        assert at.looks == ["looked"]
    assert len(api.requests) == 1
    assert "looked-at-nodes" in capfd.readouterr().err


async def test_a_silent_server_is_given_up_and_tried_again(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_api, "PATIENCE", 0.3)
    api.answers = [0]
    async with bench(api) as at:
        at.lead(7)
        await at.until("ok")
    assert at.counters.mirror == {"timeout": 1, "ok": 1}


async def test_a_server_that_is_down_is_tried_again(api: FakeApi) -> None:
    async with bench(api, port=1) as at:
        at.lead(7)
        await at.until("unreachable", 3)
        assert at.mirror.pending


async def test_a_server_of_another_ca_is_not_spoken_to(api: FakeApi) -> None:
    certificate(api.account)  # what the pod trusts is now another CA than the server's
    async with bench(api) as at:
        at.lead(7)
        await at.until("unreachable", 2)
    assert not api.requests


async def test_telling_the_mirror_never_waits_for_the_api(api: FakeApi) -> None:
    """Known bug 36: with a silent server, a thousand changes of leadership pass in one turn of the
    loop, and only the newest is written afterwards.
    """
    api.answers = [0]
    async with bench(api) as at:
        at.lead(1)
        async with asyncio.timeout(PATIENCE):
            while not api.requests:
                await asyncio.sleep(0.01)
        for token in range(2, 1000):
            at.mirror.tenure(None)
            at.lead(token)
        assert len(api.requests) == 1


async def test_changes_are_coalesced_to_the_newest(api: FakeApi) -> None:
    api.answers = [503]
    async with bench(api) as at:
        at.lead(7)
        await at.until("server-error")
        at.mirror.tenure(None)
        at.lead(9)
        await at.until("ok")
    assert [r["body"]["status"]["token"] for r in api.requests] == [7, 9]


async def test_a_tenure_that_is_over_is_no_longer_tried(api: FakeApi) -> None:
    api.answers = [503] * 50
    async with bench(api) as at:
        at.lead(7)
        await at.until("server-error")
        at.mirror.tenure(None)
        await asyncio.sleep(0.1)
        tried = len(api.requests)
        await asyncio.sleep(0.3)
        assert len(api.requests) == tried
        assert not at.mirror.pending


async def test_a_rotated_token_is_used_at_once(api: FakeApi) -> None:
    async with bench(api) as at:
        at.lead(7)
        await at.until("ok")
        (api.account / "token").write_text("token-2\n")
        at.lead(8)
        await at.until("ok", 2)
    assert [r["authorization"] for r in api.requests] == ["Bearer token-1", "Bearer token-2"]
