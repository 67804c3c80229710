"""The certificate of the server beside the agent.

A server reads its files once. To restart it for new ones would cost its memory and a quarantine,
and to forget it would end in an expired certificate on every node at once. So the agent looks at
the files that the server names, and has it read them again; connections that stand are not touched.
"""

from __future__ import annotations

from leasekeeper.redlock.blocking import Connection
from leasekeeper.redlock.tls import Signature, signature

_FILES = ("tls-cert-file", "tls-key-file", "tls-ca-cert-file")


class ServerCertificate:
    def __init__(self) -> None:
        self._seen: tuple[Signature, ...] = ()

    def renew(self, connection: Connection) -> bool:
        """Whether the server was told to read its files again: they are others than at the last
        look, or this is the first one. Raises Refusal, once for each version of the files, if it
        cannot use them; it then goes on with those that it has.
        """
        flat = connection.call("CONFIG", "GET", *_FILES)
        files = {name: path for name, path in zip(flat[::2], flat[1::2], strict=True) if path}
        seen = tuple(signature(path) for path in files.values())
        # None: the server's files are not where the agent could see them.
        if "tls-cert-file" not in files or None in seen or seen == self._seen:
            return False
        self._seen = seen
        connection.call("CONFIG", "SET", *(part for pair in files.items() for part in pair))
        return True
