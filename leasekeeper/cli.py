"""The command line of the lock library: `leasekeeper node-agent`, and what follows later."""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from leasekeeper import __version__
from leasekeeper.lease import ConfigurationError
from leasekeeper.redlock.agent import Agent, Settings, WrongServer
from leasekeeper.redlock.blocking import BadCredentials, Untrusted, parse_server
from leasekeeper.redlock.known_lists import parse_membership
from leasekeeper.redlock.log import log
from leasekeeper.redlock.membership import Membership
from leasekeeper.redlock.password_file import PasswordFile
from leasekeeper.redlock.registry import FileRegistry
from leasekeeper.redlock.status_page import Status, parse_http, serve
from leasekeeper.redlock.tls import Tls
from leasekeeper.redlock.users_file import UsersFile
from leasekeeper.redlock.watched_file import WatchedFile

EXIT_STOPPED, EXIT_CONFIGURATION, EXIT_CREDENTIALS, EXIT_WRONG_SERVER = 0, 2, 3, 4

_AGENT_EPILOG = """\
exit codes:
  0  stopped by SIGTERM or SIGINT; the server goes on as it was, its time stands still
  2  an option or a file cannot be used; nothing was started
  3  the server refused the password of the user `agent`, or TLS with it failed; at the first try
     only, later that may be a rotation
  4  the server is another node's

A server that cannot be reached, has settings that a node must not have, or waits for others is no
reason to end: the agent says so in its log and at /status, and tries again.

example:
  leasekeeper node-agent --node 0 --server unix:///run/leasekeeper/server.sock \\
      --membership /etc/leasekeeper/membership.json --credentials /etc/leasekeeper/credentials \\
      --users /etc/leasekeeper/users --http :9121
"""

_EPILOG = """\
examples:
  leasekeeper demo --seconds 20
  leasekeeper node-agent --help
  leasekeeper sql-schema postgresql | psql app
  leasekeeper --version
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="leasekeeper",
        description="Leader election as a Kubernetes resource: the lock library's commands.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"leasekeeper {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    agent = commands.add_parser(
        "node-agent",
        help="run beside a Redis or Valkey server and make it a node of an ensemble",
        description="Runs beside an unmodified Redis or Valkey server: counts its time, and lets it"
        " vote only while it remembers what it voted for.",
        epilog=_AGENT_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options = [
        ("node", "ID", "which member of the ensemble this is", True),
        ("server", "ADDRESS", "the server beside it: unix:///path/to/socket or HOST:PORT", True),
        ("membership", "FILE", "membership.json: the nodes, and the timings they agree on", True),
        (
            "credentials",
            "DIR",
            "a folder with the files `agent` and `peer`: one password each",
            True,
        ),
        (
            "users",
            "FILE",
            "ACL users of locks, one a line: NAMESPACE/NAME SHA256-OF-PASSWORD",
            False,
        ),
        ("registry", "FILE", "the record of births; left out: somebody else gives birth", False),
        ("http", "[HOST]:PORT", "where to serve /status, /readyz and /healthz", False),
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
    for name, metavar, text, required in options:
        variable = f"LEASEKEEPER_{name.upper().replace('-', '_')}"
        given = os.environ.get(variable)
        agent.add_argument(
            f"--{name}",
            metavar=metavar,
            help=f"{text} ({variable})",
            default=given,
            required=required and given is None,
        )
    _add_demo(commands)
    _add_sql_schema(commands)
    return parser


def _from_one(kind: type[int] | type[float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            number = 0
        if not 1 <= number < math.inf:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
        return number

    return parse


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="five nodes and five candidates on this machine, for real; watch it hold",
        description="Starts five real Valkey servers with their agents and five sidecars, breaks"
        " one thing after another, and counts overlaps and tokens that went down. The last line is"
        " a JSON object; the exit code is 1 if either count is not 0.",
        allow_abbrev=False,
    )
    demo.add_argument(
        "--seconds", type=_from_one(float), default=None, help="how long it runs (30)"
    )
    demo.add_argument("--lease", type=_from_one(float), default=3.0, help="lease in seconds (3)")
    demo.add_argument("--candidates", type=_from_one(int), default=5, help="how many take part (5)")
    demo.add_argument(
        "--chaos",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="break something whenever the election has settled (default: yes)",
    )
    demo.add_argument("--seed", type=int, default=1, help="of what is broken, and when")
    demo.add_argument("--json", action="store_true", help="one JSON object an event")
    demo.add_argument("--web", action="store_true", help="as a page for the browser, on loopback")
    demo.add_argument("--port", type=int, default=0, help="of the page (a free one)")


def _add_sql_schema(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    schema = commands.add_parser(
        "sql-schema",
        help="print the SQL that makes the table of a SQL store",
        description="Prints the statements that make the one table of a SQL store, for a migration"
        " or for a person to run. Candidates need SELECT, INSERT and UPDATE on it.",
        allow_abbrev=False,
    )
    schema.add_argument("dialect", metavar="DIALECT", help="postgresql, mysql or sqlite")
    schema.add_argument("--table", default="leasekeeper_lease", help="its name (%(default)s)")


def _sql_schema(options: argparse.Namespace) -> int:
    from leasekeeper.sql.schema import schema

    print(schema(options.dialect, options.table), end="")
    return EXIT_STOPPED


def _demo(options: argparse.Namespace) -> int:
    from leasekeeper.demo import run  # not at the top: every agent would carry it in its memory

    return run.main(options)


def _read(path: str, option: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as wrong:
        why = wrong.strerror if isinstance(wrong, OSError) else "not a text"
        raise ConfigurationError(f"{option} {path}: {why}; name a file that can be read") from None


def _membership(path: str, option: str) -> Membership:
    return parse_membership(_read(path, option), f"{option} {path}")


def _settings(options: argparse.Namespace) -> Settings:
    membership = _membership(options.membership, "--membership")
    ids = [node.id for node in membership.nodes]
    if options.node not in ids:
        raise ConfigurationError(
            f"--node {options.node} is not in {options.membership}; it has {', '.join(ids)}"
        )
    users = UsersFile(options.users) if options.users else None
    if users is not None:
        users.changed()
    registry = FileRegistry(options.registry) if options.registry else None
    if registry is not None:
        registry.read()
    return Settings(
        node=options.node,
        server=parse_server(options.server),
        membership=membership,
        membership_file=WatchedFile(
            options.membership, what="membership file", advice="the last one stays in use"
        ),
        agent_password=_password(options.credentials, "agent"),
        peer_password=_password(options.credentials, "peer"),
        tls=_tls(options),
        users=users,
        registry=registry,
    )


def _password(directory: str, user: str) -> PasswordFile:
    try:
        return PasswordFile(os.path.join(directory, user))
    except ConfigurationError as wrong:
        raise ConfigurationError(f"--credentials {wrong}") from None


def _tls(options: argparse.Namespace) -> Tls | None:
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


class _Stop(BaseException):
    """SIGTERM or SIGINT. Raised wherever the loop is, so that a stop is prompt in every state."""


def _stop(number: int, _: object) -> NoReturn:
    raise _Stop(signal.Signals(number).name)


def _node_agent(options: argparse.Namespace) -> int:
    settings = _settings(options)
    status = Status(settings.node)
    if options.http:
        serve(parse_http(options.http), status)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        log("agent-started", node=settings.node, server=options.server, version=__version__)
        Agent(settings, status).run()
    except _Stop as stop:
        log("agent-stopped", node=settings.node, signal=stop)
    return EXIT_STOPPED


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        run = {"node-agent": _node_agent, "demo": _demo, "sql-schema": _sql_schema}[options.command]
        return run(options)
    except ConfigurationError as wrong:
        code, message = EXIT_CONFIGURATION, str(wrong)
    except BadCredentials as wrong:
        code = EXIT_CREDENTIALS
        message = f"{wrong}; the file `agent` in --credentials {options.credentials} must hold it"
    except Untrusted as wrong:
        code, message = EXIT_CREDENTIALS, str(wrong)
    except WrongServer as wrong:
        code, message = EXIT_WRONG_SERVER, str(wrong)
    print(f"leasekeeper: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
