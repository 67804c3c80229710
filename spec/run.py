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
import re
import subprocess
import sys
from pathlib import Path

from tlc import SPEC, Configuration, Outcome, SpecError, need, number, run, run_all, tlc
from traces import readable_trace

# ---- configurations ------------------------------------------------------------------------------


def header(text: str, key: str) -> str | None:
    found = re.search(rf"^\\\* {key}: *(.+?) *$", text, re.MULTILINE)
    return found.group(1) if found else None


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
    widths = (46, 26, 26, 10, 6, 7)
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


def chosen(
    configurations: list[Configuration], names: list[str], *, long: bool
) -> list[Configuration]:
    found = [pick(configurations, name) for name in names]
    modules = {configuration.module for configuration in found} if long else set()
    return [c for c in configurations if c in found or c.module in modules]


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the protocol's specification with TLC.")
    parser.add_argument("--list", action="store_true", help="show the configurations, run nothing")
    only = "run this one, or with --long all of its module (repeatable)"
    parser.add_argument("--only", metavar="NAME", action="append", help=only)
    parser.add_argument("--trace", metavar="NAME", help="run this one and print its trace")
    parser.add_argument("--long", action="store_true", help="also run the larger bounds")
    options = parser.parse_args()
    try:
        everything = discover()
        if options.list:
            for configuration in everything:
                print(f"{configuration.name:<46}  {configuration.expect}")
            return 0
        if options.trace:
            return show_trace(pick(everything, options.trace))
        if options.only:
            return check(chosen(everything, options.only, long=options.long))
        return check([c for c in everything if options.long or not c.long])
    except (SpecError, subprocess.CalledProcessError) as error:
        print(f"spec: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
