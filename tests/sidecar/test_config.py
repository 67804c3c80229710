"""The configuration is checked as a whole, and every mistake names its key."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from authority import Authority
from leasekeeper_sidecar import config as configuration
from leasekeeper_sidecar import manual
from leasekeeper_sidecar.config import SETTINGS, Config
from leasekeeper_sidecar.stores import STORES, RedlockSettings, SqlSettings, ZooKeeperSettings

from leasekeeper.lease import ConfigurationError, Timings

NODES = [{"id": str(i), "host": f"node-{i}", "port": 6379} for i in range(3)]
LOCK: dict[str, Any] = {
    "version": 1,
    "lock": "shop/orders",
    "store": "redlock",
    "timings": {
        "leaseDurationSeconds": 15,
        "renewDeadlineSeconds": 10,
        "retryPeriodSeconds": 2,
        "lockDelaySeconds": 0,
    },
    "redlock": {
        "membership": {
            "number": 1,
            "maxTtlSeconds": 15,
            "quarantineSeconds": 16,
            "capSeconds": 0.1,
            "nodes": NODES,
        },
        "username": "lock:shop/orders",
        "password": "secret",
    },
}
POD = {"LEASEKEEPER_POD_NAME": "orders-0", "LEASEKEEPER_POD_UID": "5f0c"}


def load(tmp_path: Path, lock: Any, *argv: str, **environ: str) -> Config:
    path = tmp_path / "lock.json"
    path.write_text(lock if isinstance(lock, str) else json.dumps(lock))
    return configuration.load(argv, {"LEASEKEEPER_CONFIG": str(path), **POD, **environ})


def problems(tmp_path: Path, lock: Any, *argv: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigurationError) as raised:
        load(tmp_path, lock, *argv, **environ)
    return str(raised.value).splitlines()


def redlock(config: Config) -> RedlockSettings:
    (lock,) = config.locks
    assert isinstance(lock.store, RedlockSettings)
    return lock.store


def test_what_the_operator_publishes_is_understood(tmp_path: Path) -> None:
    config = load(tmp_path, LOCK, LEASEKEEPER_POD_NAMESPACE="shop")
    (lock,) = config.locks
    assert (lock.name, lock.short_name) == ("shop/orders", "orders")
    assert lock.timings.renew_deadline == 10
    assert config.folder(config.leader_dir, lock) == "/var/run/lock"
    store = redlock(config)
    assert store.membership.quorum == 2
    assert (store.username, store.password) == ("lock:shop/orders", "secret")
    assert (config.http_port, config.local_port) == (8090, 4040)
    assert config.leader_dir == "/var/run/lock"
    assert not config.mirror


def test_in_a_pod_the_status_is_mirrored_unless_told_otherwise(tmp_path: Path) -> None:
    assert load(tmp_path, LOCK, KUBERNETES_SERVICE_HOST="10.0.0.1").mirror
    told = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "LEASEKEEPER_MIRROR": "none"}
    assert not load(tmp_path, LOCK, **told).mirror


def test_a_flag_wins_over_the_environment(tmp_path: Path) -> None:
    config = load(tmp_path, LOCK, "--http-port", "1", "--local-port=2", LEASEKEEPER_HTTP_PORT="3")
    assert (config.http_port, config.local_port) == (1, 2)


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    spoilt = {
        **LOCK,
        "lock": "orders",
        "timings": {"leaseDurationSeconds": "15", "retryPeriodSeconds": -1},
        "redlock": {**LOCK["redlock"], "password": "", "membership": {"nodes": []}},
    }
    found = problems(
        tmp_path,
        spoilt,
        "--no-such-flag=1",
        LEASEKEEPER_HTTP_PORT="http",
        LEASEKEEPER_MIRROR="etcd",
        LEASEKEEPER_POD_NAME="not a pod",
        LEASEKEEPER_DRAIN="soon",
        LEASEKEEPER_ON_LOST="http://elsewhere/",
        LEASEKEEPER_HEALTH="https://127.0.0.1/",
        LEASEKEEPER_HEALTH_PERIOD="0",
        LEASEKEEPER_HEALTH_FAILURES="1.5",
        LEASEKEEPER_HEALTH_ESCAPE="-1",
    )
    named = [line.replace(f"{tmp_path}/lock.json: ", "").split(":")[0] for line in found]
    assert sorted(named) == [
        "--no-such-flag",
        "LEASEKEEPER_DRAIN",
        "LEASEKEEPER_HEALTH",
        "LEASEKEEPER_HEALTH_ESCAPE",
        "LEASEKEEPER_HEALTH_FAILURES",
        "LEASEKEEPER_HEALTH_PERIOD",
        "LEASEKEEPER_HTTP_PORT",
        "LEASEKEEPER_MIRROR",
        "LEASEKEEPER_ON_LOST",
        "LEASEKEEPER_POD_NAME",
        "lock",
        "redlock.membership",
        "redlock.password",
        "timings.leaseDurationSeconds",
        "timings.retryPeriodSeconds",
    ]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"version": 2}, "version"),
        ({"timings": {"renewDeadlineSeconds": 15}}, "timings"),
        ({"timings": 15}, "timings: must be an object"),
        ({"timings": []}, "timings: must be an object"),
        ({"timings": {"leaseDurationSeconds": 60, "renewDeadlineSeconds": 40}}, "maxTtlSeconds"),
        ({"store": "etcd"}, "store: 'etcd', but this sidecar knows redlock"),
        ({"store": ["redlock"]}, "store"),
        ({"redlock": None}, "redlock.membership"),
        ({"lock": "shop/../x"}, "lock"),
    ],
)
def test_a_lock_that_cannot_work_is_refused(
    tmp_path: Path, change: dict[str, Any], key: str
) -> None:
    assert any(key in line for line in problems(tmp_path, LOCK | change))


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"version":1}'])
def test_a_file_that_is_no_lock_is_refused(tmp_path: Path, text: str) -> None:
    assert problems(tmp_path, text)


def test_a_missing_file_and_missing_variables_are_named() -> None:
    with pytest.raises(ConfigurationError) as raised:
        configuration.load([], {"LEASEKEEPER_CONFIG": "/nonexistent/lock.json"})
    assert {line.split(":")[0] for line in str(raised.value).splitlines()} == {
        "LEASEKEEPER_CONFIG",
        "LEASEKEEPER_POD_NAME",
        "LEASEKEEPER_POD_UID",
    }


def test_a_list_of_no_files_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="LEASEKEEPER_CONFIG: names no file"):
        configuration.load([], {**POD, "LEASEKEEPER_CONFIG": ","})


def test_the_pods_namespace_must_be_the_locks(tmp_path: Path) -> None:
    found = problems(tmp_path, LOCK, LEASEKEEPER_POD_NAMESPACE="another")
    assert [line.split(":")[0] for line in found] == ["LEASEKEEPER_POD_NAMESPACE"]


def test_help_lists_every_variable() -> None:
    command = [sys.executable, "-m", "leasekeeper_sidecar", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert all(setting.variable in shown and setting.flag in shown for setting in SETTINGS)


def test_the_file_that_help_shows_works_as_it_stands(tmp_path: Path) -> None:
    text = manual.usage()
    shown = text[text.index("  {\n") : text.index("\n  }\n") + len("\n  }\n")]
    config = load(tmp_path, shown.replace("NAMESPACE/NAME", "shop/orders"))
    (lock,) = config.locks
    assert lock.timings == Timings(), "the default, as it says"
    assert set(json.loads(shown)["timings"]) == set(LOCK["timings"])
    assert all(store in text for store in STORES)


def test_a_wrong_configuration_ends_with_2_and_no_traceback() -> None:
    command = [sys.executable, "-m", "leasekeeper_sidecar", "--config=/nonexistent"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={})
    assert done.returncode == 2
    assert "LEASEKEEPER_CONFIG: /nonexistent" in done.stderr
    assert "Traceback" not in done.stderr


# -- without a file, and several locks -------------------------------------------------------------

STOCK = LOCK | {"lock": "shop/stock"}


def test_the_environment_alone_is_enough() -> None:
    config = configuration.load([], {**POD, "LEASEKEEPER_CONFIG_JSON": json.dumps(LOCK)})
    assert [lock.name for lock in config.locks] == ["shop/orders"]
    assert redlock(config).password == "secret"


def test_a_mistake_in_the_environment_names_its_key() -> None:
    spoilt = [LOCK, STOCK | {"timings": {"retryPeriodSeconds": "2"}}]
    with pytest.raises(ConfigurationError) as raised:
        configuration.load([], {**POD, "LEASEKEEPER_CONFIG_JSON": json.dumps(spoilt)})
    assert str(raised.value) == (
        "LEASEKEEPER_CONFIG_JSON[1]: timings.retryPeriodSeconds: '2' is not a number of seconds"
    )


def test_several_locks_have_a_folder_each(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("orders.json", "stock.json")]
    for path, lock in zip(paths, (LOCK, STOCK), strict=True):
        path.write_text(json.dumps(lock))
    config = configuration.load([f"--config={paths[0]},{paths[1]}"], POD)
    folders = [config.folder(config.leader_dir, lock) for lock in config.locks]
    assert folders == ["/var/run/lock/orders", "/var/run/lock/stock"]


@pytest.mark.parametrize("period", ["0", "0.0001", "0.0999", "nan", "-1"])
def test_a_health_period_that_would_keep_the_loop_busy_is_refused(
    tmp_path: Path, period: str
) -> None:
    found = problems(tmp_path, LOCK, LEASEKEEPER_HEALTH_PERIOD=period)
    assert any(line.startswith("LEASEKEEPER_HEALTH_PERIOD") for line in found)
    least = load(tmp_path, LOCK, LEASEKEEPER_HEALTH="/run/well", LEASEKEEPER_HEALTH_PERIOD="0.1")
    assert least.health is not None


@pytest.mark.parametrize("escape", ["0", "0.0", "-0"])
def test_an_escape_of_0_is_refused_because_it_is_written_for_never_and_would_mean_at_once(
    tmp_path: Path, escape: str
) -> None:
    found = problems(tmp_path, LOCK, LEASEKEEPER_HEALTH_ESCAPE=escape)
    assert found == ["LEASEKEEPER_HEALTH_ESCAPE: must be greater than 0"]


@pytest.mark.parametrize(
    ("locks", "what"),
    [
        ([LOCK, LOCK], "two locks are called 'orders'"),
        ([LOCK, LOCK | {"lock": "bar/orders"}], "two locks are called 'orders'"),
        ([LOCK, LOCK | {"lock": "shop/is-leader"}], "no lock can be called 'is-leader'"),
        ([], "is a list of no locks"),
    ],
)
def test_locks_that_cannot_stand_side_by_side_are_refused(
    tmp_path: Path, locks: Any, what: str
) -> None:
    (line,) = problems(tmp_path, locks)
    assert what in line


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:8080/lost",
        "http://localhost:1/",
        "http://[::1]:65535/a?b=c",
        "http://127.0.0.1",
    ],
)
def test_addresses_on_loopback_are_taken(tmp_path: Path, address: str) -> None:
    told = {"LEASEKEEPER_ON_LOST": address, "LEASEKEEPER_HEALTH": address}
    config = load(tmp_path, LOCK, **told)
    assert (config.on_lost, config.health and config.health.address) == (address, address)


@pytest.mark.parametrize(
    "address",
    [
        "http://10.0.0.1:8080/",
        "http://127.0.0.1:0/",
        "http://127.0.0.1:70000/",
        "http://127.0.0.1.example.org/",
        "http://127.0.0.1:80@example.org/",
        "http://localhost:80/a b",
        "http://localhost:80/a\r\nX: y",
        "ftp://localhost/",
        "lost",
    ],
)
def test_other_addresses_are_not(tmp_path: Path, address: str) -> None:
    (line,) = problems(tmp_path, LOCK, LEASEKEEPER_ON_LOST=address)
    assert line.startswith("LEASEKEEPER_ON_LOST: ")


def with_tls(tls: Any) -> dict[str, Any]:
    return LOCK | {"redlock": LOCK["redlock"] | {"tls": tls}}


def test_the_ca_is_found_beside_the_lock(tmp_path: Path) -> None:
    ca = Authority(tmp_path).ca
    told = with_tls({"caFile": ca.name, "serverName": "nodes.example"})
    tls = redlock(load(tmp_path, told)).tls
    assert tls is not None
    assert tls.ca_file == str(ca)
    assert tls.name_of("10.0.0.1") == "nodes.example"
    assert redlock(load(tmp_path, LOCK)).tls is None


@pytest.mark.parametrize(
    ("tls", "key", "sentence"),
    [
        ("ca.crt", "redlock.tls", "must be an object with caFile"),
        ({}, "redlock.tls.caFile", "is missing"),
        ({"caFile": 7}, "redlock.tls.caFile", "must be a text"),
        ({"caFile": "ca.crt", "ca": "x"}, "redlock.tls.ca", "no such key; there are caFile"),
        ({"caFile": "none.crt"}, "redlock.tls", "none.crt cannot be used: No such file"),
        ({"caFile": "lock.json"}, "redlock.tls", "lock.json cannot be used: not PEM"),
        ({"caFile": "ca.crt", "certFile": "ca.crt"}, "redlock.tls", "give both files or none"),
    ],
)
def test_tls_that_cannot_work_is_refused_with_its_key(
    tmp_path: Path, tls: Any, key: str, sentence: str
) -> None:
    Authority(tmp_path)
    found = problems(tmp_path, with_tls(tls))
    assert len(found) == 1, found
    assert found[0].startswith(f"{tmp_path}/lock.json: {key}: ")
    assert sentence in found[0]


SQL = {"host": "db", "database": "app", "username": "app", "password": "secret"}


@pytest.mark.parametrize("store", ["postgresql", "mysql"])
def test_a_database_is_understood_and_its_mistakes_are_named(tmp_path: Path, store: str) -> None:
    base = {key: LOCK[key] for key in ("version", "lock", "timings")} | {"store": store}
    config = load(tmp_path, base | {store: SQL | {"port": 1234, "table": "app.locks"}})
    assert isinstance(config.locks[0].store, SqlSettings)
    found = problems(tmp_path, base | {store: {"host": "", "port": "x", "table": "a b", "pw": 1}})
    keys = [line.replace(f"{tmp_path}/lock.json: {store}.", "").split(":")[0] for line in found]
    assert sorted(keys) == ["database", "host", "password", "port", "pw", "table", "username"]


def test_a_driver_that_is_not_there_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    monkeypatch.delitem(sys.modules, "leasekeeper.sql.postgresql", raising=False)
    found = problems(tmp_path, LOCK | {"store": "postgresql", "postgresql": SQL})
    assert len(found) == 1
    assert "'postgresql' needs the Python package asyncpg" in found[0]
    assert "--build-arg STORES=postgresql" in found[0]


def test_other_stores_cost_a_redlock_sidecar_nothing() -> None:
    """What is imported is paid for in every pod."""
    look = "import sys, leasekeeper_sidecar.main as m; print(*sys.modules, sep='\\n')"
    command = [sys.executable, "-c", look]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not {"asyncpg", "aiomysql", "kazoo", "sqlite3", "leasekeeper.sql"} & set(loaded)


def test_zookeeper_and_redis_are_understood_and_their_mistakes_are_named(tmp_path: Path) -> None:
    base = {key: LOCK[key] for key in ("version", "lock", "timings")}
    login = {"mechanism": "DIGEST-MD5", "username": "app", "password": "secret"}
    told: dict[str, Any] = {"hosts": "a:2181,b:2181", "login": login, "tokenFloor": 7}
    zookeeper = load(tmp_path, base | {"store": "zookeeper", "zookeeper": told}).locks[0].store
    assert isinstance(zookeeper, ZooKeeperSettings)
    assert (zookeeper.root, zookeeper.token_floor, zookeeper.tick) == ("/leasekeeper", 7, 2.0)
    wrong = {"path": "x/", "tokenFloor": -1, "login": {"mechanism": "plain"}, "tickSeconds": "2"}
    found = problems(tmp_path, base | {"store": "zookeeper", "zookeeper": wrong})
    keys = [line.removeprefix(f"{tmp_path}/lock.json: zookeeper.").split(":")[0] for line in found]
    assert sorted(keys) == [
        "hosts",
        "login.mechanism",
        "login.password",
        "login.username",
        "path",
        "tickSeconds",
        "tokenFloor",
    ]
    gssapi = {"mechanism": "GSSAPI", "username": "zookeeper@zk"}
    wrong = {"hosts": "zk:2181x", "login": gssapi}
    found = problems(tmp_path, base | {"store": "zookeeper", "zookeeper": wrong})
    assert "'zk:2181x' names no servers" in found[0]
    assert "GSSAPI needs the Python package kerberos" in found[1]
    assert load(tmp_path, base | {"store": "redis", "redis": {"host": "redis"}}).locks[0].store
    found = problems(tmp_path, base | {"store": "redis", "redis": {"hots": "redis"}})
    assert len(found) == 2
