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
    max_memory: str = "64mb",
) -> str:
    """The text of the file. `agent`, `peer` and `operator` are digests of their passwords
    (`users.digest`).

    `max_memory` must leave room below the container's limit: connections may take half as much
    again, and a server that the kernel kills has lost its memory. A lock takes some 300 bytes.
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
