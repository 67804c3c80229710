"""Who is let in on which ensemble: the API server, the nodes and the clock are played here."""

from __future__ import annotations

import asyncio
import base64
from typing import cast

import pytest
from leasekeeper_operator import lock_users
from leasekeeper_operator.api import Api
from leasekeeper_operator.apply import Applier
from leasekeeper_operator.link import Link
from leasekeeper_operator.lock_users import LockUsers
from leasekeeper_operator.manifests.lock import digests_in, digests_of, lock_secret
from leasekeeper_operator.model import Ensemble, Lock, ensemble_key
from leasekeeper_operator.nodes import (
    LEFT_BEHIND,
    Sight,
    without_ghosts,
)
from leasekeeper_operator.rotation import Rotating

from leasekeeper.redlock.registry import NodeView, Record
from tests.operator.samples import Object
from tests.operator.users_world import PLACE, World, published_world


@pytest.fixture
def world() -> World:
    return published_world()


def test_a_lock_whose_default_changed_stays_where_it_was_published(world: World) -> None:
    world.users = LockUsers(
        cast(Api, world), cast(Applier, world), ("store", "other"), now=lambda: world.now
    )
    world.sync()
    assert world.in_file == {"shop/orders", "shop/stays"}


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"redlock": {"password": "\\ud800"}}',
        b'{"redlock": {"password": null}}',
        b'{"redlock": []}',
    ],
)
def test_a_forged_secret_spoils_only_itself(world: World, content: bytes) -> None:
    world.publish("forged")
    world.secret("forged")["data"] = {"lock.json": base64.b64encode(content).decode()}
    world.sync()
    assert world.in_file == {"shop/orders", "shop/stays"}


@pytest.mark.parametrize(
    "owners",
    [
        [],
        [{"apiVersion": "v1", "kind": "ConfigMap", "name": "forged", "uid": "l-1"}],
        [
            {
                "apiVersion": "leasekeeper.dev/v1alpha1",
                "kind": "DistributedLock",
                "name": "orders",
                "uid": "l-1",
            }
        ],
    ],
)
def test_a_secret_that_no_lock_of_its_name_owns_gets_nothing(
    world: World, owners: list[Object]
) -> None:
    world.publish("forged")
    world.secret("forged")["metadata"]["ownerReferences"] = owners
    world.sync()
    assert world.in_file == {"shop/orders", "shop/stays"}


def test_what_a_stranger_wrote_is_not_even_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish("forged", "stranger")
    read: list[str] = []

    def noting(secret: Object) -> frozenset[str]:
        read.append(secret["metadata"]["namespace"])
        return digests_in(secret)

    monkeypatch.setattr("leasekeeper_operator.lock_index.digests_in", noting)
    world.sync()
    assert {*read} == {"shop"}


def test_a_namespace_that_is_no_longer_allowed_is_cut_off_and_can_come_back(world: World) -> None:
    for generation, allowed, expected in (
        (2, [], set()),
        (3, ["shop"], {"shop/orders", "shop/stays"}),
    ):
        world.ensemble["spec"]["allowedNamespaces"] = allowed
        world.ensemble["metadata"]["generation"] = generation
        world.sync(changed=False)  # no lock changed: the ensemble did
        assert world.in_file == expected
        assert all({*users} == expected for users in world.on_nodes.values())
        # They are told, in either case.
        assert {*world.users.locks(ensemble_key(*PLACE))} == {("shop", "orders"), ("shop", "stays")}


def test_who_published_by_an_older_spec_lets_nobody_in_who_is_not_allowed(world: World) -> None:
    before = Ensemble.parse(world.ensemble)
    world.ensemble["spec"]["allowedNamespaces"] = []
    world.ensemble["metadata"]["generation"] = 2
    world.sync(changed=False)
    world.users.published(before, world.secret())
    world.sync(changed=False)
    assert world.in_file == set()
    assert not any(world.on_nodes.values())


def test_an_open_node_that_slept_through_a_total_loss_is_not_counted() -> None:
    def sight(id: str, life: str, generation: int) -> Sight:
        view = NodeView(id=id, life=life, open=True, generation=generation)
        return Sight(id, "Open", view)

    record = Record(2, 0, 0, {"0": "a", "1": "b"})
    sights = {"0": sight("0", "a", 2), "1": sight("1", "b", 1), "2": sight("2", "c", 1)}
    judged = without_ghosts(record, sights)
    assert [s.state for s in judged.values()] == ["Open", "Closed", "Closed"]
    assert judged["2"].message == LEFT_BEHIND
    assert without_ghosts(None, sights) == sights


async def test_what_is_not_text_in_an_answer_does_not_raise() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            word = line.strip().upper()
            if word == b"HELLO":
                writer.write(b"%1\r\n$5\r\nproto\r\n:3\r\n")
            elif word in (b"CLIENT", b"SELECT"):
                writer.write(b"+OK\r\n")
            elif word == b"FCALL":
                writer.write(b"*2\r\n$4\r\nDUMP\r\n$2\r\n\xff\xfe\r\n")

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        link = Link("127.0.0.1", server.sockets[0].getsockname()[1], "peer", "secret")
        assert await link.fcall("lk1_dump", "0") == ["DUMP", "\ufffd\ufffd"]
        await link.close()


@pytest.mark.parametrize(
    "annotations",
    [{"leasekeeper.dev/password-generation": "9" * 5000}, {"leasekeeper.dev/passwords-since": "x"}],
)
def test_nonsense_beside_a_password_spoils_nothing(
    world: World, annotations: dict[str, str]
) -> None:
    """Tenants can write what they like into their own Secret."""
    world.secret()["metadata"]["annotations"] = annotations
    world.sync()
    assert world.in_file == {"shop/orders", "shop/stays"}


def test_an_old_password_goes_from_one_node_at_a_time(world: World) -> None:
    lock, ensemble = Lock.parse(world.make_lock()), Ensemble.parse(world.ensemble)
    both = Rotating("new", 2, old="secret-of-orders")
    asyncio.run(world.bring(lock_secret(lock, ensemble, both)))
    world.sync()
    known = digests_of(both)
    assert world.users.told(ensemble.key, "shop/orders", known)
    new = Rotating("new", 2)
    asyncio.run(world.bring(lock_secret(lock, ensemble, new)))
    for expected in (2, 1, 0):
        assert not world.users.told(ensemble.key, "shop/orders", digests_of(new))
        world.sync()
        assert sum(users["shop/orders"] == known for users in world.on_nodes.values()) == expected
    assert world.users.told(ensemble.key, "shop/orders", digests_of(new))


def test_a_node_that_could_not_be_told_anew_knows_nothing(world: World) -> None:
    """It may have lost its memory, and with it the new password that everybody shall use next."""
    lock, ensemble = Lock.parse(world.make_lock()), Ensemble.parse(world.ensemble)
    known = digests_of(Rotating("secret-of-orders"))
    assert world.users.told(ensemble.key, lock.full_name, known)
    world.silent = {"1"}
    world.sync(lock_users.RECHECK_SECONDS)
    assert not world.users.told(ensemble.key, lock.full_name, known)
    world.silent = set()
    world.sync()
    assert world.users.told(ensemble.key, lock.full_name, known)
