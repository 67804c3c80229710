"""Who the nodes of an ensemble are, and the timings that they must agree on.

Everybody who talks to a node names the epoch: a number, and a hash over all that the number stands
for. A node refuses an epoch that is not its own, so two clients with different lists of nodes
cannot both find a quorum. The number grows by one with each change of membership (`change.py`)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from leasekeeper.lease import LONGEST, ConfigurationError

LARGEST = 9  # more nodes make each vote dearer and protect against nothing that 9 do not
LARGEST_NUMBER = 10**9  # of an epoch: a change a second for thirty years
LONGEST_LIST = 16_384  # characters: nine nodes with the longest names that DNS has take 4,000
DRIFT = 0.01  # the largest relative rate of any two clocks that the quarantine allows for


@dataclass(frozen=True, slots=True)
class Node:
    """One server with its agent."""

    id: str
    host: str
    port: int

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The nodes of one epoch. Times in seconds."""

    number: int = 1
    nodes: tuple[Node, ...]
    max_ttl: float
    """The longest time for which a node may be asked to keep an entry (lease + lock delay)."""
    quarantine: float
    """D: how long a node that lost its memory does not vote."""
    cap: float = 0.1
    """C: the most that one tick adds. Twenty wake-ups a second at W = C/2 cost 0.4 % of a core."""

    def __post_init__(self) -> None:
        if not 1 <= self.number <= LARGEST_NUMBER:
            raise ConfigurationError(f"number must be from 1 to {LARGEST_NUMBER}")
        n = len(self.nodes)
        if n % 2 == 0 or not 3 <= n <= LARGEST:
            raise ConfigurationError(
                f"nodes: {n} given, but their number must be odd and from 3 to {LARGEST}"
            )
        if len({node.id for node in self.nodes}) != n:
            raise ConfigurationError("nodes: two have the same id")
        for node in self.nodes:
            if not node.id or set(node.id) & set(":,= "):
                raise ConfigurationError(
                    f"nodes: the id {node.id!r} must not be empty nor contain : , = or a space"
                )
        seconds = (self.max_ttl, self.quarantine, self.cap)
        if not all(map(math.isfinite, seconds)) or max(seconds) > LONGEST:
            raise ConfigurationError(
                "maxTtlSeconds, quarantineSeconds and capSeconds must be finite numbers, at most"
                f" {LONGEST:.0f}"
            )
        if self.max_ttl <= 0 or self.cap <= 0:
            raise ConfigurationError("maxTtlSeconds and capSeconds must be greater than 0")
        if round(self.cap * 1e6) / 1e6 != self.cap:
            raise ConfigurationError(
                f"capSeconds ({self.cap!r}) must be a whole number of microseconds, which is what"
                " nodes count in: round it to six digits"
            )
        if self.quarantine <= self.max_ttl * (1 + DRIFT):
            raise ConfigurationError(
                f"quarantineSeconds ({self.quarantine:g}) must be greater than"
                f" maxTtlSeconds ({self.max_ttl:g}) × {1 + DRIFT:g}: a node that lost its memory"
                " must not vote while a lease that it granted may live"
            )

    @property
    def quorum(self) -> int:
        return len(self.nodes) // 2 + 1

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(node.id for node in self.nodes)

    @property
    def epoch(self) -> str:
        return _epoch_of(self)

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "maxTtlSeconds": float(self.max_ttl),
            "quarantineSeconds": float(self.quarantine),
            "capSeconds": float(self.cap),
            "nodes": [{"id": n.id, "host": n.host, "port": n.port} for n in self.nodes],
        }

    def to_arguments(self) -> tuple[str, str, str]:
        """Epoch, members and max_ttl, as node functions take them."""
        return self.epoch, json.dumps(self.to_json()), micros(self.max_ttl)

    @classmethod
    def from_json(cls, data: Any) -> Membership:
        try:
            return cls(
                number=int(data["number"]),
                max_ttl=float(data["maxTtlSeconds"]),
                quarantine=float(data["quarantineSeconds"]),
                cap=float(data["capSeconds"]),
                nodes=_reachable(
                    Node(str(n["id"]), str(n["host"]), int(n["port"])) for n in data["nodes"]
                ),
            )
        except KeyError as missing:
            raise ConfigurationError(f"membership: the key {missing} is missing") from None
        except (TypeError, ValueError, OverflowError) as wrong:
            raise ConfigurationError(f"membership: {wrong}") from None


@lru_cache(maxsize=32)
def _epoch_of(membership: Membership) -> str:
    """Asked for with every look at a peer, and dear to compute."""
    text = json.dumps(membership.to_json(), sort_keys=True, separators=(",", ":"))
    return f"{membership.number}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def micros(seconds: float) -> str:
    """As node functions take a time."""
    return str(round(seconds * 1e6))


def number_of(epoch: str) -> int:
    """0: no epoch at all, or not one of ours."""
    number, dash, _ = epoch.partition("-")
    plain = dash and number.isascii() and number.isdigit() and len(number) <= 10
    return int(number) if plain else 0


@lru_cache(maxsize=32)
def handed_over(epoch: str, members: str) -> Membership | None:
    """The list that a node hands over, if it is what its epoch says; none: nonsense."""
    if len(members) > LONGEST_LIST:
        return None
    try:
        membership = Membership.from_json(json.loads(members))
    except (ConfigurationError, ValueError, RecursionError):
        return None
    return membership if membership.epoch == epoch else None


def _reachable(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Each at an address of its own: one server that is two members would have two votes."""
    found: dict[str, Node] = {}
    for node in nodes:
        if not node.host or not 0 < node.port < 65536:
            raise ConfigurationError(
                f"nodes: {node.id} has the address {node.address!r}; it needs a host and a port"
                " from 1 to 65535"
            )
        other = found.setdefault(node.address, node)
        if other is not node:
            raise ConfigurationError(
                f"nodes: {other.id} and {node.id} both have the address {node.address}; each node"
                " is a server of its own"
            )
    return tuple(found.values())


def parse_port(text: str) -> int | None:
    """0 to 65535, in plain digits; none: that is no port."""
    if text.isascii() and text.isdigit() and len(text) <= 5 and int(text) < 65536:
        return int(text)
    return None
