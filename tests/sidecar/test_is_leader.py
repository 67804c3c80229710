"""`is-leader`, under dash and busybox sh, against the same rule in Python."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from leader_volume import BOOT, UPTIME_CS, Volume
from leasekeeper_sidecar.busy import Busy
from leasekeeper_sidecar.claim import judge, standby_claim


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
    claim = volume.claim()
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
    volume.file.say(volume.claim())
    assert volume.run("is-leader", "--explain").stdout == "leading with token 17\n"


FILE_READ = '    { read -r line < "$file"; } 2>/dev/null\n'
UPTIME_READ = '    { read -r uptime rest < "$proc/uptime"; } 2>/dev/null\n'


def judged_after_a_pause(volume: Volume) -> int:
    """What a reader says that stands still in the middle, until the deadline has passed: here the
    file is a pipe, and its one line comes that late.
    """
    volume.file.say(volume.claim())
    file = volume.path / "leader"
    line = file.read_text()
    file.unlink()
    os.mkfifo(file)
    reader = subprocess.Popen([*volume.shell, str(volume.path / "is-leader")])
    with file.open("w") as pipe:  # returns when the reader has opened it, too
        volume.set_uptime(UPTIME_CS + 40_000)
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
    real.file.say(real.claim())
    assert waiting.communicate(timeout=15)[0] == "17\n"
    assert waiting.returncode == 0


def test_waiting_ends_at_its_limit(real: Volume) -> None:
    assert real.run("is-leader", "--wait", "1").returncode == 1


def test_a_wrong_argument_is_not_an_answer(volume: Volume) -> None:
    volume.file.say(volume.claim())
    assert volume.run("is-leader", "--tokn").returncode == 2
    assert volume.run("is-leader", "--wait", "9" * 20).returncode == 2
    assert volume.run("run-as-leader").returncode == 2
    assert volume.run("run-as-leader", "--grase", "5", "true").returncode == 2
    for grace in ("", "5s", "-1", "08", "9" * 20):
        assert volume.run("run-as-leader", "--grace", grace, "true").returncode == 2, grace


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
        volume.file.say(volume.claim())
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
