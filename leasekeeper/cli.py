"""The command line of the lock library: `leasekeeper node-agent`, and what follows later."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence

from leasekeeper import __version__, cli_change
from leasekeeper.cli_options import (
    TLS_OPTIONS,
    Option,
    Stopped,
    add_options,
    password_file,
    read_membership,
    stop_at_signals,
    tls_of,
)
from leasekeeper.lease import ConfigurationError
from leasekeeper.redlock.agent import Agent, Settings, WrongServer
from leasekeeper.redlock.blocking import BadCredentials, Untrusted, parse_server
from leasekeeper.redlock.log import log
from leasekeeper.redlock.registry import FileRegistry
from leasekeeper.redlock.status_page import Status, parse_http, serve
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
  leasekeeper change-membership --help
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
    options: list[Option] = [
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
        *TLS_OPTIONS,
    ]
    add_options(agent, options)
    cli_change.add(commands)
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


def _settings(options: argparse.Namespace) -> Settings:
    membership = read_membership(options.membership, "--membership")
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
        agent_password=password_file(options.credentials, "agent"),
        peer_password=password_file(options.credentials, "peer"),
        tls=tls_of(options),
        users=users,
        registry=registry,
    )


def _node_agent(options: argparse.Namespace) -> int:
    settings = _settings(options)
    status = Status(settings.node)
    if options.http:
        serve(parse_http(options.http), status)
    stop_at_signals()
    try:
        log("agent-started", node=settings.node, server=options.server, version=__version__)
        Agent(settings, status).run()
    except Stopped as stop:
        log("agent-stopped", node=settings.node, signal=stop)
    return EXIT_STOPPED


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "node-agent": _node_agent,
    "change-membership": cli_change.run,
    "demo": _demo,
    "sql-schema": _sql_schema,
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return _COMMANDS[options.command](options)
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
