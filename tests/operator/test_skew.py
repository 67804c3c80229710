"""Sidecars live for months, and operators are upgraded: what both sides keep to.

The file below is what the first version published (docs/architecture.md §3); it never changes."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from leasekeeper_operator.manifests import lock_json
from leasekeeper_sidecar import config as sidecar

from leasekeeper.lease import ConfigurationError
from tests.operator.samples import ensemble, lock

Object = dict[str, Any]

FIRST: Object = json.loads(
    """
{"version": 1, "lock": "shop/orders", "store": "redlock",
 "timings": {"leaseDurationSeconds": 15, "renewDeadlineSeconds": 10, "retryPeriodSeconds": 2,
             "lockDelaySeconds": 0},
 "redlock": {"membership": {"number": 1, "maxTtlSeconds": 30.0, "quarantineSeconds": 32.0,
                            "capSeconds": 0.1,
                            "nodes": [{"id": "0", "host": "main-0.store.svc", "port": 6379},
                                      {"id": "1", "host": "main-1.store.svc", "port": 6379},
                                      {"id": "2", "host": "main-2.store.svc", "port": 6379}]},
             "username": "lock:shop/orders", "password": "secret"}}
"""
)


def read(document: Object, home: Path) -> Any:
    file = home / "lock.json"
    file.write_text(json.dumps(document))
    environment = {
        "LEASEKEEPER_CONFIG": str(file),
        "LEASEKEEPER_POD_NAME": "a",
        "LEASEKEEPER_POD_UID": "u",
        "LEASEKEEPER_MIRROR": "none",
    }
    return sidecar.load([], environment).locks


def shape(value: Any) -> Any:
    """Names and types; what is said there may differ."""
    if isinstance(value, dict):
        return {key: shape(child) for key, child in value.items()}
    if isinstance(value, list):
        return [shape(child) for child in value]
    return float if isinstance(value, int | float) else type(value)


def covers(new: Any, old: Any) -> bool:
    if isinstance(old, dict):
        return isinstance(new, dict) and all(k in new and covers(new[k], v) for k, v in old.items())
    return bool(new == old)


def test_this_sidecar_reads_what_the_first_operator_published(tmp_path: Path) -> None:
    (found,) = read(FIRST, tmp_path)
    assert found.name == "shop/orders"


def test_this_operator_publishes_what_the_first_sidecar_reads() -> None:
    """All that was there is still there, of the same type; more may be."""
    now = lock_json(lock(), ensemble(nodes=3), "secret")
    assert now["version"] == 1
    assert covers(shape(now), shape(FIRST))


def test_this_sidecar_ignores_what_it_does_not_know(tmp_path: Path) -> None:
    """So a later operator may say more without asking for a newer sidecar."""
    later = copy.deepcopy(FIRST)
    later["new"] = {"a": 1}
    later["timings"]["new"] = 1
    later["redlock"]["new"] = [1]
    later["redlock"]["membership"]["new"] = "x"
    later["redlock"]["membership"]["nodes"][0]["new"] = "x"
    assert read(later, tmp_path) == read(FIRST, tmp_path)


def test_what_cannot_be_ignored_has_another_version_and_is_refused_aloud(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="2, but this sidecar knows 1 only"):
        read({**FIRST, "version": 2}, tmp_path)
