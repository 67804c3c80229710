"""What an agent does not accept, and how it says so; how it stops; its status page."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ensemble import Ensemble
from servers import FLAVOURS, Passwords, Server, free_port, wait_until

from leasekeeper import __version__, cli
from leasekeeper.redlock import users
from leasekeeper.redlock.blocking import BadCredentials, Broken, Connection


@pytest.fixture(scope="module", params=FLAVOURS)
def ensemble(request: pytest.FixtureRequest) -> Iterator[Ensemble]:
    with Ensemble(3, flavour=request.param, http=True) as running:
        running.wait_open()
        yield running


SETTINGS = {
    "save": ("save 3600 1", "save", ""),
    "appendonly": ("appendonly yes", "appendonly", "no"),
    "maxmemory-policy": ("maxmemory-policy allkeys-lru", "maxmemory-policy", "noeviction"),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_server_whose_memory_could_lie_stays_closed_until_it_is_mended(
    flavour: str, setting: str
) -> None:
    """Bug 9: eviction removed lock keys or counters."""
    line, name, value = SETTINGS[setting]
    with Ensemble(3, flavour=flavour) as three:
        node = three.nodes[0]
        node.agent.kill()
        node.server.kill()
        node.server.extra_config = f"{line}\n"
        node.server.start()
        node.agent.start()
        wait_until(lambda: node.agent.events("unfit"), "the agent to refuse")
        assert f"`{setting} " in node.agent.events("unfit")[0]
        assert "change it in the server's configuration" in node.agent.events("unfit")[0]
        assert not node.open
        node.server.client().config_set(name, value)
        for left in (node.server.home / "data").rglob("*"):
            if left.is_file():
                left.unlink()
        if setting != "appendonly":  # its folder stays, and is refused for itself
            three.wait_open()


def test_a_setting_that_is_changed_on_an_open_node_closes_it(ensemble: Ensemble) -> None:
    """Known bug 9: eviction removed lock keys or counters."""
    node = ensemble.nodes[2]
    node.server.client().config_set("maxmemory-policy", "allkeys-lru")
    wait_until(lambda: not node.open, "the node to close")
    wait_until(lambda: node.agent.events("unfit"), "the agent to say why")
    node.server.client().config_set("maxmemory-policy", "noeviction")
    wait_until(lambda: node.agent.events("life-begun")[1:], "a new life")
    ensemble.wait_open()


def test_a_replica_lets_no_candidate_in(ensemble: Ensemble) -> None:
    """It takes no writes, so its mark and its library cannot be removed: its users can."""
    name, _ = ensemble.add_lock("shop/orders")
    node = ensemble.nodes[2]
    node.server.client().replicaof("127.0.0.1", ensemble.nodes[1].server.port)
    wait_until(lambda: any("replica" in e for e in node.agent.events("unfit")), "the agent to say")
    assert not node.has_user(name)
    assert get(ensemble, "/readyz", 2)[0] == 503
    node.server.client().replicaof("NO", "ONE")
    wait_until(lambda: get(ensemble, "/readyz", 2)[0] == 200, "the node to be ready again")
    assert node.has_user(name)


def test_a_dump_that_the_next_start_would_load_keeps_a_node_closed(flavour: str) -> None:
    with Ensemble(3, flavour=flavour, agents=False) as three:
        node = three.nodes[0]
        node.server.client().save()
        node.agent.start()
        wait_until(lambda: node.agent.events("unfit"), "the agent to refuse")
        assert "dump.rdb at its next start" in node.agent.events("unfit")[0]


def test_an_unreachable_server_is_said_once_and_tried_again(flavour: str) -> None:
    with Ensemble(3, flavour=flavour, agents=False) as three:
        node = three.nodes[0]
        node.server.kill()
        node.agent.start()
        wait_until(lambda: node.agent.events("unreachable"), "the agent to say so")
        assert str(node.server.socket) in node.agent.events("unreachable")[0]
        time.sleep(0.7)
        assert len(node.agent.events("unreachable")) == 1
        node.server.start()
        wait_until(lambda: node.agent.events("life-begun"), "the agent to see the server")
        assert node.agent.terminate() == 0


def test_sigterm_stops_the_agent_and_leaves_the_server_as_it_was(ensemble: Ensemble) -> None:
    node = ensemble.nodes[0]
    assert node.agent.terminate() == cli.EXIT_STOPPED
    assert node.open
    assert node.agent.events("agent-stopped") == ["agent-stopped node=0 signal=SIGTERM"]
    node.agent.start()
    wait_until(lambda: node.agent.events("resumed"), "the agent to go on")


def test_the_server_of_another_node_is_refused(ensemble: Ensemble) -> None:
    mistaken = ensemble.agent("1", ensemble.nodes[0].server, name="mistaken")
    mistaken.start()
    assert mistaken.wait() == cli.EXIT_WRONG_SERVER
    assert "the server is node 0 of its ensemble, and this agent is --node 1" in mistaken.output()
    assert ensemble.nodes[0].open


def test_a_wrong_password_is_one_sentence_and_an_exit_code(
    ensemble: Ensemble, tmp_path: Path
) -> None:
    Passwords().write(tmp_path / "wrong")
    agent = ensemble.agent("0", ensemble.nodes[0].server, name="wrong")
    agent.options["credentials"] = str(tmp_path / "wrong")
    agent.start()
    assert agent.wait() == cli.EXIT_CREDENTIALS
    last = agent.output().splitlines()[-1]
    assert last.startswith("leasekeeper: the server at unix://")
    assert "refused the user 'agent'" in last
    assert str(tmp_path / "wrong") in last


def test_a_wrong_peer_password_is_said_with_the_nodes_name(flavour: str) -> None:
    with Ensemble(3, flavour=flavour, agents=False) as three:
        (three.home / "credentials" / "peer").write_text("wrong")
        for node in three.nodes:
            node.agent.start()
        first = three.nodes[0].agent
        wait_until(
            lambda: any("refused the user" in e and "peer" in e for e in first.events("waiting")),
            "the agent to say so",
        )


def get(ensemble: Ensemble, path: str, index: int = 0) -> tuple[int, Any]:
    url = f"http://{ensemble.nodes[index].agent.options['http']}{path}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


def test_the_status_page_says_what_the_node_does(ensemble: Ensemble) -> None:
    code, status = get(ensemble, "/status")
    assert code == 200
    assert (status["node"], status["stage"], status["open"]) == ("0", "open", True)
    assert status["epoch"] == ensemble.membership.epoch
    assert get(ensemble, "/readyz")[0] == 200
    assert get(ensemble, "/healthz")[0] == 200
    assert get(ensemble, "/")[0] == 404


def test_a_node_in_quarantine_is_healthy_and_not_ready(ensemble: Ensemble) -> None:
    ensemble.nodes[1].server.restart()
    wait_until(
        lambda: get(ensemble, "/status", 1)[1]["stage"] in ("quarantine", "entered"), "quarantine"
    )
    assert get(ensemble, "/readyz", 1)[0] == 503
    assert get(ensemble, "/healthz", 1)[0] == 200
    ensemble.wait_open()
    wait_until(lambda: get(ensemble, "/readyz", 1)[0] == 200, "the node to be ready")


def test_a_visitor_who_says_nothing_does_not_keep_others_out(ensemble: Ensemble) -> None:
    host, port = ensemble.nodes[0].agent.options["http"].split(":")
    with socket.create_connection((host, int(port))):
        assert get(ensemble, "/healthz")[0] == 200


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    """Such that nothing is wrong with them."""
    nodes = [{"id": str(i), "host": "127.0.0.1", "port": 7000 + i} for i in range(3)]
    membership = {"number": 1, "maxTtlSeconds": 10, "quarantineSeconds": 11, "capSeconds": 0.1}
    (tmp_path / "membership.json").write_text(json.dumps({**membership, "nodes": nodes}))
    (tmp_path / "users").touch()
    Passwords().write(tmp_path / "credentials")
    return {
        "node": "0",
        "server": "unix:///nowhere/server.sock",
        "membership": str(tmp_path / "membership.json"),
        "credentials": str(tmp_path / "credentials"),
        "users": str(tmp_path / "users"),
    }


ADDRESS = "is not a server's address; write unix:///path/to/socket or HOST:PORT"
MISTAKES = [
    ("node", "7", "--node 7 is not in .*; it has 0, 1, 2"),
    ("server", "redis://x", ADDRESS),
    ("server", "redis://x:6379", ADDRESS),
    ("server", "unix://relative", ADDRESS),
    ("server", "host", ADDRESS),
    ("server", ":6379", ADDRESS),
    ("server", "host:", ADDRESS),
    ("server", "host:0", ADDRESS),
    ("server", "host:65536", ADDRESS),
    ("server", "host:-1", ADDRESS),
    ("server", "host:²", ADDRESS),
    ("server", "host:" + "9" * 5000, ADDRESS),
    ("membership", "/nowhere.json", "--membership /nowhere.json: No such file.*; name a file"),
    ("membership", "/", "--membership /: Is a directory; name a file that can be read"),
    ("credentials", "/nowhere", "--credentials /nowhere/agent: No such file.*one password"),
    ("users", "/nowhere", "users file /nowhere: No such file.*; name a file"),
    ("users", "/", "users file /: Is a directory; name a file"),
    ("registry", "/", "registry /: cannot be read: Is a directory; name a file"),
    ("http", "here", "--http 'here' is not an address; write"),
    ("http", ":²", "is not an address; write"),
    ("http", ":65536", "is not an address; write"),
    ("tls-ca", "/nowhere", "--tls-ca.*CA file /nowhere cannot be used: No such file.*; name a PEM"),
    ("tls-cert", "/nowhere", "--tls-cert needs --tls-ca"),
    ("tls-name", "nodes", "--tls-name needs --tls-ca"),
]


def refused(options: dict[str, str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that the agent says before it ends; nothing of it was started."""
    port = free_port()
    options = {"http": f"127.0.0.1:{port}", **options}
    threads = threading.active_count()
    arguments = [f"--{key}={text}" for key, text in options.items()]
    assert cli.main(["node-agent", *arguments]) == cli.EXIT_CONFIGURATION
    said = capsys.readouterr().err
    assert said.startswith("leasekeeper: ")
    assert said.count("\n") == 1, said
    assert threading.active_count() == threads
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    return said


@pytest.mark.parametrize(("option", "value", "sentence"), MISTAKES)
def test_a_mistake_in_an_option_is_one_sentence(
    option: str,
    value: str,
    sentence: str,
    options: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = refused({**options, option: value}, capsys)
    assert re.search(sentence, said), said


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "Is a directory"), (b"", "is empty"), (b"\xff\xfe", "not a text")],
)
@pytest.mark.parametrize("user", ["agent", "peer"])
def test_a_password_that_cannot_be_read_is_one_sentence(
    user: str,
    content: bytes | None,
    sentence: str,
    options: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = Path(options["credentials"]) / user
    path.unlink()
    path.mkdir() if content is None else path.write_bytes(content)
    said = refused(options, capsys)
    assert f"--credentials {path}: {sentence}; it must hold one password" in said


def node(id: str, port: object, host: str = "h") -> dict[str, object]:
    return {"id": id, "host": host, "port": port}


THREE = [node("0", 1), node("1", 2), node("2", 3)]
MEMBERSHIPS: list[tuple[str | dict[str, object], str]] = [
    ("{", "not JSON"),
    ("[" * 100_000, "not JSON"),
    ('{"number": ' + "1" * 5000 + "}", "not JSON"),
    ("{}", "the key 'number' is missing"),
    ("[]", "membership: "),
    ({"nodes": []}, "0 given, but their number must be odd and from 3 to 9"),
    ({"nodes": THREE[:1]}, "1 given, but their number must be odd and from 3 to 9"),
    ({"nodes": THREE[:2]}, "2 given, but their number must be odd and from 3 to 9"),
    ({"nodes": [*THREE[:2], node("1", 9)]}, "two have the same id"),
    ({"nodes": [*THREE[:2], node("2", 1)]}, "0 and 2 both have the address h:1"),
    ({"nodes": [*THREE[:2], node("2", 70_000)]}, "needs a host and a port from 1 to 65535"),
    ({"nodes": [*THREE[:2], node("2", 3, host="")]}, "needs a host and a port from 1 to 65535"),
    ({"nodes": [*THREE[:2], node("2", "x")]}, "membership: invalid literal"),
    ({"number": float("inf")}, "membership: cannot convert"),
    ({"maxTtlSeconds": float("nan")}, "must be finite numbers, at most 1000000"),
    ({"capSeconds": float("inf")}, "must be finite numbers, at most 1000000"),
    ({"maxTtlSeconds": 1e300, "quarantineSeconds": 1e301}, "must be finite numbers, at most"),
    ({"maxTtlSeconds": -1}, "must be greater than 0"),
    ({"capSeconds": -0.1}, "must be greater than 0"),
    ({"quarantineSeconds": 10}, "quarantineSeconds (10) must be greater than maxTtlSeconds"),
]


@pytest.mark.parametrize(("content", "sentence"), MEMBERSHIPS)
def test_a_membership_file_that_cannot_be_used_is_one_sentence(
    content: str | dict[str, object],
    sentence: str,
    options: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = Path(options["membership"])
    good = json.loads(path.read_text())
    path.write_text(content if isinstance(content, str) else json.dumps({**good, **content}))
    said = refused(options, capsys)
    assert f"--membership {path}: " in said
    assert sentence in said


def test_a_taken_port_is_one_sentence(
    options: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        arguments = [f"--{key}={value}" for key, value in options.items()]
        code = cli.main(["node-agent", *arguments, f"--http=127.0.0.1:{port}"])
    assert code == cli.EXIT_CONFIGURATION
    assert f"--http 127.0.0.1:{port}: Address already in use" in capsys.readouterr().err


def test_an_unknown_option_is_named(
    options: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"--{key}={value}" for key, value in options.items()]
    with pytest.raises(SystemExit) as ended:
        cli.main(["node-agent", *arguments, "--tls-cas=x"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --tls-cas=x" in capsys.readouterr().err


def test_an_unknown_option_and_a_missing_one(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["node-agent", "--nod", "1"], ["node-agent"], []):
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        assert ended.value.code == 2
        assert "leasekeeper" in capsys.readouterr().err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, text in ((["--version"], __version__), (["node-agent", "--help"], "exit codes")):
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        assert ended.value.code == 0
        assert text in capsys.readouterr().out


def test_options_come_from_the_environment_too(server: Server) -> None:
    with Ensemble(3, flavour=server.flavour, agents=False) as three:
        node = three.nodes[0]
        environment = {
            f"LEASEKEEPER_{key.upper().replace('-', '_')}": value
            for key, value in node.agent.options.items()
        }
        node.agent.options = {}
        node.agent.spawn(node.agent.command, **environment)
        wait_until(lambda: node.agent.events("life-begun"), "the agent to find its server")


def test_a_server_without_room_for_a_connection_is_no_wrong_password(server: Server) -> None:
    """An agent ends for good on a wrong password; a crowd of connections passes."""
    with server.client() as admin:
        admin.config_set("maxclients", 1)
        for _ in range(20):  # the server's sentence and the end of the connection race
            with pytest.raises(Broken):
                Connection(str(server.socket), users.AGENT, server.passwords.agent, timeout=1)
        admin.config_set("maxclients", 100)
    with pytest.raises(BadCredentials):
        Connection(str(server.socket), users.AGENT, "wrong", timeout=1)
