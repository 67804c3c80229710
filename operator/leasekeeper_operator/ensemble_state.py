"""What the reconciler of ensembles remembers of one, to do less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from leasekeeper_operator.api import Object
from leasekeeper_operator.model import Ensemble
from leasekeeper_operator.nodes import Nodes, Sight
from leasekeeper_operator.passwords import Credentials
from leasekeeper_operator.rolling import Roll


@dataclass(frozen=True, slots=True)
class Rest:
    """Everything was as it shall be."""

    ensemble: Ensemble
    obj: Object
    """The LockEnsemble."""
    sights: Mapping[str, Sight]
    """As the nodes answered."""
    since: float


@dataclass(slots=True)
class State:
    """What is only remembered to do less; a new operator begins without it."""

    settled: tuple[int, float] | None = None
    """Generation and time at which all objects were last brought to the spec."""
    credentials: Credentials | None = None
    aligned: Credentials | None = None
    """Those that the nodes were last brought to."""
    trusted: str = ""
    """The CAs of the nodes' certificates; empty: no TLS."""
    nodes: Nodes | None = None
    problem: str = ""
    """What the API server said of an object that it refused; the others were brought."""
    roll: Roll | None = None
    """The last decision; none or not done: pods are looked at again."""
    generation: int = 0
    """Of the spec that the locks were last told of."""
    opened: tuple[str, ...] | None = None
    """The nodes that were open at the last look."""
    seen: tuple[list[Object], float] | None = None
    """What the last look saw, and when that was new."""
    shown: list[Object | None] = field(default_factory=list)
    """Objects that belong to it as watches showed them since the last look; none: one is gone."""
    newest: tuple[Object, float] | None = None
    """The LockEnsemble itself, as the last look left it, and when."""
    looked: float | None = None
    """When the last look began."""
    left: str = ""
    """The version of the LockEnsemble whose event tells nothing that the last look did not see."""
    rest: Rest | None = None
    """None: the last look found something to do, or to wait for."""
