"""The chart's values: each is explained, and what is not a value is refused by name."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from tests.chart.conftest import CHART

Helm = Callable[..., subprocess.CompletedProcess[str]]

VALUES = (CHART / "values.yaml").read_text()


def test_every_value_has_a_comment_above_it() -> None:
    lines = VALUES.splitlines()
    keys = [n for n, line in enumerate(lines) if re.match(r"\s*[A-Za-z]\w*:", line)]
    assert len(keys) > 40
    bare = [lines[n].strip() for n in keys if not lines[n - 1].lstrip().startswith("#")]
    assert bare == []


def paths(node: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(node, dict):
        for key, child in node.items():
            yield (*prefix, key)
            yield from paths(child, (*prefix, key))


def objects_of(schema: dict[str, Any], node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every object with named properties, references followed."""
    if "$ref" in node:
        node = schema["definitions"][node["$ref"].rpartition("/")[2]]
    if "properties" in node:
        yield node
        for child in node["properties"].values():
            yield from objects_of(schema, child)


def test_no_object_of_the_schema_takes_unknown_keys() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    found = list(objects_of(schema, schema))
    assert len(found) > 8
    assert all(node["additionalProperties"] is False for node in found)


def test_schema_and_values_have_the_same_top_level_keys() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["properties"].keys() - {"global"} == yaml.safe_load(VALUES).keys()


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("replicas=2", "Additional property replicas is not allowed"),
        ("operator.replicas=-1", "operator.replicas: Must be greater than or equal to 0"),
        ("operator.leaseSeconds=2", "Must be greater than or equal to 3"),
        ("operator.imagee=x", "operator: Additional property imagee is not allowed"),
        ("sidecar.image.tagg=x", "sidecar.image: Additional property tagg is not allowed"),
        ("defaultEnsemble.nodes=4", "nodes must be one of the following: 3, 5, 7, 9"),
        ("defaultEnsemble.longestLeaseSeconds=0", "Must be greater than or equal to 1"),
        ("defaultEnsemble.tls.secretName=x", "Additional property secretName is not allowed"),
        ("defaultEnsemble.tls.enabled=maybe", "Expected: boolean, given: string"),
        ("defaultEnsemble.image=", "defaultEnsemble.image: Does not match pattern"),
        ("webhook.certificateSecret=No_Name", "certificateSecret: Does not match pattern"),
        ("webhook.timeoutSeconds=31", "Must be less than or equal to 30"),
        ("operator.image.pullPolicy=Sometimes", "must be one of the following"),
        ("operator.image.digest=latest", "operator.image.digest: Does not match pattern"),
        ("fullnameOverride=Not_A_Name", "fullnameOverride: Does not match pattern"),
    ],
)
def test_a_wrong_value_is_refused_with_a_sentence(helm: Helm, value: str, sentence: str) -> None:
    done = helm("template", "lk", str(CHART), "--set", value)
    assert done.returncode != 0
    assert sentence in done.stderr


def test_a_restart_delay_that_is_too_short_is_refused_before_anything_is_installed(
    helm: Helm,
) -> None:
    done = helm("template", "lk", str(CHART), "--set", "defaultEnsemble.restartDelaySeconds=30")
    assert done.returncode != 0
    assert "defaultEnsemble.restartDelaySeconds (30) must be greater than 1.01 ×" in done.stderr


def test_every_value_is_used_by_a_template_or_passed_on_whole() -> None:
    templates = "\n".join(file.read_text() for file in (CHART / "templates").rglob("*.*"))
    values = yaml.safe_load(VALUES)
    whole = ("resources", "image", "labels")  # handed on as they are
    for path in paths(values):
        if any(part in whole for part in path[:-1]) or isinstance(_at(values, path), dict):
            continue
        assert re.search(rf"\.{path[-1]}\b", templates), ".".join(path)


def _at(node: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        node = node[part]
    return node
