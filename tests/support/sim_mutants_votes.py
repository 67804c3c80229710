"""Mutants of votes, attempts, deadlines and the order on the disk (protocol §3, §4, §9)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sim_candidate import LeaderFile, Seat, WatchedStore
from sim_mutant import Mutant, Part, Text
from sim_world import LONGER

from leasekeeper import elector
from leasekeeper.clock import Deadline, Instant
from leasekeeper.elector import Elector
from leasekeeper.lease import Grant, ReleaseOutcome, Unknown
from leasekeeper.redlock import functions, quorum
from leasekeeper.redlock.store import RedlockStore
from leasekeeper.tenure import Continue, End, State, after_renewal

VOTE = functions.VOTE

# Nodes are early, messages are late: tokens must hold without any clock.
WILD = replace(
    LONGER,
    nodes=(3,),
    wild=1.0,
    late=1.0,
    faults=(20, 60),
    weights={
        "early": 16,
        "storm": 3,
        "reset": 3,
        "pause_server": 2,
        "pause_candidate": 3,
        "stop_candidate": 2,
        "step_down": 2,
        "kill_candidate": 2,
        "cut": 2,
    },
)
REPAIRED = replace(
    WILD,
    late=0.0,
    moments=("renew",),
    seconds=(4.0, 8.0),
    faults=(4, 8),
    weights={"late_repair": 1},
)
# Slow votes, and deadlines that are as late as they may be.
SLOW = replace(
    LONGER,
    nodes=(3,),
    wild=0.0,
    late=1.0,
    tight=1.0,
    caps=(0.02, 0.1),
    faults=(8, 24),
    weights={
        "storm": 6,
        "pause_candidate": 4,
        "suspend_candidate": 4,
        "cut": 2,
        "kill_candidate": 3,
    },
)
LATE_WINNER = replace(
    SLOW,
    caps=(0.02,),
    late=0.0,
    faults=(1, 4),
    moments=("renew",),
    weights={"slow_then_dead": 1},
)
SUSPENDED = replace(
    SLOW, moments=("renew", "acquire"), weights={"long_suspend": 6, "storm": 3, "cut": 1}
)
# The holder comes and goes, and messages of its former self arrive late.
COMING_AND_GOING = replace(
    LONGER,
    nodes=(3,),
    wild=0.0,
    late=1.0,
    tight=1.0,
    faults=(6, 20),
    weights={
        "stop_candidate": 5,
        "kill_candidate": 5,
        "step_down": 3,
        "storm": 3,
        "reset": 5,
        "cut": 2,
        "pause_server": 3,
    },
)
# One story, and sometimes a fault that gets in its way.
SCENE = replace(
    LONGER,
    nodes=(3,),
    candidates=(3,),
    leases=(1.0,),
    caps=(0.02, 0.1),
    wild=0.0,
    tight=1.0,
    late=0.0,
    seconds=(6.0, 6.0),
    faults=(0, 1),
    weights={"reset": 1, "kill_agent": 1, "pause_candidate": 1, "wall_step": 1},
)
WILD_SCENE = replace(SCENE, wild=1.0)
ROLLING = replace(LONGER, wild=0.0, weights={"crash": 3, "flush": 2, "pause_agent": 1, "cut": 1})

_HIGH_IN_RENEW = """  if lock.fence > token then
    return reply(node, 'HIGH', int(lock.fence))
  end
  if lock.owner == id then
    keep(key, node, id, ttl, token)"""
_MISSING_IN_RENEW = """  if not lock.owner then
    return reply(node, 'MISSING')
  end"""
_HIGH_IN_COMMIT = """  if lock.fence >= token then
    return reply(node, 'HIGH', int(lock.fence))
  end
"""
_OWNER_IN_COMMIT = """  if lock.owner ~= id then
    return reply(node, 'NOTMINE', lock.owner or '')
  end
"""
_GRANTED = "  return reply(node, 'GRANTED', keep(key, node, id, ttl, lock.fence))"
_HELD = "if lock.owner and not older_attempt_of_same(lock.owner, id) then"
_GONE = """  if lock.owner ~= id then
    -- It led without this node. Its turn is over here, too, or it would go before those who wait.
    if tell > 0 then leave(key, (split(id))) end
    return reply(node, 'GONE')
  end"""
_HIGH_IN_ADOPT = """  if lock.fence > token then
    return reply(node, 'HIGH', int(lock.fence))
  end
  keep(key, node, id, ttl, token)
  return reply(node, 'OK')"""

_KEEP_HIGHER = """  if lock.owner == id then
    keep(key, node, id, ttl, math.max(token, lock.fence))"""


def _largest_granted(votes: quorum.Votes, guess: int) -> Any:
    given = votes.with_status("COMMITTED", "GRANTED")
    if len(given) + votes.outstanding < votes.quorum:
        return quorum.Failed()
    if len(given) < votes.quorum:
        return None
    return quorum.Won(max(int(reply.fields[0]) for reply in given))


def _granted_counts_as_committed(votes: quorum.Votes, guess: int) -> Any:
    given = votes.with_status("COMMITTED", "GRANTED")
    if guess and len(given) >= votes.quorum:
        return quorum.Won(guess)
    return _judge_grant(votes, guess)


def _closed_is_a_no(votes: quorum.Votes, nodes: int) -> Any:
    for reply in votes.replies.values():
        if reply.status == "CLOSED":
            object.__setattr__(reply, "status", "MISSING")
    for node, why in list(votes.failures.items()):
        if "not found" in why:
            votes.replies[node] = quorum.Reply("MISSING", (), 10**9, {})
    return _judge_renewal(votes, nodes)


def _majority_of_those_who_answered(votes: quorum.Votes, token: int) -> Any:
    agreed, said = len(votes.with_status("OK")), len(votes.replies)
    return quorum.Won(token) if said and agreed > said // 2 else _judge_commit(votes, token)


def _counted_from_now(
    self: Any, id_: str, token: int, began: Instant, request: Any = None
) -> Grant:
    grant: Grant = _store_grant(self, id_, token, self._clock.now(), request)
    return grant


def _never_passed(self: Any, now: Instant) -> bool:
    return False


def _raw_only(self: Instant, earlier: Instant) -> float:
    return self.raw - earlier.raw


def _say_no_later(self: LeaderFile, why: str) -> None:
    """The file still says yes when the release goes out."""


async def _release_then_say_no(self: WatchedStore, grant: Grant) -> ReleaseOutcome:
    outcome = await self._store.release(grant)
    file = LeaderFile(self._process)
    file.say_no()
    file.erase()
    return outcome


def _say_no_only(self: LeaderFile, why: str) -> None:
    self.say_no()


async def _release_then_erase(self: WatchedStore, grant: Grant) -> ReleaseOutcome:
    outcome = await self._store.release(grant)
    LeaderFile(self._process).erase()
    return outcome


def _give_up_when_unsure(grant: Grant, outcome: Any, *rest: Any) -> Continue | End:
    if isinstance(outcome, Unknown):
        return End("cannot tell")
    return after_renewal(grant, outcome, *rest)


def _give_back_at_once(self: RedlockStore, attempt: str, round_: Any) -> None:
    self._protected = None
    _give_back(self, attempt, round_)


async def _end_silently(self: Elector, grant: Grant, why: str) -> None:
    self.grant = None
    self.state = State.STANDBY


_judge_grant = quorum.judge_grant
_judge_commit = quorum.judge_commit
_judge_renewal = quorum.judge_renewal
_store_grant: Any = RedlockStore._grant
_give_back: Any = RedlockStore._give_back
_ONE_ATTEMPT = property(lambda self: 1, lambda self, value: None)

MUTANTS = [
    Mutant(
        "renew ignores F",
        replace(WILD_SCENE, scene="late_grant"),
        (Text(VOTE, _HIGH_IN_RENEW, _KEEP_HIGHER),),
    ),
    Mutant(
        "repaired node counted, without the F check",
        replace(WILD_SCENE, scene="lost_again"),
        (
            Text(VOTE, _HIGH_IN_RENEW, _KEEP_HIGHER),
            Text(
                VOTE,
                _MISSING_IN_RENEW,
                "if not lock.owner then keep(key, node, id, ttl, math.max(token, lock.fence))"
                " return reply(node, 'OK', '') end",
            ),
        ),
    ),
    Mutant(
        "commit checks the owner only",
        replace(WILD_SCENE, scene="late_commit"),
        (Text(VOTE, _HIGH_IN_COMMIT, ""),),
    ),
    Mutant(
        "increment on grant, take the maximum",
        WILD,
        (
            Text(VOTE, "if lock.fence < guess then", "if false then"),
            Text(VOTE, _GRANTED, _GRANTED.replace("lock.fence", "lock.fence + 1")),
            Part(quorum, "judge_grant", _largest_granted),
        ),
    ),
    Mutant(
        "a guess is committed over the same F",
        replace(WILD_SCENE, scene="called_twice"),
        (Text(VOTE, "if lock.fence < guess then", "if guess > 0 and lock.fence <= guess then"),),
    ),
    Mutant(
        "granted counts as committed",
        replace(WILD_SCENE, scene="called_twice"),
        (Part(quorum, "judge_grant", _granted_counts_as_committed),),
    ),
    Mutant(
        "grant overwrites whoever holds the lock",
        COMING_AND_GOING,
        (Text(VOTE, _HELD, "if false then"),),
    ),
    Mutant(
        "release clears whoever holds the lock",
        replace(SCENE, scene="late_release"),
        (Text(VOTE, _GONE, ""),),
    ),
    Mutant(
        "adopt takes F down",
        REPAIRED,
        (Text(VOTE, _HIGH_IN_ADOPT, _HIGH_IN_ADOPT.split("end\n")[1]),),
    ),
    Mutant(
        "quorum of those who answered",
        SLOW,
        (Part(quorum, "judge_commit", _majority_of_those_who_answered),),
    ),
    Mutant(
        "deadline counted after the quorum",
        LATE_WINNER,
        (Part(RedlockStore, "_grant", _counted_from_now),),
    ),
    Mutant(
        "votes that came too late are counted",
        SLOW,
        (Part(Deadline, "passed", _never_passed),),
    ),
    Mutant("suspend not counted", SUSPENDED, (Part(Instant, "elapsed_since", _raw_only),)),
    Mutant(
        "same id for two attempts",
        COMING_AND_GOING,
        (Part(RedlockStore, "_attempt", _ONE_ATTEMPT, is_there=False),),
    ),
    Mutant("same nonce for two processes", COMING_AND_GOING, (Part(Seat, "fresh_nonces", False),)),
    Mutant(
        "own newer attempt overwritten by an older one",
        replace(SCENE, scene="older_attempt"),
        (
            Text(
                VOTE,
                "owner_candidate == candidate and owner_attempt < attempt",
                "owner_candidate == candidate",
            ),
        ),
    ),
    Mutant(
        "file says no after the release",
        COMING_AND_GOING,
        (
            Part(LeaderFile, "not_leading", _say_no_later),
            Part(WatchedStore, "release", _release_then_say_no),
        ),
    ),
    Mutant(
        "resume state erased after the release",
        replace(SCENE, scene="back_from_the_dead"),
        (
            Part(LeaderFile, "not_leading", _say_no_only),
            Part(WatchedStore, "release", _release_then_erase),
        ),
    ),
    Mutant(
        "new attempt while the old file is still true",
        replace(SCENE, scene="unsure"),
        (
            Part(elector, "after_renewal", _give_up_when_unsure),
            Part(Elector, "_end", _end_silently),
            # Both: an attempt that fails gives nothing back either, while the last lease runs out.
            Part(RedlockStore, "_give_back", _give_back_at_once),
        ),
    ),
    Mutant(
        "an attempt that is broken off ends the time to stop",
        replace(SCENE, scene="broken_off", tight=0.0),
        (Part(RedlockStore, "_give_back", _give_back_at_once),),
    ),
    Mutant(
        "TTL capped instead of refused",
        replace(SCENE, scene="longer_than_the_nodes", long_leases=1.0),
        (
            Text(VOTE, "if ttl and not (ttl > 0 and ttl <= node.max_ttl) then", "if false then"),
            Text(VOTE, "int(node.tick + ttl +", "int(node.tick + math.min(ttl, node.max_ttl) +"),
        ),
    ),
    Mutant("lost on CLOSED", ROLLING, (Part(quorum, "judge_renewal", _closed_is_a_no),)),
]
