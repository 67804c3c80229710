"""What the status of a lock says of its holder, from the operator's own look: pure functions."""

from __future__ import annotations

from datetime import datetime

from leasekeeper_operator.api import Object
from leasekeeper_operator.events import Happening
from leasekeeper_operator.holders import Holder, Outlook
from leasekeeper_operator.status import Condition, timestamp

HELD, DEGRADED = "Held", "Degraded"
KEPT_TRANSITIONS = 10


def held_condition(lock: str, outlook: Outlook, paused: bool) -> Condition:
    holder = outlook.holders.get(lock)
    if holder is not None:
        text = f"pod {holder.pod} leads with token {holder.token}"
        return Condition(HELD, True, "Held", text)
    if outlook.doubtful(lock):
        text = "too few nodes answer the operator; a holder that reaches a quorum leads on"
        return Condition(HELD, None, "CannotTell", text)
    if paused:
        return Condition(HELD, False, "Paused", "spec.paused is true: nobody may hold it")
    return Condition(HELD, False, "Free", "no pod holds it; is one running that asks for it?")


def degraded_condition(problem: tuple[str, str], open_nodes: int, total: int) -> Condition:
    """`problem`: reason and message of something else that is not as the spec says."""
    if problem[0]:
        return Condition(DEGRADED, True, *problem)
    if open_nodes < total:
        text = f"{open_nodes} of {total} nodes vote; see the LockEnsemble"
        return Condition(DEGRADED, True, "NodesMissing", text)
    return Condition(DEGRADED, False, "AsExpected", "all is as the spec says")


def transitions(old: list[Object], holder: Holder | None, now: datetime) -> list[Object]:
    """The last ten, newest first, as far as the operator saw them: tenures that begin and end
    between two looks are not there."""
    if holder is None or (old and old[0]["token"] >= holder.token):
        return old
    new = {"holder": holder.pod, "token": holder.token, "time": timestamp(now)}
    return [new, *old][:KEPT_TRANSITIONS]


def happenings(
    old: list[Object], new: list[Object], before: str, condition: Condition
) -> list[Happening]:
    """`before`: the status of the condition Held until now."""
    found = []
    if new != old:
        first = new[0]
        text = f"pod {first['holder']} leads with token {first['token']}"
        found.append(Happening("LeaderElected", text))
    if before == "True" and condition.holds is False:
        last = f" after token {new[0]['token']}" if new else ""
        found.append(Happening("NoLeader", f"nobody holds the lock{last}", warning=True))
    return found
