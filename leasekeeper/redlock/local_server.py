"""The server beside the agent: is it fit to be a node, and what is done to its memory.

Everything goes over the one connection that saw the server's run_id: if the server restarts in the
middle, the connection breaks, and nothing of this reaches the new process.
"""

from __future__ import annotations

import os
from contextlib import suppress

from leasekeeper.lease import LeaseError
from leasekeeper.redlock import functions, users
from leasekeeper.redlock.blocking import Connection, Refusal, Reply
from leasekeeper.redlock.learnt import Learnt, learn_arguments
from leasekeeper.redlock.membership import Membership, micros
from leasekeeper.redlock.registry import NodeView
from leasekeeper.redlock.server_config import REQUIRED
from leasekeeper.redlock.users_file import Digests


class MemoryChanged(LeaseError):
    """The memory is not the one that we meant: flushed, or another agent began a new life."""


class Unfit(LeaseError):
    """The server's settings would break the promise; the message says which, and what to do."""


class LocalServer:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        info = connection.call("INFO", "server").splitlines()
        self.run_id = dict(line.split(":", 1) for line in info if ":" in line)["run_id"]

    def check_fitness(self) -> None:
        """Raises Unfit, with one sentence, if this memory could come back, or forget, unnoticed."""
        info = self.connection.call("INFO", "replication")
        if "role:master" not in info.splitlines():
            raise Unfit("the server is a replica; take its `replicaof` away, each node is its own")
        names = [*REQUIRED, "dir", "dbfilename", "appenddirname"]
        flat = self.connection.call("CONFIG", "GET", *names)
        settings = dict(zip(flat[::2], flat[1::2], strict=True))
        for name, wanted in REQUIRED.items():
            if settings.get(name) != wanted:
                raise Unfit(
                    f"the server has `{name} {settings.get(name)}`, a node needs"
                    f" `{name} {wanted or chr(34) * 2}`; change it in the server's configuration"
                )
        for name in (settings["dbfilename"], settings["appenddirname"]):
            path = os.path.join(settings["dir"], name)
            if name and os.path.exists(path) and os.access(settings["dir"], os.W_OK):
                raise Unfit(
                    f"the server would load {path} at its next start; delete it, and give the"
                    " server an empty or read-only `dir`"
                )

    def load_admin(self) -> None:
        self._load(functions.ADMIN)

    def state(self) -> NodeView:
        return NodeView.from_reply(self.connection.fcall("lk1_state"))

    def cap(self) -> float:
        """C of this life, in seconds: it never changes while a node is open."""
        return int(self.connection.call("HGET", "lk:node", "cap") or 0) / 1e6

    def enter(self, life: str, node: str, cap: float) -> str:
        """Begins a life; the name of the one that is there now (ours, or another agent's)."""
        reply = self.connection.fcall("lk1_enter", life, micros(cap), self.run_id, node)
        return life if reply[0] == "OK" else reply[1]

    def meant(self, function: str, *args: str) -> None:
        """A function that names the life, and is refused by any other."""
        if self.connection.fcall(function, *args)[0] != "OK":
            raise MemoryChanged(f"{function} was refused: the memory is another one")

    def write(self, life: str, learnt: Learnt) -> None:
        for arguments in learn_arguments(life, learnt):
            self.meant("lk1_learn", *arguments)

    def open(
        self, life: str, membership: Membership, generation: int, *, joined: bool = True
    ) -> None:
        """The mark; then the library. Candidates' users come last, by `apply_users`."""
        epoch, members, longest = membership.to_arguments()
        rest = str(generation), "1" if joined else "0"
        self.meant("lk1_open", life, epoch, members, longest, *rest)
        self.load_vote()

    def load_vote(self) -> None:
        self._load(functions.VOTE)

    def close(self) -> None:
        """Nobody can vote here any more. The users go first: that cuts live connections of
        candidates, and works even on a server that refuses everything else (a replica does).
        """
        for name in self.connection.call("ACL", "USERS"):
            if name.startswith(users.lock_user("")):
                self.connection.call("ACL", "DELUSER", name)
        with suppress(Refusal):
            self.connection.fcall("lk1_close")
        with suppress(Refusal):
            self.connection.call("FUNCTION", "DELETE", functions.VOTE)

    def apply_users(self, wanted: Digests, known: Digests) -> list[str]:
        """Brings the locks' ACL users from `known` to `wanted` (digests by lock); what was changed.

        Only users that the file had before are taken away: a mounted file may be a minute old, and
        the operator has told the server itself of a lock that is newer.
        """
        changed = []
        for lock, digests in wanted.items():
            if known.get(lock) != digests:
                rules = users.lock_rules(lock, digests)
                self.connection.call("ACL", "SETUSER", users.lock_user(lock), *rules)
                changed.append(f"+{lock}")
        for lock in known.keys() - wanted.keys():
            self.connection.call("ACL", "DELUSER", users.lock_user(lock))
            changed.append(f"-{lock}")
        return changed

    def say_edition(self, edition: int) -> None:
        """Of the file that the users were brought to; 0: it has none, and nobody asks."""
        said = f"{users.EDITION}{edition}"
        if edition:
            self.connection.call("ACL", "SETUSER", said, "reset")
        for name in self.connection.call("ACL", "USERS"):
            if name.startswith(users.EDITION) and name != (said if edition else ""):
                self.connection.call("ACL", "DELUSER", name)

    def _load(self, name: str) -> Reply:
        source = functions.library(name)
        try:
            return self.connection.call("FUNCTION", "LOAD", "REPLACE", source)
        except Refusal as refused:
            # A full server takes no functions, also not those that it has; its time must go on.
            loaded = self.connection.call("FUNCTION", "LIST", "LIBRARYNAME", name, "WITHCODE")
            if any(source in library for library in loaded):
                return loaded
            raise Unfit(
                f"the server took no functions ({refused}); a node needs Redis 7.0 or newer,"
                " or Valkey"
            ) from None
