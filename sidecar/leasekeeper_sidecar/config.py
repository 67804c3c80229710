"""The sidecar's configuration: a mounted `lock.json`, and a few settings by environment or flag.

Validated as a whole: whoever reads the log sees every mistake at once, each with the key that has
it. No argparse: it would cost half a megabyte in every pod to read what is nearly always in the
environment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leasekeeper.lease import ConfigurationError, Timings
from leasekeeper_sidecar import stores
from leasekeeper_sidecar.reader import Problems, Reader
from leasekeeper_sidecar.stores import StoreSettings

_LABEL = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_LOCK = re.compile(f"{_LABEL}/{_LABEL}")
_POD = re.compile(_LABEL)


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
    Setting("config", "/etc/leasekeeper/lock.json", "the lock: its name, store, timings and nodes"),
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
    Setting("log", "text", "text, or json"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything the sidecar was told, checked."""

    lock: str
    timings: Timings
    store: StoreSettings
    pod_name: str
    pod_uid: str
    leader_dir: str
    state_dir: str
    http_port: int
    local_port: int
    mirror: bool
    account_dir: str
    log_json: bool


class HelpWanted(Exception):
    """Somebody asked for --help."""


def usage() -> str:
    lines = ["usage: leasekeeper-sidecar [--FLAG VALUE]...", ""]
    lines.append("Takes part in the election of one lock, and keeps the leader file of its pod.")
    lines.append(
        "Each flag can also be given as the environment variable beside it; the flag wins."
    )
    lines.append("")
    for setting in SETTINGS:
        default = "required" if setting.default is None else setting.default
        lines.append(f"  {setting.flag:16} {setting.variable}")
        lines.append(f"      {setting.help}" + (f" [{default}]" if default else ""))
    return "\n".join(lines) + "\n"


def load(argv: Sequence[str], environ: Mapping[str, str]) -> Config:
    """Raises one ConfigurationError that lists every problem, one a line."""
    problems = Problems()
    told = _settings(argv, environ, problems)
    lock = _lock_file(told.get("config", ""), problems)
    ports = {name: _port(told, name, problems) for name in ("http-port", "local-port")}
    mirror = told.get("mirror") or (
        "kubernetes" if "KUBERNETES_SERVICE_HOST" in environ else "none"
    )
    if mirror not in ("kubernetes", "none"):
        problems.add("LEASEKEEPER_MIRROR", f"{mirror!r} is neither kubernetes nor none")
    if told.get("log") not in ("text", "json"):
        problems.add("LEASEKEEPER_LOG", f"{told.get('log')!r} is neither text nor json")
    if told.get("pod-name") and not _POD.fullmatch(told["pod-name"]):
        problems.add("LEASEKEEPER_POD_NAME", f"{told['pod-name']!r} is not the name of a pod")
    if re.search(r"[\s/]", told.get("pod-uid", "")):
        problems.add("LEASEKEEPER_POD_UID", "must not contain a slash or a space")
    namespace = told.get("pod-namespace")
    if namespace and lock is not None and lock.name.split("/")[0] != namespace:
        problems.add("LEASEKEEPER_POD_NAMESPACE", f"{namespace!r}, but the lock is {lock.name!r}")
    if ports["http-port"] and ports["http-port"] == ports["local-port"]:
        problems.add("LEASEKEEPER_LOCAL_PORT", "is the same as LEASEKEEPER_HTTP_PORT")
    if problems.found or lock is None:
        raise ConfigurationError("\n".join(problems.found))
    return Config(
        lock=lock.name,
        timings=lock.timings,
        store=lock.store,
        pod_name=told["pod-name"],
        pod_uid=told["pod-uid"],
        leader_dir=told["leader-dir"],
        state_dir=told["state-dir"],
        http_port=ports["http-port"],
        local_port=ports["local-port"],
        mirror=mirror == "kubernetes",
        account_dir=told["account-dir"],
        log_json=told["log"] == "json",
    )


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


@dataclass(frozen=True, slots=True)
class _Lock:
    name: str
    timings: Timings
    store: StoreSettings


def _lock_file(path: str, problems: Problems) -> _Lock | None:
    try:
        with open(path, "rb") as file:
            data = json.loads(file.read())
    except OSError as wrong:
        problems.add("LEASEKEEPER_CONFIG", f"{path}: {wrong.strerror}")
        return None
    except ValueError as wrong:
        problems.add("LEASEKEEPER_CONFIG", f"{path} is not JSON: {wrong}")
        return None
    before = len(problems.found)
    at = Reader(data, path, problems)
    if at.value("version") != 1:
        problems.add(f"{path}: version", f"{at.value('version')!r}, but this sidecar knows 1 only")
    name = at.text("lock")
    if name and not _LOCK.fullmatch(name):
        problems.add(f"{path}: lock", f"{name!r} is not NAMESPACE/NAME")
    timings = _timings(at)
    store = stores.read(at, timings)
    if len(problems.found) > before or timings is None or store is None:
        return None
    return _Lock(name, timings, store)


def _timings(at: Reader) -> Timings | None:
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
