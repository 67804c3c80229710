"""A ZooKeeper session for asyncio: kazoo's connection thread, and everything else in our loop.

kazoo runs callbacks in two more threads of its own; here they are handed to the loop, so that an
answer makes one step from the connection's thread to whoever waits for it. Two things that a lease
needs to know, and that kazoo keeps to itself, are taken from its connection: the session timeout
that the server granted, and when the request was sent that (re)opened the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.hosts import collect_hosts
from kazoo.protocol.connection import _CONNECTION_DROP, ConnectionDropped
from kazoo.retry import KazooRetry
from kazoo.security import make_acl, make_digest_acl

from leasekeeper.clock import Clock, Instant
from leasekeeper.lease import ConfigurationError, LeaseError
from leasekeeper.redlock.tls import Tls

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # between two tries to connect, as in redlock/transport.py


_SENT_AWAY = (
    "ZooKeeper at {at} ended the connection before it opened the session; if that stays so, it was"
    " restored or made anew, and knows less than this candidate has seen: stop all candidates of"
    " the lock, give each the same tokenFloor above all tokens before, and start them again"
)


def parted(hosts: str) -> tuple[str, str]:
    """The servers as kazoo takes them, and the path for all that may stand after the last: kazoo
    would look for everything below it, and not make it.
    """
    try:
        collect_hosts(hosts)
    except ValueError as wrong:
        raise ConfigurationError(
            f"{hosts!r} names no servers, as zk-0:2181,zk-1:2181 does: {wrong}"
        ) from None
    servers, _, path = hosts.partition("/")
    return servers, f"/{path.strip('/')}" if path.strip("/") else ""


class Unanswered(LeaseError):
    """No answer, and why; what was asked for may have been done."""


class Refused(LeaseError):
    """The server will not do it as long as the configuration is what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Who we are, and who may touch what we make. SASL proves who we are, digest only claims it:
    with digest a wrong password is another user, whom the nodes' ACL refuses.
    """

    mechanism: str
    """`digest`, or SASL's `DIGEST-MD5` or `GSSAPI`."""
    username: str
    password: str = ""

    def options(self) -> dict[str, Any]:
        """As kazoo takes them."""
        if self.mechanism == "digest":
            return {
                "auth_data": [("digest", f"{self.username}:{self.password}")],
                "default_acl": [make_digest_acl(self.username, self.password, all=True)],
            }
        options = {"mechanism": self.mechanism}
        if self.mechanism == "GSSAPI":
            options["principal"] = self.username
        else:
            options |= {"username": self.username, "password": self.password}
        return {
            "sasl_options": options,
            "default_acl": [make_acl("sasl", self.username, all=True)],
        }


class _InLoop:
    """In the place of kazoo's queues of callbacks."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def put(self, work: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits any more
            self._loop.call_soon_threadsafe(work)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's own, without its threads, and with our TLS: files that are read again, names that
    are checked, and failures in words.
    """

    def __init__(self, tls: Tls | None, on_failure: Callable[[str], None]) -> None:
        super().__init__()
        self._in_loop = _InLoop(asyncio.get_running_loop())
        self._tls = tls
        self._on_failure = on_failure

    def start(self) -> None:
        self.callback_queue = self.completion_queue = self._in_loop
        self._running = True

    def stop(self) -> None:
        self._running = False

    def create_connection(self, address: Any, hostname: str, **options: Any) -> Any:
        at = f"{hostname}:{address[1]}"
        try:
            options["use_ssl"] = False
            plain = super().create_connection(address=address, hostname=hostname, **options)
            if self._tls is None:
                return plain
            try:
                name = self._tls.name_of(hostname)
                return self._tls.context().wrap_socket(plain, server_hostname=name)
            except BaseException:
                plain.close()
                raise
        except ssl.SSLError as wrong:
            why = self._tls.explain(wrong, hostname) if self._tls else str(wrong)
            self._on_failure(f"ZooKeeper at {at}: {why}")
            raise OSError(why) from wrong
        except OSError as wrong:
            self._on_failure(f"ZooKeeper at {at} cannot be reached: {wrong.strerror or wrong}")
            raise


class Session:
    """One session at a time. A session that the server ended is followed by a new one, with
    another id.
    """

    def __init__(
        self,
        *,
        hosts: str,
        timeout: float,
        clock: Clock,
        on_change: Callable[[], None],
        login: Login | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._hosts = hosts
        self._timeout = timeout
        self._clock = clock
        self._on_change = on_change
        self._login = login
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._connected = asyncio.Event()
        self._client: Any = None
        self.id = 0
        """What ZooKeeper knows as the owner of our ephemeral nodes: of the last session, also while
        the connection is lost.
        """
        self.granted = 0.0
        """The session timeout that the server granted, in seconds."""
        self.opened: Instant = clock.now()
        """Before the sending of the request that last opened the session, on this connection."""
        self.down = f"not connected to ZooKeeper at {hosts} yet"

    async def up(self) -> None:
        self._start()
        await self._connected.wait()

    def _start(self) -> None:
        """kazoo gives up when the login fails; then there is a new client at the next call."""
        if self._client is not None:
            return
        handler = _Handler(self._tls, self._failed)
        pauses = {"delay": FIRST_PAUSE, "max_delay": LONGEST_PAUSE, "max_tries": -1}
        client = KazooClient(
            hosts=self._hosts,
            timeout=self._timeout,
            handler=handler,
            connection_retry=KazooRetry(sleep_func=handler.sleep_func, **pauses),
            logger=_quiet(),
            **(self._login.options() if self._login else {}),
        )
        self._client = client
        client.add_listener(
            lambda state: self._in_loop(self._state_changed, client, state, client.client_state)
        )
        self._take_note_of_connecting(client)
        client.start_async()

    def _take_note_of_connecting(self, client: Any) -> None:
        connection = client._connection
        connect, expand = connection._connect, connection._expand_client_hosts

        def expanding() -> Any:
            """kazoo looks for hosts that have no address for ever, and says nothing; of a name that
            none can have, its thread dies."""
            try:
                found = expand()
            except ValueError:
                found = []
            if not found:
                self._failed(
                    f"no host of {self._hosts} has an address: a name is wrong, or DNS does not"
                    " answer"
                )
            return found

        def noting(host: str, address: str, port: int) -> Any:
            began = self._clock.now()
            try:
                timeouts = connect(host, address, port)
            except ConnectionDropped as wrong:
                # "Broken" is not "refused": the server ended it. It does so to who has seen more
                # than it knows, which is how ZooKeeper itself finds out that it went back.
                if client.last_zxid and "broken" in str(wrong):
                    self._failed(_SENT_AWAY.format(at=f"{host}:{port}"))
                raise
            # kazoo's read time-out is two thirds of what the server granted.
            self.granted, self.opened = timeouts[0] * 1.5 / 1000, began
            self.id = client._session_id
            return timeouts

        connection._connect, connection._expand_client_hosts = noting, expanding

    def _state_changed(self, client: Any, state: str, why: str) -> None:
        """In the loop; `why` is kazoo's own state at the time of the change."""
        if client is not self._client:
            return
        if state == KazooState.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()
            if why in ("AUTH_FAILED", "CLOSED"):
                if why == "AUTH_FAILED":
                    user = self._login.username if self._login else "nobody"
                    self.down = f"ZooKeeper at {self._hosts} refused user {user} or its password"
                self._end(client)
                self._client = None
            elif state == KazooState.SUSPENDED:
                self.down = f"the connection to ZooKeeper at {self._hosts} was lost"
        self._on_change()

    def _failed(self, why: str) -> None:
        self._in_loop(setattr, self, "down", why)

    def _in_loop(self, work: Callable[..., Any], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work, *arguments)

    # -- requests --------------------------------------------------------------------------------

    def send(self, method: str, *arguments: Any, **options: Any) -> asyncio.Future[Any]:
        """Sends now, or fails now: nothing waits for a connection, because it would be sent at a
        time that nobody knows. Requests are run in the order in which they were sent.
        """
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._start()
        if not self._connected.is_set():
            answer.set_exception(Unanswered(self.down))
            return answer

        def answered(result: Any) -> None:
            if answer.done():
                return
            try:
                answer.set_result(result.get_nowait())
            except KazooException as wrong:
                answer.set_exception(self._in_words(wrong))

        getattr(self._client, f"{method}_async")(*arguments, **options).rawlink(answered)
        return answer

    def _in_words(self, wrong: Any) -> Exception:
        if isinstance(wrong, NoAuthError):
            user = f"user {self._login.username}" if self._login else "a client without a login"
            return Refused(
                f"ZooKeeper refused {user}: the password is wrong, or the nodes' ACL is for"
                " somebody else; name their user, or another path"
            )
        if isinstance(wrong, AuthFailedError):
            return Unanswered(self.down)
        lost = (ConnectionLoss, ConnectionClosedError, OperationTimeoutError, SessionExpiredError)
        if isinstance(wrong, lost):
            return Unanswered(self.down if not self._connected.is_set() else type(wrong).__name__)
        if isinstance(wrong, NoNodeError):
            node_is_gone: Exception = wrong  # an answer, which means something else to each caller
            return node_is_gone
        # A quota, a session that moved, …: no answer that says anything about a lease.
        return Refused(f"ZooKeeper says: {type(wrong).__name__} {wrong}".strip())

    def drop(self) -> None:
        """Ends the connection, not the session: a server that stands still keeps connections open,
        and only on a new one is another server found.
        """
        if self._client is not None and self._connected.is_set():
            self._client._call(_CONNECTION_DROP, self._client.handler.async_result())

    async def close(self, patience: float, *, end_session: bool = True) -> None:
        """Without `end_session` it, and with it our nodes, is left to run out by itself."""
        client, self._client = self._client, None
        self._connected.clear()
        if client is None:
            return
        if not end_session:
            # As kazoo stops, but for the request that ends the session.
            client._stopped.set()
            client._call(_CONNECTION_DROP, client.handler.async_result())
        ended = self._end(client)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await ended.wait()

    def _end(self, client: Any) -> asyncio.Event:
        """In a thread of its own, because kazoo waits: for the server, or for its own thread."""
        ended = asyncio.Event()

        def end() -> None:
            with contextlib.suppress(Exception):
                client.stop()
            with contextlib.suppress(Exception):
                client._connection.stop(LONGEST_PAUSE)
            with contextlib.suppress(Exception):
                client.close()
            self._in_loop(ended.set)

        threading.Thread(target=end, daemon=True).start()
        return ended


def _quiet() -> logging.Logger:
    """What kazoo has to say is said by us, in outcomes."""
    logger = logging.getLogger("leasekeeper.zookeeper.kazoo")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
