"""Birth and total loss: the two moments when a node may open without asking others.

A node that lost its memory asks Q others. When nobody remembers, that is either the first start of
the ensemble or a total loss, and only somebody with a memory of their own can tell which: the
registry. It is a small record that is only ever replaced by compare-and-swap: a file for the
command line, the ensemble's status (which only the operator may write) in a cluster.

The record lists *lives*: names of memories that may open. A server that restarts has a new life,
which is on no list, and so it must ask the others. This module has no I/O but `FileRegistry`.

    record = registry.read()
    new = decide_birth(record, views, membership, wall_ms=...)
    if new and registry.compare_and_swap(record, new):
        for node in new.lives:  FCALL lk1_birth 0 *birth_arguments(new, membership, node)
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from leasekeeper.lease import ConfigurationError
from leasekeeper.redlock.membership import Membership

T = TypeVar("T")

LEAP = 2**20
"""After a total loss nobody knows how many tokens (or incarnations) were given since the record was
written. A million of them would take a hand-over a second for twelve days with a wall clock that
stands still; unix milliseconds outrun that by far."""

NOT_A_TOKEN = 2**52
"""A counter at or above it was not made by the protocol: a tenant may have written it."""

PLAUSIBLE = 2**32
"""How far above the clock and the record's floor a survivor's counter may be: seven weeks of a
wrong clock, or four billion hand-overs. What is above was written by a tenant into its own lock. It
stays there, and does not become everybody's floor: with one just below NOT_A_TOKEN, no lock could
be won again."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A change of membership that was begun (`change.py`). It can only be brought to its end."""

    membership: Membership
    """The list that will be."""
    joining: bool = False
    """The old list is over for good: enough of its nodes were raised, rested and asked. Until then
    it decides on births; from then on nobody does, until the change is through."""
    lives: Mapping[str, str] = field(default_factory=dict)
    """By node id: the memories without any votes that may be joined. A later one of the same node
    may have been joined before, and have forgotten it: it must learn from the others."""

    def to_json(self) -> dict[str, Any]:
        return {
            "membership": self.membership.to_json(),
            "joining": self.joining,
            "lives": dict(self.lives),
        }

    @classmethod
    def from_json(cls, data: Any) -> Pending:
        return cls(Membership.from_json(data["membership"]), data["joining"] is True, _lives(data))


def _optional(parse: Callable[[Any], T], data: Any) -> T | None:
    return None if data is None else parse(data)


def _lives(data: Any) -> dict[str, str]:
    return {str(node): str(life) for node, life in data["lives"].items()}


@dataclass(frozen=True, slots=True)
class Record:
    """Who was born, and above which numbers."""

    generation: int
    """1: the birth. Each total loss adds one."""
    floor: int
    """Every token of this generation is larger."""
    incarnation_floor: int
    """Every incarnation of this generation is larger: a reborn node must outrank its ghost."""
    lives: Mapping[str, str]
    """By node id: the memory that may open without asking others."""
    epoch: str = ""
    """Of the list that this is about; empty: written before records had it."""
    membership: Membership | None = None
    """That list, once there was a change: after a total loss nobody else may know it."""
    pending: Pending | None = None

    def to_json(self) -> dict[str, Any]:
        data = {
            "generation": self.generation,
            "floor": self.floor,
            "incarnationFloor": self.incarnation_floor,
            "lives": dict(self.lives),
        }
        if self.epoch:
            data["epoch"] = self.epoch
        if self.membership is not None:
            data["membership"] = self.membership.to_json()
        if self.pending is not None:
            data["pending"] = self.pending.to_json()
        return data

    @classmethod
    def from_json(cls, data: Any) -> Record:
        try:
            return cls(
                generation=int(data["generation"]),
                floor=int(data["floor"]),
                incarnation_floor=int(data["incarnationFloor"]),
                lives=_lives(data),
                epoch=str(data.get("epoch", "")),
                membership=_optional(Membership.from_json, data.get("membership")),
                pending=_optional(Pending.from_json, data.get("pending")),
            )
        except (KeyError, TypeError, ValueError, AttributeError, ConfigurationError) as wrong:
            raise ConfigurationError(
                f"registry: the record cannot be read ({type(wrong).__name__}: {wrong}); restore"
                " it, or stop all nodes for one quarantine and delete it"
            ) from None


FRESH = Record(0, 0, 0, {})
"""The record of an ensemble that nobody was ever given. Whoever makes an ensemble, and knows that
no candidate can hold a lease of an earlier one under the same names and passwords, writes it: then
the first birth need not wait for a quarantine. No record at all says nothing of the kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """What `lk1_state` of one node said."""

    id: str
    """Who the server says it is; empty: its agent has not seen it yet."""
    life: str
    birth: int = 0
    """The generation that it may open in without asking others; 0: none."""
    generation: int = 0
    """The generation that it is open in."""
    open: bool = False
    joined: bool = False
    epoch: str = ""
    floor: int = 0
    tick: int = 0
    locks: int = 0
    rested: bool = False
    """Its quarantine is over."""
    run_id: str = ""
    incarnation: int = 0
    """0: not announced yet."""
    vector: Mapping[str, int] = field(default_factory=dict)
    members: str = ""
    """The list that goes with its epoch, as it hands it over."""
    highest: int = 0
    """The largest F of its locks. `lk1_state` does not say; the caller takes it from `lk1_dump`
    (and leaves out what is not below NOT_A_TOKEN) before it decides on a total loss."""

    @classmethod
    def from_reply(cls, reply: Sequence[str]) -> NodeView:
        status, life, birth, opened, joined, epoch, floor, tick, locks, node = reply[:10]
        rested, run_id, generation, members = reply[10:14]
        if status != "NODE":
            raise ValueError(f"not a reply of lk1_state: {status!r}")
        return cls(
            id=node,
            life=life,
            birth=int(birth),
            open=opened == "1",
            joined=joined == "1",
            epoch=epoch,
            floor=int(floor),
            tick=int(tick),
            locks=int(locks),
            rested=rested == "1",
            run_id=run_id,
            generation=int(generation),
            members=members,
            incarnation=int(reply[-2]),
            vector=parse_vector(reply[-1]),
        )


def parse_vector(text: str) -> dict[str, int]:
    """`"0:1,1:4"`: the incarnation of every node, as far as one node knows."""
    return {k: int(v) for k, _, v in (part.partition(":") for part in text.split(",") if part)}


def decide_birth(
    record: Record | None,
    views: Mapping[str, NodeView],
    membership: Membership,
    wall_ms: int,
    *,
    waited: bool = False,
) -> Record | None:
    """The record to write next, or none: there is nothing to decide (yet).

    `views` holds the nodes that could be asked, by id. `waited`: the caller has seen this for long
    enough that a quorum may be born without the rest; those who come later recover from it.

    An announcement to Q others is not asked for: with Q nodes alive, each has only Q − 1 others. A
    birth needs none, because `lk1_birth` makes every listed node know, for every member, a number
    that outranks whatever was there before.

    Only the list that the record is about may decide: nodes that are being added are empty, too.
    """
    if record is not None and not _decides(record, membership):
        return None
    members = membership.ids
    views = {id: view for id, view in views.items() if id in members and view.id == id}
    remembering = {id: view for id, view in views.items() if view.open}
    empty = {id: view for id, view in views.items() if not view.open and view.life}
    enough = membership.quorum if waited else len(members)
    rested = {id: view for id, view in empty.items() if view.rested}
    if record is None or record.generation == 0:
        if remembering:
            return _restored(remembering, membership)
        # Without any record these may be the nodes of an ensemble that was deleted and made again,
        # whose leases still live.
        unborn = rested if record is None else empty
        if len(unborn) < enough:
            return None
        lives = {id: view.life for id, view in unborn.items()}
        return Record(1, wall_ms, 0, lives, membership.epoch)
    # Fewer than Q can remember only if more than N − Q have an empty memory. They must have rested:
    # then no round that began before the loss can still be won, and the survivors' F are final.
    if not record.epoch and any(view.epoch != membership.epoch for view in remembering.values()):
        return None
    lost = {id for id, view in rested.items() if record.lives.get(id) != view.life}
    if len(lost) <= len(members) - membership.quorum or len(rested | remembering) < enough:
        return None
    reborn = _reborn(record, rested | remembering, wall_ms)
    return replace(
        reborn, epoch=membership.epoch, membership=record.membership, pending=record.pending
    )


def _decides(record: Record, membership: Membership) -> bool:
    if record.pending is not None and record.pending.joining:
        return False
    return record.epoch in ("", membership.epoch)


def largest_plausible(record: Record, wall_ms: int) -> int:
    """The largest F that hand-overs can have led to; also what `lk1_forget` is given."""
    return max(wall_ms, record.floor) + PLAUSIBLE


def _reborn(record: Record, views: Mapping[str, NodeView], wall_ms: int) -> Record:
    largest = largest_plausible(record, wall_ms)
    counters = (counter for view in views.values() for counter in (view.floor, view.highest))
    tokens = (counter for counter in counters if counter <= largest)
    known = (max([view.incarnation, *view.vector.values()]) for view in views.values())
    return Record(
        generation=record.generation + 1,
        floor=max(record.floor + LEAP, wall_ms, *tokens),
        incarnation_floor=max(record.incarnation_floor + LEAP, *known),
        lives={id: view.life for id, view in views.items()},
    )


def _restored(remembering: Mapping[str, NodeView], membership: Membership) -> Record | None:
    """The registry forgot, the nodes did not: no birth, their lives go on.

    An unborn record would let the next total loss pass for a first start. None: they vote by
    another list than ours, so that it is not for us to say.
    """
    if not any(view.joined and view.epoch == membership.epoch for view in remembering.values()):
        return None
    return Record(
        generation=max(1, *(view.generation for view in remembering.values())),
        floor=max(view.floor for view in remembering.values()),
        incarnation_floor=0,
        lives={id: view.life for id, view in remembering.items()},
        epoch=membership.epoch,
    )


def birth_arguments(record: Record, membership: Membership, node: str) -> tuple[str, ...]:
    """Of `FCALL lk1_birth 0 …` on a node that the record lists. Calling it again does no harm."""
    return (
        record.lives[node],
        str(record.generation),
        str(record.floor),
        str(record.incarnation_floor),
        *(member.id for member in membership.nodes),
    )


class Registry(Protocol):
    """The one authority that remembers."""

    def read(self) -> Record | None:
        """None: nobody was ever born."""

    def compare_and_swap(self, expected: Record | None, new: Record) -> bool:
        """Writes `new` if the record is still `expected`. False: somebody else was first."""


class FileRegistry:
    """For an ensemble on one machine, or on a file system whose flock works."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self) -> Record | None:
        try:
            with open(self._path, encoding="utf-8") as file:
                text = file.read()
        except FileNotFoundError:
            return None
        except OSError as wrong:
            raise self._refused("cannot be read", wrong) from None
        except UnicodeDecodeError as wrong:
            raise ConfigurationError(f"registry {self._path}: not JSON: {wrong}") from None
        try:
            return Record.from_json(json.loads(text))
        except (json.JSONDecodeError, RecursionError) as wrong:
            raise ConfigurationError(f"registry {self._path}: not JSON: {wrong}") from None

    def compare_and_swap(self, expected: Record | None, new: Record) -> bool:
        try:
            return self._swap(expected, new)
        except OSError as wrong:
            raise self._refused("cannot be written", wrong) from None

    def _refused(self, what: str, wrong: OSError) -> ConfigurationError:
        return ConfigurationError(
            f"registry {self._path}: {what}: {wrong.strerror or wrong}; name a file in a folder"
            " where the agent may write, it need not exist"
        )

    def _swap(self, expected: Record | None, new: Record) -> bool:
        # The lock is a file of its own, because the record's file is replaced at each write.
        with open(f"{self._path}.lock", "w", encoding="utf-8") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            if self.read() != expected:
                return False
            aside = f"{self._path}.new"
            with open(aside, "w", encoding="utf-8") as file:
                json.dump(new.to_json(), file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, self._path)
            directory = os.open(os.path.dirname(os.path.abspath(self._path)), os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
            return True
