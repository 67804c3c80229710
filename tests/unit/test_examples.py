"""The programs inside the examples can be read by what runs them. (Applied: tests/chart.)"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def programs() -> Iterator[tuple[str, str, str]]:
    """Example, kind and text of each program in a ConfigMap or on a command line."""
    for file in sorted(EXAMPLES.glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            for name, text in document.get("data", {}).items():
                if name.endswith(".py"):
                    yield file.name, "python", text
                elif text.startswith("#!/bin/sh"):
                    yield file.name, "sh", text
            template: dict[str, Any] = document.get("spec", {}).get("template", {})
            for container in template.get("spec", {}).get("containers", []):
                if container["command"][:2] == ["sh", "-c"]:
                    yield file.name, "sh", container["command"][2]


@pytest.mark.parametrize(("example", "kind", "text"), list(programs()))
def test_the_program_can_be_read_and_asks_before_it_works(
    example: str, kind: str, text: str
) -> None:
    if kind == "python":
        compile(text, example, "exec")
    else:
        subprocess.run(["sh", "-n"], input=text, text=True, check=True)
    assert "/var/run/lock/is-leader" in text


def test_each_example_has_a_lock_and_pods_that_name_it() -> None:
    files = sorted(EXAMPLES.glob("*.yaml"))
    assert len(files) >= 5
    for file in files:
        documents = list(yaml.safe_load_all(file.read_text()))
        locks = [d["metadata"]["name"] for d in documents if d["kind"] == "DistributedLock"]
        templates = [d["spec"]["template"] for d in documents if "template" in d.get("spec", {})]
        asked = [t["metadata"]["annotations"]["leasekeeper.dev/lock"] for t in templates]
        assert locks == asked, file.name
