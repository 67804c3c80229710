"""What the sidecar does for its app, and asks of it: real processes on real nodes."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from leasekeeper_sidecar.host import Proc
from servers import free_port, wait_until

from leasekeeper.lease import Request
from leasekeeper.redlock import requests, users

if TYPE_CHECKING:
    from tests.sidecar.conftest import Cast, Pod, Watcher

    Watch = Callable[[list[Pod]], Watcher]

pytestmark = pytest.mark.parametrize("ensemble", ["valkey"], indirect=True)


@dataclass
class App:
    """Answers the sidecar's calls."""

    port: int = field(default_factory=free_port)
    well: bool = True
    calls: list[dict[str, Any]] = field(default_factory=list)
    answer: threading.Event = field(default_factory=threading.Event)
    """A call is answered when this is set."""

    def address(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    @contextmanager
    def running(self) -> Iterator[App]:
        app = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200 if app.well else 500)
                self.end_headers()

            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                app.calls.append(json.loads(self.rfile.read(length)))
                app.answer.wait(20)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        with http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield self
            finally:
                self.answer.set()
                server.shutdown()


def pair(cast: Cast, **settings: str) -> tuple[Pod, Pod]:
    """A leader with these settings, and a standby."""
    cast.be_patient()
    first, second = cast.make(2)
    first.environment |= settings
    first.start()
    wait_until(lambda: first.leads, "the first to lead")
    second.start()
    wait_until(lambda: second.events("standing-by"), "a standby")
    return first, second


# -- a sidecar that is ended alone -----------------------------------------------------------------

WORKER = (
    "trap 'sleep 1; echo ended > {0}/ended; exit' TERM;"
    "echo $$ > {0}/pid; while :; do sleep 0.05; done"
)


@contextmanager
def worker(pod: Pod, folder: Path) -> Iterator[Callable[[], bool]]:
    """`run-as-leader` with a command that takes a second to end; yields whether it runs."""
    folder.mkdir()
    program = str(pod.leader_dir / "run-as-leader")
    command = ["sh", program, "sh", "-c", WORKER.format(folder)]
    with subprocess.Popen(command) as runner:
        try:
            wait_until(lambda: (folder / "pid").exists(), "the worker")
            pid = int(wait_until(lambda: (folder / "pid").read_text(), "its number"))
            yield lambda: os.path.exists(f"/proc/{pid}")
        finally:
            runner.terminate()


def test_the_lease_is_given_back_when_the_leaders_command_has_ended_and_not_before(
    cast: Cast, watch: Watch, tmp_path: Path
) -> None:
    """Known bug 32, for a sidecar that is ended alone (a probe that failed, a plain container)."""
    first, second = pair(cast)
    with watch([first, second]) as watcher, worker(first, tmp_path / "work") as runs:
        left = first.said()["deadlineCs"]
        first.send(signal.SIGTERM)
        wait_until(lambda: second.leads, "the second to lead")
        assert not runs(), "two leaders were at work"
        assert second.said()["deadlineCs"] > left
        assert (tmp_path / "work/ended").exists(), "it was given its time"
        assert first.wait() == 0
    watcher.check()


def test_without_the_file_busy_the_next_leader_begins_while_the_command_still_ends(
    cast: Cast, tmp_path: Path
) -> None:
    """The control of the test above."""
    first, second = pair(cast)
    (first.leader_dir / "busy").unlink()
    with worker(first, tmp_path / "work") as runs:
        first.send(signal.SIGTERM)
        wait_until(lambda: second.leads, "the second to lead")
        assert runs(), "the control is broken: it ended in time without being waited for"


def test_a_drain_holds_the_lease_back_for_its_time(cast: Cast) -> None:
    first, second = pair(cast, LEASEKEEPER_DRAIN="2")
    began = time.monotonic()
    first.send(signal.SIGTERM)
    wait_until(lambda: not first.leads, "the file to say no")
    wait_until(lambda: second.leads, "the second to lead")
    assert time.monotonic() - began >= 2
    assert first.wait() == 0


# -- onLost ----------------------------------------------------------------------------------------


def test_the_app_is_called_on_loss_and_its_answer_is_waited_for(cast: Cast) -> None:
    with App().running() as app:
        first, second = pair(cast, LEASEKEEPER_ON_LOST=app.address("/lost"))
        token = first.verdict().token
        first.send(signal.SIGTERM)
        wait_until(lambda: app.calls, "the call")
        assert not first.leads, "the file says no before anybody is called"
        time.sleep(0.5)
        assert not second.leads, "the app has not answered yet"
        app.answer.set()
        wait_until(lambda: second.leads, "the second to lead")
        assert first.wait() == 0
    assert app.calls == [{"lock": cast.lock, "token": token, "why": "stopped"}]


def test_an_app_that_is_gone_holds_up_nothing(cast: Cast) -> None:
    """The usual case: in a native sidecar the app has ended first."""
    cast.be_patient()
    first, second = pair(cast, LEASEKEEPER_ON_LOST=App().address("/lost"))
    left = first.said()["deadlineCs"]
    first.send(signal.SIGTERM)
    assert first.wait() == 0
    wait_until(lambda: second.leads, "the second to lead")
    assert Proc().uptime_cs() < left, "somebody waited for the deadline"
    assert first.events("on-lost-failed")[0]["outcome"] == "unreachable"


# -- health ----------------------------------------------------------------------------------------


def test_an_ill_app_costs_its_pod_leadership_until_it_is_well_again(
    cast: Cast, watch: Watch
) -> None:
    with App().running() as app:
        settings = {"LEASEKEEPER_HEALTH": app.address("/"), "LEASEKEEPER_HEALTH_PERIOD": "0.2"}
        cast.set_timings(leaseDurationSeconds=5, renewDeadlineSeconds=4)
        first, second = cast.make(2)
        first.environment |= settings
        first.start()
        wait_until(lambda: first.leads, "the first to lead")
        second.start()
        wait_until(lambda: second.events("standing-by"), "a standby")
        with watch([first, second]) as watcher:
            app.well = False
            wait_until(lambda: second.leads, "the other to lead")
            assert first.events("unhealthy")
            wait_until(lambda: first.said()["holder"] == second.name, "an onlooker to know it")
            second.kill()
            second.path.unlink()
            time.sleep(6)  # its lease is over, and nobody takes it
            assert not first.leads
            assert first.running
            app.well = True
            wait_until(lambda: first.leads, "the first to lead again")
        watcher.check()


def test_a_file_of_the_app_is_a_health_check_too_and_there_is_an_escape(
    cast: Cast, tmp_path: Path
) -> None:
    well = tmp_path / "well"
    (pod,) = cast.make(1)
    pod.environment |= {
        "LEASEKEEPER_HEALTH": str(well),
        "LEASEKEEPER_HEALTH_PERIOD": "0.1",
        "LEASEKEEPER_HEALTH_ESCAPE": "4",
    }
    pod.start()
    wait_until(lambda: pod.path.exists(), "its file")
    time.sleep(1)
    assert not pod.leads, "the app has not been well yet"
    well.touch()
    wait_until(lambda: pod.leads, "it to lead")
    well.unlink()
    wait_until(lambda: pod.events("not-leading"), "it to give up")
    wait_until(lambda: pod.events("leading-though-unhealthy"), "the escape")
    wait_until(lambda: pod.leads, "it to lead though it is ill")


# -- requests from outside -------------------------------------------------------------------------


def ask(cast: Cast, request: Request) -> None:
    """As the operator does it: on all nodes, with its own user."""
    for node in cast.ensemble.nodes:
        function, *args = requests.call(cast.lock, request)
        assert node.server.fcall(function, *args, user=users.OPERATOR)[0] == "OK"


def holder_id(cast: Cast) -> str:
    with cast.ensemble.nodes[0].server.client() as client:
        return str(client.hget(f"lk:lock:{cast.lock}", "owner"))


def test_a_step_down_reaches_the_holder_and_it_stays_out_for_its_time(
    cast: Cast, watch: Watch
) -> None:
    pods = cast.add(2)
    with watch(pods) as watcher:
        first = cast.leader()
        ask(cast, Request(1, requests.STEP_DOWN, holder_id(cast), seconds=12))
        second = cast.leader(first)
        assert first.events("not-leading")[0]["why"].startswith('"stepped')
        second.send(signal.SIGTERM)
        assert second.wait() == 0
        # Killed and started again it has another id, and is kept out all the same.
        first.kill()
        first.start()
        wait_until(lambda: first.events("kept-out"), "it to be kept out")
        assert not first.leads
        wait_until(lambda: first.leads, "its time to be over")
    watcher.check()


def test_a_pause_leaves_nobody_leading_until_it_is_lifted(cast: Cast, watch: Watch) -> None:
    pods = cast.add(2)
    with watch(pods) as watcher:
        first = cast.leader()
        ask(cast, Request(1, requests.PAUSE))
        wait_until(lambda: first.events("not-leading"), "the holder to give up")
        wait_until(lambda: all(pod.events("kept-out") for pod in pods), "both to be kept out")
        assert not any(pod.leads for pod in pods)
        ask(cast, Request(2, requests.RESUME))
        cast.leader()
    watcher.check()
