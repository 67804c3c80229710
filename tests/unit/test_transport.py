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


def test_a_node_that_cuts_everybody_off_is_not_run_against() -> None:
    """It lets a candidate in and closes the connection: that alone is no reason to be back at
    once.
    """
    came = 0

    async def let_in_and_cut_off(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        nonlocal came
        came += 1
        await reader.read(1000)
        writer.write(b"%1\r\n+server\r\n+redis\r\n")
        await writer.drain()
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(let_in_and_cut_off, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        link = TcpLink(Node("0", "127.0.0.1", port), username="u", password="p", patience=1.0)
        await asyncio.sleep(0.5)
        await link.close()
        server.close()
        assert 1 <= came < 20

    asyncio.run(scenario())


def test_all_channels_are_asked_for_at_a_time_and_those_that_come_meanwhile_too() -> None:
    """One connection for a thousand locks: a round trip for each would be more than it may take."""
    locks = [f"lk:freed:shop/{number}/me" for number in range(20)]

    async def scenario() -> None:
        async def answer_when_all_have_asked(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            await reader.readuntil(b"HELLO")
            await reader.readuntil(b"secret\r\n")
            writer.write(b"%1\r\n+server\r\n+redis\r\n")
            for names in (locks, ["late"]):
                for _ in names:
                    await reader.readuntil(b"SUBSCRIBE")
                link.listen("late", lambda *_: None, heard.append)
                for name in names:
                    writer.write(b">3\r\n$9\r\nsubscribe\r\n+%b\r\n:1\r\n" % name.encode())
            await reader.read()

        heard: list[Answer] = []
        server = await asyncio.start_server(answer_when_all_have_asked, "127.0.0.1", 0)
        node = Node("0", "127.0.0.1", server.sockets[0].getsockname()[1])
        link = TcpLink(node, username="u", password="secret", patience=5.0, shared=True)
        for name in locks:
            link.listen(name, lambda *_: None, heard.append)
        async with asyncio.timeout(20):
            await link.up()
        assert len(heard) == len(locks) + 1
        await link.close()
        server.close()

    asyncio.run(scenario())
