"""The page of metrics, held against those who read it: promtool's own linter (the Go library that
`promtool check metrics` calls, built from its module) and Prometheus' parser in Python.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from leasekeeper_sidecar import metrics
from leasekeeper_sidecar.metrics import Counters, Reading
from prometheus_client.parser import text_string_to_metric_families

from leasekeeper.lease import Lost, Unknown

HERE = Path(__file__).resolve().parent
TOKEN = 1_763_427_723_456


def reading(lock: str, *, leading: bool) -> Reading:
    counters = Counters(tenures=2, write_failures=1)
    for outcome in (Lost("x"), Unknown({}), Unknown({})):
        counters.count_renewal(outcome)
    for seconds in (0.0005, 0.001, 0.0011, 0.3, 5.0):
        counters.count_answer('node "0"\\\n', seconds)
    counters.mirror["forbidden"] += 3
    counters.loss_calls["ok"] += 1
    return Reading(
        lock=lock,
        name=lock.partition("/")[2],
        leading=leading,
        token=TOKEN if leading else 0,
        deadline_seconds=9.75 if leading else 0.0,
        loop_age_seconds=0.125,
        mirror_pending=True,
        counters=counters,
        quorum_margin=2 if leading else None,
        healthy=True,
    )


LOCKS = [reading("shop/orders", leading=True), reading("shop/stock", leading=False)]
PAGE = metrics.page(LOCKS, 7)


@pytest.fixture(scope="module")
def promlint() -> Path:
    sys.path.insert(0, str(HERE.parent / "cluster" / "kube"))
    from localkube import binaries, pins
    from localkube.progress import Progress

    folder = binaries.module("promlint", HERE / "promlint", [], pins.load(), Progress())
    return folder / "promlint"


def lint(program: Path, page: bytes) -> tuple[int, str]:
    done = subprocess.run([program], input=page, capture_output=True, timeout=60, check=False)
    return done.returncode, done.stdout.decode()


def test_promtools_linter_has_nothing_to_say(promlint: Path) -> None:
    assert lint(promlint, PAGE) == (0, "")
    assert lint(promlint, metrics.page([], 0)) == (0, "")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"leasekeeper_tenures_total", b"leasekeeper_tenures"),
        (b"# HELP leasekeeper_leading 1", b"# HELPLESS leasekeeper_leading 1"),
        (b"deadline_seconds", b"deadline_ms"),
        (b"leasekeeper_token{", b"leasekeeper token{"),
    ],
)
def test_the_linter_would_say_something(promlint: Path, old: bytes, new: bytes) -> None:
    assert old in PAGE
    assert lint(promlint, PAGE.replace(old, new))[0] != 0


def test_every_metric_is_there_and_true() -> None:
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(PAGE.decode())
        for sample in family.samples
    }

    def value(name: str, lock: str = "shop/orders", **more: str) -> float:
        return samples[(f"leasekeeper_{name}", *sorted({"lock": lock, **more}.items()))]

    assert (value("leading"), value("leading", "shop/stock")) == (1, 0)
    assert samples["leader_election_master_status", ("name", "orders")] == 1
    assert samples["leader_election_master_status", ("name", "stock")] == 0
    assert value("token") == TOKEN
    assert f'leasekeeper_token{{lock="shop/orders"}} {TOKEN}\n'.encode() in PAGE, "every digit"
    assert value("tenures_total") == 2
    assert [value("renewals_total", outcome=o) for o in ("renewed", "unknown", "lost")] == [0, 2, 1]
    assert value("deadline_seconds") == 9.75
    assert value("loop_age_seconds") == 0.125
    assert value("quorum_margin") == 2
    assert ("leasekeeper_quorum_margin", ("lock", "shop/stock")) not in samples
    assert value("mirror_requests_total", outcome="forbidden") == 3
    assert value("on_lost_calls_total", outcome="ok") == 1
    assert samples["leasekeeper_http_refused_total",] == 7
    node = {"node": 'node "0"\\\n'}
    buckets = [value("renewal_seconds_bucket", le=le, **node) for le in ("0.001", "0.0025", "2.0")]
    assert buckets == [2, 3, 4], "a value on the bound belongs to it"
    assert value("renewal_seconds_bucket", le="+Inf", **node) == 5
    assert value("renewal_seconds_count", **node) == 5
    assert value("renewal_seconds_sum", **node) == pytest.approx(5.3026)
