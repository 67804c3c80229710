"""Requests from outside, as nodes keep them: `SEQUENCE KIND TARGET SECONDS ENDS`.

Written by the operator with `lk1_request` (functions/admin.lua), to all nodes and again until a
quorum has taken it; brought to the holder by its next renewal. The election needs no Kubernetes API
for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from leasekeeper.lease import Request

PAUSE, RESUME, STEP_DOWN = "pause", "resume", "step-down"


def call(lock: str, request: Request) -> tuple[str, ...]:
    """The function and its arguments, for `FCALL … 0 …`. The answer is OK, LOW (something newer was
    asked; its sequence follows) or CLOSED (ask again when it is open).
    """
    seconds = f"{request.seconds:.0f}"
    return ("lk1_request", lock, str(request.sequence), request.kind, request.target, seconds)


def parse(text: str) -> Request | None:
    """None: no wish. The field is the tenant's own, so anything may stand there."""
    parts = text.split(" ")
    if len(parts) < 2 or not _is_number(parts[0]):
        return None
    target = parts[2] if len(parts) > 2 and parts[2] != "-" else ""
    seconds = float(parts[3]) if len(parts) > 3 and _is_number(parts[3]) else 0.0
    return Request(int(parts[0]), parts[1], target, seconds)


def latest(texts: Iterable[str]) -> Request | None:
    """Nodes may have been told at different times: the highest sequence number is the wish."""
    found = filter(None, map(parse, texts))
    return max(found, key=lambda request: request.sequence, default=None)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 16
