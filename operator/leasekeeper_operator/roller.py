"""Carries out what `rolling.py` decides."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from leasekeeper_operator import names
from leasekeeper_operator.api import POD, STATEFUL_SET, Api, ApiError, Object
from leasekeeper_operator.events import Happening, tell
from leasekeeper_operator.holders import Outlook
from leasekeeper_operator.model import Ensemble
from leasekeeper_operator.nodes import Sight
from leasekeeper_operator.rolling import Roll, decide, node_pod

log = logging.getLogger(__name__)


class Roller:
    def __init__(self, api: Api) -> None:
        self._api = api

    async def step(
        self, ensemble: Ensemble, obj: Object, sights: Mapping[str, Sight], outlook: Outlook
    ) -> Roll:
        """One step of a rolling change, if there is one to take."""
        labels = f"{names.LABEL_ENSEMBLE}={ensemble.name},{names.LABEL_NODE}"
        sets = _by_node(await self._api.find(STATEFUL_SET, ensemble.namespace, labels))
        pods = _by_node(await self._api.find(POD, ensemble.namespace, labels))
        roll = decide(
            [
                node_pod(sight, sets.get(id), pods.get(id), outlook.needing(id))
                for id, sight in sights.items()
            ]
        )
        for node in roll.delete:
            assert node.pod is not None, "only what is there is outdated"
            await self._api.delete(node.pod)
            log.info("node-replaced ensemble=%s node=%s memory=none", ensemble.key, node.node)
        if (target := roll.evict) is None:
            return roll
        assert target.pod is not None, "only what is there is outdated"
        try:
            await self._api.evict(target.pod)
        except ApiError as error:
            if error.status != 429:
                raise
            log.info('eviction-refused node=%s/%s error="%s"', ensemble.key, target.node, error)
            return roll.refused(str(error))
        log.info("node-replaced ensemble=%s node=%s", ensemble.key, target.node)
        happening = Happening("NodeReplaced", f"node {target.node}: its pod has an older template")
        await tell(self._api, obj, [happening])
        return roll


def _by_node(objects: list[Object]) -> dict[str, Object]:
    return {obj["metadata"]["labels"][names.LABEL_NODE]: obj for obj in objects}
