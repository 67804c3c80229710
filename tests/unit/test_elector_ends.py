"""Ends that come from this side: a candidate that withdraws, and a stop that waits for the app."""

from __future__ import annotations

import asyncio

import pytest
from elector_bench import NO_QUORUM, TIMINGS, Bench, in_virtual_time, say

from leasekeeper.lease import Acquired, Held, Observation


@in_virtual_time
async def test_a_holder_that_withdraws_gives_the_lease_back_after_the_apps_time_to_stop() -> None:
    bench = Bench()
    bench.start()
    await bench.until("renew", 2)
    bench.elector.withdraw("the app is ill")
    await bench.until("release")
    assert bench.listener.reasons == ["withdrew: the app is ill"]
    told, gave_back = bench.store.times("not leading")[0], bench.store.times("release")[0]
    assert gave_back - told == pytest.approx(TIMINGS.time_to_stop, abs=0.002)
    await bench.stop()


@in_virtual_time
async def test_whoever_withdrew_stays_out_looks_on_and_comes_back_when_it_may() -> None:
    bench = Bench()
    bench.start()
    await bench.until("leading")
    bench.elector.withdraw("the app is ill")
    await bench.until("observe", 20)
    assert len(bench.store.times("acquire")) == 1
    assert bench.store.times("standing by: somebody/u/n/1")
    assert bench.elector.overdue(bench.clock.now()) <= 0, "that is no illness of the sidecar"
    bench.elector.rejoin()
    now = asyncio.get_running_loop().time()
    await bench.until("leading", 2)
    assert bench.store.times("acquire")[1] == pytest.approx(now, abs=0.01), "at once"
    await bench.stop()


@in_virtual_time
async def test_whoever_withdraws_at_every_look_at_its_app_still_sees_who_leads() -> None:
    """A look at the nodes may take longer than the time between two looks at the app."""
    bench = Bench()

    async def slow() -> Observation:
        await asyncio.sleep(1)
        return Observation("other/u/n/1", 7, 1.0, {})

    bench.store.observe = slow  # type: ignore[method-assign]
    bench.elector.withdraw("the app has not been well yet")
    bench.start()
    for _ in range(100):
        await asyncio.sleep(0.1)
        bench.elector.withdraw("the app is ill")
    assert bench.store.times("standing by: other/u/n/1")
    assert not bench.store.times("acquire")
    await bench.stop()


@in_virtual_time
async def test_a_waiting_candidate_that_withdraws_is_out_of_the_race_at_once() -> None:
    bench = Bench()
    bench.store.on_acquire = say(Held("other/u/n", 10.0))
    bench.start()
    await bench.until("acquire")
    await asyncio.sleep(0.1)
    bench.elector.withdraw("the app is ill")
    bench.store.free.set()
    await bench.until("observe", 3)
    assert len(bench.store.times("acquire")) == 1
    await bench.stop()


@in_virtual_time
async def test_a_stop_waits_for_the_app_before_the_lease_is_given_back() -> None:
    ended = asyncio.Event()

    async def drain() -> None:
        bench.store.note("drain")
        await ended.wait()

    bench = Bench(drain=drain)
    bench.start()
    await bench.until("leading")
    bench.elector.stop()
    await bench.until("drain")
    await asyncio.sleep(1)
    assert bench.store.times("release") == []
    ended.set()
    await bench.task
    entries = [what for _, what in bench.store.log]
    assert entries[-4:] == ["not leading", "drain", "release", "released"]


@in_virtual_time
async def test_an_app_that_does_not_stop_is_waited_for_until_the_lease_ends_and_no_longer() -> None:
    bench = Bench(drain=asyncio.Event().wait)  # type: ignore[arg-type]
    bench.start()
    await bench.until("renew", 3)
    last = bench.store.times("renew")[-1]
    await bench.stop()
    assert bench.store.times("release") == [pytest.approx(last + TIMINGS.lease_end, abs=0.01)]


@in_virtual_time
async def test_a_stop_in_the_time_that_the_app_has_to_stop_waits_for_the_app_too() -> None:
    """A withdrawal gave the app its time; the stop must not take it away again."""
    ended = asyncio.Event()

    async def drain() -> None:
        await ended.wait()

    bench = Bench(drain=drain)
    bench.start()
    await bench.until("leading")
    bench.elector.withdraw("the app is ill")
    await bench.until("not leading")
    bench.elector.stop()
    await asyncio.sleep(1)
    assert bench.store.times("release") == []
    ended.set()
    await bench.task
    assert len(bench.store.times("released")) == 1


@in_virtual_time
async def test_a_withdrawal_while_nobody_answers_ends_the_tenure_at_once() -> None:
    bench = Bench()
    bench.start()
    await bench.until("leading")
    bench.store.on_renew = say(NO_QUORUM)
    await bench.until("renew", 3)
    bench.elector.withdraw("the app is ill")
    await bench.until("not leading")
    assert bench.listener.reasons == ["withdrew: the app is ill"]
    await bench.stop()


@in_virtual_time
async def test_an_app_that_does_not_stop_leaves_the_lock_delay_to_run() -> None:
    """It is what the delay is for: work that is still under way when the lease has ended."""
    bench = Bench(drain=asyncio.Event().wait, lock_delay=5)  # type: ignore[arg-type]
    bench.start()
    await bench.until("renew", 3)
    await bench.stop()
    assert bench.store.times("release") == []


@in_virtual_time
async def test_a_drain_that_gives_up_is_no_word_that_the_app_has_stopped() -> None:
    async def drain() -> None:
        raise TimeoutError("the app does not answer")

    bench = Bench(drain=drain)
    bench.start()
    await bench.until("leading")
    bench.elector.stop()
    with pytest.raises(TimeoutError):
        await bench.task
    assert bench.store.times("release") == []


@in_virtual_time
async def test_whoever_withdraws_in_the_turn_of_its_grant_does_not_lead() -> None:
    bench = Bench()

    async def granted_and_ill() -> Acquired:
        granted = await bench.store.grant()
        bench.elector.withdraw("the app is ill")
        return granted

    bench.store.on_acquire = granted_and_ill
    bench.start()
    await bench.until("release")
    assert bench.store.times("leading") == []
    await bench.stop()
