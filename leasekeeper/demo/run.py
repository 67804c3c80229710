"""`leasekeeper demo`: starts a world, breaks it, watches it hold, and counts what went wrong."""

from __future__ import annotations

import argparse
import json
import random
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from leasekeeper.demo.history import History, now
from leasekeeper.demo.world import LocalCandidate, World, world

SWEEP = 0.005  # seconds between two looks at all files


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to the world, and how it is undone."""

    name: str
    sentence: str
    undo: Callable[[], None]
    undo_after: float


class Demo:
    """One run."""

    def __init__(self, running: World, *, seed: int, as_json: bool) -> None:
        self.world = running
        self.lease = float(running.timings["leaseDurationSeconds"])
        self.history = History()
        self.faults = 0
        self._random = random.Random(seed)
        self._as_json = as_json
        self._began = now()
        self._undo: list[tuple[float, Callable[[], None]]] = []

    def say(self, event: str, sentence: str, **fields: object) -> None:
        at = round(now() - self._began, 3)
        if self._as_json:
            print(json.dumps({"at": at, "event": event, **fields}), flush=True)
        else:
            print(f"{at:7.2f} s  {sentence}", flush=True)

    def run(self, seconds: float, chaos: bool) -> None:
        end = now() + seconds
        quiet_until = now() + 1.5 * self.lease
        leader = ""
        while now() < end:
            for reading in self.world.readings():
                if (tenure := self.history.see(reading)) is not None:
                    leader = tenure.holder
                    self.say(
                        "leads",
                        f"{leader} leads with token {tenure.token}",
                        holder=leader,
                        token=tenure.token,
                    )
                    quiet_until = max(quiet_until, now() + self.lease)
            self._undo_what_is_due()
            if chaos and leader and now() > quiet_until and now() < end - 3 * self.lease:
                self._break_something(leader)
                leader = ""
                quiet_until = now() + 2 * self.lease
            time.sleep(SWEEP)

    def _break_something(self, leader: str) -> None:
        fault = self._random.choice([self._stop, self._kill, self._freeze, self._kill_node])(leader)
        self.faults += 1
        self.say("fault", fault.sentence, fault=fault.name)
        self._undo.append((now() + fault.undo_after, fault.undo))

    def _undo_what_is_due(self) -> None:
        due = [undo for at, undo in self._undo if now() >= at]
        self._undo = [(at, undo) for at, undo in self._undo if now() < at]
        for undo in due:
            undo()

    def _candidate(self, name: str) -> LocalCandidate:
        return next(c for c in self.world.candidates if c.name == name)

    def _stop(self, leader: str) -> Fault:
        sidecar = self._candidate(leader).sidecar
        sidecar.stop()
        return Fault("stop", f"{leader} is stopped (SIGTERM)", sidecar.start, self.lease)

    def _kill(self, leader: str) -> Fault:
        sidecar = self._candidate(leader).sidecar
        sidecar.kill()
        sentence = f"{leader} is killed (SIGKILL): its lease of {self.lease:g} s must run out"
        return Fault("kill", sentence, sidecar.start, 2 * self.lease)

    def _freeze(self, leader: str) -> Fault:
        sidecar = self._candidate(leader).sidecar
        sidecar.freeze()
        sentence = f"{leader} is frozen (SIGSTOP): its file still says yes, until its deadline"
        return Fault("freeze", sentence, sidecar.thaw, 2 * self.lease)

    def _kill_node(self, leader: str) -> Fault:
        node = self._random.choice(self.world.nodes)
        node.server.kill()
        node.server.start()
        sentence = (
            f"node {node.name} restarts empty: it will not vote for"
            f" {self.world.membership.quarantine:g} s, because it may have granted a lease of"
            f" {self.lease:g} s and forgotten it; {leader} goes on"
        )
        return Fault("kill-node", sentence, lambda: None, 0)

    def summary(self) -> dict[str, object]:
        return {
            "tenures": len(self.history.tenures),
            "faults": self.faults,
            "overlaps": len(self.history.overlaps),
            "regressions": len(self.history.regressions),
        }


def main(options: argparse.Namespace) -> int:
    """Exit code 0 if nothing overlapped and every token was larger than the one before."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal leaves no files either
        signal.signal(number, signal.default_int_handler)
    with (
        tempfile.TemporaryDirectory(prefix="leasekeeper-demo-") as home,
        world(Path(home), nodes=5, candidates=options.candidates, lease=options.lease) as running,
    ):
        demo = Demo(running, seed=options.seed, as_json=options.json)
        demo.say(
            "started",
            f"5 nodes and {options.candidates} candidates in {home};"
            f" look at {running.candidates[0].leader_file}",
            home=home,
        )
        try:
            demo.run(options.seconds, options.chaos)
        except KeyboardInterrupt:
            demo.say("interrupted", "interrupted")
        for text in demo.history.wrong:
            demo.say("wrong", f"WRONG: {text}", text=text)
        print(json.dumps(demo.summary()), flush=True)
        return 1 if demo.history.wrong else 0
