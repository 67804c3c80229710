"""One line a transition: a stable event name first, then key=value. Written to standard error.

The standard library's `logging` is not used here: the agent has one thread that logs and one place
to log to, and its memory counts.
"""

from __future__ import annotations

import json
import sys


def log(event: str, **fields: object) -> None:
    parts = [event, *(f"{key}={_value(value)}" for key, value in fields.items())]
    print(" ".join(parts), file=sys.stderr, flush=True)


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    text = str(value)
    return text if text and not set(text) & set(" =\"'\n") else json.dumps(text, ensure_ascii=False)
