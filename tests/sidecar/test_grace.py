"""`run-as-leader`: how long a command has to end. Under dash and busybox sh."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
from leader_volume import Volume, wait_for
from leasekeeper_sidecar.claim import standby_claim

NOBODY = standby_claim("shop/orders", boot="x")
STUBBORN = "trap 'echo told > {0}' TERM; echo begun > {0}; while :; do sleep 0.1; done"


def test_the_grace_is_whole_whenever_in_a_second_it_begins(real: Volume) -> None:
    """The test sets the uptime: TERM comes a hundredth before a new second."""
    log, uptime = real.path / "log", real.path / "uptime"
    program = real.path / "run-as-leader"
    text = program.read_text()
    assert text.count("< /proc/uptime") == 1
    program.write_text(text.replace("< /proc/uptime", f"< {uptime}"))

    def set_uptime(seconds: str) -> None:
        aside = real.path / "uptime.new"
        aside.write_text(f"{seconds} 1.00\n")
        aside.replace(uptime)

    set_uptime("8.99")
    real.file.say(real.claim())
    process = real.spawn("--grace", "1", "sh", "-c", STUBBORN.format(log))
    wait_for(log, "begun\n")
    real.file.say_no(NOBODY)
    wait_for(log, "told\n")
    time.sleep(0.5)
    set_uptime("9.98")
    process.terminate()  # handed on to the command, which does not listen: only KILL ends it
    time.sleep(1)
    assert process.poll() is None, "killed before its grace was over"
    set_uptime("60.00")
    assert process.wait(30) == 128 + signal.SIGKILL


def test_a_grace_longer_than_the_time_to_stop_ends_with_it_and_that_is_said(real: Volume) -> None:
    log = real.path / "log"
    real.file.say_time_to_stop(2.5)
    real.file.say(real.claim())
    process = real.spawn("--grace", "600", "sh", "-c", STUBBORN.format(log), stderr=subprocess.PIPE)
    wait_for(log, "begun\n")
    process.terminate()
    wait_for(log, "told\n")
    real.file.say_no(NOBODY)
    assert process.wait(60) == 128 + signal.SIGKILL
    assert process.stderr is not None
    assert "another may lead 2.50 s after a loss" in process.stderr.read()


@pytest.mark.parametrize(("before", "after"), [(60, 2.5), (2.5, 60)])
def test_a_time_to_stop_that_changes_while_a_command_runs_is_the_shorter_one(
    real: Volume, before: float, after: float
) -> None:
    """The lock was edited, and the sidecar begins again and goes on with its tenure."""
    log = real.path / "log"
    real.file.say_time_to_stop(before)
    real.file.say(real.claim())
    process = real.spawn("--grace", "60", "sh", "-c", STUBBORN.format(log))
    wait_for(log, "begun\n")
    real.file.say_time_to_stop(after)
    process.terminate()
    wait_for(log, "told\n")
    real.file.say_no(NOBODY)
    try:
        assert process.wait(30) == 128 + signal.SIGKILL
    finally:
        process.kill()


def test_a_grace_that_fits_is_not_talked_about(real: Volume) -> None:
    real.file.say_time_to_stop(4.84)
    real.file.say(real.claim())
    assert real.run("run-as-leader", "true").stderr == ""


@pytest.mark.parametrize(("to_stop", "end"), [(3, "begun\n"), (600, "ended\n")])
def test_time_in_which_nobody_looked_is_no_time_to_stop(
    real: Volume, to_stop: float, end: str
) -> None:
    """A frozen pod: the look that finds the loss comes when another may lead already. The command
    wants 2 s to end.
    """
    log, pid, frozen = (real.path / name for name in ("log", "pid", "frozen"))
    real.file.say_time_to_stop(to_stop)
    program = real.path / "is-leader"
    slow = f"[ -e {frozen} ] && {{ sleep 4; exit 1; }}\n"
    program.write_text(program.read_text().replace("dir=${0%/*}\n", slow + "dir=${0%/*}\n"))
    real.file.say(real.claim())
    command = f"trap 'sleep 2; echo ended > {log}; exit' TERM; echo $$ > {pid}; echo begun > {log};"
    process = real.spawn("sh", "-c", f"{command} while :; do sleep 0.1; done")
    try:
        wait_for(log, "begun\n")
        frozen.touch()
        over = time.monotonic() + 60
        while Path(f"/proc/{int(pid.read_text())}").exists() and time.monotonic() < over:
            time.sleep(0.02)
        assert log.read_text() == end
    finally:
        process.terminate()
        process.wait(20)
