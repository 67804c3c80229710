"""`run-as-leader`, under dash and busybox sh."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from leader_volume import Volume, wait_for
from leasekeeper_sidecar.busy import Busy
from leasekeeper_sidecar.claim import standby_claim


def test_a_command_gets_the_token_and_its_status_is_kept(real: Volume) -> None:
    real.file.say(real.claim())
    done = real.run("run-as-leader", "sh", "-c", "echo token $LEASEKEEPER_TOKEN; exit 7")
    assert (done.stdout, done.returncode) == ("token 17\n", 7)


def test_two_dashes_end_the_options(real: Volume) -> None:
    real.file.say(real.claim())
    done = real.run(
        "run-as-leader", "--grace", "5", "--", "sh", "-c", 'echo "$@"', "x", "--", "a b"
    )
    assert (done.stdout, done.returncode) == ("-- a b\n", 0)


def test_a_command_is_stopped_on_loss_and_started_again_with_the_next_tenure(real: Volume) -> None:
    log = real.path / "log"
    command = f"trap 'echo stopped $LEASEKEEPER_TOKEN >> {log}; exit' TERM;"
    command += f"echo started $LEASEKEEPER_TOKEN >> {log}; while :; do sleep 0.05; done"
    process = real.spawn("sh", "-c", command)
    try:
        time.sleep(0.4)
        assert not log.exists()
        real.file.say(real.claim(token=17))
        wait_for(log, "started 17\n")
        real.file.say_no(standby_claim("shop/orders", boot="x"))
        wait_for(log, "started 17\nstopped 17\n")
        real.file.say(real.claim(token=18))
        wait_for(log, "started 17\nstopped 17\nstarted 18\n")
        # The same leader, but another tenure: there was a gap, and the token says so.
        real.file.say(real.claim(token=19))
        wait_for(log, "started 17\nstopped 17\nstarted 18\nstopped 18\nstarted 19\n")
    finally:
        process.terminate()
        process.wait(10)
    assert log.read_text().endswith("stopped 19\n")


def test_a_command_is_stopped_when_the_sidecar_stands_still(real: Volume) -> None:
    """Known bug 29: nobody says no, the deadline does."""
    log = real.path / "log"
    real.file.say(real.claim(8))
    process = real.spawn(
        "sh", "-c", f"trap 'kill $!; echo stopped > {log}; exit' TERM; sleep 1000 & wait"
    )
    try:
        wait_for(log, "stopped\n")
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait(10)


def test_a_command_that_does_not_listen_is_killed_after_the_grace(real: Volume) -> None:
    pid = real.path / "pid"
    real.file.say(real.claim())
    process = real.spawn(
        "--grace", "1", "sh", "-c", f"trap '' TERM; echo $$ > {pid}; while :; do sleep 0.1; done"
    )
    try:
        end = time.monotonic() + 30
        while not (pid.exists() and pid.read_text()) and time.monotonic() < end:
            time.sleep(0.02)
        victim = int(pid.read_text())
        real.file.say_no(standby_claim("shop/orders", boot="x"))
        while Path(f"/proc/{victim}").exists() and time.monotonic() < end + 10:
            time.sleep(0.02)
        assert not Path(f"/proc/{victim}").exists()
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait(10)


def test_a_command_is_waited_for_though_the_sidecar_came_later(real: Volume) -> None:
    """It finds `busy` when it needs it, and not only when it starts."""
    log = real.path / "log"
    process = real.spawn("sh", "-c", f"echo begun > {log}; exec sleep 600")
    try:
        time.sleep(0.4)
        busy = Busy(str(real.path))
        busy.install()
        real.file.say(real.claim())
        wait_for(log, "begun\n")
        assert busy._held()
    finally:
        process.terminate()
        process.wait(20)


def test_the_command_is_watched_even_when_run_as_leader_is_killed(real: Volume) -> None:
    log, pid = real.path / "log", real.path / "pid"
    real.file.say(real.claim())
    command = f"trap 'echo stopped > {log}; exit' TERM; echo $$ > {pid};"
    process = real.spawn("sh", "-c", command + "while :; do sleep 0.05; done")
    end = time.monotonic() + 30
    while not (pid.exists() and pid.read_text()) and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    assert not log.exists()
    real.file.say_no(standby_claim("shop/orders", boot="x"))
    wait_for(log, "stopped\n")


def test_a_signal_to_the_whole_group_leaves_the_command_its_watcher(real: Volume) -> None:
    """As dumb-init, `tini -g`, supervisord and timeout send it. The command is told to stop, takes
    its time, and leadership is lost meanwhile.
    """
    log = real.path / "log"
    command = f"trap 'echo draining > {log}' TERM; echo begun > {log};"
    command += "while :; do sleep 0.1; done"
    program = [*real.shell, str(real.path / "run-as-leader"), "--grace", "1"]
    real.file.say(real.claim())
    process = subprocess.Popen([*program, "sh", "-c", command], start_new_session=True)
    try:
        wait_for(log, "begun\n")
        os.killpg(process.pid, signal.SIGTERM)
        wait_for(log, "draining\n")
        real.file.say_no(standby_claim("shop/orders", boot="x"))
        assert process.wait(60) == 128 + signal.SIGKILL
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_work_that_was_broken_off_is_begun_again_though_the_same_tenure_goes_on(
    real: Volume,
) -> None:
    """The file says no for a moment and then yes again: a wall clock that was set forward until the
    next renewal, or a renewal that succeeds late. The command ends with 0 when it is told to.
    """
    log, again = real.path / "log", real.path / "again"
    told = f"echo stopped >> {log}; until [ -e {again} ]; do sleep 0.1; done; exit 0"
    command = f"trap '{told}' TERM; echo begun >> {log}; while :; do sleep 0.05; done"
    real.file.say(real.claim())
    process = real.spawn("--grace", "60", "sh", "-c", command)
    try:
        wait_for(log, "begun\n")
        real.file.say_no(standby_claim("shop/orders", boot="x"))
        wait_for(log, "begun\nstopped\n")
        real.file.say(real.claim())
        again.touch()
        wait_for(log, "begun\nstopped\nbegun\n")
        assert process.poll() is None
    finally:
        process.terminate()
        assert process.wait(30) == 0


WATCHED = '    (watch "$token" "$self" "$beginning" 9<&- > /dev/null &)\n'


def outlives_a_kill_in_its_first_moment(volume: Volume) -> bool:
    """Whether the command goes on after a loss, if run-as-leader was killed when the command had
    just been started, and before it came to anything else.
    """
    log, program = volume.path / "log", volume.path / "run-as-leader"
    text = program.read_text()
    begun = "    command=$!\n"
    assert text.count(begun) == 1
    program.write_text(text.replace(begun, f"{begun}    kill -KILL $$\n"))
    volume.file.say(volume.claim())
    command = f"trap 'echo stopped > {log}; exit' TERM; echo begun > {log};"
    command += f"i=0; while [ $((i += 1)) -lt 80 ]; do sleep 0.1; done; echo went on > {log}"
    volume.spawn("sh", "-c", command).wait()
    wait_for(log, "begun\n")
    volume.file.say_no(standby_claim("shop/orders", boot="x"))
    end = time.monotonic() + 60
    while log.read_text() in ("", "begun\n") and time.monotonic() < end:
        time.sleep(0.02)
    said = log.read_text()
    assert said in ("stopped\n", "went on\n")
    return said == "went on\n"


def test_no_moment_of_a_kill_leaves_a_command_without_its_watcher(real: Volume) -> None:
    assert not outlives_a_kill_in_its_first_moment(real)


def test_control_a_watcher_that_begins_after_its_command_may_never_begin(real: Volume) -> None:
    program = real.path / "run-as-leader"
    text = program.read_text()
    assert text.count(WATCHED) == 1
    program.write_text(text.replace(WATCHED, ""))  # where it stood before: after `command=$!`
    assert outlives_a_kill_in_its_first_moment(real)


FORKED = "become() {\n"
SIGN = "    [ -e /proc/$$/fd/9 ] && exit 143\n"


def begins_after_a_stop(volume: Volume, after: str) -> bool:
    """Whether a command begins though TERM came before: its process is just forked, and slow to
    take up what a signal does to it; or it ignores one, because its watcher shall.
    """
    log, program = volume.path / "log", volume.path / "run-as-leader"
    text = program.read_text()
    assert text.count(after) == 1
    slow = f"    trap '' TERM; echo > {volume.path}/forked; sleep 1\n"
    program.write_text(text.replace(after, after + slow))
    volume.file.say(volume.claim())
    process = volume.spawn("sh", "-c", f"echo begun > {log}")
    wait_for(volume.path / "forked", "\n")
    process.terminate()
    assert (status := process.wait(20)) in (0, 143), status
    return log.exists()


@pytest.mark.parametrize("after", [FORKED, WATCHED], ids=["forked", "watched"])
def test_no_command_begins_after_a_stop(real: Volume, after: str) -> None:
    assert not begins_after_a_stop(real, after)


@pytest.mark.parametrize("after", [FORKED, WATCHED], ids=["forked", "watched"])
def test_control_a_stop_that_comes_with_the_fork_is_lost_without_a_sign(
    real: Volume, after: str
) -> None:
    program = real.path / "run-as-leader"
    text = program.read_text()
    assert text.count(SIGN) == 1
    program.write_text(text.replace(SIGN, ""))
    assert begins_after_a_stop(real, after)


REUSE = """
import os, signal, subprocess, sys, time
folder, *program = sys.argv[1:]
leader = subprocess.Popen([*program, "--grace", "1", "sleep", "600"])

def children(of):
    with open(f"/proc/{of}/task/{of}/children") as file:
        return [int(pid) for pid in file.read().split()]

def called(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().split(b"\\0")

def until(look):
    end = time.monotonic() + 30
    while not (found := look()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found

# The watcher is nobody's child, so it is given to us, the first process; and it is there before
# the command is.
def watched():
    try:
        commands = [pid for pid in children(leader.pid) if called(pid)[:2] == [b"sleep", b"600"]]
        watchers = [pid for pid in children(os.getpid()) if pid != leader.pid]
        if commands and len(watchers) == 1:
            return commands + watchers
    except (FileNotFoundError, ProcessLookupError):
        pass  # it ended while we looked

# What run-as-leader starts meanwhile may get it first, and ends soon.
def with_the_number():
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(command - 1))
    other = subprocess.Popen(["sleep", "600"])
    if other.pid == command:
        return other
    other.kill()
    other.wait()

command, watcher = until(watched)
os.kill(watcher, signal.SIGSTOP)
os.replace(f"{folder}/no", f"{folder}/leader.env")
os.replace(f"{folder}/no.json", f"{folder}/leader")
os.kill(command, signal.SIGKILL)
until(lambda: not os.path.exists(f"/proc/{command}"))
innocent = until(with_the_number)
os.kill(watcher, signal.SIGCONT)
os.waitpid(watcher, 0)  # after the grace, at the latest
print("alive" if innocent.poll() is None else f"ended with {innocent.returncode}")
"""


def test_a_process_that_got_the_number_of_the_command_is_left_alone(real: Volume) -> None:
    """In a namespace of its own, where the test may choose the next process's number."""
    no = standby_claim("shop/orders", boot="x")
    (real.path / "no").write_text(no.to_env())
    (real.path / "no.json").write_text(no.to_json())
    real.file.say(real.claim())
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c"]
    program = [*real.shell, str(real.path / "run-as-leader")]
    done = subprocess.run(
        [*apart, REUSE, str(real.path), *program],
        stdout=subprocess.PIPE,
        text=True,
        timeout=90,
        check=True,
    )
    assert done.stdout == "alive\n"


def test_a_command_whose_number_was_given_again_is_over_and_its_status_is_kept(
    real: Volume,
) -> None:
    """Here the number is given again in the very moment in which the command was waited for."""
    program = real.path / "run-as-leader"
    text = program.read_text()
    there = 'kill -0 "$command" 2>/dev/null || break'
    assert text.count(there) == 1
    program.write_text(text.replace(there, "true || break"))
    real.file.say(real.claim())
    assert real.run("run-as-leader", "sh", "-c", "exit 7").returncode == 7


def test_it_stops_promptly_while_it_waits(real: Volume) -> None:
    """Known bug 31."""
    process = real.spawn("sh", "-c", "exit 0")
    time.sleep(0.4)
    process.terminate()
    assert process.wait(10) == 143


def test_the_command_reads_what_was_given_to_it(real: Volume) -> None:
    real.file.say(real.claim())
    done = subprocess.run(
        [*real.shell, str(real.path / "run-as-leader"), "cat"],
        input="hello",
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.stdout == "hello"
