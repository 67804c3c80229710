"""What a sidecar says while its volume, its process or its clients misbehave."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from leasekeeper_sidecar.leader_file import PROGRAMS
from servers import wait_until

if TYPE_CHECKING:
    from tests.sidecar.conftest import Cast, Pod, Watcher

    Watch = Callable[[list[Pod]], Watcher]

# -- kill -9 in the middle of a write --------------------------------------------------------------

# Forks a writer, kills it at a random point and reads what it left, again and again. A file that
# was written aside and not yet renamed is the proof that the kill came in the middle.
KILLER = """
import json, os, random, signal, sys, time
from leasekeeper_sidecar.claim import Claim
from leasekeeper_sidecar.leader_file import LeaderFile

folder, times, naive = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "naive"
file, path = LeaderFile(folder), folder + "/leader"

def say(token):
    claim = Claim(lock="a/b", leader=bool(token % 2), boot="b" * (token % 300), token=token)
    if naive:
        with open(path, "w") as opened:
            opened.write(claim.to_json())
    else:
        file.say(claim)

say(0)
broken = middle = 0
for n in range(times):
    begun, tell = os.pipe()
    child = os.fork()
    if not child:
        token = n * 100000
        say(token)
        os.write(tell, b"x")
        while True:
            token += 1
            say(token)
    os.read(begun, 1)  # it writes: every kill below meets a writer at work
    time.sleep(random.uniform(0, 0.002))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(begun), os.close(tell)
    try:
        with open(path) as opened:
            json.load(opened)
    except ValueError:
        broken += 1
        say(0)  # repaired, so that one broken file is counted once
    for name in (".leader.new", ".leader.env.new"):
        if os.path.exists(folder + "/" + name):
            os.unlink(folder + "/" + name)
            middle += 1
print(broken, middle)
"""


THOUSANDS = 10 if os.environ.get("LEASEKEEPER_LONG") else 2


def kill_writers(
    folder: Path, how: str, enough: Callable[[int, int], bool], thousands: int = 1
) -> tuple[int, int]:
    """(files left broken, kills in the middle of a write) of so many kills; of up to four thousand
    more, if they did not show enough: on a busy machine a writer hardly gets to write.
    """
    broken = middle = 0
    for done_before in range(thousands + 4):
        command = [sys.executable, "-c", KILLER, str(folder), "1000", how]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        more = done.stdout.split()
        broken, middle = broken + int(more[0]), middle + int(more[1])
        if done_before + 1 >= thousands and enough(broken, middle):
            break
    return broken, middle


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """As in a pod, where the volume is in memory; on a disk most of a cycle is the truncation."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="lk-") as folder:
        yield Path(folder)


def test_a_writer_killed_at_any_point_leaves_a_whole_file(in_memory: Path) -> None:
    """Known bug 30. The control truncates and writes, as the bug did."""
    broken, middle = kill_writers(in_memory, "ours", lambda _, middle: middle > 20, THOUSANDS)
    assert broken == 0
    assert middle > 20, "hardly a kill came in the middle of a write: nothing was shown"
    control, _ = kill_writers(in_memory, "naive", lambda broken, _: broken > 0)
    print(f"{middle} kills in the middle of a write, none broken; the control broke {control}")
    assert control > 0, "the control is broken: no kill left half a file behind"


def test_a_sidecar_killed_again_and_again_never_makes_two_leaders(cast: Cast, watch: Watch) -> None:
    """Known bug 29, at random points of its life; whoever leads at the end, one does."""
    pods = cast.add(3)
    with watch(pods) as watcher:
        cast.leader()
        for _ in range(12):
            time.sleep(random.uniform(0, 0.6))
            victim = next((pod for pod in pods if pod.leads), random.choice(pods))
            victim.kill()
            time.sleep(random.choice((0, 0, random.uniform(0, 4.5))))
            victim.start()
        cast.leader()
    watcher.check()


# -- volumes ---------------------------------------------------------------------------------------


@pytest.fixture
def small_volume(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    mounted: list[Path] = []

    programs = files("leasekeeper_sidecar") / "programs"
    pages = sum(-(-len((programs / name).read_bytes()) // mmap.PAGESIZE) for name in PROGRAMS)
    # And one each: leader, leader.env, time-to-stop, what is written aside, ballast.
    size = (pages + 5) * mmap.PAGESIZE

    def mount(path: Path) -> None:
        options = f"size={size},mode=755"
        command = ["mount", "-t", "tmpfs", "-o", options, "lk-test", str(path)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("no right to mount a small volume")
        mounted.append(path)

    yield mount
    for path in mounted:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(folder: Path) -> None:
    with (folder / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(b"x" * 1024)


def test_on_a_full_volume_leadership_goes_to_somebody_who_can_tell_its_app(
    cast: Cast, watch: Watch, small_volume: Callable[[Path], None]
) -> None:
    pods = cast.make(2)
    small_volume(pods[0].leader_dir)
    pods[0].start()
    cast.leader()
    pods[1].start()
    with watch(pods) as watcher:
        wait_until(lambda: pods[1].events("standing-by"), "a standby")
        token = pods[0].verdict().token
        fill(pods[0].leader_dir)
        assert cast.leader(pods[0]).verdict().token > token
        assert pods[0].wait() == 1
        assert pods[0].events("leader-file-not-written")
        assert not pods[0].leads
    watcher.check()


def test_a_file_that_cannot_be_taken_back_is_never_followed_by_a_release(
    cast: Cast, watch: Watch, small_volume: Callable[[Path], None]
) -> None:
    """The volume turns read-only while the sidecar leads, and it is stopped: the file still says
    yes, so the lease must not be given to anybody before that has run out by itself.
    """
    pods = cast.make(2)
    small_volume(pods[0].leader_dir)
    pods[0].start()
    cast.leader()
    pods[1].start()
    with watch(pods) as watcher:
        wait_until(lambda: pods[1].events("standing-by"), "a standby")
        remount = ["mount", "-o", "remount,ro", str(pods[0].leader_dir)]
        subprocess.run(remount, check=True)
        pods[0].send(signal.SIGTERM)
        assert pods[0].wait() == 1
        assert pods[0].said()["leader"] is True, "nobody could take it back"
        assert not pods[1].leads
        cast.leader(pods[0])
        assert not pods[0].leads
    watcher.check()


@pytest.mark.parametrize("ensemble", ["valkey"], indirect=True)
def test_a_hung_volume_makes_nobody_believe_in_a_leader_for_longer(
    cast: Cast, watch: Watch
) -> None:
    """A write that never returns: the file aside is a pipe that nobody reads. The sidecar hangs in
    it, in its only thread; what it said runs out, and another pod leads.
    """
    pods = cast.add(2)
    with watch(pods) as watcher:
        first = cast.leader()
        aside = first.leader_dir / ".leader.new"
        while True:  # between two writes: the name is there for microseconds only
            with contextlib.suppress(FileExistsError):
                os.mkfifo(aside)
                break
        wait_until(lambda: first.running and first.sleeps_in_open(), "it to hang")
        second = cast.leader(first)
        assert not first.leads
        assert first.said()["leader"] is True, "nobody could take it back"
        with pytest.raises(TimeoutError):  # so that the kubelet restarts it
            urllib.request.urlopen(f"http://127.0.0.1:{first.http_port}/healthz", timeout=1)
        first.kill()
        aside.unlink()
        first.start()
        wait_until(lambda: first.events("standing-by"), "it to stand by")
        assert second.leads
    watcher.check()


# -- clients ---------------------------------------------------------------------------------------

HOSTILE = """
import os, random, selectors, socket, sys, time
ports, seconds = [int(p) for p in sys.argv[1:3]], float(sys.argv[3])
requests = [b"GET /leader HT", b"GET /events HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n", b"\\x16\\x03\\x01",
            b"GET /metrics HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n" * 20, b"", b"POST / HTTP/1.1\\r\\n"]
end, held = time.monotonic() + seconds, []
while time.monotonic() < end:
    for port in ports:
        s = socket.socket(); s.setblocking(False)
        s.connect_ex(("127.0.0.1", port)); held.append((s, random.choice(requests)))
    time.sleep(0.01)
    for s, request in held[-40:]:
        try: s.send(request)
        except OSError: pass
    while len(held) > 300: held.pop(random.randrange(len(held)))[0].close()
"""


def test_hostile_clients_cost_neither_leadership_nor_health(cast: Cast) -> None:
    """How late they can make a renewal is measured in test_http.py, in time of the processor: on a
    crowded machine nothing else can be told apart from the machine.
    """
    (pod,) = cast.add(1)
    cast.leader()
    token = pod.verdict().token
    command = [sys.executable, "-c", HOSTILE, str(pod.http_port), str(pod.local_port), "6"]
    with subprocess.Popen(command) as clients:
        time.sleep(5)
        healthy = urllib.request.urlopen(f"http://127.0.0.1:{pod.http_port}/healthz", timeout=10)
        assert healthy.status == 200, "the kubelet must get through the crowd"
        clients.wait()
    assert pod.verdict().token == token


def test_a_log_that_nobody_reads_does_not_stop_the_election(cast: Cast) -> None:
    """Standard error is a full pipe: lines are dropped, renewals go on."""
    (pod,) = cast.make(1)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    command = [sys.executable, "-m", "leasekeeper_sidecar"]
    environment = {**os.environ, **pod.environment}
    with subprocess.Popen(command, env=environment, stderr=writing) as process:
        try:
            wait_until(lambda: pod.leads, "leadership")
            pod.wait_renewed()
        finally:
            process.terminate()
            assert process.wait(20) == 0
    os.close(reading)
    os.close(writing)
    assert pod.said()["leader"] is False
