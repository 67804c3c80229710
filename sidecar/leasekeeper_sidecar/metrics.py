"""Counters, and the page for Prometheus.

Counting is a few integers. prometheus-client costs five megabytes and sixty milliseconds, so it is
imported by the first scrape and not before: a pod that nobody scrapes does not pay for it. Gauges
are computed at the scrape from the deadline, so that no metric says "leading" after it is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leasekeeper.lease import Grant, Lost, Renewed

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(slots=True)
class Counters:
    """What happened since this process began."""

    leading: bool = False
    """Whether a tenure was announced and not taken back; for counting only: truth has a deadline.
    """
    tenures: int = 0
    renewals: Counter[str] = field(default_factory=Counter)
    mirror: Counter[str] = field(default_factory=Counter)
    write_failures: int = 0
    http_refused: int = 0

    def count_renewal(self, outcome: Renewed) -> None:
        if isinstance(outcome, Grant):
            self.renewals["renewed"] += 1
        else:
            self.renewals["lost" if isinstance(outcome, Lost) else "unknown"] += 1


@dataclass(frozen=True, slots=True)
class Reading:
    """The gauges of one scrape, all from the same moment."""

    lock: str
    name: str
    leading: bool
    token: int
    deadline_seconds: float
    loop_age_seconds: float
    mirror_pending: bool


class _Collector:
    def __init__(self, counters: Counters, read: Callable[[], Reading]) -> None:
        self._counters = counters
        self._read = read

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        now, counters = self._read(), self._counters
        labels = {"lock": now.lock}
        keys, values = list(labels), list(labels.values())

        def gauge(name: str, value: float, help_: str) -> Metric:
            family = GaugeMetricFamily(f"leasekeeper_{name}", help_, labels=keys)
            family.add_metric(values, value)
            return family

        def counter(name: str, counts: dict[str, int], help_: str, by: str = "") -> Metric:
            family = CounterMetricFamily(
                f"leasekeeper_{name}", help_, labels=[*keys, by] if by else keys
            )
            for label, count in counts.items():
                family.add_metric([*values, label] if by else values, count)
            return family

        yield gauge("leading", now.leading, "1 while this pod is before its deadline.")
        yield gauge("token", now.token, "Fencing token of the tenure; 0 while not leading.")
        yield gauge("deadline_seconds", now.deadline_seconds, "Until the deadline; 0: not leading.")
        yield gauge("loop_age_seconds", now.loop_age_seconds, "Since the loop last turned.")
        yield gauge("mirror_pending", now.mirror_pending, "1 while the status waits to be written.")
        yield counter("tenures", {"": counters.tenures}, "Tenures that began here.")
        renewals = {key: counters.renewals[key] for key in ("renewed", "unknown", "lost")}
        yield counter("renewals", renewals, "Renewals by outcome.", "outcome")
        yield counter("mirror_requests", dict(counters.mirror), "Status writes.", "outcome")
        yield counter("write_failures", {"": counters.write_failures}, "Files not written.")
        yield counter("http_refused", {"": counters.http_refused}, "Connections cut for others.")
        known = GaugeMetricFamily(
            "leader_election_master_status",
            "The name that dashboards know: 1 while this pod leads.",
            labels=["name"],
        )
        known.add_metric([now.name], now.leading)
        yield known


class Page:
    """The text of `/metrics`."""

    def __init__(self, counters: Counters, read: Callable[[], Reading]) -> None:
        self._collector = _Collector(counters, read)
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
