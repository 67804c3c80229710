"""Which store `lock.json` names: how it is read, and how it is made.

    "store": "NAME", "NAME": {what that store needs}

A new store is one function here that reads its part of the file, and one entry of `STORES`. A store
other than redlock is imported only when it is named: its driver stands in an extra, and neither its
megabytes nor its import time belong into every pod.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from leasekeeper.clock import Clock
from leasekeeper.lease import Candidate, ConfigurationError, LeaseStore, Timings
from leasekeeper.redlock.membership import Membership
from leasekeeper.redlock.store import RedlockStore
from leasekeeper.redlock.tls import Tls
from leasekeeper_sidecar.current_password import CurrentPassword
from leasekeeper_sidecar.reader import Reader

if TYPE_CHECKING:
    from leasekeeper.sql.database import Database
    from leasekeeper.zookeeper.session import Login

ACCOUNT_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where the kubelet mounts token and CA of the pod's service account."""


class StoreSettings(Protocol):
    """What `lock.json` says of a store, checked. Nothing is connected before `make`."""

    def make(
        self, *, lock: str, candidate: Candidate, timings: Timings, clock: Clock
    ) -> LeaseStore: ...


def read(at: Reader, timings: Timings | None) -> StoreSettings | None:
    """None: the problems say why. `timings` is none if they are wrong themselves."""
    name = at.value("store")
    reader = STORES.get(name) if isinstance(name, str) else None
    if reader is None:
        known = ", ".join(STORES)
        at.problems.add(f"{at.path}: store", f"{name!r}, but this sidecar knows {known}")
        return None
    return reader(at, timings)


# -- redlock -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RedlockSettings:
    membership: Membership
    username: str
    password: str
    """As it was at the start; `file` is read again for each new connection."""
    file: str
    tls: Tls | None

    def make(
        self, *, lock: str, candidate: Candidate, timings: Timings, clock: Clock
    ) -> LeaseStore:
        return RedlockStore(
            membership=self.membership,
            lock=lock,
            candidate=candidate,
            timings=timings,
            clock=clock,
            username=self.username,
            password=CurrentPassword(self.file, lock, self.password),
            tls=self.tls,
        )


def _redlock(at: Reader, timings: Timings | None) -> RedlockSettings | None:
    username, password = at.text("redlock.username"), at.text("redlock.password")
    membership = _membership(at, timings)
    tls = read_tls(at, "redlock.tls")
    if membership is None:
        return None
    return RedlockSettings(membership, username, password, at.file, tls)


def _membership(at: Reader, timings: Timings | None) -> Membership | None:
    found = at.value("redlock.membership")
    key = f"{at.path}: redlock.membership"
    if found is None:
        at.problems.add(key, "is missing")
        return None
    try:
        membership = Membership.from_json(found)
    except ConfigurationError as wrong:
        at.problems.add(key, str(wrong))
        return None
    if timings is not None and timings.ttl > membership.max_ttl:
        at.problems.add(
            f"{at.path}: timings.leaseDurationSeconds",
            f"with lockDelaySeconds {timings.ttl:g}, but the nodes keep at most"
            f" {membership.max_ttl:g} (redlock.membership.maxTtlSeconds)",
        )
        return None
    return membership


_TLS = {
    "caFile": "ca_file",
    "certFile": "cert_file",
    "keyFile": "key_file",
    "serverName": "server_name",
}


def read_tls(at: Reader, where: str) -> Tls | None:
    """Files and not the PEM itself: they are read again when they are replaced, and of lock.json
    nothing is but a password (current_password.py).
    Their paths begin at the folder of lock.json, because they are keys of the same Secret.
    """
    found, key = at.value(where), f"{at.path}: {where}"
    if found is None:
        return None
    if not isinstance(found, dict):
        at.problems.add(key, f"must be an object with {', '.join(_TLS)}")
        return None
    before = len(at.problems.found)
    for name in found.keys() - _TLS.keys():
        at.problems.add(f"{key}.{name}", f"no such key; there are {', '.join(_TLS)}")
    texts = {name: at.text(f"{where}.{name}") for name in _TLS if name in found}
    if "caFile" not in found:
        at.problems.add(f"{key}.caFile", "is missing: the CA that signed the servers' certificates")
    if len(at.problems.found) > before:
        return None
    folder = os.path.dirname(os.path.abspath(at.path))
    told = {
        _TLS[name]: text if name == "serverName" else os.path.join(folder, text)
        for name, text in texts.items()
    }
    try:
        return Tls(**told)
    except ConfigurationError as wrong:
        at.problems.add(key, str(wrong))
        return None


# -- the others: imported when they are named ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class SqlSettings:
    database: Callable[[], Database]
    name: str

    def make(
        self, *, lock: str, candidate: Candidate, timings: Timings, clock: Clock
    ) -> LeaseStore:
        from leasekeeper.sql.store import SqlStore

        return SqlStore(
            database=self.database(),
            lock=lock,
            candidate=candidate,
            timings=timings,
            clock=clock,
            name=self.name,
        )


def _postgresql(at: Reader, timings: Timings | None) -> SqlSettings | None:
    try:
        from leasekeeper.sql.postgresql import PostgreSql
    except ImportError as wrong:
        _missing(at, "postgresql", wrong)
        return None
    return _sql_server(at, "postgresql", PostgreSql, 5432)


def _mysql(at: Reader, timings: Timings | None) -> SqlSettings | None:
    try:
        from leasekeeper.sql.mysql import MySql
    except ImportError as wrong:
        _missing(at, "mysql", wrong)
        return None
    return _sql_server(at, "mysql", MySql, 3306)


def _sql_server(
    at: Reader, name: str, make: Callable[..., Database], port: int
) -> SqlSettings | None:
    from leasekeeper.sql.schema import TABLE

    before = len(at.problems.found)
    at.only(name, "host", "port", "database", "username", "password", "table", "tls")
    needed = ("host", "database", "username", "password")
    texts = {key: at.text(f"{name}.{key}") for key in needed}
    told = {
        **texts,
        "port": at.port(f"{name}.port", port),
        "table": _table(at, name, TABLE),
        "tls": read_tls(at, f"{name}.tls"),
    }
    if len(at.problems.found) > before:
        return None
    return SqlSettings(lambda: make(**told), name)


def _sqlite(at: Reader, timings: Timings | None) -> SqlSettings | None:
    from leasekeeper.sql.schema import TABLE
    from leasekeeper.sql.sqlite import Sqlite

    before = len(at.problems.found)
    at.only("sqlite", "file", "table")
    file, table = at.text("sqlite.file"), _table(at, "sqlite", TABLE)
    if len(at.problems.found) > before or timings is None:
        return None
    patience = timings.retry_period
    return SqlSettings(lambda: Sqlite(file=file, table=table, patience=patience), "sqlite")


def _redis(at: Reader, timings: Timings | None) -> SqlSettings | None:
    from leasekeeper.single_redis.server import SingleRedis

    before = len(at.problems.found)
    at.only("redis", "host", "port", "username", "password", "key", "tls")
    told: dict[str, Any] = {
        "host": at.text("redis.host"),
        "port": at.port("redis.port", 6379),
        "tls": read_tls(at, "redis.tls"),
    }
    for key in ("username", "password", "key"):
        if at.value(f"redis.{key}") is not None:
            told[key] = at.text(f"redis.{key}")
    if len(at.problems.found) > before or timings is None:
        return None
    patience = timings.retry_period
    return SqlSettings(lambda: SingleRedis(**told, patience=patience), "redis")


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    hosts: str
    root: str
    tick: float
    token_floor: int
    login: Login | None
    tls: Tls | None

    def make(
        self, *, lock: str, candidate: Candidate, timings: Timings, clock: Clock
    ) -> LeaseStore:
        from leasekeeper.zookeeper.store import ZooKeeperStore

        return ZooKeeperStore(
            hosts=self.hosts,
            lock=lock,
            candidate=candidate,
            timings=timings,
            clock=clock,
            root=self.root,
            tick=self.tick,
            token_floor=self.token_floor,
            login=self.login,
            tls=self.tls,
        )


def _zookeeper(at: Reader, timings: Timings | None) -> ZooKeeperSettings | None:
    try:
        from leasekeeper.zookeeper.session import parted
        from leasekeeper.zookeeper.store import ROOT
    except ImportError as wrong:
        _missing(at, "zookeeper", wrong)
        return None
    before = len(at.problems.found)
    keys = ("hosts", "path", "tickSeconds", "tokenFloor", "login", "tls")
    at.only("zookeeper", *keys)
    hosts = at.text("zookeeper.hosts")
    try:
        parted(hosts or "localhost")
    except ConfigurationError as wrong:
        at.problems.add(f"{at.path}: zookeeper.hosts", str(wrong))
    root = at.text("zookeeper.path") if at.value("zookeeper.path") is not None else ROOT
    if root and (not root.startswith("/") or root.endswith("/")):
        at.problems.add(f"{at.path}: zookeeper.path", f"{root!r} is not a path as {ROOT!r} is")
    tick = at.number("zookeeper.tickSeconds", 2.0)
    floor = at.value("zookeeper.tokenFloor") or 0
    if not isinstance(floor, int) or isinstance(floor, bool) or not 0 <= floor < 2**52:
        at.problems.add(f"{at.path}: zookeeper.tokenFloor", f"{floor!r} is not a token")
    login, tls = _login(at), read_tls(at, "zookeeper.tls")
    if len(at.problems.found) > before or tick is None:
        return None
    return ZooKeeperSettings(hosts, root, tick, floor, login, tls)


def _login(at: Reader) -> Login | None:
    from leasekeeper.zookeeper.session import Login

    where = "zookeeper.login"
    if at.value(where) is None:
        return None
    at.only(where, "mechanism", "username", "password")
    mechanism = at.value(f"{where}.mechanism") or "digest"
    if mechanism not in ("digest", "DIGEST-MD5", "GSSAPI"):
        what = f"{mechanism!r} is none of digest, DIGEST-MD5, GSSAPI"
        at.problems.add(f"{at.path}: {where}.mechanism", what)
    if mechanism == "GSSAPI" and find_spec("kerberos") is None:
        what = "GSSAPI needs the Python package kerberos, which no image of ours has: add it"
        at.problems.add(f"{at.path}: {where}.mechanism", what)
    username = at.text(f"{where}.username")
    password = "" if mechanism == "GSSAPI" else at.text(f"{where}.password")
    return Login(mechanism=mechanism, username=username, password=password)


def _table(at: Reader, name: str, default: str) -> str:
    from leasekeeper.sql.schema import checked

    key = f"{name}.table"
    table = default if at.value(key) is None else at.text(key)
    try:
        return checked(table) if table else ""
    except ConfigurationError as wrong:
        at.problems.add(f"{at.path}: {key}", str(wrong))
        return ""


def _missing(at: Reader, extra: str, wrong: ImportError) -> None:
    at.problems.add(
        f"{at.path}: store",
        f"{extra!r} needs the Python package {wrong.name}, which this image lacks: use an image"
        f" that was built with --build-arg STORES={extra}, or install leasekeeper[{extra}]",
    )


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    namespace: str
    """Empty: the lock's."""
    lease: str
    """Empty: the lock's name."""
    account: str

    def make(
        self, *, lock: str, candidate: Candidate, timings: Timings, clock: Clock
    ) -> LeaseStore:
        from leasekeeper.kubernetes.api import ApiServer
        from leasekeeper.kubernetes.store import KubernetesStore

        namespace, _, name = lock.partition("/")
        return KubernetesStore(
            api=ApiServer.in_cluster(os.environ, self.account, user_agent="leasekeeper-sidecar"),
            namespace=self.namespace or namespace,
            name=self.lease or name,
            candidate=candidate,
            timings=timings,
            clock=clock,
        )


def _kubernetes(at: Reader, timings: Timings | None) -> KubernetesSettings | None:
    before = len(at.problems.found)
    at.only("kubernetes", "namespace", "lease", "accountDir")
    told = {"namespace": "", "lease": "", "accountDir": ACCOUNT_DIR}
    for key in told:
        if at.value(f"kubernetes.{key}") is not None:
            told[key] = at.text(f"kubernetes.{key}")
    if len(at.problems.found) > before:
        return None
    return KubernetesSettings(told["namespace"], told["lease"], told["accountDir"])


Read = Callable[[Reader, Timings | None], StoreSettings | None]

STORES: dict[str, Read] = {
    "redlock": _redlock,
    "postgresql": _postgresql,
    "mysql": _mysql,
    "sqlite": _sqlite,
    "zookeeper": _zookeeper,
    "redis": _redis,
    "kubernetes": _kubernetes,
}
