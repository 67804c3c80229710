"""The candidate's state machine in virtual time: every transition, every way its loop can end."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from elector_bench import (
    FIRST_RENEWAL,
    NO_LEASE,
    NO_QUORUM,
    TIMINGS,
    Bench,
    in_virtual_time,
    say,
)
from virtual_time import run

from leasekeeper.lease import (
    Acquired,
    Grant,
    Held,
    Lost,
    Renewed,
    Request,
    Unavailable,
)
from leasekeeper.tenure import State


@in_virtual_time
async def test_a_granted_lock_is_announced_and_renewed_every_period() -> None:
    bench = Bench()
    bench.start()
    await bench.until("renew", 3)
    assert bench.state() == "leading"
    assert bench.store.times("renew") == [0.5, 2.5, 4.5], "the first one soon, to repair"
    await bench.stop()


@in_virtual_time
async def test_a_stop_is_announced_before_the_first_byte_of_the_release() -> None:
    bench = Bench()
    bench.start()
    await bench.until("leading")
    await bench.stop()
    assert [what for _, what in bench.store.log[-3:]] == ["not leading", "release", "released"]
    assert bench.listener.reasons == ["stopped"]


@in_virtual_time
async def test_lost_ends_the_tenure_at_once_and_the_candidate_races_again() -> None:
    """Known bug 28: one loss, and the elector was out of the race for ever."""
    bench = Bench()
    bench.store.on_renew = say(Lost("3 × NOTMINE other/1"))
    bench.start()
    await bench.until("leading", 2)
    assert bench.store.times("not leading") == [FIRST_RENEWAL]
    assert bench.listener.last is not None
    assert bench.listener.last.token == 2
    await bench.stop()


@in_virtual_time
async def test_cannot_tell_ends_the_tenure_at_the_deadline_and_not_before() -> None:
    """Known bug 21: a failed renewal released the lock that a retry could have saved."""
    bench = Bench()
    bench.store.on_renew = say(NO_QUORUM)
    bench.start()
    await bench.until("not leading")
    assert bench.store.times("not leading") == [TIMINGS.renew_deadline]
    assert len(bench.store.times("renew")) > 10, "it tries again within what is left"
    assert "connection refused" in bench.listener.reasons[0]
    assert bench.store.times("release") == [], "what is left of the lease is the app's time to stop"
    await bench.stop()


@in_virtual_time
async def test_a_blip_costs_nothing() -> None:
    bench = Bench()
    bench.store.on_renew = say(NO_QUORUM)
    bench.start()
    await asyncio.sleep(8)
    assert bench.state() == "unsure"
    bench.store.on_renew = bench.store.extend
    await asyncio.sleep(20)
    assert bench.state() == "leading"
    assert bench.store.times("not leading") == []
    await bench.stop()


@in_virtual_time
async def test_a_store_that_never_answers_cannot_keep_the_tenure_alive() -> None:
    """Known bug 3: a renewal without a deadline."""
    bench = Bench()

    async def hang(_: Grant) -> Renewed:
        await asyncio.sleep(10_000)
        raise AssertionError

    bench.store.on_renew = hang
    bench.start()
    await bench.until("not leading")
    assert bench.store.times("not leading") == [TIMINGS.renew_deadline]
    await bench.stop()


@in_virtual_time
async def test_a_renewal_that_was_answered_too_late_does_not_count() -> None:
    """Known bug 1: the process stood still between the vote and now."""
    bench = Bench()

    async def paused(grant: Grant) -> Renewed:
        answer = await bench.store.extend(grant)
        bench.clock.boot_offset += TIMINGS.renew_deadline
        bench.store.on_acquire = say(NO_LEASE)  # so that no new tenure begins
        return answer

    bench.store.on_renew = paused
    bench.start()
    await bench.until("not leading")
    assert bench.store.times("not leading") == [FIRST_RENEWAL]
    assert bench.store.times("leading") == [0.0]
    await bench.stop()


@in_virtual_time
async def test_a_suspend_that_only_the_boot_clock_counts_ends_the_tenure() -> None:
    bench = Bench()
    bench.store.on_renew = say(NO_QUORUM)
    bench.start()
    await bench.until("leading")
    bench.clock.boot_offset += 60
    await bench.until("not leading")
    assert bench.store.times("not leading") == [FIRST_RENEWAL]
    await bench.stop()


@in_virtual_time
async def test_renewal_ends_with_the_tenure() -> None:
    """Known bug 19: the renewal went on after the release, for a week."""
    bench = Bench()
    bench.start()
    await bench.until("leading")
    await bench.stop()
    await asyncio.sleep(1000)
    assert bench.store.times("renew") == []


@in_virtual_time
async def test_a_bug_ends_the_tenure_aloud() -> None:
    """Known bug 20: the renewal died silently on the first error."""
    bench = Bench()

    async def bug(_: Grant) -> Renewed:
        raise ZeroDivisionError

    bench.store.on_renew = bug
    with pytest.raises(ZeroDivisionError):
        await bench.start()
    assert [what for _, what in bench.store.log[-2:]] == ["renew", "not leading"]
    assert bench.listener.reasons == ["ended by an error: ZeroDivisionError()"]
    assert bench.elector.state is State.STOPPED


@in_virtual_time
async def test_what_could_not_be_announced_is_not_given_back() -> None:
    """Others must not start before everybody here has stopped; the lease runs out by itself."""
    bench = Bench()

    def full(why: str) -> None:
        raise OSError("no space left on device")

    bench.listener.not_leading = full  # type: ignore[method-assign]
    bench.start()
    await bench.until("leading")
    bench.elector.stop()
    with pytest.raises(OSError, match="no space"):
        await bench.task
    assert bench.store.times("release") == []


@in_virtual_time
async def test_a_win_that_could_not_be_told_is_taken_back_and_runs_out() -> None:
    """As docs/app-contract.md says of a full volume; the process then ends."""
    bench = Bench()

    def full(grant: Grant) -> None:
        raise OSError("no space left on device")

    bench.listener.leading = full  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no space"):
        await bench.start()
    assert bench.listener.reasons == ["ended by an error: OSError('no space left on device')"]
    assert bench.store.times("release") == []


@in_virtual_time
async def test_release_is_finished_even_when_cancelled() -> None:
    """Known bug 17: clean-up ran on a context that was already cancelled."""
    bench = Bench()
    bench.start()
    await bench.until("leading")
    bench.task.cancel()
    await asyncio.sleep(0)
    bench.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bench.task
    assert len(bench.store.times("released")) == 1


@in_virtual_time
async def test_a_standby_sleeps_until_the_lease_can_end() -> None:
    bench = Bench()
    bench.store.on_acquire = say(Held(by="other", free_in=12.5))
    bench.start()
    await asyncio.sleep(20)
    assert bench.store.times("acquire") == [0.0, 12.5]
    assert bench.elector.overdue(bench.clock.now()) <= 0
    await bench.stop()


@in_virtual_time
async def test_a_release_wakes_the_standby() -> None:
    bench = Bench()
    bench.store.on_acquire = say(Held(by="other", free_in=12.5))
    bench.start()
    await asyncio.sleep(3)
    bench.store.on_acquire = bench.store.grant
    bench.store.free.set()
    await bench.until("leading")
    assert bench.store.times("leading") == [3.0]
    await bench.stop()


@in_virtual_time
async def test_a_lost_wake_up_costs_only_time() -> None:
    """Known bug 25."""
    bench = Bench()
    bench.store.on_acquire = say(Held(by="other", free_in=12.5))
    bench.start()
    await asyncio.sleep(3)
    bench.store.on_acquire = bench.store.grant
    await bench.until("leading")
    assert bench.store.times("leading") == [12.5]
    await bench.stop()


@in_virtual_time
async def test_time_left_that_does_not_fall_is_looked_at_again_but_not_in_a_busy_loop() -> None:
    bench = Bench()
    bench.store.on_acquire = say(Held(by="other", free_in=0.0))
    bench.start()
    await asyncio.sleep(1)
    assert 50 < len(bench.store.times("acquire")) <= 101
    await bench.stop()


@in_virtual_time
async def test_no_quorum_is_tried_again_every_period() -> None:
    bench = Bench()
    bench.store.on_acquire = say(Unavailable({"0": "connection refused"}))
    bench.start()
    await asyncio.sleep(5)
    assert bench.store.times("acquire") == [0.0, 2.0, 4.0]
    await bench.stop()


@in_virtual_time
async def test_a_split_vote_is_tried_again_when_the_store_says() -> None:
    bench = Bench()
    bench.store.on_acquire = say(Unavailable({}, retry_in=0.25))
    bench.start()
    await asyncio.sleep(0.6)
    assert bench.store.times("acquire") == [0.0, 0.25, 0.5]
    await bench.stop()


@pytest.mark.parametrize("state", ["waiting", "acquiring", "renewing"])
def test_a_stop_is_prompt_in_every_state(state: str) -> None:
    """Known bug 31: SIGTERM was ignored while waiting for the lock."""

    async def hang(*_: Any) -> Any:
        await asyncio.sleep(10_000)

    async def scenario() -> None:
        bench = Bench()
        if state == "waiting":
            bench.store.on_acquire = say(Held(by="other", free_in=12.5))
        if state == "acquiring":
            bench.store.on_acquire = hang
        bench.store.on_renew = hang
        bench.start()
        await asyncio.sleep(5)
        before = asyncio.get_running_loop().time()
        await bench.stop()
        assert asyncio.get_running_loop().time() - before < 0.1

    run(scenario())


@in_virtual_time
async def test_a_lease_from_before_a_crash_goes_on_with_its_token() -> None:
    bench = Bench(resume=True)
    bench.start()
    await bench.until("leading")
    assert bench.listener.last is not None
    assert (bench.listener.last.token, bench.listener.last.id) == (41, "before the crash")
    assert bench.store.times("acquire") == []
    await bench.stop()


@in_virtual_time
async def test_a_lease_from_before_a_crash_is_not_announced_before_a_quorum_agreed() -> None:
    bench = Bench(resume=True)
    bench.store.on_renew = say(NO_QUORUM)
    bench.store.on_acquire = say(NO_LEASE)
    bench.start()
    await bench.until("not leading")
    assert bench.store.times("leading") == []
    assert bench.store.times("not leading") == [TIMINGS.renew_deadline]
    await bench.until("acquire")
    await bench.stop()


@in_virtual_time
async def test_step_down_by_request_gives_the_others_a_chance() -> None:
    bench = Bench()

    async def asked(grant: Grant) -> Renewed:
        request = Request(7, "step-down", grant.id)
        return replace(await bench.store.extend(grant), request=request)

    bench.store.on_renew = asked
    bench.start()
    await bench.until("acquire", 2)
    told, gave_up = bench.store.times("not leading")[0], bench.store.times("release")[0]
    assert gave_up - told == pytest.approx(TIMINGS.time_to_stop, abs=0.002), "the app stops first"
    assert bench.store.times("acquire")[1] - gave_up >= TIMINGS.retry_period
    await bench.stop()


@in_virtual_time
async def test_a_step_down_for_a_minute_lasts_a_minute_and_is_no_illness_nor_blindness() -> None:
    bench = Bench()

    async def asked(grant: Grant) -> Renewed:
        request = Request(7, "step-down", grant.id, seconds=60)
        return replace(await bench.store.extend(grant), request=request)

    bench.store.on_renew = asked
    bench.start()
    await bench.until("release")
    await asyncio.sleep(30)
    assert bench.elector.overdue(bench.clock.now()) <= 0
    assert len(bench.store.times("standing by: somebody/u/n/1")) > 10, "not blind meanwhile"
    await bench.until("acquire", 2)
    assert 60 <= bench.store.times("acquire")[1] - bench.store.times("release")[0] < 60.1
    await bench.stop()


@in_virtual_time
async def test_a_request_to_somebody_else_is_not_mine() -> None:
    bench = Bench()

    async def asked(grant: Grant) -> Renewed:
        request = Request(7, "step-down", "an earlier tenure")
        return replace(await bench.store.extend(grant), request=request)

    bench.store.on_renew = asked
    bench.start()
    await bench.until("renew", 5)
    assert bench.store.times("not leading") == []
    await bench.stop()


@in_virtual_time
async def test_a_loop_that_stands_still_is_overdue() -> None:
    """Known bug 28: healthy, and out of the race."""
    bench = Bench()
    bench.start()
    await bench.until("leading")
    assert bench.elector.overdue(bench.clock.now()) <= 0
    bench.clock.boot_offset += 3
    assert bench.elector.overdue(bench.clock.now()) > 0
    await bench.stop()


@in_virtual_time
async def test_a_grant_that_comes_in_the_turn_of_a_cancellation_is_given_back() -> None:
    """Known bug 22: every way out of an attempt that is not a lease releases everywhere."""
    bench = Bench()

    async def granted_and_cancelled() -> Acquired:
        bench.task.cancel()
        return await bench.store.grant()

    bench.store.on_acquire = granted_and_cancelled
    with pytest.raises(asyncio.CancelledError):
        await bench.start()
    assert len(bench.store.times("released")) == 1
