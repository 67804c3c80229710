"""Watches every leader file of a cluster, and finds two leaders or a token that goes down.

A process of its own, so that a busy test does not slow it down. It reads the pods' in-memory
volumes from the host's side, a few hundred times a second, and applies the reader's rule as an app
would: the file first, the clocks after it. All containers share this machine's boot clock, so what
it saw of two pods can be put on one line. Who leads is told by the whole rule; two leaders are
looked for by the deadline alone, which the wall clock cannot hide.

What is proven by that: see `leasekeeper.demo.history`, which the demo uses, too.

It also keeps the logs of pods that are gone, if it is told where logs are: a kubelet removes them
with the pod, and what a deleted leader said last is what a failure has to be explained by.

    python3 tests/cluster/watcher.py --out FILE [--logs FOLDER] KUBELET-ROOT...  ends by SIGTERM
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
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

KEEP_SECONDS = 1.0
"""Between two looks for new logs. A pod takes longer than that from its first line to its removal,
and a look at all logs takes as long as several sweeps."""

Leading = dict[tuple[str, str, int], Reading]
"""Who leads by the whole of the reader's rule: lock, pod and token."""

KEPT = "kept"
"""The folder beside `pods/` in which logs outlive their pods."""


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


class Logs:
    """Every pod's logs, each under a second name: no copy, and there when the first is gone."""

    def __init__(self, folder: Path) -> None:
        self._pods, self._kept = folder / "pods", folder / KEPT
        self._known: set[str] = set()
        self._looked = 0.0
        shutil.rmtree(self._kept, ignore_errors=True)  # of an earlier run on this cluster

    def keep(self) -> None:
        if now() - self._looked < KEEP_SECONDS:
            return
        self._looked = now()
        for log in glob.iglob("*/*/*/*.log", root_dir=self._pods):  # machine, pod, container
            if log not in self._known:
                self._known.add(log)
                (self._kept / log).parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):  # gone in this instant
                    (self._kept / log).hardlink_to(self._pods / log)


def watch(roots: list[str], out: Path, logs: Logs | None = None) -> None:
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
        leading: Leading = {}
        while not stopped:
            readings = [r for pod, file in files if (r := read(file, pod, boot))]
            for reading in readings:
                history.see(reading)
            present = {(r.lock, r.pod, r.token): r for r in readings if r.leads}
            _tell_changes(say, leading, present)
            leading = present
            for text in history.wrong:
                if text not in told:
                    say("wrong", text=text)
                    told.add(text)
            if len({r.lock for r in readings}) == len(readings):
                time.sleep(SWEEP_SECONDS)
            if now() - scanned > SCAN_SECONDS:
                files, scanned = leader_files(roots), now()
            if logs is not None:
                logs.keep()
            sweeps, longest, last = sweeps + 1, max(longest, now() - last), now()
        for tenure in history.tenures:
            span = {"from": round(tenure.first_ended, 4), "to": round(tenure.last_began, 4)}
            say("led", lock=tenure.lock, holder=tenure.holder, token=tenure.token, **span)
        say("summary", sweeps=sweeps, longestGap=round(longest, 4), wrong=history.wrong)


def _tell_changes(say: Callable[..., None], before: Leading, after: Leading) -> None:
    for key in before.keys() - after.keys():
        seen = before[key]
        deadline = round(seen.ended + seen.left, 4)
        say("ends", **_who(seen), last=round(seen.ended, 4), deadline=deadline)
    for key in after.keys() - before.keys():
        say("leads", **_who(after[key]))


def _who(seen: Reading) -> dict[str, object]:
    return {"lock": seen.lock, "holder": seen.holder, "token": seen.token, "pod": seen.pod}


class Watcher:
    """The watcher as a process of its own, for tests."""

    def __init__(self, roots: list[str], out: Path, logs: Path | None = None) -> None:
        self.roots, self.out, self._logs = roots, out, logs
        self._child: subprocess.Popen[bytes] | None = None
        self._told_to_end = False
        self._events: list[dict[str, Any]] = []
        self._read = 0
        self._taken = 0

    def __enter__(self) -> Watcher:
        logs = ["--logs", str(self._logs)] if self._logs is not None else []
        argv = [sys.executable, __file__, "--out", str(self.out), *logs, *self.roots]
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
        if self._child is not None and self._child.poll() is None:
            self._told_to_end = True
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
        """All that it found, in the order in which it was found."""
        return [event["text"] for event in self.events() if event["event"] == "wrong"]

    def take(self) -> list[str]:
        """What fails the run and was told to nobody yet, whenever it was found: so what is found
        between two scenarios belongs to the later one. That the watcher has died is told every
        time, because it has seen nothing since."""
        wrong = self.wrong()
        new, self._taken = wrong[self._taken :], len(wrong)
        return self._died() + new

    def _died(self) -> list[str]:
        code = self._child.poll() if self._child is not None else 1
        alive = code == 0 if self._told_to_end else code is None
        return [] if alive else [f"the watcher died (exit {code})"]

    def latest(self, lock: str) -> dict[str, Any] | None:
        """The last tenure of a lock that has begun: holder, pod, token, at."""
        began = [e for e in self.events() if e["event"] == "leads" and e["lock"] == lock]
        return began[-1] if began else None

    def summary(self) -> dict[str, Any]:
        (found,) = [event for event in self.events() if event["event"] == "summary"]
        return found


def failures(found: list[str], control: str = "") -> list[str]:
    """What of it fails a scenario. `control`: the lock of which two leaders have to be found; of
    any other lock nothing is excused."""
    if not control:
        return found
    wanted = [text for text in found if text.startswith(f"two leaders of {control}:")]
    missing = [] if wanted else [f"the watcher did not find two leaders of {control}"]
    return [text for text in found if text not in wanted] + missing


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON lines are appended here")
    parser.add_argument("--logs", type=Path, help="a cluster's folder with the logs of its pods")
    parser.add_argument("roots", nargs="+", metavar="KUBELET-ROOT")
    arguments = parser.parse_args()
    watch(arguments.roots, arguments.out, Logs(arguments.logs) if arguments.logs else None)


if __name__ == "__main__":
    main()
