"""`leasekeeper observe`, `status` and the others' words, on real nodes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import LEASE, PATIENCE, Cli, finished
from ensemble import Ensemble

from leasekeeper.cli_look import Word, judge


@pytest.fixture(scope="module")
def ensemble() -> Iterator[Ensemble]:
    with Ensemble(3, max_ttl=LEASE, quarantine=LEASE * 1.1) as running:
        running.wait_open()
        yield running


@pytest.fixture
def cli(ensemble: Ensemble, tmp_path: Path) -> Cli:
    return Cli(ensemble, tmp_path)


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
        (["observe", "--nodes", "127.0.0.1:1", "--user", "me"], "name the lock: NAMESPACE/NAME\n"),
        (["observe", "leader", "--nodes", "127.0.0.1:1"], "NAMESPACE/NAME, not 'leader'"),
        (["observe", "a/", "--nodes", "127.0.0.1:1", "--user", "me"], "NAMESPACE/NAME, not 'a/'"),
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
