"""What the commands have in common: options, which are environment variables, too, and the files
that they name.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterable
from typing import NoReturn

from leasekeeper.lease import ConfigurationError
from leasekeeper.redlock.known_lists import parse_membership
from leasekeeper.redlock.membership import Membership
from leasekeeper.redlock.password_file import PasswordFile
from leasekeeper.redlock.tls import Tls

Option = tuple[str, str, str, bool]
"""Name, what it takes, help, and whether it is required."""

TLS_OPTIONS: list[Option] = [
    (
        "tls-ca",
        "FILE",
        "the CA of the nodes' certificates; left out: no TLS. With it, everything but a unix"
        " socket is TLS",
        False,
    ),
    ("tls-cert", "FILE", "a client certificate, if the nodes ask for one", False),
    ("tls-key", "FILE", "its private key", False),
    ("tls-name", "NAME", "what the certificates are for, if not each node's host", False),
]


def add_options(command: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    for name, metavar, text, required in options:
        variable = f"LEASEKEEPER_{name.upper().replace('-', '_')}"
        given = os.environ.get(variable)
        command.add_argument(
            f"--{name}",
            metavar=metavar,
            help=f"{text} ({variable})",
            default=given,
            required=required and given is None,
        )


def _read(path: str, option: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as wrong:
        why = wrong.strerror if isinstance(wrong, OSError) else "not a text"
        raise ConfigurationError(f"{option} {path}: {why}; name a file that can be read") from None


def read_membership(path: str, option: str) -> Membership:
    return parse_membership(_read(path, option), f"{option} {path}")


def password_file(directory: str, user: str) -> PasswordFile:
    try:
        return PasswordFile(os.path.join(directory, user))
    except ConfigurationError as wrong:
        raise ConfigurationError(f"--credentials {wrong}") from None


def tls_of(options: argparse.Namespace) -> Tls | None:
    if not options.tls_ca:
        for name in ("cert", "key", "name"):
            if getattr(options, f"tls_{name}"):
                raise ConfigurationError(f"--tls-{name} needs --tls-ca: without it there is no TLS")
        return None
    try:
        return Tls(
            ca_file=options.tls_ca,
            cert_file=options.tls_cert or None,
            key_file=options.tls_key or None,
            server_name=options.tls_name or None,
        )
    except ConfigurationError as wrong:
        raise ConfigurationError(f"--tls-ca, --tls-cert, --tls-key: {wrong}") from None


class Stopped(BaseException):
    """SIGTERM or SIGINT. Raised wherever the loop is, so that a stop is prompt in every state."""


def _stop(number: int, _: object) -> NoReturn:
    raise Stopped(signal.Signals(number).name)


def stop_at_signals() -> None:
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
