"""What is remembered of one ensemble's locks and their users (lock_users.py)."""

from __future__ import annotations

from dataclasses import dataclass, field

from leasekeeper.redlock.users_file import Digests
from leasekeeper_operator.departing import Departures
from leasekeeper_operator.lock_index import Followed, Given


@dataclass(slots=True)
class UsersState:
    given: Followed[Given] = field(default_factory=Followed)
    """The locks' Secrets for this ensemble, as far as they are to be trusted."""
    dirty: bool = False
    """Something else is known than when `wanted` was made."""
    wanted: dict[str, frozenset[str]] = field(default_factory=dict)
    departing: Departures = field(default_factory=Departures)
    naming: set[str] = field(default_factory=set)
    """What ENSEMBLE-users names, or is about to: before it is written, for `elsewhere`."""
    edition: int = 0
    """The latest that is known of ENSEMBLE-users."""
    target: str = ""
    """Digest of what nodes shall know."""
    locks: set[str] = field(default_factory=set)
    """All that ask for this ensemble, also in vain, and those that did at the reading before."""
    generation: int = 0
    """Of the ensemble when `wanted` was made: who is allowed may have changed."""
    read_at: float | None = None
    """When `wanted` was last made from the API server's objects; none: it must be made anew."""
    told: dict[str, tuple[tuple[str, int, str], float]] = field(default_factory=dict)
    """By node: what it was last brought to, and when."""
    knows: dict[str, Digests] = field(default_factory=dict)
    """By node, of all: the users that it was last brought to; none of one that is not open."""
    longest: float = 0.0
    """Seconds for which a lease may live on when all nodes are gone."""
    turn: str = ""
    """The node on which old passwords are taken away in this round."""
