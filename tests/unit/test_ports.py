"""The ports that tests give to servers: nobody else may get one between choice and bind."""

from __future__ import annotations

import pytest
from servers import Ports


def test_no_port_is_given_twice_among_many_users() -> None:
    users = [Ports() for _ in range(5)]
    given = [user.free() for _ in range(20) for user in users]
    assert len(set(given)) == len(given)


def test_without_the_claim_two_users_get_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: blocks that are chosen and not claimed."""
    monkeypatch.setattr(Ports, "_take_block", lambda _: 0)
    assert Ports().free() == Ports().free()
