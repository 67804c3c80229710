"""The configuration of an unmodified Redis or Valkey server that is a node of an ensemble."""

from __future__ import annotations

from leasekeeper.redlock import users

REQUIRED = {
    "save": "",
    "appendonly": "no",
    "maxmemory-policy": "noeviction",
}
"""What the agent checks before it lets a node vote: a memory that comes back from a disk, or that
forgets a key when it is full, would be a memory that lies."""


def server_config(
    *,
    agent: str,
    peer: str,
    operator: str,
    directory: str,
    port: int = 6379,
    bind: str = "* -::*",
    unix_socket: str | None = None,
) -> str:
    """The text of the file. `agent`, `peer` and `operator` are digests of their passwords
    (`users.digest`).

    `directory` must be empty or read-only: a dump file there would be loaded at the next start.
    """
    lines = [
        f"bind {bind}",
        f"port {port}",
        "protected-mode no",
        f"dir {directory}",
        *(f"{key} {value or chr(34) * 2}" for key, value in REQUIRED.items()),
        # Sidecars, agents and the operator keep one connection each; beyond that somebody is at
        # fault.
        "maxclients 10000",
        "tcp-keepalive 30",
        "user default off",
        f"user {users.AGENT} {' '.join(users.agent_rules(agent))}",
        f"user {users.PEER} {' '.join(users.peer_rules(peer))}",
        f"user {users.OPERATOR} {' '.join(users.operator_rules(operator))}",
    ]
    if unix_socket:
        lines += [f"unixsocket {unix_socket}", "unixsocketperm 777"]
    return "\n".join(lines) + "\n"
