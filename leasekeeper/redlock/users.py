"""ACL users of a node, and what each of them may do.

Commands inside a function are checked against the *caller's* rights. So a lock's user needs the few
data commands that its functions use, on its own key only, and needs no list of functions: an admin
function that it calls fails at its first write to `lk:node`. Agents of other nodes and the operator
may write there, so they are held to their functions by name (`+fcall|name`; servers warn that this
form may go away, and would then refuse to start, aloud)."""

from __future__ import annotations

import hashlib
from collections.abc import Set

AGENT, PEER, OPERATOR = "agent", "peer", "operator"
EDITION = "edition:"
"""With a number behind it: a user that is off, for nobody. By it an agent says which edition of its
file it has brought the users to: in their own list, and also on a server whose memory is full."""

_CONNECTION = ("+hello", "+auth", "+ping", "+client|setname")


def digest(password: str) -> str:
    """As `#…` in an ACL rule, so that no configuration file holds a password."""
    return hashlib.sha256(password.encode()).hexdigest()


def lock_user(lock: str) -> str:
    return f"lock:{lock}"


def lock_rules(lock: str, digests: Set[str], *more: str) -> list[str]:
    """The arguments of ACL SETUSER for the candidates of one lock, or of several (`more`) that one
    program uses over shared connections. `digests`: of the passwords that let them in; two while
    one follows the other.
    """
    locks = (lock, *more)
    return [
        "reset",
        "on",
        *(f"#{digest}" for digest in sorted(digests)),
        *(f"~lk:lock:{name}" for name in locks),
        "%R~lk:node",
        *(f"&lk:freed:{name}/*" for name in locks),
        *_CONNECTION,
        *("+fcall", "+hmget", "+hset", "+hdel", "+publish", "+subscribe", "+unsubscribe"),
    ]


def agent_rules(password_digest: str) -> list[str]:
    return ["reset", "on", f"#{password_digest}", "~*", "&*", "+@all"]


def peer_rules(password_digest: str) -> list[str]:
    """Agents of other nodes: they announce themselves, and read what they forgot."""
    return [
        "reset",
        "on",
        f"#{password_digest}",
        "~lk:node",
        "%R~lk:lock:*",
        *_CONNECTION,
        *("+fcall|lk1_announce", "+fcall|lk1_dump", "+fcall|lk1_state"),
        *("+hmget", "+hget", "+hset", "+scan", "+dbsize"),
    ]


def operator_rules(password_digest: str) -> list[str]:
    return [
        "reset",
        "on",
        f"#{password_digest}",
        "~lk:*",
        "resetchannels",
        *_CONNECTION,
        *(
            f"+fcall|lk1_{name}"
            for name in ("birth", "state", "entries", "forget", "observe", "request")
        ),
        *(f"+fcall|lk1_{name}" for name in ("raise", "dump", "learn", "join")),
        *(
            "+hmget",
            "+hget",
            "+hset",
            "+hdel",
            "+scan",
            "+del",
            "+dbsize",
            "+acl|setuser",
            "+acl|deluser",
            "+acl|list",
        ),
    ]
