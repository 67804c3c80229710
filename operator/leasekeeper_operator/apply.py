"""Brings one object to what it shall be, and writes nothing when it is that already."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from leasekeeper_operator.anothers import refuse
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


@dataclass(frozen=True, slots=True)
class _Left:
    """An object as we last made it, or found that it is as we want it."""

    wanted: str
    """Hash of what it shall be."""
    version: str
    substance: str
    """Hash of all but its status; empty: it has none, and `version` says as much."""


class Applier:
    """Three looks, from cheap to dear: the object is as we want it; it is as we left it (the API
    server writes some values in another form, such as 1000m as 1); or it is applied."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._left: dict[tuple[str, str | None, str], _Left] = {}

    async def bring(self, desired: Object, current: Object | None = None) -> Object:
        """The object as it is afterwards. `current`: as it was read just now; else it is read."""
        desired = stamped(desired)
        kind, place = kind_of(desired), _place(desired)
        wanted = desired["metadata"]["annotations"][ANNOTATION_APPLIED]
        if current is None:
            current = await self._api.get(kind, place[1], place[2])
        if current is not None and (owners := _outlived(current, desired)):
            current = await self._api.set_owners(current, owners)
        if current is not None:
            left, version = self._left.get(place), current["metadata"]["resourceVersion"]
            as_left = left is not None and (left.wanted, left.version) == (wanted, version)
            if as_left or covers(current, desired):
                return self._leave(current, wanted)
        return self._leave(await self._api.apply(desired), wanted)

    async def make(self, desired: Object) -> Object:
        """Of an object that is not there. Conflict, if it is."""
        desired = stamped(desired)
        wanted = desired["metadata"]["annotations"][ANNOTATION_APPLIED]
        return self._leave(await self._api.create(desired), wanted)

    def as_left(self, obj: Object) -> bool:
        """Whether what a watch shows is our own work, or only a new status of it."""
        left, version = self._left.get(_place(obj)), obj["metadata"]["resourceVersion"]
        if left is None:
            return False
        if left.version == version:
            return True
        return left.substance != "" and left.substance == _substance(obj)

    def _leave(self, obj: Object, wanted: str) -> Object:
        substance = _substance(obj) if "status" in obj else ""
        left = _Left(wanted, obj["metadata"]["resourceVersion"], substance)
        self._left[_place(obj)] = left
        return obj


def _place(obj: Object) -> tuple[str, str | None, str]:
    metadata = obj["metadata"]
    return obj["kind"], metadata.get("namespace"), metadata["name"]


_VOLATILE = ("resourceVersion", "managedFields", "generation")


def _substance(obj: Object) -> str:
    metadata = {k: value for k, value in obj["metadata"].items() if k not in _VOLATILE}
    rest = {k: value for k, value in obj.items() if k not in ("status", "metadata")}
    return digest([metadata, rest])


def only_ours(before: Object, after: Object, status: Object) -> bool:
    """Whether nothing but our own patch of the status lies between these two: then the event that
    `after` leads to tells us nothing."""
    merged = {**before.get("status", {}), **status}
    expected = {**before, "status": {k: v for k, v in merged.items() if v is not None}}
    return _but_version(expected) == _but_version(after)


def _but_version(obj: Object) -> Object:
    metadata = obj["metadata"].items()
    kept = {k: v for k, v in metadata if k not in ("resourceVersion", "managedFields")}
    return {**obj, "metadata": kept}


def _outlived(current: Object, desired: Object) -> list[Object] | None:
    """The owners that `current` shall have, if it still names one of the same kind and name that is
    gone. Apply alone would add the new one beside it, and two controllers are refused. Raises
    Anothers, if it is not ours at all."""
    refuse(current, desired)
    owners: list[Object] = desired["metadata"].get("ownerReferences", [])
    live = {(owner["kind"], owner["name"]): owner["uid"] for owner in owners}
    for owner in current["metadata"].get("ownerReferences", []):
        if live.get((owner["kind"], owner["name"]), owner["uid"]) != owner["uid"]:
            return owners
    return None
