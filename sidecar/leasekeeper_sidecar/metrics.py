"""Counters, and the page for Prometheus.

Counting is a few integers. prometheus-client costs five megabytes and sixty milliseconds, so it is
imported by the first scrape and not before: a pod that nobody scrapes does not pay for it. Gauges
are computed at the scrape from the deadline, so that no metric says "leading" after it is over.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leasekeeper.lease import Grant, Lost, Renewed

if TYPE_CHECKING:
    from prometheus_client.core import Metric

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


Labels = Sequence[str]
Samples = Iterable[tuple[Labels, float]]


class _Collector:
    def __init__(self, read: Callable[[], list[Reading]], refused: Callable[[], int]) -> None:
        self._read = read
        self._refused = refused

    def collect(self) -> Iterator[Metric]:
        locks = self._read()
        yield from self._gauges(locks)
        yield from self._counters(locks)
        yield self._latencies(locks)
        yield _counter("http_refused", "Connections cut for others.", (), [((), self._refused())])

    def _gauges(self, locks: list[Reading]) -> Iterator[Metric]:
        def gauge(name: str, help_: str, of: Callable[[Reading], float | None]) -> Metric:
            found = (((lock.lock,), of(lock)) for lock in locks)
            samples = [(labels, value) for labels, value in found if value is not None]
            return _gauge(f"leasekeeper_{name}", help_, ("lock",), samples)

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
        known = [((lock.name,), float(lock.leading)) for lock in locks]
        help_ = "The name that dashboards know: 1 while this pod leads."
        yield _gauge("leader_election_master_status", help_, ("name",), known)

    def _counters(self, locks: list[Reading]) -> Iterator[Metric]:
        def by(key: str, name: str, help_: str, of: Callable[[Counters], dict[str, int]]) -> Metric:
            samples = [
                ((lock.lock, label), count)
                for lock in locks
                for label, count in of(lock.counters).items()
            ]
            return _counter(name, help_, ("lock", key), samples)

        def plain(name: str, help_: str, of: Callable[[Counters], int]) -> Metric:
            samples = [((lock.lock,), of(lock.counters)) for lock in locks]
            return _counter(name, help_, ("lock",), samples)

        def renewals(counters: Counters) -> dict[str, int]:
            return {key: counters.renewals[key] for key in ("renewed", "unknown", "lost")}

        yield plain("tenures", "Tenures that began here.", lambda c: c.tenures)
        yield by("outcome", "renewals", "Renewals by outcome.", renewals)
        yield by("outcome", "mirror_requests", "Status writes.", lambda c: dict(c.mirror))
        yield by("outcome", "on_lost_calls", "Calls to the app.", lambda c: dict(c.loss_calls))
        yield plain("write_failures", "Files not written.", lambda c: c.write_failures)

    def _latencies(self, locks: list[Reading]) -> Metric:
        from prometheus_client.core import HistogramMetricFamily

        family = HistogramMetricFamily(
            "leasekeeper_renewal_seconds",
            "From the start of a renewal to a node's answer.",
            labels=("lock", "node"),
        )
        for lock in locks:
            for node, latency in lock.counters.nodes.items():
                family.add_metric((lock.lock, node), latency.cumulated(), latency.total)
        return family


def _gauge(name: str, help_: str, labels: Labels, samples: Samples) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(name, help_, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _counter(name: str, help_: str, labels: Labels, samples: Samples) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(f"leasekeeper_{name}", help_, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


class Page:
    """The text of `/metrics`."""

    def __init__(self, read: Callable[[], list[Reading]], refused: Callable[[], int]) -> None:
        self._collector = _Collector(read, refused)
        self._registry: Any = None

    def prepare(self) -> None:
        """The expensive import; may run in a thread, so that no renewal waits for it."""
        import prometheus_client
        import prometheus_client.core

        if self._registry is None:
            # auto_describe off, or registering would run a collection in whatever thread this is.
            self._registry = prometheus_client.CollectorRegistry(auto_describe=False)
            self._registry.register(self._collector)

    @property
    def prepared(self) -> bool:
        return self._registry is not None

    def render(self) -> bytes:
        from prometheus_client import generate_latest

        text: bytes = generate_latest(self._registry)
        return text
