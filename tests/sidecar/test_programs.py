"""`is-leader` and `run-as-leader`, under dash and busybox sh, against the same rule in Python."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from leasekeeper_sidecar.busy import Busy
from leasekeeper_sidecar.claim import Claim, judge, standby_claim
from leasekeeper_sidecar.host import Proc
from leasekeeper_sidecar.leader_file import LeaderFile

BOOT = "5f0c2a44-6c1e-4c55-9b1e-6f0f2b1f7a10"
UPTIME_CS = 812_345
SHELLS = {"dash": ["dash"], "busybox": ["busybox", "sh"]}


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> list[str]:
    name: str = request.param
    if shutil.which(SHELLS[name][0]) is None:
        pytest.skip(f"no {name} on this machine")
    return SHELLS[name]


class Volume:
    """The leader volume, and a /proc whose clocks the test sets."""

    def __init__(self, path: Path, shell: list[str], *, real_clocks: bool = False) -> None:
        self.path = path
        self.shell = shell
        self.file = LeaderFile(str(path))
        self.file.install_programs()
        self.host = Proc()
        if not real_clocks:
            (path / "proc/sys/kernel/random").mkdir(parents=True)
            (path / "proc/sys/kernel/random/boot_id").write_text(BOOT + "\n")
            self.set_uptime(UPTIME_CS)
            program = path / "is-leader"
            text = program.read_text()
            assert "\nproc=/proc\n" in text
            program.write_text(text.replace("\nproc=/proc\n", f"\nproc={path}/proc\n"))
            self.host = Proc(str(path / "proc"))

    def set_uptime(self, cs: int) -> None:
        (self.path / "proc/uptime").write_text(f"{cs // 100}.{cs % 100:02d} 5000.00\n")

    def claim(self, seconds: float = 10, token: int = 17) -> Claim:
        wall = self.host.wall()
        return Claim(
            lock="shop/orders",
            leader=True,
            boot=self.host.boot_id(),
            holder="orders-x2x",
            token=token,
            acquired=wall,
            expires=wall + seconds,
            expires_unix=int(wall + seconds),
            deadline_cs=self.host.uptime_cs() + int(seconds * 100),
        )

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        # Only what the contract allows on the PATH: sh is given, date and sleep are looked up.
        return subprocess.run(
            [*self.shell, str(self.path / program), *arguments],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
            env={"PATH": os.environ["PATH"]},
        )

    def spawn(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.shell, str(self.path / "run-as-leader"), *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def volume(tmp_path: Path, shell: list[str]) -> Volume:
    return Volume(tmp_path, shell)


@pytest.fixture
def real(tmp_path: Path, shell: list[str]) -> Volume:
    return Volume(tmp_path, shell, real_clocks=True)


def wait_for(path: Path, text: str) -> None:
    end = time.monotonic() + 15
    while time.monotonic() < end:
        if path.exists() and path.read_text() == text:
            return
        time.sleep(0.02)
    raise TimeoutError(f"{path.name} is not {text!r}: {path.exists() and path.read_text()!r}")


# -- is-leader -------------------------------------------------------------------------------------


def test_the_leader_exits_with_0_and_prints_its_token_when_asked(volume: Volume) -> None:
    volume.file.say(volume.claim())
    assert volume.run("is-leader").returncode == 0
    assert volume.run("is-leader").stdout == ""
    asked = volume.run("is-leader", "--token")
    assert (asked.returncode, asked.stdout) == (0, "17\n")


def test_a_standby_exits_with_1_and_prints_no_token(volume: Volume) -> None:
    volume.file.say_no(standby_claim("shop/orders", boot=BOOT, holder="a", seen=1.0))
    asked = volume.run("is-leader", "--token")
    assert (asked.returncode, asked.stdout) == (1, "")


def test_without_a_file_nobody_leads(volume: Volume) -> None:
    asked = volume.run("is-leader", "--explain")
    assert asked.returncode == 1
    assert "no file" in asked.stdout


@pytest.mark.parametrize("cs", [-100, -1, 0, 1, 100_000])
def test_the_shell_and_python_judge_the_deadline_alike(volume: Volume, cs: int) -> None:
    """Known bug 29: the file ends by itself at its deadline, to the hundredth."""
    claim = volume.claim(seconds=10)
    volume.file.say(claim)
    volume.set_uptime(claim.deadline_cs + cs)
    expected = judge(
        claim.to_json(),
        uptime_cs=volume.host.uptime_cs(),
        boot=volume.host.boot_id(),
        wall=volume.host.wall(),
    )
    asked = volume.run("is-leader", "--explain")
    assert (asked.returncode == 0) == expected.leader == (cs < 0), asked.stdout


def test_a_machine_that_has_just_booted_is_read_correctly(volume: Volume) -> None:
    """0.08 s must not become an octal number."""
    volume.set_uptime(8)
    volume.file.say(volume.claim(seconds=1.5))
    assert volume.run("is-leader", "--explain").stdout == "leading with token 17\n"


FILE_READ = '    { read -r line < "$file"; } 2>/dev/null\n'
UPTIME_READ = '    { read -r uptime rest < "$proc/uptime"; } 2>/dev/null\n'


def judged_after_a_pause(volume: Volume) -> int:
    """What a reader says that stands still in the middle, until the deadline has passed: here the
    file is a pipe, and its one line comes that late.
    """
    volume.file.say(volume.claim(seconds=10))
    file = volume.path / "leader"
    line = file.read_text()
    file.unlink()
    os.mkfifo(file)
    reader = subprocess.Popen([*volume.shell, str(volume.path / "is-leader")])
    with file.open("w") as pipe:  # returns when the reader has opened it, too
        volume.set_uptime(UPTIME_CS + 2000)
        pipe.write(line)
    return reader.wait(20)


def test_a_reader_that_is_paused_says_no(volume: Volume) -> None:
    assert judged_after_a_pause(volume) == 1


def test_control_a_clock_that_is_read_before_the_file_makes_a_stale_yes(volume: Volume) -> None:
    program = volume.path / "is-leader"
    text = program.read_text()
    assert (text.count(FILE_READ), text.count(UPTIME_READ)) == (1, 1)
    text = text.replace(UPTIME_READ, "").replace(FILE_READ, UPTIME_READ + FILE_READ)
    program.write_text(text)
    assert judged_after_a_pause(volume) == 0


def test_the_wall_clock_ends_it_too(volume: Volume) -> None:
    claim = volume.claim(seconds=-1)
    volume.file.say(claim)
    volume.set_uptime(0)
    assert "wall clock" in volume.run("is-leader", "--explain").stdout


def test_another_boot_ends_it(volume: Volume) -> None:
    volume.file.say(volume.claim())
    (volume.path / "proc/sys/kernel/random/boot_id").write_text("another\n")
    assert "another boot" in volume.run("is-leader", "--explain").stdout


@pytest.mark.parametrize("missing", ["proc/uptime", "proc/sys/kernel/random/boot_id"])
def test_a_clock_that_cannot_be_read_means_no(volume: Volume, missing: str) -> None:
    volume.file.say(volume.claim())
    (volume.path / missing).unlink()
    asked = volume.run("is-leader")
    assert (asked.returncode, asked.stderr) == (1, "")


def test_without_date_the_answer_is_no(volume: Volume) -> None:
    volume.file.say(volume.claim())
    shell = shutil.which(volume.shell[0])
    assert shell is not None
    asked = subprocess.run(
        [shell, *volume.shell[1:], str(volume.path / "is-leader")],
        env={"PATH": "/nonexistent"},
        capture_output=True,
        check=False,
    )
    assert asked.returncode == 1


def test_no_beginning_of_the_file_means_yes(volume: Volume) -> None:
    """Known bug 30, should some volume ever show half a file."""
    text = volume.claim().to_json().rstrip("\n")
    for end in range(0, len(text), 7):
        (volume.path / "leader").write_text(text[:end])
        assert volume.run("is-leader").returncode == 1, text[:end]
    (volume.path / "leader").write_text(text)
    assert volume.run("is-leader").returncode == 0


def test_waiting_ends_when_it_leads(real: Volume) -> None:
    waiting = subprocess.Popen(
        [*real.shell, str(real.path / "is-leader"), "--wait", "15", "--token"],
        stdout=subprocess.PIPE,
        text=True,
    )
    time.sleep(0.3)
    assert waiting.poll() is None
    real.file.say(real.claim(20))
    assert waiting.communicate(timeout=15)[0] == "17\n"
    assert waiting.returncode == 0


def test_waiting_ends_at_its_limit(real: Volume) -> None:
    assert real.run("is-leader", "--wait", "1").returncode == 1


def test_a_wrong_argument_is_not_an_answer(volume: Volume) -> None:
    volume.file.say(volume.claim())
    assert volume.run("is-leader", "--tokn").returncode == 2
    assert volume.run("run-as-leader").returncode == 2


# -- run-as-leader ---------------------------------------------------------------------------------


def test_a_command_gets_the_token_and_its_status_is_kept(real: Volume) -> None:
    real.file.say(real.claim(60))
    done = real.run("run-as-leader", "sh", "-c", "echo token $LEASEKEEPER_TOKEN; exit 7")
    assert (done.stdout, done.returncode) == ("token 17\n", 7)


def test_a_command_is_stopped_on_loss_and_started_again_with_the_next_tenure(real: Volume) -> None:
    log = real.path / "log"
    command = f"trap 'echo stopped $LEASEKEEPER_TOKEN >> {log}; exit' TERM;"
    command += f"echo started $LEASEKEEPER_TOKEN >> {log}; while :; do sleep 0.05; done"
    process = real.spawn("sh", "-c", command)
    try:
        time.sleep(0.4)
        assert not log.exists()
        real.file.say(real.claim(60, token=17))
        wait_for(log, "started 17\n")
        real.file.say_no(standby_claim("shop/orders", boot="x"))
        wait_for(log, "started 17\nstopped 17\n")
        real.file.say(real.claim(60, token=18))
        wait_for(log, "started 17\nstopped 17\nstarted 18\n")
        # The same leader, but another tenure: there was a gap, and the token says so.
        real.file.say(real.claim(60, token=19))
        wait_for(log, "started 17\nstopped 17\nstarted 18\nstopped 18\nstarted 19\n")
    finally:
        process.terminate()
        process.wait(10)
    assert log.read_text().endswith("stopped 19\n")


def test_a_command_is_stopped_when_the_sidecar_stands_still(real: Volume) -> None:
    """Known bug 29: nobody says no, the deadline does."""
    log = real.path / "log"
    real.file.say(real.claim(2.5))
    process = real.spawn("sh", "-c", f"trap 'echo stopped > {log}; exit' TERM; sleep 1000 & wait")
    try:
        wait_for(log, "stopped\n")
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait(10)


def test_a_command_that_does_not_listen_is_killed_after_the_grace(real: Volume) -> None:
    pid = real.path / "pid"
    real.file.say(real.claim(60))
    process = real.spawn(
        "--grace", "1", "sh", "-c", f"trap '' TERM; echo $$ > {pid}; while :; do sleep 0.1; done"
    )
    try:
        end = time.monotonic() + 10
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


def test_the_command_is_watched_even_when_run_as_leader_is_killed(real: Volume) -> None:
    log, pid = real.path / "log", real.path / "pid"
    real.file.say(real.claim(60))
    command = f"trap 'echo stopped > {log}; exit' TERM; echo $$ > {pid};"
    process = real.spawn("sh", "-c", command + "while :; do sleep 0.05; done")
    end = time.monotonic() + 10
    while not (pid.exists() and pid.read_text()) and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    assert not log.exists()
    real.file.say_no(standby_claim("shop/orders", boot="x"))
    wait_for(log, "stopped\n")


def test_both_programs_run_as_any_user_with_a_read_only_root(
    tmp_path: Path, shell: list[str]
) -> None:
    """As in a pod with the restricted profile: nothing can be written anywhere, not even a file
    for a here-document.
    """
    with tempfile.TemporaryDirectory(prefix="lk-") as folder:
        Path(folder).chmod(0o777)
        volume = Volume(Path(folder), shell, real_clocks=True)
        Busy(folder).install()
        volume.file.say(volume.claim(60))
        program, *more = shell
        inside = " && ".join(
            [
                "mount --rbind / /mnt",
                "for at in $(awk '$5 ~ \"^/mnt\" {print $5}' /proc/self/mountinfo);"
                " do mount -o remount,bind,ro $at 2>/dev/null; done; true",
                "exec chroot --userspec=65534:65534 /mnt "
                + " ".join([str(shutil.which(program)), *more]),
            ]
        )
        for arguments, expected in (
            (["is-leader", "--token"], "17\n"),
            (
                [
                    "run-as-leader",
                    "sh",
                    "-c",
                    f"touch {folder}/x || id -u; echo $LEASEKEEPER_TOKEN",
                ],
                "65534\n17\n",
            ),
        ):
            quoted = [shlex.quote(text) for text in arguments[1:]]
            command = f"{inside} {folder}/{arguments[0]} {' '.join(quoted)}"
            done = subprocess.run(
                ["unshare", "--mount", "sh", "-c", command],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert (done.stdout, done.returncode) == (expected, 0), done.stderr


def test_it_stops_promptly_while_it_waits(real: Volume) -> None:
    """Known bug 31."""
    process = real.spawn("sh", "-c", "exit 0")
    time.sleep(0.4)
    process.terminate()
    assert process.wait(10) == 143


def test_the_command_reads_what_was_given_to_it(real: Volume) -> None:
    real.file.say(real.claim(60))
    done = subprocess.run(
        [*real.shell, str(real.path / "run-as-leader"), "cat"],
        input="hello",
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.stdout == "hello"
