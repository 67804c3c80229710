"""Who led when, as the readers of the leader files see it, and what is wrong with that.

What is proven: a file that says "leader, token t" in two readings said so all the time between them
(a tenure has one token, and a gap means a new one). So a tenure is a fact from the end of its first
reading to the beginning of its last one; two facts of one lock that overlap are two leaders,
however slowly the files are read. An overlap shorter than two readings can be missed; none can be
made up.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Reading:
    """A file that says "leader", and whose deadline is ahead. Times are on the boot clock."""

    lock: str
    pod: str
    """What tells two candidates apart: a name may come back."""
    holder: str
    token: int
    began: float
    ended: float
    left: float = 0.0
    """Seconds to the deadline at `ended`."""
    leads: bool = True
    """By the whole of the reader's rule. False: the wall clock alone says no, up to a second early,
    because `expiresUnix` has whole seconds. What is promised is that no two *deadlines* are ahead
    at one instant, whatever wall clocks say: so the history takes these readings as well."""


@dataclass(slots=True)
class Tenure:
    """One token in one pod, as far as it was seen."""

    lock: str
    pod: str
    holder: str
    token: int
    first_began: float
    first_ended: float
    last_began: float
    last_ended: float

    def overlap(self, other: Tenure) -> float:
        """How long both led for certain, in seconds; not above 0: not at all."""
        start = max(self.first_ended, other.first_ended)
        return min(self.last_began, other.last_began) - start


@dataclass
class History:
    """All tenures that were seen, and what is wrong with them. Pure: fed with readings."""

    tenures: list[Tenure] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)
    regressions: list[str] = field(default_factory=list)
    _live: dict[tuple[str, str, int], Tenure] = field(default_factory=dict)

    @property
    def wrong(self) -> list[str]:
        return self.overlaps + self.regressions

    def see(self, reading: Reading) -> Tenure | None:
        """Takes a reading in; returns the tenure if it is a new one."""
        key = (reading.lock, reading.pod, reading.token)
        known = self._live.get(key)
        if known is not None:
            known.last_began, known.last_ended = reading.began, reading.ended
            self._check_overlap(known)
            return None
        span = (reading.began, reading.ended)
        tenure = Tenure(*key[:2], reading.holder, reading.token, *span, *span)
        self._check_token(tenure)
        self._live[key] = tenure
        self.tenures.append(tenure)
        return tenure

    def _check_overlap(self, tenure: Tenure) -> None:
        for other in self.tenures:
            if other is not tenure and other.lock == tenure.lock and tenure.overlap(other) > 0:
                pair = sorted((other, tenure), key=lambda one: one.first_ended)
                names = " and ".join(f"{one.holder} (token {one.token})" for one in pair)
                _tell(self.overlaps, f"two leaders of {tenure.lock}: {names}")

    def _check_token(self, tenure: Tenure) -> None:
        """Whoever led later must have the larger token. Also equal tokens are wrong: they are what
        a resource tells two leaders apart by. By time, and not in the order of arrival: a line of
        the journal may be late.
        """
        for other in self.tenures:
            if other.lock != tenure.lock:
                continue
            first, then = sorted((other, tenure), key=lambda one: one.first_ended)
            if then.token <= first.token:
                _tell(
                    self.regressions,
                    f"token of {tenure.lock} did not grow: {then.holder} leads with {then.token}"
                    f" after {first.holder} led with {first.token}",
                )


def _tell(said: list[str], text: str) -> None:
    if text not in said:
        said.append(text)


def judge(
    text: bytes, boot: str, uptime_cs: int, wall: float
) -> tuple[dict[str, Any], bool] | None:
    """The reader's rule (docs/app-contract.md), written a second time: the sidecar's own would
    agree with the sidecar's mistakes. What the file says, and whether the wall clock agrees; None:
    not the leader, whatever the wall clock says.
    """
    try:
        said = json.loads(text)
    except ValueError:
        return None
    if not isinstance(said, dict) or said.get("leader") is not True or said.get("boot") != boot:
        return None
    if uptime_cs >= said["deadlineCs"]:
        return None
    return said, wall < said["expiresUnix"]


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def read(file: str, pod: str, boot: str) -> Reading | None:
    """One look at one leader file: the file first, the clocks after it."""
    began = now()
    try:
        with open(file, "rb") as opened:
            text = opened.read()
    except OSError:  # not yet there, or just taken away
        return None
    ended = now()
    judged = judge(text, boot, int(ended * 100), time.time())
    if judged is None:
        return None
    said, leads = judged
    left = said["deadlineCs"] / 100 - ended
    return Reading(said["lock"], pod, said["holder"], said["token"], began, ended, left, leads)
