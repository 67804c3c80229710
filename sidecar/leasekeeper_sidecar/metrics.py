"""Counters, and the page for Prometheus.

Counting is a few integers, and the format is a few lines of text. prometheus-client would cost
every pod five megabytes for it (it brings an HTTP server and client, and e-mail); tests hold the
page against its parser, and against the linter that promtool has. Gauges are computed at the scrape
from the deadline, so that no metric says "leading" after it is over.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from leasekeeper.lease import Grant, Lost, Renewed

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Seconds. From a round trip within a rack to the longest that a renewal waits by default.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)


@dataclass(slots=True)
class Latency:
    """How long one node took to answer renewals."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds

    def cumulated(self) -> list[tuple[str, float]]:
        so_far, found = 0, []
        for bound, count in zip([*map(str, BUCKETS), "+Inf"], self.counts, strict=True):
            so_far += count
            found.append((bound, float(so_far)))
        return found


@dataclass(slots=True)
class Counters:
    """What happened to one lock since this process began."""

    leading: bool = False
    """Whether a tenure was announced and not taken back; for counting only: truth has a deadline.
    """
    tenures: int = 0
    renewals: Counter[str] = field(default_factory=Counter)
    nodes: dict[str, Latency] = field(default_factory=dict)
    mirror: Counter[str] = field(default_factory=Counter)
    loss_calls: Counter[str] = field(default_factory=Counter)
    write_failures: int = 0

    def count_renewal(self, outcome: Renewed) -> None:
        if isinstance(outcome, Grant):
            self.renewals["renewed"] += 1
        else:
            self.renewals["lost" if isinstance(outcome, Lost) else "unknown"] += 1

    def count_answer(self, node: str, seconds: float) -> None:
        """Of a node, to a renewal."""
        self.nodes.setdefault(node, Latency()).add(seconds)


@dataclass(frozen=True, slots=True)
class Reading:
    """The gauges of one lock at one scrape, all from the same moment."""

    lock: str
    name: str
    leading: bool
    token: int
    deadline_seconds: float
    loop_age_seconds: float
    mirror_pending: bool
    counters: Counters
    quorum_margin: int | None = None
    """None: this pod does not hold the lock, so it asks nobody."""
    healthy: bool | None = None
    """None: there is no health check."""


@dataclass(frozen=True, slots=True)
class _Sample:
    labels: Mapping[str, str]
    value: float
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class _Family:
    name: str
    kind: str
    help: str
    samples: list[_Sample]

    def text(self) -> str:
        lines = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} {self.kind}"]
        for sample in self.samples:
            # A value is escaped as the format wants it: a node's name comes from a file.
            labels = ",".join(f'{key}="{_escaped(it)}"' for key, it in sample.labels.items())
            lines.append(f"{self.name}{sample.suffix}{{{labels}}} {_number(sample.value)}")
        return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    """Whole numbers without an exponent: a token has 13 digits, and all of them matter."""
    return str(int(value)) if value == int(value) else repr(float(value))


def page(locks: list[Reading], refused: int) -> bytes:
    """The text of `/metrics`."""
    families = [*_gauges(locks), *_counters(locks), _latencies(locks)]
    help_ = "Connections that were cut to make room for others."
    cut = _Family("leasekeeper_http_refused_total", "counter", help_, [_Sample({}, refused)])
    return "".join(family.text() for family in [*families, cut]).encode()


def _gauges(locks: list[Reading]) -> Iterator[_Family]:
    def gauge(name: str, help_: str, of: Callable[[Reading], float | None]) -> _Family:
        found = ((lock.lock, of(lock)) for lock in locks)
        samples = [_Sample({"lock": lock}, value) for lock, value in found if value is not None]
        return _Family(f"leasekeeper_{name}", "gauge", help_, samples)

    yield gauge("leading", "1 while this pod is before its deadline.", lambda r: r.leading)
    yield gauge("token", "Fencing token of the tenure; 0: not leading.", lambda r: r.token)
    yield gauge(
        "deadline_seconds", "Until the deadline; 0: not leading.", lambda r: r.deadline_seconds
    )
    yield gauge("loop_age_seconds", "Since the loop last turned.", lambda r: r.loop_age_seconds)
    yield gauge(
        "quorum_margin",
        "Nodes beyond the quorum that renewed lately; only while holding.",
        lambda r: r.quorum_margin,
    )
    yield gauge(
        "mirror_pending", "1 while the status waits to be written.", lambda r: r.mirror_pending
    )
    yield gauge("healthy", "1 while the app is well; only if it is asked.", lambda r: r.healthy)
    known = [_Sample({"name": lock.name}, lock.leading) for lock in locks]
    help_ = "The name that dashboards know: 1 while this pod leads."
    yield _Family("leader_election_master_status", "gauge", help_, known)


def _counters(locks: list[Reading]) -> Iterator[_Family]:
    def by_outcome(name: str, help_: str, of: Callable[[Counters], dict[str, int]]) -> _Family:
        samples = [
            _Sample({"lock": lock.lock, "outcome": outcome}, count)
            for lock in locks
            for outcome, count in of(lock.counters).items()
        ]
        return _Family(f"leasekeeper_{name}_total", "counter", help_, samples)

    def plain(name: str, help_: str, of: Callable[[Counters], int]) -> _Family:
        samples = [_Sample({"lock": lock.lock}, of(lock.counters)) for lock in locks]
        return _Family(f"leasekeeper_{name}_total", "counter", help_, samples)

    def renewals(counters: Counters) -> dict[str, int]:
        return {key: counters.renewals[key] for key in ("renewed", "unknown", "lost")}

    yield plain("tenures", "Tenures that began here.", lambda c: c.tenures)
    yield by_outcome("renewals", "Renewals by outcome.", renewals)
    yield by_outcome("mirror_requests", "Writes of the status.", lambda c: dict(c.mirror))
    yield by_outcome("on_lost_calls", "Calls to the app on loss.", lambda c: dict(c.loss_calls))
    yield plain("write_failures", "Files that were not written.", lambda c: c.write_failures)


def _latencies(locks: list[Reading]) -> _Family:
    samples: list[_Sample] = []
    for lock in locks:
        for node, latency in lock.counters.nodes.items():
            labels = {"lock": lock.lock, "node": node}
            buckets = latency.cumulated()
            samples += [_Sample({**labels, "le": le}, count, "_bucket") for le, count in buckets]
            samples.append(_Sample(labels, latency.total, "_sum"))
            samples.append(_Sample(labels, buckets[-1][1], "_count"))
    help_ = "From the start of a renewal to a node's answer."
    return _Family("leasekeeper_renewal_seconds", "histogram", help_, samples)
