"""The webhook's certificate: made, kept, and made anew before it ends."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from leasekeeper_operator.certificates import (
    CA_LIFE,
    SERVER_LIFE,
    Certificates,
    load,
    renewed,
    server_context,
)

NAMES = ["hook.lk-system.svc", "localhost"]
NOW = datetime.now(UTC)


async def served(context: ssl.SSLContext, ca: str, name: str) -> str:
    """What a client that trusts only `ca` gets; the certificate's serial number."""

    async def hello(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hello, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    trust = ssl.create_default_context(cadata=ca)
    trust.verify_flags |= ssl.VERIFY_X509_STRICT
    async with server:
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=trust, server_hostname=name
        )
        serial: str = writer.get_extra_info("peercert")["serialNumber"]
        writer.close()
        return serial


@pytest.mark.parametrize("name", NAMES)
async def test_who_trusts_the_ca_trusts_the_server(name: str) -> None:
    made = renewed(None, NAMES)
    assert await served(server_context(made), made.ca, name)


async def test_nobody_else_does() -> None:
    made, other = renewed(None, NAMES), renewed(None, NAMES)
    with pytest.raises(ssl.SSLCertVerificationError):
        await served(server_context(made), other.ca, NAMES[0])
    with pytest.raises(ssl.SSLCertVerificationError):
        await served(server_context(made), made.ca, "elsewhere.test")


def test_what_will_do_for_a_while_is_kept() -> None:
    made = renewed(None, NAMES, NOW)
    assert renewed(made, NAMES, NOW) is made
    assert renewed(made, NAMES, NOW + timedelta(days=59)) is made


async def test_the_server_certificate_is_made_anew_in_time_and_the_ca_stays() -> None:
    made = renewed(None, NAMES, NOW - SERVER_LIFE + timedelta(days=29))
    later = renewed(made, NAMES, NOW)
    assert later.ca == made.ca
    assert later.server != made.server
    context = server_context(made)
    before = await served(context, made.ca, NAMES[0])
    load(context, later)
    assert await served(context, made.ca, NAMES[0]) != before


def test_the_ca_is_made_anew_in_time() -> None:
    made = renewed(None, NAMES, NOW - CA_LIFE + timedelta(days=29))
    assert renewed(made, NAMES, NOW).ca != made.ca


def test_another_name_is_another_certificate() -> None:
    made = renewed(None, NAMES)
    assert renewed(made, [*NAMES, "more.test"]).server != made.server


def test_what_cannot_be_read_is_made_anew() -> None:
    assert renewed(Certificates("x", "x", "x", "x"), NAMES).ca.startswith("-----BEGIN")


def test_a_server_certificate_of_another_ca_is_made_anew() -> None:
    one, two = renewed(None, NAMES), renewed(None, NAMES)
    mixed = Certificates(one.ca, one.ca_key, two.server, two.server_key)
    assert renewed(mixed, NAMES).ca == one.ca
    assert renewed(mixed, NAMES).server != two.server


def test_a_key_that_is_spoilt_or_anothers_is_made_anew() -> None:
    """A server that loads such a key ends with an error, and would at each of its starts."""
    one, two = renewed(None, NAMES), renewed(None, NAMES)
    for key in ("", "x", two.server_key):
        mended = renewed(replace(one, server_key=key), NAMES)
        assert mended.ca == one.ca
        server_context(mended)
    # Nothing can be signed with this CA any more.
    for key in ("", "x", two.ca_key):
        assert renewed(replace(one, ca_key=key), NAMES).ca != one.ca
