"""`leasekeeper hold`, `observe` and `status` as processes, on real nodes."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ensemble import Ensemble
from screen import Screen
from servers import wait_until

from leasekeeper.cli_look import Word, judge

PATIENCE = 60
LEASE = 3.0


@pytest.fixture(scope="module")
def ensemble() -> Iterator[Ensemble]:
    with Ensemble(3, max_ttl=LEASE, quarantine=LEASE * 1.1) as running:
        running.wait_open()
        yield running


class Cli:
    """The command line, for one lock of its own."""

    def __init__(self, ensemble: Ensemble, folder: Path) -> None:
        self.lock = f"shop/{secrets.token_hex(4)}"
        user, password = ensemble.add_lock(self.lock)
        self.folder = folder
        self.password = folder / "password"
        self.password.write_text(password)
        self.nodes = ",".join(node.address for node in ensemble.membership.nodes)
        self.config = folder / "lock.json"
        timings = {"leaseDurationSeconds": 3, "renewDeadlineSeconds": 2, "retryPeriodSeconds": 0.5}
        redlock = {
            "membership": ensemble.membership.to_json(),
            "username": user,
            "password": password,
        }
        lock = {"version": 1, "lock": self.lock, "store": "redlock", "timings": timings}
        self.config.write_text(json.dumps({**lock, "redlock": redlock}))

    @property
    def by_nodes(self) -> list[str]:
        return [self.lock, "--nodes", self.nodes, "--password-file", str(self.password)]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "leasekeeper.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        started = self.start(*arguments)
        out, err = started.communicate(timeout=PATIENCE)
        return started.returncode, out, err

    def hold(self, script: str, *options: str) -> subprocess.Popen[str]:
        """A shell script while holding the lock; returns when it has said its first line."""
        command = ("--", "sh", "-c", script)
        held = self.start("hold", "--config", str(self.config), *options, *command)
        assert held.stdout is not None
        assert held.stdout.readline(), held.communicate()[1]
        return held

    def observed(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("observe", *self.by_nodes, "--json")[1])
        return found


@pytest.fixture
def cli(ensemble: Ensemble, tmp_path: Path) -> Cli:
    return Cli(ensemble, tmp_path)


def finished(held: subprocess.Popen[str]) -> int:
    held.communicate(timeout=PATIENCE)
    return held.returncode


# -- hold ----------------------------------------------------------------------------------------


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
        assert not _running("sleep\0" + "61")


def test_a_command_dies_with_a_hold_that_is_killed(cli: Cli) -> None:
    held = cli.hold("echo $$; exec sleep 62")
    held.kill()
    finished(held)
    wait_until(lambda: not _running("sleep\0" + "62"), "the command to die")


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


def what_went_on(cli: Cli, end: Callable[[int], None]) -> tuple[int, set[int]]:
    """The status of a hold on a terminal, and who of this there was after it: 1, what the command
    started and left behind; 2, the same in a group of its own, as an interactive shell makes them;
    3, a neighbour in our own group: the next program of a pipeline, or the script that runs us.
    """
    mine = f"300.{secrets.randbelow(10**9):09}"  # seconds that are nobody else's
    away = f'{sys.executable} -c "{OTHER_GROUP}"'
    script = f"(trap '' TERM; sleep {mine}1; :) & ({away} {mine}2 &);"
    script += f"echo ready $PPID.; until [ -e {cli.folder}/end ]; do sleep 0.1; done; exit 5"
    hold = ["hold", "--config", str(cli.config), "--grace", "1", "--", "sh", "-c", script]
    outer = f'sleep {mine}3 & "$@"; echo "status $?."; read -r wait; kill $!'
    screen = Screen(["sh", "-c", outer, "sh", sys.executable, "-m", "leasekeeper.cli", *hold])

    def there() -> set[int]:
        return {n for n in (1, 2, 3) if _running(f"sleep\0{mine}{n}\0")}

    screen.until(lambda text: re.search(r"ready \d+\.", text), "the command to run")
    wait_until(lambda: there() == {1, 2, 3}, "all of them")
    end(int(screen.text.split("ready ")[1].split(".")[0]))
    screen.until(lambda text: re.search(r"status \d+\.", text), "the end")
    left = there()
    screen.press("\n")
    return int(screen.text.split("status ")[1].split(".")[0]), left


def test_on_a_terminal_what_a_command_leaves_behind_is_stopped(cli: Cli) -> None:
    status, left = what_went_on(cli, lambda _: (cli.folder / "end").touch())
    assert (status, left) == (5, {3})


def test_on_a_terminal_all_that_a_command_started_is_stopped_with_it(cli: Cli) -> None:
    status, left = what_went_on(cli, lambda hold: os.kill(hold, signal.SIGTERM))
    assert (status, left) == (128 + signal.SIGTERM, {3})


def test_on_a_terminal_all_that_a_command_started_is_stopped_by_a_loss(tmp_path: Path) -> None:
    with Ensemble(3, max_ttl=LEASE, quarantine=LEASE * 1.1) as ensemble:
        ensemble.wait_open()

        def lose(_: int) -> None:
            for node in ensemble.nodes:
                node.hang()

        assert what_went_on(Cli(ensemble, tmp_path), lose) == (123, {3})


def test_on_a_terminal_who_loses_a_parent_and_ends_is_no_zombie_of_ours(cli: Cli) -> None:
    script = "for i in 1 2 3; do (sleep 0.2 &); done; sleep 1; echo ready $PPID.; read -r wait"
    command = ["hold", "--config", str(cli.config), "--", "sh", "-c", script]
    screen = Screen([sys.executable, "-m", "leasekeeper.cli", *command])
    screen.until(lambda text: re.search(r"ready \d+\.", text), "the command to run")
    hold = screen.text.split("ready ")[1].split(".")[0]
    children = Path(f"/proc/{hold}/task/{hold}/children")
    wait_until(lambda: len(children.read_text().split()) == 1, "only the command to be there")
    screen.press("\n")
    screen.until(lambda _: screen.process.poll() is not None, "the end")
    assert screen.process.returncode == 0


def _running(command: str) -> bool:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if (folder / "cmdline").read_text().startswith(command):
                    return True
            except OSError:
                continue
    return False


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


# -- observe -------------------------------------------------------------------------------------


def test_observe_tells_held_from_free_by_its_exit_code(cli: Cli) -> None:
    code, out, _ = cli.run("observe", *cli.by_nodes)
    assert (code, f"{cli.lock} is free" in out) == (1, True)
    held = cli.hold("echo $LEASEKEEPER_TOKEN; sleep 60", "--name", "me")
    code, out, _ = cli.run("observe", "--config", str(cli.config))
    assert (code, f"{cli.lock} is held by me" in out) == (0, True)
    held.send_signal(signal.SIGTERM)
    finished(held)


def test_observe_tells_a_wrong_password_from_silence(cli: Cli) -> None:
    cli.password.write_text("wrong")
    code, out, _ = cli.run("observe", *cli.by_nodes)
    assert (code, "refused" in out) == (3, True)
    nowhere = ["--nodes", "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"]
    password = ["--password-file", str(cli.password)]
    code, out, _ = cli.run("observe", cli.lock, *nowhere, *password)
    assert (code, "cannot tell" in out) == (4, True)


def test_observe_counts_a_majority_of_the_members_and_not_of_who_was_asked(cli: Cli) -> None:
    one = cli.nodes.split(",")[0]
    code, out, _ = cli.run(
        "observe", cli.lock, "--nodes", one, "--password-file", str(cli.password)
    )
    assert (code, "cannot tell" in out) == (4, True)


def word(says: str, holder: str = "") -> Word:
    return Word("n", says, holder, 5 if holder else 0, 1.0)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([word("held", "a"), word("held", "a"), word("free")], "held"),
        ([word("held", "a"), word("held", "b"), word("free")], "unknown"),
        ([word("held", "a"), word("free"), word("free")], "free"),
        ([word("held", "a"), word("closed"), word("unreachable")], "unknown"),
        ([word("free"), word("closed"), word("unreachable")], "unknown"),
        ([], "unknown"),
    ],
)
def test_what_the_words_of_three_nodes_mean(words: list[Word], says: str) -> None:
    assert judge(words, 3).says == says


# -- status --------------------------------------------------------------------------------------


def test_status_shows_which_nodes_vote(cli: Cli, ensemble: Ensemble) -> None:
    file = ensemble.home / "credentials" / "operator"
    code, out, _ = cli.run("status", "--nodes", cli.nodes, "--password-file", str(file))
    assert code == 0
    assert out.startswith("3 of 3 nodes vote; 2 are a majority\n")
    by_config = ("--config", str(cli.config), "--password-file", str(file))
    assert cli.run("status", *by_config)[1].startswith("3 of 3 nodes vote")
    nodes = f"{cli.nodes.split(',')[0]},127.0.0.1:1,127.0.0.1:2"
    code, out, _ = cli.run("status", "--nodes", nodes, "--password-file", str(file), "--json")
    assert code == 1
    assert [node["state"] for node in json.loads(out)["nodes"]] == ["open"] + ["unreachable"] * 2


def test_status_counts_a_majority_of_the_members_and_not_of_who_was_asked(
    cli: Cli, ensemble: Ensemble
) -> None:
    """Bug 6."""
    file = ensemble.home / "credentials" / "operator"
    one = ("--nodes", cli.nodes.split(",")[0], "--password-file", str(file))
    code, out, _ = cli.run("status", *one)
    assert (code, out.splitlines()[0]) == (1, "1 of 3 nodes vote; 2 are a majority")
    assert "2 more not asked" in out
    found = json.loads(cli.run("status", *one, "--json")[1])
    assert (found["voting"], found["quorum"], found["members"]) == (1, 2, 3)


@pytest.mark.parametrize("command", ["status", "sql-schema"])
def test_a_reader_that_has_seen_enough_is_no_traceback(
    cli: Cli, ensemble: Ensemble, command: str
) -> None:
    """As in `leasekeeper status … | head -2`."""
    file = ensemble.home / "credentials" / "operator"
    nodes = ("--nodes", cli.nodes, "--password-file", str(file))
    started = cli.start(command, *(nodes if command == "status" else ("sqlite",)))
    assert started.stdout is not None
    assert started.stderr is not None
    started.stdout.close()
    assert (started.wait(PATIENCE), started.stderr.read()) == (141, "")


def test_status_says_that_a_lock_json_names_nodes_only(cli: Cli) -> None:
    """Another command's words stood there once."""
    code, out, err = cli.run("status", "--config", str(cli.config))
    assert (code, out) == (2, "")
    assert "--password-file FILE (or LEASEKEEPER_PASSWORD) is missing" in err
    described = " ".join(cli.run("status", "--help")[1].split())
    assert "a lock.json, for the nodes and their TLS only" in described
    assert "default: operator" in described
    assert "default: the user of the lock" in " ".join(cli.run("observe", "--help")[1].split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["observe"], "say where the nodes are"),
        (["observe", "--nodes", "127.0.0.1:1"], "name the lock"),
        (["observe", "a/b", "--nodes", "nonsense"], "is not a server's address"),
        (["observe", "a/b", "--nodes", "127.0.0.1:1"], "--password-file"),
        (["observe", "a/b", "--nodes", "127.0.0.1:1,127.0.0.1:1"], "named twice"),
        (["status", "--config", "/no/such/file"], "No such file"),
        (["observe", "--config", "/etc/passwd"], "not a lock.json"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(
    cli: Cli, arguments: list[str], words: str
) -> None:
    code, out, err = cli.run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


@pytest.mark.parametrize("command", ["", "demo", "node-agent", "hold", "observe", "status"])
def test_help_has_examples_and_exit_codes(cli: Cli, command: str) -> None:
    code, out, _ = cli.run(*filter(None, [command]), "--help")
    assert code == 0
    assert "example" in out
    assert "exit codes" in out
