"""A lock and the pods that want it, as a user declares them, and who of them leads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from tests.cluster.client import Client, condition, load, until
from tests.cluster.recorder import Recorder
from tests.cluster.watcher import Watcher

# As short as the CRDs allow with whole seconds.
TIMINGS = {"leaseDurationSeconds": 4, "renewDeadlineSeconds": 3, "retryPeriodSeconds": 1}
LEASE, DEADLINE = TIMINGS["leaseDurationSeconds"], TIMINGS["renewDeadlineSeconds"]

BLINK = 1.0
"""Seconds for which a file may say no and go on with the same token: `expiresUnix` is rounded down
to whole ones. What is longer is a time without a leader."""

PATIENCE = 180.0
"""For whatever takes a second on an idle machine. Nothing is concluded from a wait, except that it
was in vain."""

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@dataclass(frozen=True)
class Tenure:
    """As the watcher saw it; times on the boot clock."""

    holder: str
    pod: str
    token: int
    began: float
    ended: float | None
    deadline: float | None = None
    """Of its last sight, when it has ended: until then the lease was certainly its own."""
    gaps: tuple[tuple[float, float], ...] = ()
    """When its file said no in between: never for a second, because what ends early and comes back
    is only the wall clock's half of the rule, which has whole seconds."""


@dataclass(frozen=True)
class HandOver:
    old: Tenure
    new: Tenure
    after: float
    """From the fault to the new leader's first sight, in seconds."""
    gap: float
    """How long nobody led, from the last sight of the old leader: not less than it was."""

    @property
    def released(self) -> bool:
        """The new one leads before the old lease can have run out: so it was given back."""
        return gave_back(self.old, self.new)


def gave_back(old: Tenure, new: Tenure) -> bool:
    return old.deadline is not None and new.began < old.deadline + LEASE - DEADLINE


def tenures(events: Iterable[dict[str, Any]], lock: str) -> list[Tenure]:
    """Of what the watcher told, in the order in which they began."""
    found: dict[tuple[str, int], Tenure] = {}
    for event in events:
        if event.get("lock") != lock or event["event"] not in ("leads", "ends"):
            continue
        key = (event["pod"], event["token"])
        known = found.get(key) or Tenure(event["holder"], *key, event["at"], None)
        if event["event"] == "ends":
            known = replace(known, ended=event["last"], deadline=event["deadline"])
        elif known.ended is not None:
            gaps = (*known.gaps, (known.ended, event["at"]))
            known = replace(known, ended=None, deadline=None, gaps=gaps)
        found[key] = known
    return list(found.values())


def gaps_since(before: Tenure, now: Tenure) -> list[float]:
    """How long nobody led, each time, in a tenure that was looked at twice."""
    return [ended - began for began, ended in now.gaps[len(before.gaps) :]]


def without_a_leader(tenures: Sequence[Tenure]) -> float:
    """How long nobody led between the first and the last of them, in seconds."""
    between = sum(
        max(0.0, after.began - before.ended)
        for before, after in pairwise(tenures)
        if before.ended is not None
    )
    return between + sum(ended - began for one in tenures for began, ended in one.gaps)


def example() -> tuple[dict[str, Any], dict[str, Any]]:
    """The lock and the Deployment of examples/, with short timings and an image that is here."""
    from tests.cluster.conftest import REPOSITORY

    lock, deployment = load(REPOSITORY / "examples" / "deployment.yaml")
    lock["spec"] = dict(TIMINGS)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container["image"] = "localhost/app:1"
    return lock, deployment


class Workload:
    """A lock and the pods that want it, of one name; `declare` makes them of
    examples/deployment.yaml, in a namespace of its own."""

    def __init__(
        self,
        client: Client,
        watcher: Watcher,
        recorder: Recorder,
        namespace: str,
        owner: str = "deployment/orders",
    ) -> None:
        self.client, self._watcher, self._recorder = client, watcher, recorder
        self.namespace = namespace
        self._owner = owner
        self.name = owner.partition("/")[2]
        self.lock = f"{namespace}/{self.name}"

    def declare(self, *before: dict[str, Any], **spec: Any) -> None:
        """`spec`: of the lock, beside its timings. `before`: what it needs."""
        make_namespace(self.client, self.namespace)
        lock, deployment = example()
        lock["spec"].update(spec)
        self.client.apply(self.namespace, *before, lock)
        self.wait("dlock/orders", "condition=Ready")
        self.client.apply(self.namespace, deployment)
        self.settle()

    def wait(self, what: str, condition: str) -> None:
        arguments = ("wait", what, f"--for={condition}", f"--timeout={PATIENCE:.0f}s")
        self.client.kubectl("-n", self.namespace, *arguments, seconds=PATIENCE + 30)

    def settle(self) -> Tenure:
        """All pods are there and ready, and one of them leads."""
        arguments = ("rollout", "status", self._owner, f"--timeout={PATIENCE:.0f}s")
        self.client.kubectl("-n", self.namespace, *arguments, seconds=PATIENCE + 30)
        return until("a pod that stays leads", self._steady, seconds=PATIENCE)

    def _steady(self) -> Tenure | None:
        names = {pod["metadata"]["name"] for pod in self.pods()}
        leader = self.leader()
        return leader if leader is not None and leader.holder in names else None

    def pods(self) -> list[dict[str, Any]]:
        """Those that are not on their way out."""
        found = self.client.items(self.namespace, "pods", "-l", f"app={self.name}")
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def pod(self, name: str) -> dict[str, Any]:
        return self.client.get(self.namespace, "pod", name)

    def ready(self) -> bool:
        return all(condition(pod, "Ready") == "True" for pod in self.pods())

    def status(self) -> dict[str, Any]:
        found = self.client.get(self.namespace, "dlock", self.name)
        status: dict[str, Any] = found.get("status", {})
        return status

    def mirrored(self, leader: Tenure) -> bool:
        shown = self.status()
        return (shown.get("holder"), shown.get("token")) == (leader.holder, leader.token)

    def tenures(self) -> list[Tenure]:
        """In the order in which they began."""
        return tenures(self._watcher.events(), self.lock)

    def latest(self) -> Tenure | None:
        return max(self.tenures(), key=lambda one: one.began, default=None)

    def leader(self) -> Tenure | None:
        """Who leads now, by the reader's rule."""
        latest = self.latest()
        return latest if latest is not None and latest.ended is None else None

    def leads_still(self, before: Tenure) -> bool:
        """The same tenure, without a gap that a reader would call one."""
        leader = self.leader()
        if leader is None or (leader.pod, leader.token) != (before.pod, before.token):
            return False
        return all(gap < BLINK for gap in gaps_since(before, leader))

    def next_leader(
        self, old: Tenure, since: float, cause: str, seconds: float = PATIENCE
    ) -> HandOver:
        """Waits for the tenure after `old`. `since`: when the fault was."""

        def successor() -> Tenure | None:
            later = [tenure for tenure in self.tenures() if tenure.began > old.began]
            return min(later, key=lambda one: one.began, default=None)

        new = until("another tenure begins", successor, seconds=seconds, every=0.02)
        assert new.token > old.token, f"{new} after {old}"

        def gone() -> Tenure | None:
            now = next(tenure for tenure in self.tenures() if tenure.token == old.token)
            return now if now.ended is not None else None

        # Usually in one sweep of the watcher with the other's beginning; but a sweep may read the
        # old file before it changes, and the new one after it has. Two leaders for certain are the
        # watcher's to find, and not this look's.
        old = until(f"{old} has ended", gone, seconds=5, every=0.02)
        assert old.ended is not None
        after = new.began - since
        gap = min(max(0.0, new.began - old.ended), after)  # before the fault, nothing was amiss
        done = HandOver(old, new, after, gap)
        self._recorder.hand_over(
            cause, after=done.after, gap=done.gap, old=old.holder, new=new.holder, token=new.token
        )
        return done

    def is_leader(self, pod: str) -> int | None:
        """As the app itself asks."""
        return self.client.is_leader(self.namespace, pod)

    def remove(self) -> None:
        with contextlib.suppress(AssertionError):
            self.client.kubectl(
                "delete", "namespace", self.namespace, "--ignore-not-found", "--wait=false"
            )


def make_namespace(client: Client, name: str) -> None:
    """With the restricted Pod Security Standard enforced, as all namespaces of these tests."""
    metadata = {"name": name, "labels": RESTRICTED}
    client.apply("default", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    # Without it the API server refuses pods; a controller makes it, a moment later or more.
    account = ("-n", name, "get", "serviceaccount", "default")
    until(
        f"the service account of {name}",
        lambda: client.run("kubectl", *account).returncode == 0,
        seconds=PATIENCE,
    )
