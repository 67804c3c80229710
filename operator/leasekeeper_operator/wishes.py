"""What people ask of a lock's holder, from the spec to the request that nodes are told.

Each request is recorded in the lock's status before a node hears of it, with its number and who
asked: an operator that is killed in between tells the nodes the same again. Pure functions.

    spec.paused: true       nobody may hold the lock until it is false
    spec.stepDown.token: T  the tenure with this token shall end. By the token and not by the pod's
                            name: what was asked of one tenure must not end a later one, and a
                            manifest that is applied again a week later asks for nothing.
"""

from __future__ import annotations

import json

from leasekeeper.lease import Request
from leasekeeper.redlock import requests
from leasekeeper_operator.api import Object
from leasekeeper_operator.events import Happening
from leasekeeper_operator.holders import Holder
from leasekeeper_operator.model import Lock

ANNOTATION_ASKED_BY = "leasekeeper.dev/asked-by"
"""Put there by the webhook, which alone is told the user's name; with what he asked for, so that it
is not taken for the author of a later wish that the webhook did not see."""


EARLIER = "nobody: a lock of this name was paused before"


def recorded(
    lock: Lock,
    old: Object | None,
    holder: Holder | None,
    by: str,
    now_ms: int,
    time: str,
    standing: Request | None = None,
) -> Object | None:
    """What `status.request` shall be; `old`, if nothing new is asked. `standing`: what nodes were
    last asked of a lock of this name; a pause that nobody remembers would last for ever."""
    kind, rest = _wanted(lock, old or {}, holder)
    if not kind and old is None and standing is not None and standing.kind == requests.PAUSE:
        kind, by = requests.RESUME, EARLIER
    if not kind:
        return old
    sequence = max((old or {}).get("sequence", 0) + 1, now_ms)
    return {"sequence": sequence, "kind": kind, "time": time, "by": by, **rest}


def _wanted(lock: Lock, old: Object, holder: Holder | None) -> tuple[str, Object]:
    """Empty: nothing beyond what was asked before."""
    before = old.get("kind", "")
    if lock.paused:
        return ("", {}) if before == requests.PAUSE else (requests.PAUSE, {})
    if before == requests.PAUSE:
        return requests.RESUME, {}
    token = lock.step_down_token
    if token is None or old.get("token") == token or holder is None or holder.token != token:
        return "", {}
    asked = {"token": token, "target": holder.id, "seconds": lock.step_down_seconds}
    return requests.STEP_DOWN, asked


def request_of(record: Object | None) -> Request | None:
    if record is None:
        return None
    seconds = float(record.get("seconds", 0))
    return Request(record["sequence"], record["kind"], record.get("target", ""), seconds)


def happening(record: Object) -> Happening:
    """For the Event."""
    who = f"asked by {record['by']}"
    if record["kind"] == requests.PAUSE:
        return Happening("Paused", f"nobody may hold the lock until it is resumed; {who}")
    if record["kind"] == requests.RESUME:
        return Happening("Resumed", f"the lock can be held again; {who}")
    pod = record["target"].partition("/")[0]
    text = f"pod {pod} shall give up the tenure with token {record['token']}; {who}"
    return Happening("StepDown", text)


def stamp(obj: Object, user: str) -> Object:
    """The annotation for a DistributedLock whose wish this user has just changed."""
    return {ANNOTATION_ASKED_BY: json.dumps({"by": user[:256], **_wish(obj)}, sort_keys=True)}


def note_of(before: Object | None, after: Object) -> str | None:
    """What that annotation said, if nothing is asked that was not asked `before`: whoever edits it
    then asks nothing, and puts nobody else's name there. None: something new is asked."""
    if before is None or _wish(before) != _wish(after):
        return None
    return str((before["metadata"].get("annotations") or {}).get(ANNOTATION_ASKED_BY, ""))


def _wish(obj: Object) -> Object:
    spec = obj.get("spec", {})
    return {"paused": spec.get("paused", False), "stepDown": spec.get("stepDown", {}).get("token")}


def asked_by(obj: Object) -> str:
    """The user, if the webhook was there to see him; else the program that wrote these fields."""
    metadata = obj["metadata"]
    try:
        said = json.loads((metadata.get("annotations") or {}).get(ANNOTATION_ASKED_BY, ""))
        if said == {"by": said["by"], **_wish(obj)}:
            return str(said["by"])[:256]
    except (ValueError, LookupError, TypeError, RecursionError):
        pass  # nobody, or nonsense that somebody wrote there
    writers = [
        entry
        for entry in metadata.get("managedFields", [])
        if {"f:paused", "f:stepDown"} & {*entry.get("fieldsV1", {}).get("f:spec", {})}
    ]
    latest: Object = max(writers, key=lambda entry: entry.get("time", ""), default={})
    return f"{latest.get('manager', 'unknown')} (a program; the user was not seen)"
