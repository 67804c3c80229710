"""The operator's own numbers, for Prometheus.

Gauges are read at the scrape from what they are about, so that no metric says "leading" after it
is over. What only the elected replica knows (queue, ensembles) is left out by the others.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from aiohttp import web

from leasekeeper import __version__
from leasekeeper_operator.model import Key

if TYPE_CHECKING:
    from prometheus_client.core import Metric

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds. From a lock that stands to the time-out of one request to the API server."""

Reconcile = Callable[[Key], Awaitable[float | None]]


class Metrics:
    """Counts reconciliations, and answers `/metrics`."""

    def __init__(
        self,
        *,
        leads: Callable[[], bool],
        writes: Callable[[], int],
        waiting: Callable[[], int],
        failing: Callable[[], int],
        nodes: Callable[[], Mapping[Key, tuple[int, int]]],
    ) -> None:
        """`nodes`: of each ensemble, how many are open, and how many there are."""
        from prometheus_client import CollectorRegistry, Counter, Histogram

        self._leads = leads
        self._writes = writes
        self._waiting = waiting
        self._failing = failing
        self._nodes = nodes
        self._registry = CollectorRegistry(auto_describe=False)
        self._reconciles = Counter(
            "leasekeeper_operator_reconciles",
            "Reconciliations by kind and outcome.",
            ("kind", "outcome"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "leasekeeper_operator_reconcile_seconds",
            "How long a reconciliation took.",
            ("kind",),
            buckets=BUCKETS,
            registry=self._registry,
        )
        self._registry.register(self)

    def counted(self, reconcile: Reconcile) -> Reconcile:
        async def run(key: Key) -> float | None:
            began = time.monotonic()
            outcome = "failed"
            try:
                again = await reconcile(key)
                outcome = "done"
                return again
            finally:
                self.observe(key.kind, outcome, time.monotonic() - began)

        return run

    def observe(self, kind: str, outcome: str, seconds: float) -> None:
        self._reconciles.labels(kind, outcome).inc()
        self._seconds.labels(kind).observe(seconds)

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            InfoMetricFamily,
        )

        def gauge(name: str, help_: str, value: float) -> Metric:
            return GaugeMetricFamily(f"leasekeeper_operator_{name}", help_, value=value)

        leads = self._leads()
        info = {"version": __version__}
        yield InfoMetricFamily("leasekeeper_operator", "What runs here.", value=info)
        help_ = "Writes to the API server; at rest there are none."
        yield CounterMetricFamily("leasekeeper_operator_writes", help_, value=self._writes())
        yield gauge("leading", "1 while this replica is the elected one.", leads)
        if not leads:
            return
        yield gauge("queue_depth", "Keys that wait for a worker.", self._waiting())
        yield gauge("failing", "Keys whose last reconciliation failed.", self._failing())
        labels = ("namespace", "ensemble")
        open_ = GaugeMetricFamily("leasekeeper_ensemble_nodes_open", "May vote.", labels=labels)
        all_ = GaugeMetricFamily("leasekeeper_ensemble_nodes", "As declared.", labels=labels)
        for key, (opened, declared) in self._nodes().items():
            open_.add_metric((key.namespace, key.name), opened)
            all_.add_metric((key.namespace, key.name), declared)
        yield open_
        yield all_

    def text(self) -> bytes:
        from prometheus_client import generate_latest

        text: bytes = generate_latest(self._registry)
        return text

    async def page(self, _: web.Request) -> web.Response:
        from prometheus_client import CONTENT_TYPE_LATEST

        return web.Response(body=self.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})
