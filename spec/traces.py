"""TLC's counterexamples, made readable: each step's action, and what it changed."""

from __future__ import annotations

import re

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
