"""Watches every leader file of a cluster, and finds two leaders or a token that goes down.

A process of its own, so that a busy test does not slow it down. It reads the pods' in-memory
volumes from the host's side, a few hundred times a second, and applies the reader's rule as an app
would: the file first, the clocks after it. All containers share this machine's boot clock, so what
it saw of two pods can be put on one line.

What is proven by that: see `leasekeeper.demo.history`, which the demo uses, too.

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
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from leasekeeper.demo.history import History, Reading, now, read

FOLDER = "volumes/kubernetes.io~empty-dir/leasekeeper-leader"
VOLUME = f"{FOLDER}/leader"

SWEEP_SECONDS = 0.003
"""Between two sweeps over all files while at most one leads. With two that look like leaders there
is no pause: either the next sweep proves it, or one of them has just handed over."""

SCAN_SECONDS = 0.1
"""Between two looks for new pods. A pod takes longer than that from its volumes to its first
container."""


def leader_files(roots: Iterable[str]) -> list[tuple[str, str]]:
    """Of every pod that the kubelets know: the pod's uid, and where its file is or will be. A pod
    with several locks has a folder for each."""
    found: list[tuple[str, str]] = []
    for root in roots:
        with contextlib.suppress(OSError):
            for pod in os.scandir(f"{root}/pods"):
                found.append((pod.name, f"{pod.path}/{VOLUME}"))
                with contextlib.suppress(OSError):
                    for entry in os.scandir(f"{pod.path}/{FOLDER}"):
                        if entry.is_dir():
                            found.append((pod.name, f"{entry.path}/leader"))
    return found


def watch(roots: list[str], out: Path) -> None:
    """Until SIGTERM. A line an event; the last one is the summary."""
    stopped: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        stopped.append(number)

    signal.signal(signal.SIGTERM, stop)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    history, files = History(), leader_files(roots)
    sweeps, longest, scanned, last = 0, 0.0, now(), now()
    with out.open("a", buffering=1) as log:

        def say(event: str, **fields: object) -> None:
            log.write(json.dumps({"event": event, "at": round(now(), 4), **fields}) + "\n")

        say("watching", roots=roots)
        told: set[str] = set()
        leading: dict[tuple[str, str, int], Reading] = {}
        while not stopped:
            readings = [r for pod, file in files if (r := read(file, pod, boot))]
            for reading in readings:
                history.see(reading)
            present = {(r.lock, r.pod, r.token): r for r in readings}
            for key in leading.keys() - present.keys():
                say("ends", **_who(leading[key]), last=round(leading[key].ended, 4))
            for key in present.keys() - leading.keys():
                say("leads", **_who(present[key]))
            leading = present
            for text in history.wrong:
                if text not in told:
                    say("wrong", text=text)
                    told.add(text)
            if len({r.lock for r in readings}) == len(readings):
                time.sleep(SWEEP_SECONDS)
            if now() - scanned > SCAN_SECONDS:
                files, scanned = leader_files(roots), now()
            sweeps, longest, last = sweeps + 1, max(longest, now() - last), now()
        for tenure in history.tenures:
            span = {"from": round(tenure.first_ended, 4), "to": round(tenure.last_began, 4)}
            say("led", lock=tenure.lock, holder=tenure.holder, token=tenure.token, **span)
        say("summary", sweeps=sweeps, longestGap=round(longest, 4), wrong=history.wrong)


def _who(seen: Reading) -> dict[str, object]:
    return {"lock": seen.lock, "holder": seen.holder, "token": seen.token, "pod": seen.pod}


class Watcher:
    """The watcher as a process of its own, for tests."""

    def __init__(self, roots: list[str], out: Path) -> None:
        self.roots, self.out = roots, out
        self._child: subprocess.Popen[bytes] | None = None
        self._events: list[dict[str, Any]] = []
        self._read = 0

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
        """All of them; a look reads only what is new."""
        if self.out.exists():
            with self.out.open("rb") as log:
                log.seek(self._read)
                whole, line_feed, _ = log.read().rpartition(b"\n")
            self._read += len(whole + line_feed)
            self._events += [json.loads(line) for line in whole.splitlines()]
        return self._events

    def wrong(self) -> list[str]:
        """What would fail the run; a watcher that has died has seen nothing."""
        if self._child is None or self._child.poll() not in (None, 0):
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
