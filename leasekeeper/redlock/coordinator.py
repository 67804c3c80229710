"""Whoever carries out a change of membership (`change.py` has the rules): a person's command line
now, the operator later. One thread that blocks; it can be killed anywhere and run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from leasekeeper.lease import LeaseError
from leasekeeper.redlock import change, users
from leasekeeper.redlock.change import Raised
from leasekeeper.redlock.learnt import Learnt, learn_arguments
from leasekeeper.redlock.membership import Membership
from leasekeeper.redlock.peers import Peers
from leasekeeper.redlock.registry import NodeView, Pending, Record, Registry, decide_birth
from leasekeeper.redlock.ticker import raw_clock
from leasekeeper.redlock.tls import Tls

POLL = 0.2  # between two looks at the nodes


class GaveUp(LeaseError):
    """The time was up. What was done stays done; the same change can be gone on with."""


Say = Callable[[str], None]
"""A line on how far it has come; the same one twice is said once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is to be changed, and with what."""

    old: Membership
    new: Membership
    registry: Registry
    password: Callable[[], str]
    """Of the user `operator`, on the nodes of both lists."""
    tls: Tls | None = None
    patience: float = 600.0
    """Seconds, beyond the wait that the old list asks for."""


class Coordinator:
    def __init__(self, wanted: Change, say: Say) -> None:
        self._wanted = wanted
        self._old_list, self._new_list = wanted.old, wanted.new
        self._registry = wanted.registry
        self._old = Peers(wanted.old.nodes, wanted.password, wanted.tls, user=users.OPERATOR)
        self._new = Peers(wanted.new.nodes, wanted.password, wanted.tls, user=users.OPERATOR)
        self._say = say
        self._said = ""
        self._end = _now() + wanted.patience + wanted.old.quarantine

    def run(self) -> list[str]:
        """Carries the change out; the nodes of the new list that vote when it is through. Raises
        `Refused` or `GaveUp`.
        """
        try:
            self._begin()
            while not change.is_published(record := self._read(), self._new_list):
                pending = record.pending
                if pending is None or pending.membership != self._new_list:
                    self._begin()  # refused, if it is another change by now
                elif pending.joining and self._enough_joined():
                    self._registry.compare_and_swap(
                        record, change.published(record, self._new_list)
                    )
                else:
                    self._bring_on(record, pending)
            return change.joined(self._new.views(), self._new_list)
        finally:
            self._old.close()
            self._new.close()

    # -- the registry ----------------------------------------------------------------------------

    def _read(self) -> Record:
        record = self._registry.read()
        if record is None:
            raise change.Refused("the registry's record is gone: restore it, and run this again")
        return record

    def _begin(self) -> None:
        """Nothing is written before enough of the new nodes are there: it could not end."""
        quorum = self._new_list.quorum
        while True:
            record = self._registry.read()
            if record is None or record.generation == 0:
                views = self._old.views()
                record = self._restored(record, views) or record
            new = change.begun(record, self._old_list, self._new_list)
            there = self._new.views()
            if new == record or len(there) >= quorum:
                if new == record or self._registry.compare_and_swap(record, new):
                    return
            else:
                said = f"{len(there)} of the {quorum} nodes that it takes answer"
                self._pause(f"waiting for the new list: {said}", self._new)

    def _restored(self, record: Record | None, views: Mapping[str, NodeView]) -> Record | None:
        """The nodes remember, and the registry does not."""
        if not any(view.open for view in views.values()):
            return None
        restored = decide_birth(record, views, self._old_list, wall_ms=0)
        swapped = restored is not None and self._registry.compare_and_swap(record, restored)
        return restored if swapped else None

    # -- raise, wait, dump, join -----------------------------------------------------------------

    def _bring_on(self, record: Record, pending: Pending) -> None:
        """From the raise to the last join that it takes; returns early if somebody else has
        changed the record meanwhile.
        """
        learnt, generation = self._learn_from_the_old()
        if not pending.joining:
            views = self._joinable(pending)
            record, before = change.joining(record, views), record
            if not self._registry.compare_and_swap(before, record):
                return
            self._say("the old list is over; joining the nodes of the new one")
        assert record.pending is not None
        while not self._enough_joined():
            self._join(record.pending, learnt, generation)
        self._join(record.pending, learnt, generation)  # those who came to it last

    def _learn_from_the_old(self) -> tuple[Learnt, int]:
        raised: dict[str, Raised] = {}
        new, old = self._new_list, self._old_list
        while True:
            views = self._old.views()
            raised = change.still_raised(raised, views, new)
            for id, life in change.to_raise(raised, views, old, new).items():
                reply = self._old.ask(id, "lk1_raise", life, *new.to_arguments()[:2])
                if reply is not None and reply[0] == "OK":
                    raised[id] = Raised(life, _now())
            match change.after_raising(raised, views, old, _now()):
                case change.Dump(lives):
                    learnt = self._old.learn(lives, new.epoch)
                    if learnt is not None:
                        return learnt, max(views[id].generation for id in lives)
                    self._pause("an old node has changed under the last look at it", self._old)
                case change.Wait(until):
                    said = f"raised {','.join(sorted(raised))}; every lease of before is over in"
                    self._say_once(f"{said} {until - _now():.1f} s", key=f"wait {until}")
                    time.sleep(max(0.0, min(POLL, until - _now())))
                case None:
                    said = f"{len(raised)} of the {old.quorum} old nodes that it takes are raised"
                    self._pause(said, self._old)

    def _joinable(self, pending: Pending) -> Mapping[str, NodeView]:
        """The nodes of the new list, when enough of them can be joined."""
        while True:
            views = self._new.views()
            waiting = {id: change.why_not_joinable(view, pending) for id, view in views.items()}
            ready = [id for id, why in waiting.items() if not why]
            if len(ready) >= self._new_list.quorum:
                return views
            said = f"{len(ready)} of the {self._new_list.quorum} new nodes that it takes are ready"
            self._pause(said, self._new, waiting)

    def _enough_joined(self) -> bool:
        voting = change.joined(self._new.views(), self._new_list)
        return len(voting) >= self._new_list.quorum

    def _join(self, pending: Pending, learnt: Learnt, generation: int) -> None:
        """Tries to join each that is not; what it could not do is said."""
        views = self._new.views()
        done = change.joined(views, self._new_list)
        waiting = {}
        for id, view in views.items():
            if id in done:
                continue
            waiting[id] = change.why_not_joinable(view, pending)
            if not waiting[id]:
                self._join_one(id, view.life, learnt, generation)
        if len(change.joined(self._new.views(), self._new_list)) < self._new_list.quorum:
            said = f"{len(done)} of the {self._new_list.quorum} new nodes that it takes are joined"
            self._pause(said, self._new, waiting)

    def _join_one(self, id: str, life: str, learnt: Learnt, generation: int) -> None:
        for arguments in learn_arguments(life, learnt):
            reply = self._new.ask(id, "lk1_learn", *arguments)
            if reply is None or reply[0] != "OK":
                return
        reply = self._new.ask(
            id, "lk1_join", *change.join_arguments(life, self._new_list, generation)
        )
        if reply is not None and reply[0] != "OK":
            self._new.problems[id] = f"it could not be joined: {' '.join(reply[:2])}"

    # -- what people see -------------------------------------------------------------------------

    def _pause(self, why: str, nodes: Peers, waiting: Mapping[str, str] | None = None) -> None:
        reasons = {**(waiting or {}), **nodes.problems}
        said = "; ".join([why, *(f"node {id}: {text}" for id, text in reasons.items() if text)])
        if _now() > self._end:
            raise GaveUp(said)
        self._say_once(said, key=said)
        time.sleep(POLL)

    def _say_once(self, line: str, *, key: str) -> None:
        if key != self._said:
            self._said = key
            self._say(line)


def _now() -> float:
    """Stands still in a suspend, which makes a wait longer and never shorter."""
    return raw_clock() / 1e9
