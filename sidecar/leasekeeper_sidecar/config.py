"""The sidecar's configuration: what the lock is (a mounted `lock.json`, or the same text in a
variable), and a few settings by environment or flag.

Validated as a whole: whoever reads the log sees every mistake at once, each with the key that has
it. No argparse: it would cost half a megabyte in every pod to read what is nearly always in the
environment.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leasekeeper.lease import LONGEST, ConfigurationError, Timings
from leasekeeper_sidecar import loopback, stores
from leasekeeper_sidecar.leader_file import ENV_FILE, FILE, PROGRAMS
from leasekeeper_sidecar.reader import Problems, Reader
from leasekeeper_sidecar.stores import StoreSettings

_LABEL = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_LOCK = re.compile(f"{_LABEL}/{_LABEL}")
_POD = re.compile(_LABEL)

SHORTEST_PERIOD = 0.1
"""Seconds between two looks at the app's health. Each costs a connection or a thread: ten a second
are as many as the election's own loop can have beside it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: the flag is `--name`, the variable is `LEASEKEEPER_NAME`."""

    name: str
    default: str | None
    help: str

    @property
    def variable(self) -> str:
        return "LEASEKEEPER_" + self.name.upper().replace("-", "_")

    @property
    def flag(self) -> str:
        return f"--{self.name}"


SETTINGS = (
    Setting(
        "config",
        "/etc/leasekeeper/lock.json",
        "the lock: its name, store, timings and nodes; several locks: several files, by commas",
    ),
    Setting(
        "config-json",
        "",
        "the same without a file: what would stand in lock.json, or a list of it for several locks",
    ),
    Setting("pod-name", None, "what people see as the holder; by the downward API"),
    Setting("pod-namespace", "", "checked against the lock's namespace if set"),
    Setting("pod-uid", None, "makes the holder's id unique: a name alone proves nothing"),
    Setting(
        "leader-dir", "/var/run/lock", "volume shared with the app: leader, leader.env, is-leader"
    ),
    Setting(
        "state-dir",
        "/var/run/leasekeeper",
        "volume of the sidecar's own: what a killed one resumes",
    ),
    Setting("http-port", "8090", "on the pod's address: /healthz, /readyz, /metrics; 0: off"),
    Setting("local-port", "4040", "on loopback: /, /leader, /events; 0: off"),
    Setting(
        "mirror",
        "",
        "kubernetes (default in a pod): write holder and token into the lock's status; or none",
    ),
    Setting(
        "account-dir",
        "/var/run/secrets/kubernetes.io/serviceaccount",
        "token and CA of the pod's service account, for the mirror",
    ),
    Setting(
        "drain",
        "0",
        "seconds between `not the leader` and the release on SIGTERM, for apps that end later",
    ),
    Setting("on-lost", "", "http://127.0.0.1:PORT/PATH that is POSTed to when leadership ends"),
    Setting(
        "health",
        "",
        "the app's health: http://127.0.0.1:PORT/PATH, or /PATH of a file that is there while well",
    ),
    Setting("health-period", "5", "seconds between two looks at it, at least 0.1"),
    Setting("health-failures", "3", "so many in a row, and the pod gives up leadership"),
    Setting(
        "health-escape",
        "300",
        "seconds without any leader after which an ill pod may lead again: more than 0, at most"
        f" {LONGEST:.0f} (11 days); there is no `never`",
    ),
    Setting("log", "text", "text, or json"),
)


@dataclass(frozen=True, slots=True)
class LockConfig:
    """One lock that this pod is a candidate of."""

    name: str
    """NAMESPACE/NAME."""
    timings: Timings
    store: StoreSettings

    @property
    def short_name(self) -> str:
        return self.name.partition("/")[2]


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """How the app's health is looked at."""

    address: str
    period: float
    failures: int
    escape: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything the sidecar was told, checked."""

    locks: tuple[LockConfig, ...]
    pod_name: str
    pod_uid: str
    leader_dir: str
    state_dir: str
    http_port: int
    local_port: int
    mirror: bool
    account_dir: str
    drain: float
    on_lost: str
    health: HealthConfig | None
    log_json: bool

    def folder(self, volume: str, lock: LockConfig) -> str:
        """Where the files of a lock stand: on the volume itself, or with several locks in a folder
        that has the lock's name.
        """
        return volume if len(self.locks) == 1 else os.path.join(volume, lock.short_name)


class HelpWanted(Exception):
    """Somebody asked for --help."""


def load(argv: Sequence[str], environ: Mapping[str, str]) -> Config:
    """Raises one ConfigurationError that lists every problem, one a line."""
    problems = Problems()
    told = _settings(argv, environ, problems)
    locks = _locks(told, problems)
    ports = {name: _port(told, name, problems) for name in ("http-port", "local-port")}
    mirror = told.get("mirror") or (
        "kubernetes" if "KUBERNETES_SERVICE_HOST" in environ else "none"
    )
    if mirror not in ("kubernetes", "none"):
        problems.add("LEASEKEEPER_MIRROR", f"{mirror!r} is neither kubernetes nor none")
    if told.get("log") not in ("text", "json"):
        problems.add("LEASEKEEPER_LOG", f"{told.get('log')!r} is neither text nor json")
    if ports["http-port"] and ports["http-port"] == ports["local-port"]:
        problems.add("LEASEKEEPER_LOCAL_PORT", "is the same as LEASEKEEPER_HTTP_PORT")
    _check_pod(told, locks, problems)
    on_lost = told.get("on-lost", "")
    if on_lost:
        _check_address("LEASEKEEPER_ON_LOST", on_lost, problems)
    health, drain = _health(told, problems), _seconds(told, "drain", problems)
    if problems.found:
        raise ConfigurationError("\n".join(problems.found))
    return Config(
        locks=tuple(locks),
        pod_name=told["pod-name"],
        pod_uid=told["pod-uid"],
        leader_dir=told["leader-dir"],
        state_dir=told["state-dir"],
        http_port=ports["http-port"],
        local_port=ports["local-port"],
        mirror=mirror == "kubernetes",
        account_dir=told["account-dir"],
        drain=drain,
        on_lost=on_lost,
        health=health,
        log_json=told["log"] == "json",
    )


def _check_pod(told: Mapping[str, str], locks: Sequence[LockConfig], problems: Problems) -> None:
    if told.get("pod-name") and not _POD.fullmatch(told["pod-name"]):
        problems.add("LEASEKEEPER_POD_NAME", f"{told['pod-name']!r} is not the name of a pod")
    if re.search(r"[\s/]", told.get("pod-uid", "")):
        problems.add("LEASEKEEPER_POD_UID", "must not contain a slash or a space")
    namespace = told.get("pod-namespace")
    for lock in locks:
        if namespace and lock.name.split("/")[0] != namespace:
            what = f"{namespace!r}, but the lock is {lock.name!r}"
            problems.add("LEASEKEEPER_POD_NAMESPACE", what)


def _settings(
    argv: Sequence[str], environ: Mapping[str, str], problems: Problems
) -> dict[str, str]:
    """Flags before environment before defaults. What is missing is a problem, and is absent."""
    by_flag = {setting.flag: setting for setting in SETTINGS}
    given: dict[str, str] = {}
    rest = list(argv)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if flag in ("--help", "-h"):
            raise HelpWanted
        if flag not in by_flag:
            problems.add(flag, "no such flag; --help lists them")
        elif equals or rest:
            given[by_flag[flag].name] = value if equals else rest.pop(0)
        else:
            problems.add(flag, "needs a value")
    told: dict[str, str] = {}
    for setting in SETTINGS:
        value_ = given.get(setting.name) or environ.get(setting.variable) or setting.default
        if value_ is None:
            problems.add(setting.variable, f"is required: {setting.help}")
        else:
            told[setting.name] = value_
    return told


def _port(told: Mapping[str, str], name: str, problems: Problems) -> int:
    text = told.get(name, "0")
    if text.isascii() and text.isdigit() and int(text) < 65536:
        return int(text)
    problems.add("LEASEKEEPER_" + name.upper().replace("-", "_"), f"{text!r} is not a port")
    return 0


def _seconds(told: Mapping[str, str], name: str, problems: Problems) -> float:
    text = told.get(name, "0")
    try:
        if 0 <= (seconds := float(text)) <= LONGEST:
            return seconds
    except ValueError:
        pass
    problems.add("LEASEKEEPER_" + name.upper().replace("-", "_"), f"{text!r} is not a number")
    return 0.0


def _health(told: Mapping[str, str], problems: Problems) -> HealthConfig | None:
    before = len(problems.found)
    escape = _seconds(told, "health-escape", problems)
    if escape <= 0 and len(problems.found) == before:
        # It would mean "at once", so that nobody heeds the health; whoever writes it means "never".
        problems.add("LEASEKEEPER_HEALTH_ESCAPE", "must be greater than 0")
    period = _seconds(told, "health-period", problems)
    failures = _seconds(told, "health-failures", problems)
    if period < SHORTEST_PERIOD:
        problems.add("LEASEKEEPER_HEALTH_PERIOD", f"must be at least {SHORTEST_PERIOD:g}")
    if failures <= 0 or failures % 1:
        problems.add("LEASEKEEPER_HEALTH_FAILURES", "must be a whole number greater than 0")
    address = told.get("health", "")
    if not address:
        return None
    if not address.startswith("/"):
        _check_address("LEASEKEEPER_HEALTH", address, problems)
    return HealthConfig(address, period, int(failures), escape)


def _check_address(key: str, address: str, problems: Problems) -> None:
    try:
        loopback.Address.parse(address)
    except ValueError as wrong:
        problems.add(key, str(wrong))


def _locks(told: Mapping[str, str], problems: Problems) -> list[LockConfig]:
    texts: dict[str, str | bytes] = {}
    if told.get("config-json"):
        texts["LEASEKEEPER_CONFIG_JSON"] = told["config-json"]
    else:
        paths = list(filter(None, told.get("config", "").split(",")))
        if not paths:
            problems.add("LEASEKEEPER_CONFIG", "names no file")
        for path in paths:
            try:
                with open(path, "rb") as file:
                    texts[path] = file.read()
            except OSError as wrong:
                problems.add("LEASEKEEPER_CONFIG", f"{path}: {wrong.strerror}")
    locks = [lock for path, text in texts.items() for lock in _in_text(path, text, problems)]
    _check_names([lock.name for lock in locks], problems)
    return locks


def _in_text(path: str, text: str | bytes, problems: Problems) -> list[LockConfig]:
    """The locks of one file, which is one nearly always."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as wrong:
        problems.add(path, f"is not JSON: {wrong}")
        return []
    if not isinstance(data, list):
        return list(filter(None, [_lock(Reader(data, path, problems))]))
    if not data:
        problems.add(path, "is a list of no locks")
    found = (_lock(Reader(one, f"{path}[{n}]", problems, path)) for n, one in enumerate(data))
    return list(filter(None, found))


def _lock(at: Reader) -> LockConfig | None:
    before = len(at.problems.found)
    version = at.value("version")
    if version != 1:
        at.problems.add(f"{at.path}: version", f"{version!r}, but this sidecar knows 1 only")
    name = at.text("lock")
    if name and not _LOCK.fullmatch(name):
        at.problems.add(f"{at.path}: lock", f"{name!r} is not NAMESPACE/NAME")
    timings = _timings(at)
    store = stores.read(at, timings)
    if len(at.problems.found) > before or timings is None or store is None:
        return None
    return LockConfig(name, timings, store)


def _check_names(names: Sequence[str], problems: Problems) -> None:
    """With several locks, each has a folder of its name on the volume."""
    short = [name.partition("/")[2] for name in names]
    for name in sorted({name for name in short if short.count(name) > 1}):
        problems.add("LEASEKEEPER_CONFIG", f"two locks are called {name!r}")
    for name in sorted({*short} & {FILE, ENV_FILE, *PROGRAMS}) if len(short) > 1 else ():
        problems.add("LEASEKEEPER_CONFIG", f"beside others no lock can be called {name!r}")


def _timings(at: Reader) -> Timings | None:
    """Other names are left out: an operator that is newer than this sidecar may publish them."""
    if not isinstance(at.value("timings"), dict | None):
        at.problems.add(f"{at.path}: timings", "must be an object")
        return None
    defaults = Timings()
    lease = at.number("timings.leaseDurationSeconds", defaults.lease_duration)
    deadline = at.number("timings.renewDeadlineSeconds", defaults.renew_deadline)
    retry = at.number("timings.retryPeriodSeconds", defaults.retry_period)
    delay = at.number("timings.lockDelaySeconds", defaults.lock_delay)
    if lease is None or deadline is None or retry is None or delay is None:
        return None
    try:
        return Timings(
            lease_duration=lease, renew_deadline=deadline, retry_period=retry, lock_delay=delay
        )
    except ConfigurationError as wrong:
        at.problems.add(f"{at.path}: timings", str(wrong))
        return None
