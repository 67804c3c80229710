"""Watches every leader file of a cluster, and finds two leaders or a token that goes down.

A process of its own, so that a busy test does not slow it down. It reads the pods' in-memory
volumes from the host's side, a few hundred times a second, and applies the reader's rule as an app
would: the file first, the clocks after it. All containers share this machine's boot clock, so what
it saw of two pods can be put on one line.

What is proven: a file that says "leader, token t" in two readings said so all the time between them
(a tenure has one token, and a gap means a new one). So a tenure is a fact from the end of its first
reading to the beginning of its last one; two facts of one lock that overlap are two leaders,
however slow the watcher is. It can miss an overlap shorter than two readings; it cannot make one
up.

    python3 tests/cluster/watcher.py --out FILE KUBELET-ROOT...      ends by SIGTERM
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

VOLUME = "volumes/kubernetes.io~empty-dir/leasekeeper-leader/leader"

SWEEP_SECONDS = 0.003
"""Between two sweeps over all files while at most one leads. With two that look like leaders there
is no pause: either the next sweep proves it, or one of them has just handed over."""

SCAN_SECONDS = 0.1
"""Between two looks for new pods. A pod takes longer than that from its volumes to its first
container."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A file that says "leader" by the reader's rule. Times are on the boot clock."""

    lock: str
    pod: str
    """The pod's uid: a name may come back."""
    holder: str
    token: int
    began: float
    ended: float


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
    wrong: list[str] = field(default_factory=list)
    _live: dict[tuple[str, str, int], Tenure] = field(default_factory=dict)

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
                self._tell(f"two leaders of {tenure.lock}: {names}")

    def _check_token(self, tenure: Tenure) -> None:
        """Also equal tokens are wrong: they are what a resource tells two leaders apart by."""
        before = [other for other in self.tenures if other.lock == tenure.lock]
        largest = max(before, key=lambda one: one.token, default=None)
        if largest is not None and tenure.token <= largest.token:
            self._tell(
                f"token of {tenure.lock} did not grow: {tenure.holder} leads with {tenure.token}"
                f" after {largest.holder} led with {largest.token}"
            )

    def _tell(self, text: str) -> None:
        if text not in self.wrong:
            self.wrong.append(text)


def judge(text: bytes, boot: str, uptime_cs: int, wall: float) -> dict[str, Any] | None:
    """The reader's rule (docs: the sidecar's contract with the app), written a second time: the
    sidecar's own would agree with the sidecar's mistakes. None: not the leader."""
    try:
        said = json.loads(text)
    except ValueError:
        return None
    if not isinstance(said, dict) or said.get("leader") is not True or said.get("boot") != boot:
        return None
    if uptime_cs >= said["deadlineCs"] or wall >= said["expiresUnix"]:
        return None
    return said


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def read(file: str, pod: str, boot: str) -> Reading | None:
    began = now()
    try:
        with open(file, "rb") as opened:
            text = opened.read()
    except OSError:  # not yet there, or the pod is being taken down
        return None
    ended = now()
    said = judge(text, boot, int(ended * 100), time.time())
    if said is None:
        return None
    return Reading(said["lock"], pod, said["holder"], said["token"], began, ended)


def pods(roots: Iterable[str]) -> dict[str, str]:
    """The leader file of every pod that the kubelets know, by the pod's uid."""
    found: dict[str, str] = {}
    for root in roots:
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"{root}/pods"):
                found[entry.name] = f"{entry.path}/{VOLUME}"
    return found


def watch(roots: list[str], out: Path) -> None:
    """Until SIGTERM. A line an event; the last one is the summary."""
    stopped: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        stopped.append(number)

    signal.signal(signal.SIGTERM, stop)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    history, files = History(), pods(roots)
    sweeps, longest, scanned, last = 0, 0.0, now(), now()
    with out.open("a", buffering=1) as log:

        def say(event: str, **fields: object) -> None:
            log.write(json.dumps({"event": event, "at": round(now(), 4), **fields}) + "\n")

        say("watching", roots=roots)
        told = 0
        while not stopped:
            readings = [r for pod, file in files.items() if (r := read(file, pod, boot))]
            for reading in readings:
                if (new := history.see(reading)) is not None:
                    say("leads", lock=new.lock, holder=new.holder, token=new.token, pod=new.pod)
            for text in history.wrong[told:]:
                say("wrong", text=text)
            told = len(history.wrong)
            if len({r.lock for r in readings}) == len(readings):
                time.sleep(SWEEP_SECONDS)
            if now() - scanned > SCAN_SECONDS:
                files, scanned = pods(roots), now()
            sweeps, longest, last = sweeps + 1, max(longest, now() - last), now()
        for tenure in history.tenures:
            span = {"from": round(tenure.first_ended, 4), "to": round(tenure.last_began, 4)}
            say("led", lock=tenure.lock, holder=tenure.holder, token=tenure.token, **span)
        say("summary", sweeps=sweeps, longestGap=round(longest, 4), wrong=history.wrong)


class Watcher:
    """The watcher as a process of its own, for tests."""

    def __init__(self, roots: list[str], out: Path) -> None:
        self.roots, self.out = roots, out
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Watcher:
        argv = [sys.executable, __file__, "--out", str(self.out), *self.roots]
        self._child = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while not self.events():
            if self._child.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the watcher did not start")
            time.sleep(0.02)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._child is not None:
            self._child.terminate()
            self._child.wait(10)

    def events(self) -> list[dict[str, Any]]:
        if not self.out.exists():
            return []
        text = self.out.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def wrong(self) -> list[str]:
        """What would fail the run; a watcher that has died has seen nothing."""
        if self._child is None or self._child.returncode not in (None, 0):
            return ["the watcher died"]
        return [event["text"] for event in self.events() if event["event"] == "wrong"]

    def latest(self, lock: str) -> dict[str, Any] | None:
        """The last tenure of a lock that has begun: holder, pod, token, at."""
        began = [e for e in self.events() if e["event"] == "leads" and e["lock"] == lock]
        return began[-1] if began else None

    def summary(self) -> dict[str, Any]:
        (found,) = [event for event in self.events() if event["event"] == "summary"]
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON lines are appended here")
    parser.add_argument("roots", nargs="+", metavar="KUBELET-ROOT")
    arguments = parser.parse_args()
    watch(arguments.roots, arguments.out)


if __name__ == "__main__":
    main()
