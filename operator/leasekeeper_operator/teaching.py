"""Tokens of a lock that is new on an ensemble begin above the time of its publication.

A lock of that name may have been on a younger ensemble, whose tokens began later than this one's.
So nodes are taught a least token for it before anybody can ask for their votes: before
ENSEMBLE-users names it, because agents let in whom that file names, whether the operator lives or
not. That the file names a lock is thus the proof that it was taught, also for the next operator;
and it is taught once, because later it may have a leader, whom a larger least token would depose.

A quorum that was taught is enough: every other quorum has one of them in it, and so have the Q from
whom a node learns that loses its memory later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from leasekeeper_operator.link import NodeError
from leasekeeper_operator.model import Ensemble
from leasekeeper_operator.nodes import OPEN, Answered, Nodes, Sight

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Teacher:
    """Of the nodes of one ensemble, as one look found them."""

    ensemble: Ensemble
    nodes: Nodes
    sights: Mapping[str, Sight]
    floor: int
    """Of the record of births: all tokens of nodes that vote are larger."""

    async def teach(self, least: Mapping[str, int]) -> bool:
        """By lock, what its tokens begin above. Whether enough nodes know it now; if not, it has to
        be asked again."""
        least = {lock: token for lock, token in least.items() if token > self.floor}
        lives = {
            sight.id: sight.view.life
            for sight in self.sights.values()
            if sight.state == OPEN and sight.view is not None
        }
        quorum = self.ensemble.membership.quorum
        if not least or len(lives) < quorum:
            return not least
        answers = await asyncio.gather(*(self._tell(*node, least) for node in lives.items()))
        taught = _counting({answer.node: answer for answer in answers if answer is not None})
        locks = ",".join(least)
        if taught < quorum:
            text = "locks-not-let-in ensemble=%s taught=%d quorum=%d locks=%s"
            log.warning(text, self.ensemble.key, taught, quorum, locks)
            return False
        log.info("nodes-taught ensemble=%s nodes=%d locks=%s", self.ensemble.key, taught, locks)
        return True

    async def _tell(self, node: str, life: str, least: Mapping[str, int]) -> Answered | None:
        try:
            return await self.nodes.teach(node, life, least)
        except NodeError as error:
            key = self.ensemble.key
            log.warning('not-taught ensemble=%s node=%s error="%s"', key, node, error)
            return None


def _counting(answers: Mapping[str, Answered]) -> int:
    """As candidates count votes: not that of a node of which any other knows a later life, which
    may have learnt from the others before they were taught."""
    return sum(
        all(other.vector.get(node, 0) <= answer.incarnation for other in answers.values())
        for node, answer in answers.items()
    )
