"""Runs the suites in order, from fast to real, and says what each one took.

    python tests/suites.py             all of them
    python tests/suites.py unit redis  only these

Used by `make test`, and so by CI. Installs what the suites need and this machine lacks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


def _pytest(*folders: str) -> list[list[str]]:
    return [[str(BIN / "pytest"), "-q", "--durations=5", *(f"tests/{f}" for f in folders)]]


SUITES: dict[str, list[list[str]]] = {
    "lint": [
        [str(BIN / "ruff"), "check", "."],
        [str(BIN / "ruff"), "format", "--check", "."],
        [str(BIN / "mypy")],
        [str(BIN / "lint-imports")],
    ],
    "unit": _pytest("unit"),
    "spec": [[sys.executable, "spec/run.py"]],
    "simulation": _pytest("simulation"),
    "redis": _pytest("redis"),
    "stores": _pytest("stores"),
    "sidecar": _pytest("sidecar"),
    "faults": _pytest("faults"),
    "cluster-build": [[sys.executable, "tests/cluster/kube/cluster.py", "build"]],
    "operator": _pytest("operator"),
    "chart": _pytest("chart"),
    "images": [[sys.executable, "tests/cluster/kube/cluster.py", "images"]],
    "cluster": _pytest("cluster"),
}

# Debian package by the program that it brings.
PROGRAMS = {"redis-server": "redis-server", "busybox": "busybox", "dash": "dash"}


@dataclass
class Outcome:
    name: str
    seconds: float
    passed: bool


def install_missing() -> None:
    missing = sorted(
        {package for program, package in PROGRAMS.items() if not shutil.which(program)}
    )
    if not missing:
        return
    print(f"installing {' '.join(missing)}", flush=True)
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run([*apt, "update"], check=True, env=environment)
    subprocess.run(
        [*apt, "install", "-y", "--no-install-recommends", *missing],
        check=True,
        env=environment,
        stdout=subprocess.DEVNULL,
    )


def _finished(command: list[str]) -> int:
    """Its exit code. Ctrl-C reaches the command as well, and it is waited for: subprocess.run would
    kill it after a quarter of a second, in the middle of cleaning up.
    """
    with subprocess.Popen(command, cwd=ROOT) as child:
        try:
            return child.wait()
        except KeyboardInterrupt:
            child.wait()
            raise


def run(name: str) -> Outcome:
    print(f"\n==== {name}", flush=True)
    began = time.monotonic()
    passed = all(_finished(command) == 0 for command in SUITES[name])
    return Outcome(name, time.monotonic() - began, passed)


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        print(f"no suite {unknown[0]!r}; there are: {' '.join(SUITES)}", file=sys.stderr)
        return 2
    install_missing()
    outcomes = [run(name) for name in names or SUITES]
    print("\n==== what each suite took")
    for outcome in outcomes:
        verdict = "passed" if outcome.passed else "FAILED"
        print(f"  {outcome.name:<14} {outcome.seconds:>7.1f} s  {verdict}")
    print(f"  {'all':<14} {sum(o.seconds for o in outcomes):>7.1f} s")
    failed = sum(not o.passed for o in outcomes)
    print(f"suites: {len(outcomes) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("interrupted")
