"""Kubernetes Events: what happened to a lock or an ensemble, for `kubectl describe`.

They are told once and by best effort. Whoever needs to know for certain reads the status."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from leasekeeper_operator.api import EVENT, Api, ApiError, Object
from leasekeeper_operator.nodes import OPEN
from leasekeeper_operator.status import timestamp

log = logging.getLogger(__name__)

COMPONENT = "leasekeeper"


@dataclass(frozen=True, slots=True)
class Happening:
    """One thing that happened."""

    reason: str
    message: str
    warning: bool = False


def event_object(about: Object, happening: Happening, now: datetime) -> Object:
    metadata, when = about["metadata"], timestamp(now)
    name = f"{metadata['name']}.{secrets.token_hex(8)}"
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.name,
        "metadata": {"name": name, "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": "Warning" if happening.warning else "Normal",
        "reason": happening.reason,
        "message": happening.message[:1024],
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
    }


async def tell(api: Api, about: Object, happenings: Iterable[Happening]) -> None:
    for happening in happenings:
        try:
            await api.create(event_object(about, happening, datetime.now(UTC)))
        except ApiError as error:
            # Nothing rests on it; a namespace that is being deleted takes none.
            log.info('event-not-told reason=%s error="%s"', happening.reason, error)


def node_happenings(old: list[Object], new: list[Object]) -> list[Happening]:
    """From what the status said of the nodes to what it says now."""
    before = {node["id"]: node for node in old}
    happenings = []
    for node in new:
        past, id = before.get(node["id"], {}), node["id"]
        if past.get("state") == node["state"]:
            continue
        if node["state"] == OPEN:
            again = node.get("incarnation", 0) != past.get("incarnation", 0)
            how = "it begins with a new memory" if again else "its memory is the same"
            happenings.append(Happening("NodeOpen", f"node {id} votes: {how}"))
        elif past.get("state") == OPEN:
            text = f"node {id} does not vote: {node.get('message', '')}"
            happenings.append(Happening("NodeLost", text, warning=True))
    return happenings
