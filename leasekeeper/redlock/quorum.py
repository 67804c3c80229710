"""Votes, and what they decide. Everything here is pure, apart from `Round`, which collects replies.

*Who counts.* A reply of node a does not count if any reply in the round knows a later incarnation
of a: then it came from a server that another one has replaced. Q comes from the configured number
of nodes, never from the number that answered.

*What is a "no".* Only a node that votes can say no. A closed node, another epoch, a missing right,
a time-out or a broken connection is no answer: it takes a chance to win away, and deposes nobody.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Generic, TypeVar

from leasekeeper.redlock.transport import Answer, Failure, Link

T = TypeVar("T")
MICROSECONDS = 1_000_000
LONGEST_NUMBER = 309  # digits, of the largest double: no Lua number is longer, nor fits a float
LARGEST_TOKEN = 2**52  # beyond this a Lua number is no longer exact; nodes never get there


@dataclass(slots=True)
class Reply:
    """What one node said: a status, its fields, and what it knows of everybody's incarnations.

    A fact like the others here, but not frozen: there is one for every vote, and a frozen one takes
    three times as long to make.
    """

    status: str
    fields: tuple[str, ...]
    incarnation: int
    vector: Mapping[str, int]


def _form(kinds: str, optional: int = 0) -> Callable[[tuple[str, ...]], bool]:
    """The fields of a reply: `n` is a whole number, `s` any text; the last ones may be left out."""

    most, least = len(kinds), len(kinds) - optional
    numbers = [place for place, kind in enumerate(kinds) if kind == "n"]

    def fits(fields: tuple[str, ...]) -> bool:
        if not least <= len(fields) <= most:
            return False
        # None of the optional fields is a number. (`all` over a generator takes twice as long.)
        return not [
            place
            for place in numbers
            if not fields[place].isdecimal() or len(fields[place]) > LONGEST_NUMBER
        ]

    return fits


# What a node may say, as in the headers of functions/vote.lua. Whatever else comes is no answer.
_FORMS = {
    b"COMMITTED": ("COMMITTED", _form("n")),
    b"GRANTED": ("GRANTED", _form("n")),
    b"HELD": ("HELD", _form("snns")),
    b"PAUSED": ("PAUSED", _form("n")),
    b"OK": ("OK", _form("s", optional=1)),
    b"HIGH": ("HIGH", _form("n")),
    b"NOTMINE": ("NOTMINE", _form("s")),
    b"MISSING": ("MISSING", _form("")),
    b"GONE": ("GONE", _form("")),
    b"CLOSED": ("CLOSED", _form("")),
    b"EPOCH": ("EPOCH", _form("ss")),
    b"TTL": ("TTL", _form("n")),
    b"LOCK": ("LOCK", _form("snnsn")),
}


@lru_cache(maxsize=64)
def _parse_vector(text: bytes) -> Mapping[str, int]:
    pairs = (part.split(":") for part in text.decode().split(",") if part)
    return {node: int(incarnation) for node, incarnation in pairs}


def parse(answer: Answer) -> Reply | Failure:
    if isinstance(answer, Failure):
        return answer
    try:
        raw, incarnation, vector = answer[:-2], answer[-2], answer[-1]
        status, fits = _FORMS[raw[0]]
        fields = tuple([field.decode() for field in raw[1:]])
        if fits(fields):
            return Reply(status, fields, int(incarnation), _parse_vector(vector))
    except (ValueError, AttributeError, TypeError, KeyError, IndexError):
        pass
    return Failure(f"an answer that makes no sense: {answer!r}")


@dataclass(slots=True)
class Votes:
    """The replies of one round so far."""

    quorum: int
    outstanding: int
    replies: dict[str, Reply] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    _latest: dict[str, int] = field(default_factory=dict)
    _vector: Mapping[str, int] | None = None

    def add(self, node: str, reply: Reply | Failure) -> None:
        self.outstanding -= 1
        if isinstance(reply, Failure):
            self.failures[node] = reply.why
            return
        self.replies[node] = reply
        if reply.vector is self._vector:
            return  # `_parse_vector` gives the same object for the same text: nothing new in it
        self._vector = reply.vector
        for other, incarnation in reply.vector.items():
            if incarnation > self._latest.get(other, 0):
                self._latest[other] = incarnation

    def counts(self, node: str, reply: Reply) -> bool:
        return reply.incarnation >= self._latest.get(node, 0)

    def counting(self) -> Iterable[tuple[str, Reply]]:
        for node, reply in self.replies.items():
            if self.counts(node, reply):
                yield node, reply

    def with_status(self, *statuses: str) -> list[Reply]:
        latest = self._latest
        return [
            reply
            for node, reply in self.replies.items()
            if reply.status in statuses and reply.incarnation >= latest.get(node, 0)
        ]

    def causes(self) -> dict[str, str]:
        """One line for each node that did not say yes."""
        said = {
            # The list that comes with another epoch is long, and for programs.
            node: " ".join((r.status, *(r.fields[:1] if r.status == "EPOCH" else r.fields)))
            for node, r in self.replies.items()
        }
        return {**self.failures, **said}


@dataclass(frozen=True, slots=True)
class Won:
    """A quorum voted for this token."""

    token: int


@dataclass(frozen=True, slots=True)
class Elevate:
    """A quorum gave its entry, but the token is still to be voted for."""

    token: int


@dataclass(frozen=True, slots=True)
class Failed:
    """No quorum, and none can come together any more."""


def judge_grant(votes: Votes, guess: int) -> Won | Elevate | Failed | None:
    """Decides the first round of an attempt; none: wait for more."""
    given = votes.with_status("COMMITTED", "GRANTED")
    if len(given) + votes.outstanding < votes.quorum:
        return Failed()
    if len(given) < votes.quorum:
        return None
    if sum(reply.status == "COMMITTED" for reply in given) >= votes.quorum:
        return Won(guess)
    # Waiting for further replies might spare the second round, but one of them may never come.
    highest = max(int(reply.fields[0]) for reply in given)
    return Elevate(max(highest, guess) + 1)


def judge_commit(votes: Votes, token: int) -> Won | Failed | None:
    agreed = len(votes.with_status("OK"))
    if agreed >= votes.quorum:
        return Won(token)
    return Failed() if agreed + votes.outstanding < votes.quorum else None


@dataclass(frozen=True, slots=True)
class Kept:
    """A quorum renewed. `requests` is what nodes were asked to pass on."""

    requests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Deposed:
    """So many nodes say that the lease is not ours that no quorum can be left for it."""

    why: str


@dataclass(frozen=True, slots=True)
class Undecided:
    """Neither: cannot tell."""


def judge_renewal(votes: Votes, nodes: int) -> Kept | Deposed | Undecided | None:
    kept = votes.with_status("OK")
    if len(kept) >= votes.quorum:
        return Kept(tuple(reply.fields[0] for reply in kept if reply.fields and reply.fields[0]))
    noes = votes.with_status("HIGH", "MISSING", "NOTMINE")
    if nodes - len(noes) < votes.quorum:
        said = Counter(" ".join((reply.status, *reply.fields)) for reply in noes)
        return Deposed(", ".join(f"{count} × {what}" for what, count in said.most_common()))
    return Undecided() if len(kept) + votes.outstanding < votes.quorum else None


@dataclass(frozen=True, slots=True)
class Freed:
    """A quorum has answered. `ours`: an entry was there to be cleared. `successor`: the candidate
    who was called to take the lock, if somebody waits.
    """

    ours: bool
    successor: str | None


def judge_release(votes: Votes) -> Freed | None:
    said = votes.with_status("OK", "GONE")
    if len(said) < votes.quorum:
        return None
    cleared = [reply for reply in said if reply.status == "OK"]
    successors = (reply.fields[0] for reply in cleared if reply.fields)
    return Freed(bool(cleared), next(filter(None, successors), None))


@dataclass(frozen=True, slots=True)
class Standing:
    """What a failed attempt learned of the one who holds the lock."""

    owner: str
    free_in: float


def standing(votes: Votes, nodes: int) -> Standing | None:
    """Who holds the lock, if a quorum may be one owner's; none: a split vote, or no answers."""
    held = votes.with_status("HELD")
    if not held:
        return None
    owner, count = Counter(reply.fields[0] for reply in held).most_common(1)[0]
    silent = nodes - sum(1 for _ in votes.counting())
    if count + silent < votes.quorum:
        return None
    lefts = [int(reply.fields[1]) / MICROSECONDS for reply in held]
    free_now = len(votes.with_status("COMMITTED", "GRANTED"))
    # The lock can be had when a quorum of the nodes that answer is free.
    until_quorum = sorted([0.0] * free_now + lefts)
    return Standing(owner, until_quorum[min(votes.quorum, len(until_quorum)) - 1])


class Round(Generic[T]):
    """One request to the nodes. Decided as soon as `judge` can decide, not when all have answered.

    Nodes that are not asked yet count as outstanding. Answers after the decision go to `late`, if
    there is one; `heard` is told of every answer, as it comes.
    """

    def __init__(
        self,
        links: Mapping[str, Link],
        command: tuple[str, ...],
        quorum: int,
        judge: Callable[[Votes], T | None],
        late: Callable[[str, Answer], None] | None = None,
        heard: Callable[[str, Answer], None] | None = None,
    ) -> None:
        self.votes = Votes(quorum=quorum, outstanding=len(links))
        self.verdict: T | None = None
        self.asked: list[str] = []
        self._links = links
        self._command = command
        self._judge = judge
        self._late = late
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._decided: asyncio.Future[T | None] = self._loop.create_future()
        self._awaited: tuple[str, asyncio.Future[None]] | None = None

    def ask(self, *nodes: str, command: tuple[str, ...] | None = None) -> None:
        """Each at most once. `command`: instead of the round's own. A node of an older list, which
        called us before we left it, is not asked.
        """
        for node in nodes:
            if node in self._links and node not in self.asked:
                self.asked.append(node)
                self._links[node].call(command or self._command, partial(self._on_answer, node))

    def ask_the_rest(self) -> None:
        self.ask(*self._links)

    async def hear(self, node: str, patience: float) -> Reply | None:
        """What this node says; none: nothing within `patience` seconds, or no answer."""
        if node not in self.votes.replies and node not in self.votes.failures:
            heard = self._loop.create_future()
            self._awaited = (node, heard)
            expiry = self._loop.call_later(patience, _resolve, heard)
            try:
                await heard
            finally:
                expiry.cancel()
                self._awaited = None
        return self.votes.replies.get(node)

    def _on_answer(self, node: str, answer: Answer) -> None:
        if self._heard is not None:
            self._heard(node, answer)
        if self._decided.done():
            # Two of five answers come after the decision; most rounds have no use for them, and
            # reading them costs. So they are passed on as they came.
            if self._late is not None:
                self._late(node, answer)
            return
        self.votes.add(node, parse(answer))
        if self._awaited is not None and self._awaited[0] == node:
            _resolve(self._awaited[1])
        self.verdict = self._judge(self.votes)
        if self.verdict is not None or self.votes.outstanding == 0:
            self._decided.set_result(self.verdict)

    async def decision(self, budget: float) -> T | None:
        """None: the time was up, or everybody has said something that decides nothing."""
        expiry = self._loop.call_later(max(budget, 0), _resolve, self._decided)
        try:
            return await self._decided
        finally:
            expiry.cancel()


def _resolve(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)
