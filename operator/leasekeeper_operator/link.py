"""One connection to one node. Deadlines are short, because a node that hangs must not hold up what
concerns the others."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Sequence
from typing import Any

import redis.asyncio
from redis.asyncio.connection import Connection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, ConnectionError, RedisError, ResponseError

ANSWER_SECONDS = 1.5
"""For one request, connecting included: a healthy node answers in a millisecond, and the look of
all nodes, which is taken in parallel, must end well within its period of five seconds."""


class NodeError(Exception):
    """A node did not do what it was asked."""


class Unreachable(NodeError):
    """It did not answer. Why is for the log only: a network says it in other words every time, and
    the status would be written at each look."""

    def __init__(self, details: str) -> None:
        super().__init__("it does not answer the operator")
        self.details = details


class TlsConnection(Connection):
    """redis-py's own would trust every public CA beside ours, and check for the name that it
    connects to; a node's certificate is for its name in the membership."""

    def __init__(self, *, context: ssl.SSLContext, server_name: str, **rest: Any) -> None:
        super().__init__(**rest)
        self._context, self._server_name = context, server_name

    def _connection_arguments(self) -> dict[str, Any]:
        plain = super()._connection_arguments()
        return {**plain, "ssl": self._context, "server_hostname": self._server_name}


def tls_context(trusted: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificates and names
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=trusted)
    return context


class Link:
    """One connection to one node, opened when it is needed."""

    def __init__(
        self,
        host: str,
        port: int,
        user: str,
        password: str,
        tls: tuple[ssl.SSLContext, str] | None = None,
    ) -> None:
        """`tls`: the context, and the name that the node's certificate must be for."""
        secured: dict[str, Any] = {}
        if tls is not None:
            secured = {
                "connection_class": TlsConnection,
                "context": tls[0],
                "server_name": tls[1],
            }
        self._pool = redis.asyncio.ConnectionPool(
            host=host,
            port=port,
            username=user,
            password=password,
            decode_responses=True,
            # Tenants write the fields that `lk1_dump` reads; what is not text must not raise here.
            encoding_errors="replace",
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=ANSWER_SECONDS,
            # What fails, fails now; the next look is the retry.
            retry=Retry(NoBackoff(), 0),
            max_connections=1,
            # The operator's user may not call CLIENT SETINFO.
            driver_info=None,
            **secured,
        )

    async def call(self, *command: str) -> Any:
        (answer,) = await self.calls(command)
        if isinstance(answer, NodeError):
            raise answer
        return answer

    async def calls(self, *commands: Sequence[str]) -> list[Any]:
        """The answers to commands that are sent together; one that is refused is a NodeError."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._ask(commands)
        except AuthenticationError as error:  # which is a ConnectionError to redis-py
            raise NodeError(str(error)) from error
        except TimeoutError:
            raise Unreachable(f"no answer within {ANSWER_SECONDS:g} s") from None
        except (ConnectionError, redis.exceptions.TimeoutError, OSError) as error:
            raise Unreachable(str(error) or type(error).__name__) from error
        except RedisError as error:
            raise _refusal(error) from error

    async def _ask(self, commands: Sequence[Sequence[str]]) -> list[Any]:
        # The client's own pipeline costs more than what is saved by sending them together.
        connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        answers: list[Any] = []
        try:
            await connection.send_packed_command(connection.pack_commands(commands))
            for _ in commands:
                try:
                    answers.append(await connection.read_response())
                except ResponseError as error:
                    answers.append(_refusal(error))
        finally:
            if len(answers) < len(commands):  # what comes later would be taken for another answer
                await connection.disconnect(nowait=True)
            await self._pool.release(connection)
        return answers

    async def fcall(self, function: str, *args: str) -> list[str]:
        return fields(function, await self.call("FCALL", function, "0", *args))

    async def close(self) -> None:
        with contextlib.suppress(RedisError, OSError):
            await self._pool.disconnect()


def _refusal(error: RedisError) -> NodeError:
    return NodeError(str(error) or type(error).__name__)


def fields(function: str, answer: Any) -> list[str]:
    if isinstance(answer, NodeError):
        raise answer
    if not isinstance(answer, list) or not answer:
        raise NodeError(f"{function}: unexpected answer {answer!r}")
    return [str(part) for part in answer]
