"""`leasekeeper node-agent`."""

from __future__ import annotations

import argparse

from leasekeeper import __version__
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
from leasekeeper.redlock.agent import Agent, Settings
from leasekeeper.redlock.blocking import parse_server
from leasekeeper.redlock.log import log
from leasekeeper.redlock.registry import FileRegistry
from leasekeeper.redlock.status_page import Status, parse_http, serve
from leasekeeper.redlock.users_file import UsersFile
from leasekeeper.redlock.watched_file import WatchedFile

_EPILOG = """\
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


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    agent = commands.add_parser(
        "node-agent",
        help="run beside a Redis or Valkey server and make it a node of an ensemble",
        description="Runs beside an unmodified Redis or Valkey server: counts its time, and lets it"
        " vote only while it remembers what it voted for.",
        epilog=_EPILOG,
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


def run(options: argparse.Namespace) -> int:
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
    return 0
