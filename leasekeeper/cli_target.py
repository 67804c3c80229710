"""Which lock and which nodes a command means: `--config lock.json`, or LOCK and `--nodes`."""

from __future__ import annotations

import argparse
import json
import os
import re
from dataclasses import dataclass

from leasekeeper import cli_options
from leasekeeper.lease import ConfigurationError, Timings
from leasekeeper.redlock import users
from leasekeeper.redlock.blocking import Broken, Connection, Refusal, parse_server
from leasekeeper.redlock.membership import Membership
from leasekeeper.redlock.password_file import PasswordFile
from leasekeeper.redlock.tls import Tls

Address = str | tuple[str, int]
_LOCK = re.compile(r"[^/\s]+/[^/\s]+")
TIMEOUT = 2.0  # seconds for one node; the others are asked at the same time

HOW_TO_REACH = """\
how to reach the nodes:
  --config FILE      a lock.json, as the operator publishes it:
                       kubectl get secret leasekeeper-NAME -o jsonpath='{.data.lock\\.json}' \\
                         | base64 -d > lock.json
  LOCK --nodes A,B,C --password-file FILE
                     without Kubernetes; what else must be known, the nodes say themselves
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to ask, and as whom."""

    lock: str
    addresses: tuple[Address, ...]
    username: str
    password: str
    tls: Tls | None
    membership: Membership | None = None
    """None: only addresses were given."""
    timings: Timings | None = None

    def connect(self, address: Address) -> Connection:
        return Connection(address, self.username, self.password, timeout=TIMEOUT, tls=self.tls)


def add_options(
    parser: argparse.ArgumentParser,
    *,
    config: str = "a lock.json: lock, nodes and password",
    user: str = "default: the user of the lock",
) -> None:
    """`config` and `user`: what the two mean to the command."""
    parser.add_argument("--config", metavar="FILE", help=config)
    parser.add_argument("--nodes", metavar="HOST:PORT,…", help="the nodes of the ensemble")
    parser.add_argument("--user", metavar="NAME", help=user)
    parser.add_argument(
        "--password-file",
        metavar="FILE",
        help="the user's password (or its text in LEASEKEEPER_PASSWORD)",
    )
    cli_options.add_options(parser, cli_options.TLS_OPTIONS)


def read_target(options: argparse.Namespace, *, default_user: str = "") -> Target:
    lock = getattr(options, "lock", None) or ""
    if options.config:
        if options.nodes:
            raise ConfigurationError("--config names the nodes already; leave out --nodes")
        return _from_config(options.config, lock)
    if not options.nodes:
        raise ConfigurationError("say where the nodes are: --nodes HOST:PORT,… or --config FILE")
    # Nodes know no list of locks: of one that does not exist they would say that it is free.
    if not default_user and not _LOCK.fullmatch(lock):
        raise ConfigurationError(f"name the lock: NAMESPACE/NAME{lock and f', not {lock!r}'}")
    user = options.user or default_user or users.lock_user(lock)
    addresses = tuple(parse_server(text.strip()) for text in options.nodes.split(","))
    if len(set(addresses)) < len(addresses):
        raise ConfigurationError("--nodes: one of them is named twice, and has one vote only")
    return Target(
        lock=lock,
        addresses=addresses,
        username=user,
        password=password_of(options),
        tls=cli_options.tls_of(options),
    )


def password_of(options: argparse.Namespace) -> str:
    if options.password_file:
        return PasswordFile(options.password_file)()
    if given := os.environ.get("LEASEKEEPER_PASSWORD"):
        return given
    raise ConfigurationError("--password-file FILE (or LEASEKEEPER_PASSWORD) is missing")


def _from_config(path: str, lock: str) -> Target:
    """Of lock.json (docs/architecture.md, 3) what a command needs; the sidecar checks the rest."""
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        redlock, timings = data["redlock"], data.get("timings", {})
        found = Target(
            lock=str(data["lock"]),
            membership=(membership := Membership.from_json(redlock["membership"])),
            addresses=tuple((node.host, node.port) for node in membership.nodes),
            username=str(redlock["username"]),
            password=str(redlock["password"]),
            tls=_tls_of_config(redlock.get("tls"), os.path.dirname(os.path.abspath(path))),
            timings=_timings(timings),
        )
    except OSError as wrong:
        raise ConfigurationError(f"--config {path}: {wrong.strerror}") from None
    except ConfigurationError as wrong:
        raise ConfigurationError(f"--config {path}: {wrong}") from None
    except KeyError as missing:
        raise ConfigurationError(
            f"--config {path}: the key {missing} is missing; only locks with the store redlock"
            " can be reached from here"
        ) from None
    except (ValueError, TypeError, AttributeError) as wrong:
        raise ConfigurationError(f"--config {path}: not a lock.json: {wrong}") from None
    if lock and lock != found.lock:
        raise ConfigurationError(f"--config {path} is for the lock {found.lock}, not {lock}")
    return found


def _timings(data: dict[str, float]) -> Timings:
    default = Timings()
    return Timings(
        lease_duration=float(data.get("leaseDurationSeconds", default.lease_duration)),
        renew_deadline=float(data.get("renewDeadlineSeconds", default.renew_deadline)),
        retry_period=float(data.get("retryPeriodSeconds", default.retry_period)),
        lock_delay=float(data.get("lockDelaySeconds", default.lock_delay)),
    )


def _tls_of_config(data: dict[str, str] | None, folder: str) -> Tls | None:
    if data is None:
        return None

    def path(key: str) -> str | None:
        return os.path.join(folder, data[key]) if key in data else None

    return Tls(
        ca_file=os.path.join(folder, data["caFile"]),
        cert_file=path("certFile"),
        key_file=path("keyFile"),
        server_name=data.get("serverName"),
    )


def discover(target: Target) -> Membership:
    """The membership, from the first node that says it: whoever names a wrong epoch is told."""
    why: list[str] = []
    for address in target.addresses:
        try:
            connection = target.connect(address)
            try:
                reply = ask(connection, target.lock, "?")
            finally:
                connection.close()
            if reply[0] == "EPOCH" and reply[2]:
                return Membership.from_json(json.loads(reply[2]))
            why.append(f"{address}: {reply[0]}")
        except (Broken, Refusal) as wrong:
            why.append(str(wrong))
    raise NoNode("; ".join(why))


class NoNode(Exception):
    """No node could be asked; each one's reason."""


def ask(connection: Connection, lock: str, epoch: str) -> list[str]:
    """The node's look at the lock."""
    reply: list[str] = connection.call("FCALL", "lk1_observe", "1", f"lk:lock:{lock}", epoch)
    return reply
