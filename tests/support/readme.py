"""The commands that a Markdown page shows, so that tests can run them as they stand there.

A command stands in a block ```console, after the prompt `$ `; a line that ends with a backslash
goes on in the next one. All other lines of the block are what the command answers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CLUSTER = {"helm", "kubectl"}


@dataclass(frozen=True, slots=True)
class Command:
    """One command, and the answer that the page shows for it (as an example; times differ)."""

    text: str
    answer: str

    @property
    def program(self) -> str:
        return self.text.split()[0]

    @property
    def needs_a_cluster(self) -> bool:
        return self.program in _CLUSTER


def commands(page: Path = README) -> list[Command]:
    """All of them, in the order of the page."""
    return [
        command
        for block in _BLOCK.findall(page.read_text(encoding="utf-8"))
        for command in _commands_of(block)
    ]


def _commands_of(block: str) -> list[Command]:
    found: list[Command] = []
    lines = iter(block.splitlines())
    for line in lines:
        if line.startswith("$ "):
            text = line[2:]
            while text.endswith("\\"):
                text = text[:-1].rstrip() + " " + next(lines).strip()
            found.append(Command(_without_comment(text), ""))
        elif found:
            found[-1] = Command(found[-1].text, found[-1].answer + line + "\n")
        else:
            raise ValueError(f"a block of console begins with an answer: {line!r}")
    return found


def _without_comment(text: str) -> str:
    """Two spaces and `# …` behind a command are for people."""
    return re.sub(r"\s{2,}# .*$", "", text)
