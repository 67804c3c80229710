"""What the schedules must have seen. A simulation in which nothing happens finds nothing wrong.

The kernel counts, in `Kernel.seen`: faults where they have an effect, replies of node functions,
the outcomes of the store, and what became of messages. A fault that finds nobody to hurt is not
counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from sim_faults import USUAL_WEIGHTS
from sim_run import AIMED

REPLIES = {
    "lk1_grant": "COMMITTED GRANTED HELD CLOSED EPOCH",
    "lk1_commit": "OK HIGH NOTMINE CLOSED",
    "lk1_renew": "OK HIGH MISSING NOTMINE CLOSED EPOCH",
    "lk1_adopt": "OK NOTMINE",
    "lk1_release": "OK GONE CLOSED",
    "lk1_announce": "OK LOW VOID",
    "lk1_become": "OK",
    "lk1_birth": "OK",
    "lk1_close": "OK",
    "lk1_dump": "OPEN",
    "lk1_enter": "OK",
    "lk1_forget": "OK HELD",
    "lk1_join": "OK",
    "lk1_raise": "OK",
    "lk1_learn": "OK",
    "lk1_open": "OK",
    "lk1_register": "OK REFUSED",
    "lk1_rest": "OK",
    "lk1_tick": "REFUSED",
}
"""`lk1_tick OK` and `lk1_state` are not counted: they are half of all that happens, and no schedule
goes without them."""

EXPECTED: frozenset[str] = frozenset(
    [
        *(f"fault: {fault}" for fault in USUAL_WEIGHTS),
        *(f"fault: {fault}" for profile in AIMED for fault in profile.weights),
        *(f"fault: {profile.scene}" for profile in AIMED if profile.scene),
        *(f"{name} {status}" for name, said in REPLIES.items() for status in said.split()),
        "lk1_grant not found",  # the library that votes is not loaded: the node has forgotten how
        "lk1_commit not found",
        "lk1_renew not found",
        "acquire: Grant",
        "acquire: Held",
        "acquire: Unavailable",
        "renew: Grant",
        "renew: Lost",
        "renew: Unknown",
        "release: Released",
        "release: Unknown",
        "candidate: resumes",
        "agent: no answer",
        "birth",
        "change of membership",
        "total loss",
        "message lost",
        "message of a broken connection, late",
    ]
)
ENOUGH = 5_000
"""Schedules in which even the rarest (a registration that is refused, a commit that comes after a
higher token) has been seen; measured: 3 of 1,000 schedules, and 1 of 1,000."""


def missing(seen: Counter[str], schedules: int) -> list[str]:
    """Faults and scenes must have been seen in any case; what is rarer, in enough schedules. (The
    faults of a coordinator need a change of membership that is under way just then.)
    """
    return sorted(
        kind
        for kind in EXPECTED
        if not seen[kind]
        and (schedules >= ENOUGH or (kind.startswith("fault: ") and "coordinator" not in kind))
    )


def table(seen: Counter[str], schedules: int) -> Iterable[str]:
    """One line a kind, with how often it happens in a hundred schedules."""
    for kind in sorted({*seen, *EXPECTED}):
        yield f"{seen[kind]:>12,}  {100 * seen[kind] / max(1, schedules):>12,.2f}  {kind}"
