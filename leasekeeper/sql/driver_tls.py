"""TLS through drivers that take a context and nothing else: the name in the server's certificate,
and failures in words.
"""

from __future__ import annotations

import ssl
from functools import partial

from leasekeeper.redlock.tls import Tls


def context_for(tls: Tls | None, host: str) -> ssl.SSLContext | None:
    """Drivers compare the certificate with the host that they connect to; it may be for another
    name (`serverName`), which only the context itself can still tell OpenSSL then.
    """
    if tls is None:
        return None
    context = tls.context()
    if (name := tls.name_of(host)) != host:
        wrap = partial(ssl.SSLContext.wrap_bio, context)

        def named(
            incoming: ssl.MemoryBIO,
            outgoing: ssl.MemoryBIO,
            server_side: bool = False,
            server_hostname: str | bytes | None = None,
            session: ssl.SSLSession | None = None,
        ) -> ssl.SSLObject:
            return wrap(incoming, outgoing, server_side, name, session)

        context.wrap_bio = named  # type: ignore[method-assign]
    return context


def in_words(tls: Tls | None, wrong: BaseException, host: str) -> str:
    """Why a handshake failed; empty: it is not that. Drivers wrap what OpenSSL said."""
    cause: BaseException | None = wrong
    while cause is not None:
        if tls is not None and isinstance(cause, ssl.SSLError):
            return tls.explain(cause, host)
        cause = cause.__cause__
    return ""
