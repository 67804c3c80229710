"""The way to one node, over real sockets."""

from __future__ import annotations

import asyncio
import socket

from leasekeeper.redlock.membership import Node
from leasekeeper.redlock.transport import Answer, Failure, TcpLink


def test_a_server_that_says_nothing_is_a_cause_in_words() -> None:
    """The text of a TimeoutError is empty, and the error itself is true."""

    async def scenario(port: int) -> None:
        link = TcpLink(
            Node("0", "127.0.0.1", port),
            username="lock:shop/orders",
            password="secret",
            patience=0.1,
        )
        said: list[Answer] = []
        async with asyncio.timeout(10):
            while not said or "yet" in str(said[-1]):
                await asyncio.sleep(0.02)
                link.call(("PING",), said.append)
        await link.close()
        assert said[-1] == Failure(f"127.0.0.1:{port}: no answer while connecting")

    with socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(scenario(silent.getsockname()[1]))
