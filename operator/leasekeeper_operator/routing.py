"""Keeps a lock's leader-only Service: one address, that of the pod which a quorum of nodes says
holds the lock; none, if nobody does or that pod is not ready.

When the operator cannot tell who holds it, the address stays: its own blindness must not cut off a
leader, and a pod that does not lead any more knows it without us.
"""

from __future__ import annotations

import logging

from leasekeeper_operator import names
from leasekeeper_operator.anothers import Anothers
from leasekeeper_operator.api import ENDPOINT_SLICE, POD, SERVICE, Api, Kind, Object
from leasekeeper_operator.apply import Applier
from leasekeeper_operator.holders import Outlook
from leasekeeper_operator.manifests.service import (
    FAMILIES,
    can_serve,
    leader_service,
    leader_slice,
)
from leasekeeper_operator.model import Lock

log = logging.getLogger(__name__)


class Routing:
    def __init__(self, api: Api, applier: Applier) -> None:
        self._api = api
        self._applier = applier

    async def bring(self, lock: Lock, outlook: Outlook | None, last: str) -> tuple[str, str]:
        """Reason and message of what is not as the spec says; empty: it is. `last`: the Service
        that was there before, as the status says."""
        wanted = lock.service["name"] if lock.service else ""
        if last and last != wanted:
            await self._remove(lock, last)
        if lock.service is None:
            return "", ""
        found = await self._api.get(SERVICE, lock.namespace, wanted)
        if found is not None and not _ours(found, lock):
            return (
                "ServiceConflict",
                f"the Service {lock.namespace}/{wanted} is somebody else's: name another one in"
                " spec.service, or delete it",
            )
        service = await self._applier.bring(leader_service(lock))
        if outlook is None or outlook.doubtful(lock.full_name):
            return "", ""
        try:
            await self._point(lock, outlook, service["spec"].get("ipFamilies") or ["IPv4"])
        except Anothers as refused:
            return "ServiceConflict", str(refused)
        return "", ""

    async def _point(self, lock: Lock, outlook: Outlook, families: list[str]) -> None:
        holder = outlook.holders.get(lock.full_name)
        # Candidates write their ids themselves; what is no name is nobody's.
        named = holder is not None and names.valid_pod_name(holder.pod)
        pod = await self._api.get(POD, lock.namespace, holder.pod) if holder and named else None
        if holder is None or not can_serve(pod, lock, holder.uid):
            pod = None
        slices = {family: leader_slice(lock, family, pod) for family in families}
        if len(families) > 1:
            # Of two slices one is written first: until both say the new pod, the other says nobody.
            for family, wanted in slices.items():
                name = wanted["metadata"]["name"]
                now = await self._api.get(ENDPOINT_SLICE, lock.namespace, name)
                if now is not None and _target(now) not in (_target(wanted), ""):
                    await self._applier.bring(leader_slice(lock, family, None))
        for wanted in slices.values():
            await self._applier.bring(wanted)

    async def _remove(self, lock: Lock, service: str) -> None:
        """What an earlier spec asked for. Only what we made."""
        places: list[tuple[Kind, str]] = [(SERVICE, service)]
        places += [(ENDPOINT_SLICE, names.leader_slice(service, family)) for family in FAMILIES]
        for kind, name in places:
            found = await self._api.get(kind, lock.namespace, name)
            if found is not None and _ours(found, lock):
                await self._api.delete(found)
        log.info("service-removed lock=%s service=%s", lock.key, service)


def _ours(obj: Object, lock: Lock) -> bool:
    labels = obj["metadata"].get("labels", {})
    return {**names.MANAGED, names.LABEL_LOCK: lock.name}.items() <= dict(labels).items()


def _target(slice_: Object) -> str:
    """The uid of the pod that it leads to; empty: nobody."""
    endpoints = slice_.get("endpoints") or []
    return str(endpoints[0].get("targetRef", {}).get("uid", "")) if endpoints else ""
