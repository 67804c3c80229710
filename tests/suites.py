"""Runs the suites, and says what each one took.

    python tests/suites.py             all of them
    python tests/suites.py unit redis  only these

Used by `make test`, and so by CI. Installs what the suites need and this machine lacks.

Three lanes run side by side: suites that compute, those that wait for leases and servers, and those
that wait for Kubernetes. Those that compute are `nice`: they take what the others leave. What a
suite prints is shown in one piece when it ends, and of a suite that runs alone, as it comes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


COMPUTES, SERVERS, KUBERNETES = "computes", "servers", "kubernetes"


@dataclass(frozen=True)
class Suite:
    name: str
    lane: str
    commands: Sequence[Sequence[str]]


def _pytest(name: str, lane: str) -> Suite:
    return Suite(name, lane, [[str(BIN / "pytest"), "-q", "--durations=5", f"tests/{name}"]])


def _kube(name: str, verb: str) -> Suite:
    return Suite(name, KUBERNETES, [[sys.executable, "tests/cluster/kube/cluster.py", verb]])


LINT = (
    [str(BIN / "ruff"), "check", "."],
    [str(BIN / "ruff"), "format", "--check", "."],
    [str(BIN / "mypy")],
    [str(BIN / "lint-imports")],
)

SUITES = (  # of each lane, from fast to real
    Suite("lint", COMPUTES, LINT),
    _pytest("unit", COMPUTES),
    Suite("spec", COMPUTES, [[sys.executable, "spec/run.py"]]),
    _pytest("simulation", COMPUTES),
    _pytest("redis", SERVERS),
    _pytest("sidecar", SERVERS),
    _pytest("faults", SERVERS),
    _pytest("stores", SERVERS),
    _kube("cluster-build", "build"),
    _pytest("operator", KUBERNETES),
    _pytest("chart", KUBERNETES),
    _kube("images", "images"),
    _pytest("cluster", KUBERNETES),
)

NICE = 10  # a tenth of the weight of those who wait

# Debian package by the program that it brings.
PROGRAMS = {
    "redis-server": "redis-server",
    "busybox": "busybox",
    "dash": "dash",
    "cc": "build-essential",  # for the demo's small library that steps a wall clock
    "chromium": "chromium",  # for the demo's page
    "pg_ctlcluster": "postgresql",
    "mariadbd": "mariadb-server-core",
    "my_print_defaults": "mariadb-client-core",
    "/usr/share/zookeeper/bin/zkServer.sh": "zookeeper",
}


@dataclass(frozen=True)
class Outcome:
    suite: Suite
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


class Runner:
    """All lanes. Their children are waited for, also after Ctrl-C, which reaches them as well:
    killed in the middle of cleaning up, they would leave servers behind.
    """

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self._stopped = threading.Event()
        self._printing = threading.Lock()

    def run(self, suites: Sequence[Suite]) -> None:
        if len(suites) == 1:
            self._lane(suites, None)
            return
        print("running: " + " ".join(suite.name for suite in suites), flush=True)
        lanes = [[s for s in suites if s.lane == lane] for lane in (COMPUTES, SERVERS, KUBERNETES)]
        threads = [threading.Thread(target=self._buffered, args=(lane,)) for lane in lanes]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            self._stopped.set()
            for thread in threads:
                thread.join()
            raise

    def _buffered(self, lane: Sequence[Suite]) -> None:
        with TemporaryFile() as output:
            self._lane(lane, output)

    def _lane(self, lane: Sequence[Suite], output: IO[bytes] | None) -> None:
        for suite in lane:
            if self._stopped.is_set():
                return
            outcome = _outcome(suite, output)
            with self._printing:
                self.outcomes.append(outcome)
                if output is not None:
                    print(f"\n==== {suite.name}", flush=True)
                    _empty(output)


def _outcome(suite: Suite, output: IO[bytes] | None) -> Outcome:
    began = time.monotonic()
    nice = ["nice", "-n", str(NICE)] if suite.lane == COMPUTES and output is not None else []
    passed = all(_finished([*nice, *command], output) == 0 for command in suite.commands)
    return Outcome(suite, time.monotonic() - began, passed)


def _finished(command: Sequence[str], output: IO[bytes] | None) -> int:
    """Its exit code. subprocess.run would kill it a quarter of a second after Ctrl-C."""
    stderr = None if output is None else subprocess.STDOUT
    with subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=stderr) as child:
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:
                continue


def _empty(output: IO[bytes]) -> None:
    output.seek(0)
    shutil.copyfileobj(output, sys.stdout.buffer)
    sys.stdout.buffer.flush()
    output.seek(0)
    output.truncate()


def main(names: list[str]) -> int:
    known = [suite.name for suite in SUITES]
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no suite {unknown[0]!r}; there are: {' '.join(known)}", file=sys.stderr)
        return 2
    install_missing()
    began = time.monotonic()
    runner = Runner()
    runner.run([suite for suite in SUITES if not names or suite.name in names])
    print("\n==== what each suite took")
    for outcome in runner.outcomes:
        verdict = "passed" if outcome.passed else "FAILED"
        print(f"  {outcome.suite.name:<14} {outcome.seconds:>7.1f} s  {verdict}")
    print(f"  {'all':<14} {time.monotonic() - began:>7.1f} s")
    failed = sum(not outcome.passed for outcome in runner.outcomes)
    print(f"suites: {len(runner.outcomes) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("interrupted")
