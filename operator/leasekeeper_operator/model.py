"""What the operator reads out of the objects that people write, as plain facts.

The API server has filled in the defaults and checked the rules (crds/), so a missing field is a bug
here or a CRD of another version, not a user's mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from leasekeeper.redlock.membership import Membership, Node
from leasekeeper_operator import names
from leasekeeper_operator.api import ENSEMBLE, LOCK, Kind, Object

SERVER_PORT = 6379
ALL_NAMESPACES = "*"


Place = tuple[str, str]
"""Namespace and name."""


class Key(NamedTuple):
    """What the queue carries: which object to look at, never what was seen of it."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def lock_key(namespace: str, name: str) -> Key:
    return Key(LOCK.name, namespace, name)


def ensemble_key(namespace: str, name: str) -> Key:
    return Key(ENSEMBLE.name, namespace, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """What both kinds have in common."""

    namespace: str
    name: str
    uid: str
    generation: int

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    def owner(self, kind: Kind) -> Object:
        """Owned objects go when this one goes. Without `blockOwnerDeletion`: it would need a right
        on finalizers where that is enforced, and hold up a deletion for nothing."""
        return {
            "apiVersion": kind.api_version,
            "kind": kind.name,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble(Resource):
    """A LockEnsemble."""

    nodes: int
    longest_lease: float
    restart_delay: float
    image: str
    allowed_namespaces: Sequence[str]
    password_generation: int
    """Raised by who wants new passwords of agents, peers and the operator."""
    tls: Object | None
    """`spec.tls`; none: nodes speak plainly."""
    spec: Object
    """For what is only handed on to the pods."""

    @classmethod
    def parse(cls, obj: Object) -> Ensemble:
        spec = obj["spec"]
        return cls(
            **_resource(obj),
            nodes=spec["nodes"],
            longest_lease=float(spec["longestLeaseSeconds"]),
            restart_delay=float(spec["restartPolicy"]["delaySeconds"]),
            image=spec["image"],
            allowed_namespaces=tuple(spec.get("allowedNamespaces", ())),
            password_generation=spec.get("passwordGeneration", 1),
            tls=spec.get("tls"),
            spec=spec,
        )

    @property
    def key(self) -> Key:
        return ensemble_key(self.namespace, self.name)

    @property
    def membership(self) -> Membership:
        """By DNS names: an address would change with a Service that is made again, and with it the
        epoch. Without the cluster's domain, which nobody inside needs to know."""
        return Membership(
            nodes=tuple(
                Node(str(i), f"{names.node(self.name, str(i))}.{self.namespace}.svc", SERVER_PORT)
                for i in range(self.nodes)
            ),
            max_ttl=self.longest_lease,
            quarantine=self.restart_delay,
        )

    @property
    def longest_memory(self) -> float:
        """Seconds after which no lease can live on: the quarantine is the longest lease and what
        clocks may differ by."""
        return max(self.longest_lease, self.restart_delay)

    def allows(self, namespace: str) -> bool:
        return (
            namespace == self.namespace
            or ALL_NAMESPACES in self.allowed_namespaces
            or namespace in self.allowed_namespaces
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock(Resource):
    """A DistributedLock."""

    lease_duration: int
    renew_deadline: int
    retry_period: int
    lock_delay: int
    service_accounts: Sequence[str]
    """Empty: all of the namespace."""
    paused: bool
    step_down_token: int | None
    """Of the tenure that shall end."""
    step_down_seconds: int
    ensemble: Object | None
    """`spec.ensemble`: the spec of a LockEnsemble of its own."""
    service: Object | None
    """`spec.service`: a Service that leads to the holder's pod."""
    password_generation: int
    """Raised by who wants a new password of its candidates."""
    label_holder: bool
    """Whether the holder's pod is given a label."""

    @classmethod
    def parse(cls, obj: Object) -> Lock:
        spec = obj["spec"]
        return cls(
            **_resource(obj),
            lease_duration=spec["leaseDurationSeconds"],
            renew_deadline=spec["renewDeadlineSeconds"],
            retry_period=spec["retryPeriodSeconds"],
            lock_delay=spec["lockDelaySeconds"],
            service_accounts=tuple(spec.get("serviceAccountNames", ())),
            paused=spec.get("paused", False),
            step_down_token=spec.get("stepDown", {}).get("token"),
            step_down_seconds=spec.get("stepDown", {}).get("seconds", 0),
            ensemble=spec.get("ensemble"),
            service=spec.get("service"),
            label_holder=spec.get("labelHolder", False),
            password_generation=spec.get("passwordGeneration", 1),
        )

    @property
    def key(self) -> Key:
        return lock_key(self.namespace, self.name)

    @property
    def timings(self) -> Object:
        """As in lock.json."""
        return {
            "leaseDurationSeconds": self.lease_duration,
            "renewDeadlineSeconds": self.renew_deadline,
            "retryPeriodSeconds": self.retry_period,
            "lockDelaySeconds": self.lock_delay,
        }


def ensemble_for(lock: Object, default: Place) -> Place:
    """The ensemble that a DistributedLock asks for. One rule, for whoever publishes a lock and for
    whoever lets its candidates in: were they two, two ensembles could elect two leaders."""
    if "ensemble" in lock["spec"]:
        return lock["metadata"]["namespace"], lock["metadata"]["name"]
    reference = lock["spec"].get("ensembleRef")
    if not reference:
        return default
    return reference.get("namespace", lock["metadata"]["namespace"]), reference["name"]


def _resource(obj: Object) -> dict[str, Any]:
    metadata = obj["metadata"]
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "generation": metadata["generation"],
    }
