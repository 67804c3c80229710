"""The Redlock store: acquire, renew and release over the nodes of an ensemble.

Safety rests on four things, each in one place here:

- the deadline counts from *before* the first byte of the round whose votes count (`begin`);
- it is checked again *after* the last vote that counts, on acquire and on renew;
- every attempt has an id of its own, so that a late message of an older one changes nothing;
- every way out of an attempt that is not a lease gives the entries back on all nodes.

A newer list of nodes (`following.py`) is gone over to between two rounds, never within one: votes
of two lists are not counted together.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

from leasekeeper.clock import Clock, Deadline, Instant
from leasekeeper.lease import (
    Acquired,
    AlreadyGone,
    Candidate,
    ConfigurationError,
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
from leasekeeper.redlock import quorum as q
from leasekeeper.redlock import requests
from leasekeeper.redlock.connections import StoreLinks, own_links
from leasekeeper.redlock.following import Following
from leasekeeper.redlock.gate import SHORTEST_PATIENCE, gate_order, pass_the_gate
from leasekeeper.redlock.membership import Membership
from leasekeeper.redlock.tls import Tls
from leasekeeper.redlock.transport import Answer, Failure, MakeLinks, Password, ignore
from leasekeeper.redlock.waiting import CALLERS, COURTESY, SUBSTITUTES, Chance, Waiting

_Verdict = q.Won | q.Elevate | q.Failed
OnRenewal = Callable[[str, bool, float], None]

FIRST_BACKOFF = 0.005  # after a split vote: about five round trips within a data centre


class RedlockStore:
    """A `LeaseStore` for one lock and one candidate."""

    def __init__(
        self,
        *,
        membership: Membership,
        lock: str,
        candidate: Candidate,
        timings: Timings,
        clock: Clock,
        username: str = "",
        password: Password = "",
        tls: Tls | None = None,
        links: MakeLinks | None = None,
    ) -> None:
        if timings.ttl > membership.max_ttl:
            raise ConfigurationError(
                f"leaseDurationSeconds + lockDelaySeconds ({timings.ttl:g}) is more than the nodes"
                f" of this ensemble keep ({membership.max_ttl:g}): shorten the lease, or use an"
                " ensemble with a larger longestLeaseSeconds"
            )
        self._lock = lock
        self._candidate = candidate
        self._timings = timings
        self._clock = clock
        self._key = f"lk:lock:{lock}"
        self._ttl = str(round(timings.ttl * q.MICROSECONDS))
        self._attempt = 0
        self._splits = 0
        self._trying = False  # an attempt is under way, by the list that it began with
        self._in_a_crowd = False  # others may wait for the lock as we do
        self._lost_at_gate = False
        self._protected: Deadline | None = None  # until when our last lease is, if it ran out
        self._current: str | None = None  # the id of the lease that is held, for repairs only
        self._successor: str | None = None  # who was called when we gave the lock back
        self._waiting = Waiting("", SHORTEST_PATIENCE)
        self._was_ready = False
        self.on_renewal: OnRenewal | None = None
        """Told of each node's answer to a renewal, for measuring: the node, whether it said yes,
        and after how many seconds. Must be quick.
        """
        make_links = links or own_links(
            username=username, password=password, patience=timings.retry_period, tls=tls
        )
        self._all_links = StoreLinks(
            make_links, f"lk:freed:{lock}/{candidate.id}", self._waiting.on_push
        )
        self._go_by(membership)

    @property
    def membership(self) -> Membership:
        """The list that it goes by now."""
        return self._membership

    def _go_by(self, membership: Membership) -> None:
        """A round that is under way keeps the links and the epoch that it began with."""
        self._membership = membership
        self._epoch = membership.epoch
        self._following = Following(membership)
        self._gate = gate_order(self._lock, (node.id for node in membership.nodes))
        self._waiting.first_node = self._gate[0]
        self._links = self._all_links.to(membership.nodes)

    def _follow(self) -> None:
        """To a newer list, if enough nodes have said so."""
        newer = self._following.confirmed()
        if newer is not None:
            self._go_by(newer)

    @property
    def quorum(self) -> int:
        return self._membership.quorum

    async def ready(self) -> None:
        if self._was_ready:
            return
        waits = [asyncio.ensure_future(link.up()) for link in self._links.values()]
        try:
            for count, first in enumerate(asyncio.as_completed(waits), start=1):
                await first
                if count == self._membership.quorum:
                    self._was_ready = True
                    return
        finally:
            for wait in waits:
                wait.cancel()

    # -- acquire ---------------------------------------------------------------------------------

    async def acquire(self) -> Acquired:
        self._follow()
        self._attempt += 1
        attempt = f"{self._candidate.id}/{self._attempt}"
        if self._successor is not None:
            return self._queue_up(attempt)
        chance = self._waiting.begin()
        guess = 0 if chance.free_at is None else chance.free_at + 1
        began = self._clock.now()
        round_: q.Round[_Verdict] = self._round(
            ("lk1_grant", attempt, self._ttl, str(guess)),
            lambda v: q.judge_grant(v, guess),
            late=lambda node, answer: self._following.hear_late(round_.votes, node, answer),
        )
        granted = False
        self._trying = True
        try:
            outcome = await self._attempt_to_win(attempt, round_, began, chance)
            granted = isinstance(outcome, Grant)
            return outcome
        finally:
            self._trying = False
            # Also when the caller was cancelled: a write to a connection needs no waiting.
            if not granted:
                self._following.hear(round_.votes)
                self._in_a_crowd = True
                self._give_back(attempt, round_)

    def _queue_up(self, attempt: str) -> Held:
        """We gave the lock back and somebody was called: behind those who wait, not before them."""
        successor, self._successor = self._successor or "", None
        self._in_a_crowd = True
        self._waiting.forget()
        for link in self._links.values():
            link.call(self._command(("lk1_wait", attempt)), ignore)
        return Held(by=successor, free_in=COURTESY)

    def _give_back(self, attempt: str, round_: q.Round[_Verdict]) -> None:
        """Wherever the attempt may have left something: where no answer came, too. Not while our
        last lease runs out: the attempt took over its entries, which are the app's time to stop.
        """
        if self._protected is not None and not self._protected.passed(self._clock.now()):
            return
        for node in round_.asked:
            reply = round_.votes.replies.get(node)
            if reply is None or reply.status not in ("HELD", "PAUSED"):
                self._links[node].call(self._command(("lk1_release", attempt, "0")), ignore)

    async def _attempt_to_win(
        self, attempt: str, round_: q.Round[_Verdict], began: Instant, chance: Chance
    ) -> Acquired:
        budget = Deadline(began, self._timings.renew_deadline)
        if chance.free_nodes:
            verdict = await self._follow_the_release(round_, chance.free_nodes, budget)
        else:
            # Whoever lost at the gate looks at all nodes the next time, if no call comes: the gate
            # may be wrong about the holder, the quorum is not.
            by_the_gate = self._in_a_crowd and (chance.woken or not self._lost_at_gate)
            patience = self._waiting.patience
            if by_the_gate and not await pass_the_gate(round_, self._gate, patience):
                return self._lost_the_gate(round_.votes)
            round_.ask_the_rest()
            verdict = await round_.decision(budget.left(self._clock.now()))
        self._lost_at_gate = False
        votes = round_.votes
        if isinstance(verdict, q.Elevate):
            token = verdict.token
            second: q.Round[_Verdict] = self._round(
                ("lk1_commit", attempt, str(token), self._ttl), lambda v: q.judge_commit(v, token)
            )
            second.ask_the_rest()
            verdict = await second.decision(budget.left(self._clock.now()))
            votes = second.votes
        if not isinstance(verdict, q.Won) or verdict.token >= q.LARGEST_TOKEN:
            return self._not_won(votes)
        grant = self._grant(attempt, verdict.token, began)
        if grant.deadline.passed(self._clock.now()):
            return Unavailable({"candidate": "the votes came too late: the deadline had passed"})
        self._splits = 0
        self._in_a_crowd = False
        self._current = attempt
        self._protected = Deadline(began, self._timings.ttl)
        self._waiting.won(grant.token)
        return grant

    async def _follow_the_release(
        self, round_: q.Round[_Verdict], free_nodes: tuple[str, ...], budget: Deadline
    ) -> _Verdict | None:
        """Asks each node as it becomes free: before, it would say no. Those from which nothing is
        heard are asked after a moment.
        """
        moment = self._waiting.patience / 3  # a release goes out to all nodes at the same time
        patience = asyncio.get_running_loop().call_later(moment, round_.ask_the_rest)
        self._waiting.follow = round_.ask
        try:
            round_.ask(*free_nodes)
            verdict = await round_.decision(budget.left(self._clock.now()))
        finally:
            self._waiting.follow = None
            patience.cancel()
        if isinstance(verdict, q.Won | q.Elevate):
            round_.ask_the_rest()  # so that the lease stands on all nodes
        return verdict

    def _lost_the_gate(self, votes: q.Votes) -> Acquired:
        self._lost_at_gate = True
        outcome = self._not_won(votes)
        if isinstance(outcome, Held):
            return replace(outcome, free_in=min(outcome.free_in, self._timings.retry_period))
        return outcome

    def _not_won(self, votes: q.Votes) -> Acquired:
        held = q.standing(votes, len(self._links))
        if held is not None:
            self._splits = 0
            return Held(by=held.owner.rpartition("/")[0], free_in=held.free_in)
        if votes.with_status("HELD", "NOTMINE", "HIGH"):
            # Nobody has a quorum: several try at once. Whoever waits shortest wins the next turn.
            self._splits += 1
            longest = min(FIRST_BACKOFF * 2**self._splits, self._timings.retry_period)
            return Unavailable(votes.causes(), retry_in=random.uniform(0, longest))
        return Unavailable(votes.causes())

    # -- renew -----------------------------------------------------------------------------------

    async def renew(self, grant: Grant) -> Renewed:
        self._follow()
        began = self._clock.now()
        if grant.deadline.passed(began):
            return Lost("the deadline had passed before the renewal began")
        self._current = grant.id
        deadline = Deadline(began, self._timings.renew_deadline)
        arguments = (grant.id, str(grant.token), self._ttl)
        links, adopt = self._links, self._command(("lk1_adopt", *arguments))

        def repair(node: str, reply: q.Reply) -> None:
            good = isinstance(round_.verdict, q.Kept) and not deadline.passed(self._clock.now())
            if good and reply.status == "MISSING" and self._current == grant.id:
                links[node].call(adopt, ignore)

        def late(node: str, answer: Answer) -> None:
            if isinstance(reply := q.parse(answer), q.Reply):
                repair(node, reply)
            self._following.hear_late(round_.votes, node, answer)

        def heard(node: str, answer: Answer) -> None:
            if self.on_renewal is not None and not isinstance(answer, Failure):
                self.on_renewal(node, answer[:1] == [b"OK"], self._clock.now().elapsed_since(began))

        round_ = self._round(
            ("lk1_renew", *arguments),
            lambda v: q.judge_renewal(v, len(links)),
            late=late,
            heard=heard,
        )
        round_.ask_the_rest()
        left = grant.deadline.left(began)
        verdict = await round_.decision(min(left, self._timings.retry_period))
        if isinstance(verdict, q.Deposed):
            self._protected = None  # by so few nodes that another may win
            return Lost(verdict.why)
        if not isinstance(verdict, q.Kept):
            self._following.hear(round_.votes)
            return Unknown(round_.votes.causes())
        if grant.deadline.passed(self._clock.now()):
            return Lost("the deadline passed while the votes came in")
        for node, reply in round_.votes.counting():
            repair(node, reply)
        self._protected = Deadline(began, self._timings.ttl)
        trip = self._clock.now().elapsed_since(began)
        # One slow renewal must not make every hand-over after it wait for a silent node as long.
        longest = self._timings.retry_period / 4
        self._waiting.patience = max(SHORTEST_PATIENCE, min(3 * trip, longest))
        return self._grant(grant.id, grant.token, began, requests.latest(verdict.requests))

    # -- release, observe ------------------------------------------------------------------------

    async def release(self, grant: Grant) -> ReleaseOutcome:
        self._current = self._protected = None
        round_ = self._round(("lk1_release", grant.id, "1"), q.judge_release)
        with_substitutes = self._command(("lk1_release", grant.id, str(1 + SUBSTITUTES)))
        round_.ask(*self._gate[:CALLERS], command=with_substitutes)
        round_.ask_the_rest()
        self._waiting.gave_back(grant.token)
        verdict = await round_.decision(self._timings.retry_period)
        if verdict is None:
            return Unknown(round_.votes.causes())
        self._successor = verdict.successor
        return Released() if verdict.ours else AlreadyGone()

    async def freed(self) -> None:
        await self._waiting.freed.wait()

    async def observe(self) -> Observation:
        """Ends within half a period: a caller with a whole one hears what the others said although
        a node hangs. Whoever only looks on (it withdrew) follows a change by this alone.
        """
        if not self._trying:
            self._follow()
        following = self._following
        round_ = self._round(("lk1_observe",), lambda v: None if v.outstanding else True)
        round_.ask_the_rest()
        await round_.decision(self._timings.retry_period / 2)
        following.hear(round_.votes)
        looks = round_.votes.with_status("LOCK")
        owners = [r for r in looks if r.fields[0]]
        top = max(owners, key=lambda r: int(r.fields[2]), default=None)
        agree = [r for r in owners if top is not None and r.fields[0] == top.fields[0]]
        return Observation(
            holder=agree[0].fields[0] if len(agree) >= self._membership.quorum else None,
            token=max((int(r.fields[2]) for r in looks), default=0),
            left=min((int(r.fields[1]) / q.MICROSECONDS for r in agree), default=0.0),
            nodes=round_.votes.causes(),
        )

    async def close(self) -> None:
        self._waiting.forget()
        await self._all_links.close()

    # -- shared ----------------------------------------------------------------------------------

    def _command(self, call: tuple[str, ...]) -> tuple[str, ...]:
        return ("FCALL", call[0], "1", self._key, self._epoch, *call[1:])

    def _round(
        self,
        call: tuple[str, ...],
        judge: Callable[[q.Votes], q.T | None],
        late: Callable[[str, Answer], None] | None = None,
        heard: Callable[[str, Answer], None] | None = None,
    ) -> q.Round[q.T]:
        command = self._command(call)
        return q.Round(self._links, command, self._membership.quorum, judge, late, heard)

    def _grant(self, id_: str, token: int, began: Instant, request: Request | None = None) -> Grant:
        return Grant.counted_from(
            began, self._timings, lock=self._lock, id=id_, token=token, request=request
        )
