"""The examples of docs/app-contract.md, each taken from the page and run, in its own language."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from leasekeeper_sidecar.claim import Claim, standby_claim
from leasekeeper_sidecar.host import Proc

PAGE = Path(__file__).resolve().parents[2] / "docs" / "app-contract.md"
HOST = Proc()
LANGUAGES = {
    "python": ("example.py", [sys.executable]),
    "go": ("example.go", ["go", "run"]),
    "java": ("Leader.java", ["java"]),
    "js": ("example.js", ["node"]),
}
# Only what is on this machine; a test that is skipped would fail a run of CI.
PRESENT = [name for name, (_, command) in LANGUAGES.items() if shutil.which(command[0])]


def code(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found, f"no example in {language}"
    return found.group(1)


@pytest.fixture(scope="module", params=PRESENT)
def program(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Callable[[], subprocess.CompletedProcess[str]]]:
    """The example with its path changed to a folder of ours, compiled once if need be."""
    language: str = request.param
    folder = tmp_path_factory.mktemp(language)
    name, command = LANGUAGES[language]
    text = code(language)
    assert "/var/run/lock" in text
    source = folder / name
    source.write_text(text.replace("/var/run/lock", str(folder)))
    if language == "go":
        command = [str(folder / "example")]
        environment = {**os.environ, "GO111MODULE": "off"}
        build = ["go", "build", "-o", command[0], str(source)]
        subprocess.run(build, check=True, env=environment)
    elif language == "java" and shutil.which("javac"):
        subprocess.run(["javac", "-d", str(folder), str(source)], check=True)
        command = ["java", "-XX:TieredStopAtLevel=1", "-cp", str(folder), "Leader"]
    else:
        command = [*command, str(source)]
    return folder, lambda: subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False
    )


def true_claim() -> Claim:
    wall = HOST.wall()
    return Claim(
        lock="shop/orders",
        leader=True,
        boot=HOST.boot_id(),
        holder="orders-0",
        token=1_763_427_723_456,
        acquired=wall,
        expires=wall + 600,
        expires_unix=int(wall + 600),
        deadline_cs=HOST.uptime_cs() + 60_000,
    )


def test_an_example_says_yes_exactly_when_the_rule_does(
    program: tuple[Path, Callable[[], subprocess.CompletedProcess[str]]],
) -> None:
    folder, run = program
    true = true_claim()
    file = folder / "leader"

    file.write_text(true.to_json())
    done = run()
    assert (done.returncode, done.stdout.strip()) == (0, str(true.token)), done.stderr

    no = {
        "a standby's": standby_claim("shop/orders", boot=HOST.boot_id(), holder="a", seen=1.0),
        "past its deadline": replace(true, deadline_cs=HOST.uptime_cs()),
        "expired on the wall clock": replace(true, expires_unix=int(HOST.wall())),
        "of another boot": replace(true, boot="5f0c2a44-6c1e-4c55-9b1e-6f0f2b1f7a10"),
    }
    for what, claim in no.items():
        file.write_text(claim.to_json())
        done = run()
        assert (done.returncode, done.stdout) == (1, ""), f"{what}: {done.stderr}"
    file.write_text(true.to_json()[:-30])
    assert run().returncode == 1, "half a file"
    file.unlink()
    assert run().returncode == 1, "no file"


def test_the_page_shows_every_language_that_it_promises() -> None:
    for language in LANGUAGES:
        assert code(language)


def test_the_page_names_every_field_of_the_file() -> None:
    text = PAGE.read_text()
    for field in (*true_claim().fields(), "seen"):
        assert f"`{field}`" in text, field
