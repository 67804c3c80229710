"""Brings one object to what it shall be, and writes nothing when it is that already."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from leasekeeper_operator.api import Api, Object, kind_of
from leasekeeper_operator.names import ANNOTATION_APPLIED


def digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def covers(current: Any, desired: Any) -> bool:
    """Whether `current` has all that `desired` says; what it has beyond that is not ours."""
    if isinstance(desired, dict):
        return isinstance(current, dict) and all(
            key in current and covers(current[key], value) for key, value in desired.items()
        )
    if isinstance(desired, list):
        return (
            isinstance(current, list)
            and len(current) == len(desired)
            and all(covers(c, d) for c, d in zip(current, desired, strict=True))
        )
    return bool(current == desired)


def stamped(desired: Object) -> Object:
    """With the hash of itself as an annotation: what is taken out of `desired` later is noticed."""
    metadata = desired["metadata"]
    annotations = {**metadata.get("annotations", {}), ANNOTATION_APPLIED: digest(desired)}
    return {**desired, "metadata": {**metadata, "annotations": annotations}}


class Applier:
    """Three looks, from cheap to dear: the object is as we want it; it is as we left it (the API
    server writes some values in another form, such as 1000m as 1); or it is applied."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._left: dict[tuple[str, str | None, str], tuple[str, str]] = {}

    async def bring(self, desired: Object) -> Object:
        """The object as it is afterwards."""
        desired = stamped(desired)
        kind, metadata = kind_of(desired), desired["metadata"]
        place = (kind.name, metadata.get("namespace"), metadata["name"])
        wanted = metadata["annotations"][ANNOTATION_APPLIED]
        current = await self._api.get(kind, place[1], place[2])
        if current is not None and (owners := _outlived(current, desired)):
            current = await self._api.set_owners(current, owners)
        if current is not None:
            version = current["metadata"]["resourceVersion"]
            if covers(current, desired) or self._left.get(place) == (wanted, version):
                return current
        applied = await self._api.apply(desired)
        self._left[place] = (wanted, applied["metadata"]["resourceVersion"])
        return applied


def _outlived(current: Object, desired: Object) -> list[Object] | None:
    """The owners that `current` shall have, if it still names one of the same kind and name that is
    gone. Apply alone would add the new one beside it, and two controllers are refused."""
    owners: list[Object] = desired["metadata"].get("ownerReferences", [])
    live = {(owner["kind"], owner["name"]): owner["uid"] for owner in owners}
    for owner in current["metadata"].get("ownerReferences", []):
        if live.get((owner["kind"], owner["name"]), owner["uid"]) != owner["uid"]:
            return owners
    return None
