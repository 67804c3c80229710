"""The commands of docs/without-kubernetes.md, as they stand there, on free ports."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import readme

from leasekeeper.demo.processes import server_binary

PAGE = Path(__file__).resolve().parents[2] / "docs" / "without-kubernetes.md"
PORTS = ("7000", "7001", "7002")
PATIENCE = 120


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not pytest's own: the path of a unix socket is 107 characters long at most."""
    with tempfile.TemporaryDirectory(prefix="leasekeeper-") as name:
        yield Path(name)


def free_ports(number: int) -> list[str]:
    with ExitStack() as stack:
        bound = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in bound:
            one.bind(("127.0.0.1", 0))
        return [str(one.getsockname()[1]) for one in bound]


def program() -> str:
    (text,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for shown, free in zip(PORTS, free_ports(len(PORTS)), strict=True):
        assert text.count(shown) == 1
        text = text.replace(shown, free)
    return str(text)


def environment(folder: Path) -> dict[str, str]:
    """The page's programs by their names: our environment's, and the server of the tests."""
    programs = folder / "programs"
    programs.mkdir()
    (programs / "valkey-server").symlink_to(server_binary())
    ours = (str(programs), str(Path(sys.executable).parent), os.environ["PATH"])
    ports = {"LEASEKEEPER_HTTP_PORT": "0", "LEASEKEEPER_LOCAL_PORT": "0"}
    return {**os.environ, **ports, "PATH": os.pathsep.join(ours)}


def test_the_page_makes_an_ensemble_that_elects(folder: Path) -> None:
    (folder / "ensemble.py").write_text(program())
    commands = readme.commands(PAGE)
    script = "\n".join(f"echo '$ {number}'\n{c.text}" for number, c in enumerate(commands))
    out = folder / "out"
    with out.open("w") as file:
        run = subprocess.Popen(
            ["bash", "-e", "-c", script],
            cwd=folder,
            env=environment(folder),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        assert run.wait(PATIENCE) == 0, out.read_text()
    finally:
        os.killpg(run.pid, signal.SIGKILL)
    parts = re.split(r"^\$ \d+\n", out.read_text(), flags=re.MULTILINE)[1:]
    answers = {c.text: part for c, part in zip(commands, parts, strict=True)}

    def answer(command: str) -> str:
        (found,) = [said for text, said in answers.items() if f"leasekeeper {command} " in text]
        return found

    assert "3 of 3 nodes vote; 2 are a majority\n" in answer("status")
    assert re.search(r"^token \d{13}$", answer("hold"), re.MULTILINE)
    assert answer("observe").startswith("shop/report is held by ")
