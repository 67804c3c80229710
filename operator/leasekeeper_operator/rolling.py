"""Which pods of an ensemble are replaced next: a pure function of what is seen.

StatefulSets are `OnDelete`: a changed template waits until somebody takes the old pod away. Every
replaced node loses its memory and is in quarantine before it votes again, so one goes at a time,
and only while all others are open and every holder keeps a quorum without it: a holder repairs its
entry on a node that opened with its next renewal, and two nodes in between would depose it. Nothing
is remembered between two looks: an operator that is killed at any step goes on from what its
successor sees.

    template changed ──▶ others open, holders safe? ──yes──▶ evict one ──▶ it opens ──▶ the next one
                             └──no──▶ wait, and say for whom (`Updated` is False)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from leasekeeper_operator.api import Object
from leasekeeper_operator.nodes import CLOSED, OPEN, Sight
from leasekeeper_operator.status import Condition

UPDATED = "Updated"
UP_TO_DATE, ROLLING, WAITING, STALLED = "UpToDate", "Rolling", "WaitingForNodes", "Stalled"
REFUSED = "Refused"
"""The API server does not take an object that the spec asks for."""

REVISION = "controller-revision-hash"
"""The label by which the StatefulSet controller says which template a pod was made from. Not a hash
of our own: so `kubectl rollout restart` of a node is rolled, too, and as carefully."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePod:
    """What is seen of one node: its vote by the operator's own look, its pod by the API server."""

    node: str
    open: bool
    known: bool = True
    """The StatefulSet's controller has seen the newest template, so that `outdated` is true."""
    pod: Object | None = None
    """None: there is none now."""
    outdated: bool = False
    """It was made from an older template."""
    leaving: bool = False
    empty: bool = False
    """It has no memory that could be lost: its server does not run, or nobody has begun with it."""
    needed_by: str = ""
    """A lock whose holder would have no quorum without this node: it has not got round yet to a
    node that opened a moment ago."""
    trouble: str = ""
    """Why its pod does not run, as the kubelet or the scheduler say it."""


@dataclass(frozen=True, slots=True)
class Roll:
    """What to do, and what to say."""

    condition: Condition
    updated: int
    evict: NodePod | None = None
    """By the eviction API: the disruption budget is a second look, by somebody else."""
    delete: Sequence[NodePod] = ()
    """These have nothing to lose, and no budget shall keep a broken pod."""

    @property
    def done(self) -> bool:
        return self.condition.holds is True

    def refused(self, why: str) -> Roll:
        """The disruption budget does not allow it (yet)."""
        assert self.evict is not None, "nothing else asks the budget"
        text = f"{self.updated} nodes are; node {self.evict.node} may not go yet: {why}"
        return Roll(Condition(UPDATED, False, WAITING, text), self.updated)


def decide(nodes: Sequence[NodePod]) -> Roll:
    total = len(nodes)
    updated = sum(_is_updated(node) for node in nodes)
    if not all(node.known for node in nodes):
        text = f"{updated} of {total} nodes; the StatefulSets' controller has not seen all of it"
        return Roll(Condition(UPDATED, False, ROLLING, text), updated)
    outdated = [node for node in nodes if node.outdated and not node.leaving]
    troubled = any(node.trouble and not node.open for node in nodes)
    if updated == total and not troubled:
        text = f"all {total} nodes run what the spec says"
        return Roll(Condition(UPDATED, True, UP_TO_DATE, text), updated)
    if empty := [node for node in outdated if node.empty]:
        text = f"{updated} of {total} nodes; {_names(empty)} without memory: replaced at once"
        return Roll(Condition(UPDATED, False, ROLLING, text), updated, delete=empty)
    closed = [node for node in nodes if not node.open]
    target = _first(outdated) if outdated else None
    if target is not None and all(node is target for node in closed):
        text = f"{updated} of {total} nodes; node {target.node} is being replaced"
        if lock := target.needed_by:
            text = f"{updated} of {total} nodes; node {target.node} waits for the holder of {lock}"
            return Roll(Condition(UPDATED, False, WAITING, f"{text} to be on the others"), updated)
        return Roll(Condition(UPDATED, False, ROLLING, text), updated, evict=target)
    return Roll(_waiting(updated, total, closed, bool(outdated)), updated)


def _is_updated(node: NodePod) -> bool:
    return node.known and node.pod is not None and not node.outdated and not node.leaving


def _first(outdated: Sequence[NodePod]) -> NodePod:
    """One that does not vote costs nothing, and it is the one that all others wait for."""
    return min(outdated, key=lambda node: (node.open, node.node))


def _waiting(updated: int, total: int, closed: Sequence[NodePod], more: bool) -> Condition:
    head = f"{updated} of {total} nodes"
    if troubled := [node for node in closed if node.trouble]:
        said = "; ".join(f"node {node.node}: {node.trouble}" for node in troubled)
        tail = ". The other nodes are not touched and go on voting" if more else ""
        return Condition(UPDATED, False, STALLED, f"{head}; {said}{tail}. Correct the spec")
    text = f"{head}; waiting for {_names(closed)} to be open" if closed else head
    return Condition(UPDATED, False, WAITING, text)


def _names(nodes: Iterable[NodePod]) -> str:
    ids = [node.node for node in nodes]
    return f"node {ids[0]}" if len(ids) == 1 else f"nodes {', '.join(ids)}"


def node_pod(
    sight: Sight, stateful_set: Object | None, pod: Object | None, needed_by: str = ""
) -> NodePod:
    """From the objects as the API server has them."""
    revision = _update_revision(stateful_set)
    metadata = pod["metadata"] if pod else {}
    unbegun = sight.state == CLOSED and (sight.view is None or not sight.view.life)
    return NodePod(
        node=sight.id,
        open=sight.state == OPEN,
        known=revision != "",
        pod=pod,
        outdated=pod is not None and metadata.get("labels", {}).get(REVISION) != revision,
        leaving="deletionTimestamp" in metadata,
        empty=pod is not None and (unbegun or not _runs(pod, "server")),
        needed_by=needed_by,
        trouble=_trouble(pod) if pod else "",
    )


def _update_revision(stateful_set: Object | None) -> str:
    """Empty: it is not known yet what a new pod would be made from."""
    if stateful_set is None:
        return ""
    status = stateful_set.get("status", {})
    if status.get("observedGeneration", 0) < stateful_set["metadata"]["generation"]:
        return ""
    return str(status.get("updateRevision", ""))


def _containers(pod: Object) -> list[Object]:
    found: list[Object] = pod.get("status", {}).get("containerStatuses", [])
    return found


def _runs(pod: Object, container: str) -> bool:
    states = [c.get("state", {}) for c in _containers(pod) if c["name"] == container]
    return any("running" in state for state in states)


def _trouble(pod: Object) -> str:
    """Only what does not go away by waiting a moment: a container that is being made is none."""
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason', 'Unscheduled')}: {condition.get('message', '')}"[:500]
    for container in _containers(pod):
        waiting = container.get("state", {}).get("waiting", {})
        reason = waiting.get("reason", "")
        if reason and reason not in ("ContainerCreating", "PodInitializing"):
            said = f"container {container['name']}: {reason}: {waiting.get('message', '')}"
            return said.removesuffix(": ")[:500]
    return ""
