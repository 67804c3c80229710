"""The configuration of an unmodified Redis or Valkey server that is a node of an ensemble."""

from __future__ import annotations

from dataclasses import dataclass

from leasekeeper.redlock import users

REQUIRED = {
    "save": "",
    "appendonly": "no",
    "maxmemory-policy": "noeviction",
}
"""What the agent checks before it lets a node vote: a memory that comes back from a disk, or that
forgets a key when it is full, would be a memory that lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """TLS for everybody who comes over TCP. The agent's unix socket stays plain."""

    cert_file: str
    key_file: str
    ca_file: str
    """Who signed the certificates of clients; unused as long as none are asked for."""
    clients: bool = False
    """Whether clients must show a certificate: passwords say who they are, so they need not."""
    plain_port: int = 0
    """A port without TLS beside it, for as long as candidates are being moved over. 0: none."""


def server_config(
    *,
    agent: str,
    peer: str,
    operator: str,
    directory: str,
    port: int = 6379,
    bind: str = "* -::*",
    unix_socket: str | None = None,
    tls: ServerTls | None = None,
    max_memory: str = "64mb",
) -> str:
    """The text of the file. `agent`, `peer` and `operator` are digests of their passwords
    (`users.digest`).

    `max_memory` must leave room below the container's limit: connections may take half as much
    again, and a server that the kernel kills has lost its memory. A lock takes some 1.5 KB, most of
    it for its user.
    `directory` must be empty or read-only: a dump file there would be loaded at the next start.
    """
    lines = [
        f"bind {bind}",
        *(_tls_lines(tls, port) if tls else [f"port {port}"]),
        "protected-mode no",
        f"dir {directory}",
        *(f"{key} {value or chr(34) * 2}" for key, value in REQUIRED.items()),
        # Sidecars, agents and the operator keep one connection each; beyond that somebody is at
        # fault.
        "maxclients 10000",
        "tcp-keepalive 30",
        # Sidecars are subscribed, and so no silence is too long for them; agents and the operator
        # speak every few seconds. It ends who connects and never says a word.
        "timeout 60",
        # One tenant may fill the memory with its own lock's key. Then it, like everybody, gets no
        # new grants, but whoever leads can renew (`allow-oom`). What its connections take counts
        # too, so the largest of them are cut before they fill the memory.
        f"maxmemory {max_memory}",
        "maxmemory-clients 50%",
        "proto-max-bulk-len 1mb",
        "client-query-buffer-limit 1mb",
        "client-output-buffer-limit pubsub 1mb 256kb 10",
        "user default off",
        f"user {users.AGENT} {' '.join(users.agent_rules(agent))}",
        f"user {users.PEER} {' '.join(users.peer_rules(peer))}",
        f"user {users.OPERATOR} {' '.join(users.operator_rules(operator))}",
    ]
    if unix_socket:
        lines += [f"unixsocket {unix_socket}", "unixsocketperm 777"]
    return "\n".join(lines) + "\n"


def _tls_lines(tls: ServerTls, port: int) -> list[str]:
    return [
        f"port {tls.plain_port}",
        f"tls-port {port}",
        f"tls-cert-file {tls.cert_file}",
        f"tls-key-file {tls.key_file}",
        f"tls-ca-cert-file {tls.ca_file}",
        f"tls-auth-clients {'yes' if tls.clients else 'no'}",
        'tls-protocols "TLSv1.2 TLSv1.3"',
    ]
