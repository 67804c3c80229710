"""What the operator says about locks and ensembles: conditions and figures, as pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from leasekeeper.redlock.membership import Membership
from leasekeeper.redlock.registry import Record
from leasekeeper_operator.api import Object
from leasekeeper_operator.nodes import OPEN, Sight

READY, QUORUM_AVAILABLE, BORN = "Ready", "QuorumAvailable", "Born"


@dataclass(frozen=True, slots=True)
class Condition:
    type: str
    holds: bool | None
    """None: cannot tell."""
    reason: str
    message: str


def merge_conditions(
    old: Sequence[Object], new: Iterable[Condition], generation: int, now: datetime
) -> list[Object]:
    """The new ones, each with the time of its last change; conditions of others stay."""
    before = {condition["type"]: condition for condition in old}
    merged = dict(before)
    for condition in new:
        status = "Unknown" if condition.holds is None else str(condition.holds)
        past = before.get(condition.type)
        same = past is not None and past["status"] == status
        merged[condition.type] = {
            "type": condition.type,
            "status": status,
            "reason": condition.reason,
            "message": condition.message,
            "observedGeneration": generation,
            "lastTransitionTime": past["lastTransitionTime"] if same and past else timestamp(now),
        }
    return list(merged.values())


def timestamp(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def changed(old: Object, new: Object) -> bool:
    """Whether there is anything to write: at rest the answer must be no."""
    return any(old.get(key) != value for key, value in new.items())


def quorum_condition(open_nodes: int, total: int) -> Condition:
    quorum = total // 2 + 1
    if open_nodes >= quorum:
        text = f"{open_nodes} of {total} nodes vote, {quorum} are needed"
        return Condition(QUORUM_AVAILABLE, True, "QuorumOpen", text)
    text = (
        f"only {open_nodes} of {total} nodes vote, but {quorum} are needed: no leader can be"
        " elected or renewed until more nodes are open"
    )
    return Condition(QUORUM_AVAILABLE, False, "NoQuorum", text)


def ensemble_conditions(
    membership: Membership, record: Record | None, sights: Mapping[str, Sight]
) -> list[Condition]:
    total = len(membership.nodes)
    open_nodes = sum(sight.state == OPEN for sight in sights.values())
    quorum = quorum_condition(open_nodes, total)
    if record is None:
        born = Condition(BORN, False, "Unborn", "the nodes have not been allowed to open yet")
    elif record.generation == 1:
        born = Condition(BORN, True, "Born", "the nodes were allowed to open")
    else:
        losses = record.generation - 1
        text = f"all memory was lost {losses} time(s); tokens go on above {record.floor}"
        born = Condition(BORN, True, "Reborn", text)
    if open_nodes == total:
        ready = Condition(READY, True, "AllNodesOpen", f"all {total} nodes vote")
    elif record is None:
        ready = Condition(READY, False, "Starting", _missing(sights))
    elif quorum.holds:
        ready = Condition(READY, False, "NodesMissing", _missing(sights))
    else:
        ready = Condition(READY, False, "NoQuorum", f"{quorum.message}. {_missing(sights)}")
    return [ready, quorum, born]


def _missing(sights: Mapping[str, Sight]) -> str:
    closed = [sight for sight in sights.values() if sight.state != OPEN]
    return "; ".join(f"node {sight.id} {sight.state.lower()}: {sight.message}" for sight in closed)


def node_statuses(sights: Mapping[str, Sight]) -> list[Object]:
    """In the order of the ids. No field that changes by itself: this is not written at rest."""
    statuses = []
    for sight in sorted(sights.values(), key=lambda sight: sight.id):
        status: Object = {"id": sight.id, "state": sight.state}
        if sight.view is not None and sight.view.incarnation:
            status["incarnation"] = sight.view.incarnation
        if sight.message:
            status["message"] = sight.message
        statuses.append(status)
    return statuses
