"""Asks an address for the leader's token, a hundred times a second, and keeps every answer.

A process of its own, in the network of a machine of the cluster, as a client outside the workload.
One question at a time and a new connection for each: so a later line is a later question, and every
question is routed anew.

    python3 tests/cluster/asker.py --out FILE ADDRESS PORT      ends by SIGTERM
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

from leasekeeper.demo.history import now

EVERY_SECONDS = 0.01
ANSWER_SECONDS = 0.5
"""Longer than an answer takes on a busy machine, and short beside a lease: who does not answer is
asked again soon."""

APP = '''
import http.server, json, os, signal, socketserver, time

signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # process 1 has no other way to end

def leading():
    """The rule of docs/app-contract.md: the file first, the clocks after it."""
    try:
        said = json.load(open("/var/run/lock/leader"))
        boot = open("/proc/sys/kernel/random/boot_id").read().strip()
        uptime_cs = int(open("/proc/uptime").read().split()[0].replace(".", ""))
        if (said["leader"] is True and said["boot"] == boot and uptime_cs < said["deadlineCs"]
                and time.time() < said["expiresUnix"]):
            return {"token": said["token"], "holder": said["holder"]}
    except (OSError, ValueError, KeyError):
        pass
    return None

class App(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        found = leading()
        body = json.dumps(found or {}).encode()
        self.send_response(200 if found else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass

class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True

Server(("", 8000), App).serve_forever()
'''
"""The toy app: it answers with its token if it leads at that moment, and otherwise refuses."""


@dataclass(frozen=True)
class Answer:
    asked: float
    answered: float
    token: int
    """0: nobody answered, or somebody who does not lead."""
    holder: str
    why: str


def ask(address: str, port: int) -> tuple[int, str, str]:
    link = http.client.HTTPConnection(address, port, timeout=ANSWER_SECONDS)
    try:
        link.request("GET", "/")
        answer = link.getresponse()
        body = answer.read()
        if answer.status != http.HTTPStatus.OK:
            return 0, "", f"status {answer.status}"
        said = json.loads(body)
        return int(said["token"]), str(said["holder"]), ""
    except (OSError, http.client.HTTPException) as failed:
        return 0, "", type(failed).__name__
    finally:
        link.close()


class Asker:
    """The process, for tests."""

    def __init__(self, out: Path, network_of: int, address: str, port: int) -> None:
        self._out = out
        enter = ["nsenter", "-t", str(network_of), "-n", "--", sys.executable, __file__]
        self._argv = [*enter, "--out", str(out), address, str(port)]
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Asker:
        self._child = subprocess.Popen(self._argv, stdin=subprocess.DEVNULL)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._child is not None
        self._child.terminate()
        self._child.wait(10)

    def answers(self) -> list[Answer]:
        if not self._out.exists():
            return []
        text = self._out.read_text()
        lines = text[: text.rfind("\n") + 1].splitlines()
        return [Answer(*json.loads(line)) for line in lines]


def regressions(answers: list[Answer]) -> list[str]:
    """Where a later question was answered with a smaller token, or by another with the same."""
    found = []
    largest: Answer | None = None
    for answer in (one for one in answers if one.token):
        if largest is not None and (
            answer.token < largest.token
            or (answer.token == largest.token and answer.holder != largest.holder)
        ):
            found.append(f"{answer} after {largest}")
        if largest is None or answer.token > largest.token:
            largest = answer
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON lines are appended here")
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    arguments = parser.parse_args()
    stopped: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        stopped.append(number)

    signal.signal(signal.SIGTERM, stop)
    with arguments.out.open("a", buffering=1) as log:
        while not stopped:
            began = now()
            token, holder, why = ask(arguments.address, arguments.port)
            log.write(json.dumps([round(began, 4), round(now(), 4), token, holder, why]) + "\n")
            time.sleep(max(0.0, began + EVERY_SECONDS - now()))


if __name__ == "__main__":
    main()
