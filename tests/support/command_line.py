"""The command line as processes, for one lock on real nodes."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

from ensemble import Ensemble

PATIENCE = 60
LEASE = 3.0


class Cli:
    """The command line, for one lock of its own."""

    def __init__(self, ensemble: Ensemble, folder: Path) -> None:
        self.lock = f"shop/{secrets.token_hex(4)}"
        user, password = ensemble.add_lock(self.lock)
        self.folder = folder
        self.password = folder / "password"
        self.password.write_text(password)
        self.nodes = ",".join(node.address for node in ensemble.membership.nodes)
        self.config = folder / "lock.json"
        timings = {"leaseDurationSeconds": 3, "renewDeadlineSeconds": 2, "retryPeriodSeconds": 0.5}
        redlock = {
            "membership": ensemble.membership.to_json(),
            "username": user,
            "password": password,
        }
        lock = {"version": 1, "lock": self.lock, "store": "redlock", "timings": timings}
        self.config.write_text(json.dumps({**lock, "redlock": redlock}))

    @property
    def by_nodes(self) -> list[str]:
        return [self.lock, "--nodes", self.nodes, "--password-file", str(self.password)]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "leasekeeper.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        started = self.start(*arguments)
        out, err = started.communicate(timeout=PATIENCE)
        return started.returncode, out, err

    def hold(self, script: str, *options: str) -> subprocess.Popen[str]:
        """A shell script while holding the lock; returns when it has said its first line."""
        command = ("--", "sh", "-c", script)
        held = self.start("hold", "--config", str(self.config), *options, *command)
        assert held.stdout is not None
        assert held.stdout.readline(), held.communicate()[1]
        return held

    def observed(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("observe", *self.by_nodes, "--json")[1])
        return found


def finished(held: subprocess.Popen[str]) -> int:
    held.communicate(timeout=PATIENCE)
    return held.returncode


def running(command: str) -> bool:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if (folder / "cmdline").read_text().startswith(command):
                    return True
            except OSError:
                continue
    return False
