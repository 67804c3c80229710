"""The label `leasekeeper.dev/role=leader` on the holder's pod, for locks that ask for it: for
selectors, `kubectl get pods -l` and dashboards.

It follows the operator's own look at the nodes, seconds late, so nothing that must be exclusive may
rest on it. It is taken from the old pod before it is given to the new one; while the operator
cannot tell who holds the lock, it stays. It needs the right to patch pods, which the operator has
only where the installation grants it.
"""

from __future__ import annotations

import logging

from leasekeeper_operator import names
from leasekeeper_operator.api import POD, Api, ApiError, Object
from leasekeeper_operator.holders import Holder, Outlook
from leasekeeper_operator.injection import wanted_locks
from leasekeeper_operator.model import Lock

log = logging.getLogger(__name__)

LABEL_ROLE, LEADER = "leasekeeper.dev/role", "leader"


class Labelling:
    def __init__(self, api: Api) -> None:
        self._api = api

    async def bring(
        self, lock: Lock, outlook: Outlook | None, last: str
    ) -> tuple[str, tuple[str, str]]:
        """The pod that has the label now, and reason and message of what is not as the spec says.
        `last`: the pod that had it, as the status says."""
        if not lock.label_holder and not last:
            return "", ("", "")
        if outlook is None or outlook.doubtful(lock.full_name):
            return last, ("", "")
        holder = outlook.holders.get(lock.full_name) if lock.label_holder else None
        try:
            return await self._move(lock, holder), ("", "")
        except ApiError as error:
            if error.status != 403:
                raise
            text = "spec.labelHolder: the operator may not patch pods; set operator.labelHolders"
            return last, ("LabelForbidden", f"{text} of the chart, or take the field away")

    async def _move(self, lock: Lock, holder: Holder | None) -> str:
        labels = f"{names.LABEL_LOCK}={lock.name},{LABEL_ROLE}={LEADER}"
        labelled = await self._api.find(POD, lock.namespace, labels)
        for pod in labelled:
            if holder is None or pod["metadata"]["uid"] != holder.uid:
                await self._api.patch_labels(pod, {LABEL_ROLE: None})
                log.info("label-taken lock=%s pod=%s", lock.key, pod["metadata"]["name"])
        if holder is None or not names.valid_pod_name(holder.pod):
            return ""
        found = await self._api.get(POD, lock.namespace, holder.pod)
        if found is None or not _may_have_it(found, lock, holder.uid):
            return ""
        if found["metadata"].get("labels", {}).get(LABEL_ROLE) != LEADER:
            await self._api.patch_labels(found, {LABEL_ROLE: LEADER})
            log.info("label-given lock=%s pod=%s", lock.key, holder.pod)
        return holder.pod


def _may_have_it(pod: Object, lock: Lock, uid: str) -> bool:
    """This very pod, by its uid, and a candidate of this lock alone: one label cannot say of which
    of several locks it is the leader."""
    metadata = pod["metadata"]
    return (
        metadata["uid"] == uid
        and wanted_locks(pod) in ([], [lock.name])
        and metadata.get("labels", {}).get(names.LABEL_LOCK) == lock.name
    )
