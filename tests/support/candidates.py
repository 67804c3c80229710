"""Candidates of one lock, in the process of the test and in processes of their own."""

from __future__ import annotations

import json
import secrets
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from backends import TIMINGS, Backend
from candidate_process import checked
from servers import Process, wait_until

from leasekeeper.clock import Clock, SystemClock
from leasekeeper.lease import Candidate, LeaseStore, Timings

PROGRAM = Path(__file__).parent / "candidate_process.py"


class Lock:
    """A lock that is this test's own, with candidates in this process and in others."""

    def __init__(self, backend: Backend, folder: Path) -> None:
        self.name = f"shop/{secrets.token_hex(4)}"
        self.backend = backend
        self.settings = backend.settings(self.name)
        self.stores: list[LeaseStore] = []
        self.processes: list[CandidateProcess] = []
        self._folder = folder

    def candidate(
        self, name: str, clock: Clock | None = None, timings: Timings = TIMINGS
    ) -> LeaseStore:
        store = checked(self.settings, timings).make(
            lock=self.name,
            candidate=Candidate(name, "uid", secrets.token_hex(4)),
            timings=timings,
            clock=clock or SystemClock(),
        )
        self.stores.append(store)
        return store

    def process(self, name: str, *options: str, timings: Timings = TIMINGS) -> CandidateProcess:
        told_timings = {k: v for k, v in asdict(timings).items() if k != "drift"}
        told = {"lock": self.name, "timings": told_timings, **self.settings}
        process = CandidateProcess(self._folder / f"{name}.log")
        process.spawn([sys.executable, str(PROGRAM), name, json.dumps(told), *options])
        self.processes.append(process)
        return process

    def end_processes(self) -> None:
        for process in self.processes:
            process.kill()

    async def close(self) -> None:
        self.end_processes()
        for store in self.stores:
            await store.close()


class CandidateProcess(Process):
    """See candidate_process.py."""

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = self.output().splitlines()
        said = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [line for line in said if line["event"] == event]

    def wait_for(self, event: str, more_than: int = 0) -> dict[str, Any]:
        """The last of these events, once there are more than so many."""

        def found() -> bool:
            assert self.running or self.events("stopped"), self.output()
            return len(self.events(event)) > more_than

        wait_until(found, f"{event} of {self.log.stem}:\n{self.output()}")
        return self.events(event)[-1]

    @property
    def until(self) -> float:
        """Until when it has called itself leader at most, on the boot clock."""
        ends = [line["at"] for line in self.events("not-leading")]
        claims = [line["until"] for line in self.events("leading")]
        last: float = min(ends[-1], claims[-1]) if ends else claims[-1]
        return last
