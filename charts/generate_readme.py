"""Writes the table of values into the chart's README, from the comments of values.yaml.

    python charts/generate_readme.py            after a change of values.yaml
    python charts/generate_readme.py --check    exit 1, if it is not what it should be

values.yaml is the single source: a key's meaning is the comment right above it. What is shown as
the default of a key with keys below it is those keys.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

CHART = Path(__file__).resolve().parent / "leasekeeper"
BEGIN = "<!-- values: made from values.yaml by charts/generate_readme.py -->\n"
END = "<!-- end of values -->\n"

KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z]\w*):\s*(?P<value>.*)$")


def rows(text: str) -> Iterator[tuple[str, str, str]]:
    """Path, default and meaning of every key, in their order."""
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.lstrip().startswith("#"):
            comment.append(line.lstrip().removeprefix("#").strip())
            continue
        found = KEY.match(line)
        if found is None:
            comment = [] if not line.strip() else comment
            continue
        indent = len(found["indent"])
        path = [(depth, key) for depth, key in path if depth < indent] + [(indent, found["key"])]
        value = found["value"] or _below(lines[number + 1 :], indent)
        yield ".".join(key for _, key in path), value, " ".join(comment)
        comment = []


def _below(lines: list[str], indent: int) -> str:
    """A list in block style; nothing, if keys follow."""
    items = []
    for line in lines:
        if not line.startswith(" " * (indent + 1) + " ") or not line.lstrip().startswith("- "):
            break
        items.append(line.lstrip().removeprefix("- "))
    return f"[{{{'}, {'.join(items)}}}]" if items else ""


def table(text: str) -> str:
    lines = ["| value | default | meaning |", "| --- | --- | --- |"]
    for path, default, meaning in rows(text):
        shown = f"`{default}`" if default else ""
        lines.append(f"| `{path}` | {shown} | {meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def generated(readme: str, values: str) -> str:
    head, _, rest = readme.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not end:
        sys.exit(f"README.md has not both of the lines\n{BEGIN}{END}")
    return head + BEGIN + table(values) + END + tail


def main(arguments: list[str]) -> None:
    readme = CHART / "README.md"
    before = readme.read_text()
    after = generated(before, (CHART / "values.yaml").read_text())
    if arguments == ["--check"]:
        if before != after:
            sys.exit("the chart's README is old: python charts/generate_readme.py")
    else:
        readme.write_text(after)


if __name__ == "__main__":
    main(sys.argv[1:])
