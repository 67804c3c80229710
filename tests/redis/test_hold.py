"""`leasekeeper hold` as a process, on real nodes."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import LEASE, PATIENCE, Cli, finished, running
from ensemble import Ensemble
from screen import Screen
from servers import wait_until

from leasekeeper.lease import Request
from leasekeeper.redlock import requests, users


@pytest.fixture(scope="module")
def ensemble() -> Iterator[Ensemble]:
    with Ensemble(3, max_ttl=LEASE, quarantine=LEASE * 1.1) as running:
        running.wait_open()
        yield running


@pytest.fixture
def cli(ensemble: Ensemble, tmp_path: Path) -> Cli:
    return Cli(ensemble, tmp_path)


def test_a_command_runs_while_the_lock_is_held_and_knows_its_token(cli: Cli) -> None:
    held = cli.hold('echo "$LEASEKEEPER_TOKEN $LEASEKEEPER_LOCK"; sleep 60', "--name", "me")
    seen = cli.observed()
    assert (seen["says"], seen["holder"].split("/")[0]) == ("held", "me")
    held.send_signal(signal.SIGTERM)
    assert finished(held) == 128 + signal.SIGTERM
    assert cli.observed()["says"] == "free", "given back, and not left to run out"


def test_the_token_and_the_exit_status_are_handed_on(cli: Cli) -> None:
    script = 'echo "$LEASEKEEPER_TOKEN ${LEASEKEEPER_PASSWORD-none}"; exit 7'
    options = (*cli.by_nodes, "--lease", "3")
    tokens = []
    for _ in range(2):
        code, out, _ = cli.run("hold", *options, "--", "sh", "-c", script)
        assert code == 7
        token, password = out.split()
        assert password == "none", "the command needs no password of ours"
        tokens.append(int(token))
    assert tokens[0] < tokens[1]


def test_who_waits_gets_it_when_the_first_ends(cli: Cli) -> None:
    first = cli.hold("echo first; sleep 1; date +%s.%N")
    second = cli.start("hold", "--config", str(cli.config), "--", "date", "+%s.%N")
    first_ended = float(first.communicate(timeout=PATIENCE)[0])
    second_began = float(second.communicate(timeout=PATIENCE)[0])
    assert first_ended < second_began


def test_who_does_not_get_it_in_time_runs_nothing(cli: Cli) -> None:
    held = cli.hold("echo held; sleep 60")
    code, out, err = cli.run(
        "hold", "--config", str(cli.config), "--wait", "1", "--", "echo", "ran"
    )
    assert (code, out) == (124, "")
    assert "was not free within 1 s" in err
    held.send_signal(signal.SIGINT)
    finished(held)


def test_who_does_not_wait_asks_once(cli: Cli) -> None:
    at_once = ("hold", "--config", str(cli.config), "--wait", "0", "--", "echo", "ran")
    assert cli.run(*at_once)[:2] == (0, "ran\n")
    held = cli.hold("echo held; sleep 60")
    code, out, err = cli.run(*at_once)
    assert (code, out) == (124, "")
    assert "was not free within 0 s" in err
    held.send_signal(signal.SIGTERM)
    finished(held)


def test_a_command_is_stopped_when_the_lock_is_lost(tmp_path: Path) -> None:
    """With an ensemble of its own, whose nodes hang. The command ignores SIGTERM; what it started
    is stopped, too.
    """
    with Ensemble(3, max_ttl=LEASE, quarantine=LEASE * 1.1) as ensemble:
        ensemble.wait_open()
        cli = Cli(ensemble, tmp_path)
        held = cli.hold("trap '' TERM; sleep 61 & echo $!; while :; do sleep 1; done")
        for node in ensemble.nodes:
            node.hang()
        _, err = held.communicate(timeout=PATIENCE)
        assert held.returncode == 123
        assert "the lock is lost (deadline passed" in err
        assert not running("sleep\0" + "61")


def test_a_command_dies_with_a_hold_that_is_killed(cli: Cli) -> None:
    held = cli.hold("echo $$; exec sleep 62")
    held.kill()
    finished(held)
    wait_until(lambda: not running("sleep\0" + "62"), "the command to die")


def watcher_of(hold: int) -> int:
    """The one child that has a session of its own."""
    children = Path(f"/proc/{hold}/task/{hold}/children").read_text().split()
    [watcher] = [int(child) for child in children if os.getsid(int(child)) != os.getsid(hold)]
    return watcher


@pytest.mark.parametrize("watched", [True, False], ids=["watched", "control"])
def test_a_command_is_stopped_in_time_also_if_hold_is_paused(cli: Cli, watched: bool) -> None:
    """Hold alone. The control is the same with the watcher paused, too: then two work at once."""
    seen = cli.folder / "seen"
    held = cli.hold(f"trap '' TERM; echo on; while :; do date +%s.%N >> {seen}; sleep 0.05; done")
    paused = [held.pid] if watched else [held.pid, watcher_of(held.pid)]
    for pid in paused:
        os.kill(pid, signal.SIGSTOP)
    try:
        code, out, err = cli.run("hold", "--config", str(cli.config), "--", "date", "+%s.%N")
        assert code == 0, err
        if watched:
            assert not running(f"sh\0-c\0trap '' TERM; echo on; while :; do date +%s.%N >> {seen}")
        else:
            began = float(out)
            wait_until(lambda: float(seen.read_text().split()[-1]) > began, "two at work")
        assert (float(seen.read_text().split()[-1]) < float(out)) == watched
    finally:
        for pid in reversed(paused):
            os.kill(pid, signal.SIGCONT)
    _, err = held.communicate(timeout=PATIENCE)
    assert held.returncode == 123
    assert "the lock is lost" in err


def test_who_is_asked_to_step_down_stops_its_command_before_it_gives_the_lock_back(
    cli: Cli, ensemble: Ensemble
) -> None:
    """Most of the renewed lease is ahead, but it is given back after the time to stop. The command
    ignores SIGTERM, and a grace of 10 s is longer than that.
    """
    seen = cli.folder / "seen"
    held = cli.hold(f"trap '' TERM; echo on; while :; do date +%s.%N >> {seen}; sleep 0.05; done")
    holder = cli.observed()["holder"]
    function, *asked = requests.call(cli.lock, Request(1, requests.STEP_DOWN, holder, seconds=20))
    for node in ensemble.nodes:
        assert node.server.fcall(function, *asked, user=users.OPERATOR)[0] == "OK"
    code, out, err = cli.run("hold", "--config", str(cli.config), "--", "date", "+%s.%N")
    assert code == 0, err
    _, err = held.communicate(timeout=PATIENCE)
    assert held.returncode == 123
    assert "stepped down by request" in err
    assert float(seen.read_text().split()[-1]) < float(out), "two at work"


def test_a_command_is_not_begun_past_the_deadline(cli: Cli) -> None:
    """As by a pause between the win and the beginning of the command."""
    late = "from leasekeeper import cli, cli_hold; say = cli_hold._Hold._say\n"
    late += "def paused(self, event, *more, **fields):\n"
    late += "    say(self, event, *more, **fields); event == 'held' and time.sleep(2.1)\n"
    late += "cli_hold._Hold._say = paused; import sys, time; sys.exit(cli.main())"
    command = ["hold", "--config", str(cli.config), "--", "echo", "ran"]
    run = subprocess.run(
        [sys.executable, "-c", late, *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert (run.returncode, run.stdout) == (123, "")
    assert "the lock was lost before the command began" in run.stderr


def test_what_a_command_started_is_stopped_with_a_hold_that_is_killed(cli: Cli) -> None:
    """Without a terminal: there the command has a group of its own."""
    held = cli.hold("sleep 63 & echo on; wait")
    held.kill()
    finished(held)
    wait_until(lambda: not running("sleep\0" + "63"), "what the command had started to end")


def test_a_watcher_knows_of_the_command_before_hold_does(cli: Cli) -> None:
    """Hold is killed when the command has begun, and before it could tell anybody."""
    kill = "from leasekeeper import cli, cli_hold; import os, sys, time\n"
    kill += "def killed(*_): time.sleep(1); os.kill(os.getpid(), 9)\n"
    kill += "cli_hold._Hold._watch = killed; sys.exit(cli.main())"
    script = "sleep 65 & echo on; wait"
    command = ["hold", "--config", str(cli.config), "--", "sh", "-c", script]
    run = subprocess.run(
        [sys.executable, "-c", kill, *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,  # less than the command takes that would keep the output open
    )
    assert (run.returncode, run.stdout) == (-signal.SIGKILL, "on\n")
    wait_until(lambda: not running("sleep\0" + "65"), "what the command had started to end")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_hold_without_standard_files_is_watched_too(cli: Cli, closed: str) -> None:
    """As some start daemons. Their numbers would be those of what hold and its watcher talk by."""
    begun = cli.folder / "begun"
    hold = [sys.executable, "-m", "leasekeeper.cli", "hold", "--config", str(cli.config)]
    command = ["--", "sh", "-c", f"touch {begun}; exec sleep 66"]
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh"]
    with subprocess.Popen([*shell, *hold, *command], stdin=subprocess.DEVNULL) as held:
        try:
            wait_until(begun.exists, "the command")
            watcher = watcher_of(held.pid)
            held.send_signal(signal.SIGSTOP)
            wait_until(lambda: not running("sleep\0" + "66"), "the watcher to stop it")
            assert Path(f"/proc/{watcher}").exists()
        finally:
            held.send_signal(signal.SIGCONT)
            held.terminate()
    assert held.returncode == 123


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_watcher_stays_behind(cli: Cli, number: signal.Signals) -> None:
    held = cli.hold("echo on; exec sleep 64")
    watcher = watcher_of(held.pid)
    began = Path(f"/proc/{watcher}/stat").read_text().rpartition(")")[2].split()[19]
    held.send_signal(number)
    finished(held)

    def there() -> bool:
        try:
            stat = Path(f"/proc/{watcher}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return False
        return stat[19] == began and stat[0] not in "ZX"

    wait_until(lambda: not there(), "the watcher to end")


def test_on_a_terminal_ctrl_c_is_for_the_command(cli: Cli) -> None:
    """It stays in the foreground group, and is not told twice; here it does not end for it."""
    script = "trap 'echo interrupted' INT; echo ready; for i in 1 2 3; do sleep 1; done; exit 5"
    command = ["hold", "--config", str(cli.config), "--", "sh", "-c", script]
    screen = Screen([sys.executable, "-m", "leasekeeper.cli", *command])
    screen.until(lambda text: "ready" in text, "the command to run")
    os.killpg(screen.process.pid, signal.SIGINT)
    screen.until(lambda _: screen.process.poll() is not None, "the end")
    assert screen.process.returncode == 5
    assert screen.text.count("interrupted") == 1


OTHER_GROUP = "import os, sys; os.setpgrp(); os.execvp('sleep', ['sleep', sys.argv[1]])"


@pytest.fixture(params=["", "< /dev/null"], ids=["on-a-terminal", "without-one"])
def stdin(request: pytest.FixtureRequest) -> str:
    """What `hold` reads from: by this it knows whether a person's terminal is there."""
    redirected: str = request.param
    return redirected


def what_went_on(cli: Cli, stdin: str, end: Callable[[int], None]) -> tuple[int, set[int]]:
    """The status of a hold, and who of this there was after it: 1, what the command started and
    left behind; 2, the same in a group of its own, as `timeout` and interactive shells make them;
    3, a neighbour in our own group: the next program of a pipeline, or the script that runs us.
    """
    mine = f"300.{secrets.randbelow(10**9):09}"  # seconds that are nobody else's
    away = f'{sys.executable} -c "{OTHER_GROUP}"'
    script = f"(trap '' TERM; sleep {mine}1; :) & ({away} {mine}2 &);"
    script += f"echo ready $PPID.; until [ -e {cli.folder}/end ]; do sleep 0.1; done; exit 5"
    hold = ["hold", "--config", str(cli.config), "--grace", "1", "--", "sh", "-c", script]
    outer = f'sleep {mine}3 & "$@" {stdin}; echo "status $?."; read -r wait; kill $!'
    screen = Screen(["sh", "-c", outer, "sh", sys.executable, "-m", "leasekeeper.cli", *hold])

    def there() -> set[int]:
        return {n for n in (1, 2, 3) if running(f"sleep\0{mine}{n}\0")}

    screen.until(lambda text: re.search(r"ready \d+\.", text), "the command to run")
    wait_until(lambda: there() == {1, 2, 3}, "all of them")
    end(int(screen.text.split("ready ")[1].split(".")[0]))
    screen.until(lambda text: re.search(r"status \d+\.", text), "the end")
    left = there()
    screen.press("\n")
    return int(screen.text.split("status ")[1].split(".")[0]), left


def test_what_a_command_leaves_behind_is_stopped(cli: Cli, stdin: str) -> None:
    status, left = what_went_on(cli, stdin, lambda _: (cli.folder / "end").touch())
    assert (status, left) == (5, {3})


def test_all_that_a_command_started_is_stopped_with_it(cli: Cli, stdin: str) -> None:
    status, left = what_went_on(cli, stdin, lambda hold: os.kill(hold, signal.SIGTERM))
    assert (status, left) == (128 + signal.SIGTERM, {3})


def test_all_that_a_command_started_is_stopped_by_a_loss(tmp_path: Path, stdin: str) -> None:
    with Ensemble(3, max_ttl=LEASE, quarantine=LEASE * 1.1) as ensemble:
        ensemble.wait_open()

        def lose(_: int) -> None:
            for node in ensemble.nodes:
                node.hang()

        assert what_went_on(Cli(ensemble, tmp_path), stdin, lose) == (123, {3})


def test_on_a_terminal_who_loses_a_parent_and_ends_is_no_zombie_of_ours(cli: Cli) -> None:
    script = "for i in 1 2 3; do (sleep 0.2 &); done; sleep 1; echo ready $PPID.; read -r wait"
    command = ["hold", "--config", str(cli.config), "--", "sh", "-c", script]
    screen = Screen([sys.executable, "-m", "leasekeeper.cli", *command])
    screen.until(lambda text: re.search(r"ready \d+\.", text), "the command to run")
    hold = screen.text.split("ready ")[1].split(".")[0]
    children = Path(f"/proc/{hold}/task/{hold}/children")
    wait_until(lambda: len(children.read_text().split()) == 2, "the command and the watcher")
    screen.press("\n")
    screen.until(lambda _: screen.process.poll() is not None, "the end")
    assert screen.process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--", "no-such-program"], 127, "no-such-program: not found"),
        (["--", "/etc/passwd"], 126, "/etc/passwd"),
        ([], 125, "which command?"),
        (["--name", "a/b", "--", "true"], 125, "--name must not"),
        (["--wait", "nan", "--", "true"], 125, "'nan' is not a number of seconds"),
        (["--no-such-option", "--", "true"], 125, "--no-such-option"),
    ],
)
def test_what_cannot_be_run_is_said(cli: Cli, arguments: list[str], code: int, words: str) -> None:
    found, _, err = cli.run("hold", "--config", str(cli.config), *arguments)
    assert found == code
    assert words in err


@pytest.mark.parametrize("lock", [[], ["leader"]])
def test_a_lock_is_named_with_its_namespace(cli: Cli, lock: list[str]) -> None:
    where = ("--nodes", cli.nodes, "--password-file", str(cli.password), "--user", "me")
    code, out, err = cli.run("hold", *lock, *where, "--wait", "0", "--", "echo", "ran")
    assert (code, out) == (125, "")
    assert "name the lock: NAMESPACE/NAME" in err
