"""Objects that have the name of one of ours and are somebody else's: an app `orders` that has a
disruption budget `orders`, a NetworkPolicy of that name, or a Secret `orders-tls`, and now asks for
an ensemble `orders`. They are left as they are, and the status says what is in the way.
"""

from __future__ import annotations

from datetime import UTC, datetime

from leasekeeper_operator.api import ENSEMBLE, LOCK, Api, ApiError, Object
from leasekeeper_operator.model import Key
from leasekeeper_operator.names import ANNOTATION_APPLIED, MANAGED
from leasekeeper_operator.nodes import USERS
from leasekeeper_operator.rolling import REFUSED, UPDATED
from leasekeeper_operator.status import READY, Condition, changed, merge_conditions


class Anothers(ApiError):
    """As if the API server had refused it."""

    def __init__(self, obj: Object) -> None:
        place = f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"
        super().__init__(
            422,
            f"the {obj['kind']} {place} is somebody else's: rename or delete it, or make the lock"
            " or ensemble anew under another name",
        )


def refuse(current: Object, desired: Object) -> None:
    """Any trace of us will do: labels are taken away by hand, and ours shall come back then. And an
    administrator may bring the passwords of servers that run: nobody else has these three keys."""
    metadata, ours = current["metadata"], desired["metadata"].get("ownerReferences", [])
    owners = {(owner["kind"], owner["name"]) for owner in metadata.get("ownerReferences", [])}
    traces = (
        MANAGED.items() <= dict(metadata.get("labels") or {}).items(),
        ANNOTATION_APPLIED in (metadata.get("annotations") or {}),
        any((owner["kind"], owner["name"]) in owners for owner in ours),
        {*USERS} <= (current.get("data") or {}).keys(),
    )
    if not any(traces):
        raise Anothers(desired)


async def say(api: Api, key: Key, refused: Anothers) -> None:
    """In the status of the lock or ensemble that it is in the way of."""
    obj = await api.get(ENSEMBLE if key.kind == ENSEMBLE.name else LOCK, key.namespace, key.name)
    if obj is None:
        return
    generation, old = obj["metadata"]["generation"], obj.get("status", {}).get("conditions", [])
    said = Condition(READY, False, "ObjectConflict", str(refused))
    if key.kind == ENSEMBLE.name:
        said = Condition(UPDATED, False, REFUSED, str(refused))
    new = {"conditions": merge_conditions(old, [said], generation, datetime.now(UTC))}
    if changed(obj.get("status", {}), new):
        await api.patch_status(obj, new)
