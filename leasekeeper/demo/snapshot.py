"""All that a view shows, as plain data: the terminal draws it, the page gets it as JSON."""

from __future__ import annotations

from typing import Any

from leasekeeper.demo.engine import Demo
from leasekeeper.demo.history import now
from leasekeeper.demo.world import LocalCandidate

MEMORY = 120.0  # seconds of the timeline


def snapshot(demo: Demo) -> dict[str, Any]:
    return {
        "at": round(demo.at, 3),
        "lease": demo.world.lease,
        "quorum": demo.world.membership.quorum,
        "chaos": demo.chaos,
        "clocks": demo.faults.clocks_can_be_stepped,
        "leader": demo.leader,
        "nodes": [
            {
                "name": look.node,
                "state": look.state,
                "holder": look.holder,
                "left": round(look.left, 2),
                "rests": round(demo.rests_for(look.node), 1),
                "ahead": node.wall_clock.step,
            }
            for look, node in zip(demo.looks, demo.world.nodes, strict=True)
        ],
        "candidates": [_candidate(demo, candidate) for candidate in demo.world.candidates],
        "tenures": [
            {
                "holder": tenure.holder,
                "token": tenure.token,
                "from": round(tenure.first_began - demo.began, 2),
                "to": round(tenure.last_ended - demo.began, 2),
            }
            for tenure in demo.files.tenures
            if tenure.last_ended > now() - MEMORY
        ],
        "counts": demo.summary(),
    }


def _candidate(demo: Demo, candidate: LocalCandidate) -> dict[str, Any]:
    reading = demo.readings.get(candidate.name)
    left = reading.left - (now() - reading.ended) if reading is not None else 0.0
    return {
        "name": candidate.name,
        "running": candidate.sidecar.running,
        "frozen": candidate.frozen,
        "cut": candidate.name in demo.world.cuts,
        "leads": reading is not None,
        "token": reading.token if reading is not None else 0,
        "left": round(max(0.0, left), 2),
    }


def condition(candidate: dict[str, Any]) -> str:
    """In one or two words: what is wrong comes before what it does."""
    if not candidate["running"]:
        return "killed"
    wrong = [word for word in ("frozen", "cut") if candidate[word]]
    if wrong:
        return " and ".join("cut off" if word == "cut" else word for word in wrong)
    return "leads" if candidate["leads"] else "stands by"
