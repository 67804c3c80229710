"""Runs a world, watches every leader file and the journal, and tells people what happened.

The views (text, terminal, page) get events as they happen, and may ask for a snapshot.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from leasekeeper.demo.faults import Faults
from leasekeeper.demo.history import History, Reading, now
from leasekeeper.demo.journal import Journal
from leasekeeper.demo.looks import Look, Looks
from leasekeeper.demo.proxy import Vote
from leasekeeper.demo.world import LOCK, World

SWEEP = 0.005  # seconds between two looks at all files
LOOK_EVERY = 0.2  # seconds between two looks at the nodes and the journal
VOTES_KEPT = 400
LONGEST_START = 60.0  # seconds; a machine that has nothing else to do needs one or two

Event = dict[str, Any]
Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass
class Feed:
    """Votes as the proxies see them; made before the world, because the world is given it."""

    votes: deque[tuple[int, Vote]] = field(default_factory=lambda: deque(maxlen=VOTES_KEPT))
    number: int = 0

    def add(self, vote: Vote) -> None:
        self.number += 1
        self.votes.append((self.number, vote))


class Demo:
    """One run. A `Stage` for faults."""

    def __init__(
        self,
        world: World,
        feed: Feed,
        *,
        seed: int,
        chaos: bool,
        tell: Callable[[Event], None],
    ) -> None:
        self.world = world
        self.feed = feed
        self.chaos = chaos
        self.files = History()
        self.journal = Journal(world.journal, LOCK)
        self.looks: list[Look] = [Look(node.name, "starting") for node in world.nodes]
        self.readings: dict[str, Reading] = {}
        self._asking = Looks(world)
        self.faults = Faults(world, self._asking, self)
        self._tell = tell
        self._dice = random.Random(seed)
        self.began = now()
        self._leader = ""
        self._led_until = 0.0
        self._nobody_said = True
        self._settled_at = now() + world.lease / 2
        self._later: list[tuple[float, Work]] = []
        self._wrong_said = 0
        self._opened: set[str] = set()  # nodes that voted before
        self._resting_since: dict[str, float] = {}
        self._casualties: set[str] = set()

    # -- the stage for faults --------------------------------------------------------------------

    @property
    def at(self) -> float:
        return now() - self.began

    @property
    def leader(self) -> str:
        """Who led in the last sweep, or led last and may be back."""
        return self._leader

    def say(self, event: str, sentence: str, **fields: object) -> None:
        self._tell({"at": round(self.at, 3), "event": event, "sentence": sentence, **fields})

    def switch_chaos(self) -> None:
        self.chaos = not self.chaos
        on = "something breaks whenever the election has settled" if self.chaos else "off"
        self.say("chaos", f"chaos: {on}", on=self.chaos)

    def later(self, seconds: float, work: Work) -> None:
        self._later.append((now() + seconds, work))

    # -- the run ---------------------------------------------------------------------------------

    async def run(self, seconds: float | None, stop: asyncio.Event) -> None:
        """Until the time is over, or somebody stops it. It counts from the first leader on: how
        long twenty processes take to start is no part of it.
        """
        started = False
        end = None if seconds is None else now() + seconds + LONGEST_START
        looking = asyncio.ensure_future(self._keep_looking())
        try:
            while not stop.is_set() and (end is None or now() < end):
                self._sweep()
                if seconds is not None and not started and self._leader:
                    started, end = True, now() + seconds
                await self._do_what_is_due()
                await self._break_something(end)
                if looking.done():
                    looking.result()  # a bug there must be heard here
                await asyncio.sleep(SWEEP)
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            self._asking.close()
            self._look_at_journal()

    def _sweep(self) -> None:
        readings = self.world.readings()
        self.readings = {reading.pod: reading for reading in readings if reading.leads}
        for reading in readings:
            tenure = self.files.see(reading)
            if tenure is not None:
                gap = tenure.first_began - self._led_until if self._led_until else 0.0
                self._leads(reading, gap)
            if not reading.leads:  # counted above, but no reader goes by it any more
                continue
            self._led_until = max(self._led_until, reading.ended)
            self._leader, self._nobody_said = reading.holder, False
        # Not at once: in a hand-over nobody leads for a moment, and that is told with the next one.
        if not self._nobody_said and now() - self._led_until > self.world.lease / 3:
            self._nobody_said = True
            before, self._leader = self._leader, ""
            since = round(self._led_until - self.began, 3)
            why = f"that is when the file of {before} ceased to say yes"
            sentence = f"nobody has led since {since:.1f} s: {why}"
            self.say("nobody", sentence, before=before, since=since)

    def _leads(self, reading: Reading, gap: float) -> None:
        after = f", after {gap:.2f} s without a leader" if gap > 0 else ""
        self.say(
            "leads",
            f"{reading.holder} leads with token {reading.token}{after}",
            holder=reading.holder,
            token=reading.token,
            gap=round(gap, 3),
        )
        self._settled_at = max(self._settled_at, now() + self.world.lease / 2)

    async def _do_what_is_due(self) -> None:
        due = [work for at, work in self._later if now() >= at]
        self._later = [(at, work) for at, work in self._later if now() < at]
        for work in due:
            await work()

    async def _break_something(self, end: float | None) -> None:
        """Whenever the election has settled; not at the end, so that a takeover can be seen."""
        late = end is not None and now() > end - 2 * self.world.lease
        if self.chaos and self._leader and now() > self._settled_at and not late:
            self._settled_at = now() + self.world.lease
            await self.faults.by_chance(self._dice)

    # -- nodes and journal, more rarely ----------------------------------------------------------

    async def _keep_looking(self) -> None:
        while True:
            looks = [self._judged(look) for look in await asyncio.to_thread(self._asking.all)]
            before, self.looks = self.looks, looks
            self._tell_of_nodes(before, looks)
            self._look_at_journal()
            for sentence in self.world.casualties():
                if sentence not in self._casualties:
                    self._casualties.add(sentence)
                    self.say("ended", sentence)
            await asyncio.sleep(LOOK_EVERY)

    def _judged(self, look: Look) -> Look:
        """A node that never voted has nothing that it could have forgotten."""
        new = look.node not in self._opened and look.state == "quarantine"
        return replace(look, state="starting") if new else look

    def _tell_of_nodes(self, before: list[Look], after: list[Look]) -> None:
        """One sentence for all that changed in the same way at the same time. A node that was only
        slow to answer forgot nothing, and is not spoken of.
        """
        forgot = [
            look.node
            for look in after
            if look.state == "quarantine" and look.node not in self._resting_since
        ]
        opened = [look.node for look in after if look.state == "open"]
        back = [node for node in opened if node in self._resting_since]
        voted = sum(look.state == "open" for look in before)
        for state, nodes in (("quarantine", forgot), ("open", back)):
            if nodes:
                sentence = _node_sentence(state, nodes, self.world, others_voted=voted)
                self.say("node", sentence, nodes=nodes, state=state)
        self._opened.update(opened)
        self._resting_since.update(dict.fromkeys(forgot, now()))
        for look in after:
            if look.state in ("open", "down"):  # down: the next life rests anew
                self._resting_since.pop(look.node, None)

    def rests_for(self, node: str) -> float:
        """About how long a node in quarantine still does not vote; its agent knows it exactly."""
        since = self._resting_since.get(node)
        if since is None or not any(
            look.node == node and look.state == "quarantine" for look in self.looks
        ):
            return 0.0
        return max(0.0, since + self.world.membership.quarantine - now())

    def _look_at_journal(self) -> None:
        for sentence in self.journal.look():
            self.say("refused", sentence)
        wrong = self.wrong
        for text in wrong[self._wrong_said :]:
            self.say("wrong", f"WRONG: {text}", text=text)
        self._wrong_said = len(wrong)

    # -- what is known ---------------------------------------------------------------------------

    @property
    def wrong(self) -> list[str]:
        return self.files.wrong + [f"journal: {text}" for text in self.journal.history.wrong]

    def summary(self) -> dict[str, object]:
        journal = self.journal.history
        return {
            "tenures": len(self.files.tenures),
            "faults": self.faults.count,
            "overlaps": len(self.files.overlaps) + len(journal.overlaps),
            "regressions": len(self.files.regressions) + len(journal.regressions),
            "journal": self.journal.entries,
            "refused": self.journal.refused,
        }


def _node_sentence(state: str, nodes: list[str], world: World, *, others_voted: int) -> str:
    one = len(nodes) == 1
    names = f"node {nodes[0]}" if one else f"nodes {', '.join(nodes[:-1])} and {nodes[-1]}"
    it, votes = ("it", "votes") if one else ("they", "vote")
    if state == "quarantine":
        return (
            f"{names} restarted empty: {it} will not vote for"
            f" {world.membership.quarantine:.1f} s, because {it} may have granted a lease of"
            f" {world.lease:g} s that {it} no longer {'remembers' if one else 'remember'}"
        )
    how = (
        f"{it} learnt the tokens from the others"
        if others_voted >= world.membership.quorum
        else "the record of births says above which token to go on"
    )
    return f"{names} {votes} again: every lease that {it} may have forgotten is over, and {how}"
