"""Who is let in on which ensemble: the API server, the nodes and the clock are played here."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any, cast

import pytest
from leasekeeper_operator import lock_index, lock_users
from leasekeeper_operator.api import Api, Kind
from leasekeeper_operator.apply import Applier
from leasekeeper_operator.link import Link, NodeError
from leasekeeper_operator.lock_index import Followed
from leasekeeper_operator.lock_users import LockUsers
from leasekeeper_operator.manifests.ensemble import edition_in, known_locks, parse_users
from leasekeeper_operator.manifests.lock import digests_in, digests_of, lock_secret
from leasekeeper_operator.model import Ensemble, Lock, ensemble_key
from leasekeeper_operator.nodes import (
    LEFT_BEHIND,
    Answered,
    NewUser,
    Nodes,
    Sight,
    without_ghosts,
)
from leasekeeper_operator.rotation import Rotating

from leasekeeper.redlock.registry import NodeView, Record
from tests.operator.samples import Object, ensemble_object

PLACE = ("store", "main")


class World:
    """One ensemble of three nodes, store/main, which is also the default."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.on_nodes: dict[str, dict[str, frozenset[str]]] = {id: {} for id in "012"}
        self.editions: dict[str, int] = {}
        """Of the files that agents have read last."""
        self.taught: dict[str, dict[str, int]] = {id: {} for id in "012"}
        self.vectors: dict[str, dict[str, int]] = {}
        self.silent: set[str] = set()
        self.refusing: set[str] = set()
        """Nodes that cannot be taught."""
        self.now = 1000.0
        self.floor = 0
        """Of the record of births."""
        self.readings = 0
        self.ensemble = ensemble_object(nodes=3, allowedNamespaces=["shop"])
        self.start_operator()

    def start_operator(self) -> None:
        api, applier = cast(Api, self), cast(Applier, self)
        self.users = LockUsers(api, applier, PLACE, now=lambda: self.now)

    # -- the API server ------------------------------------------------------------------------
    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        return self.objects.get((kind.name, namespace, name))

    async def find(self, kind: Kind, namespace: str | None = None, labels: str = "") -> Any:
        self.readings += 1
        mark = "leasekeeper.dev/lock"
        found = [obj for (of, _, _), obj in self.objects.items() if of == kind.name]
        return [obj for obj in found if not labels or mark in obj["metadata"].get("labels", {})]

    async def bring(self, obj: Object, current: Object | None = None) -> Object:
        metadata = obj["metadata"]
        self.objects[obj["kind"], metadata["namespace"], metadata["name"]] = obj
        return obj

    # -- the nodes -----------------------------------------------------------------------------
    async def node_users(self, node: str) -> dict[str, frozenset[str]]:
        if node in self.silent:
            raise NodeError("it does not answer")
        return dict(self.on_nodes[node])

    async def teach(self, node: str, life: str, least: Mapping[str, int]) -> Answered:
        if node in self.silent | self.refusing:
            raise NodeError("it does not answer")
        assert life == "a"
        assert not least.keys() & self.in_file, "an agent lets in whom the file names"
        self.taught[node] |= least
        return Answered(node, 1, self.vectors.get(node, {}))

    async def set_users(self, node: str, new: Mapping[str, NewUser]) -> None:
        self.on_nodes[node] |= {lock: user.digests for lock, user in new.items()}

    async def delete_user(self, node: str, lock: str) -> None:
        del self.on_nodes[node][lock]

    # -- what tests do and see -----------------------------------------------------------------
    def publish(self, name: str = "orders", namespace: str = "shop", uid: str = "l-1") -> None:
        lock = self.make_lock(name, namespace, uid)
        passwords = Rotating("secret-of-" + name)
        secret = lock_secret(Lock.parse(lock), Ensemble.parse(self.ensemble), passwords)
        asyncio.run(self.bring(secret))

    def make_lock(
        self, name: str = "orders", namespace: str = "shop", uid: str = "l-1", **spec: Any
    ) -> Object:
        timings = {"leaseDuration": 15, "renewDeadline": 10, "retryPeriod": 2, "lockDelay": 0}
        lock = {
            "kind": "DistributedLock",
            "metadata": {"name": name, "namespace": namespace, "uid": uid, "generation": 1},
            "spec": {f"{key}Seconds": value for key, value in timings.items()} | spec,
        }
        return asyncio.run(self.bring(lock))

    def secret(self, name: str = "orders", namespace: str = "shop") -> Object:
        return self.objects["Secret", namespace, f"leasekeeper-{name}"]

    def publish_at(self, when: str, name: str = "new") -> None:
        self.publish(name)
        self.secret(name)["metadata"]["creationTimestamp"] = when

    def sync(self, after: float = 0.0, *, changed: bool = True) -> None:
        self.now += after
        ensemble = Ensemble.parse(self.ensemble)
        if changed:
            self.users.invalidate(ensemble.key)
        view = NodeView(id="", life="a", open=True)
        nodes = type("Played", (), {"users": self.node_users, "set_users": self.set_users})
        nodes.delete_user = self.delete_user  # type: ignore[attr-defined]
        nodes.teach = self.teach  # type: ignore[attr-defined]
        nodes.edition = lambda node: self.editions.get(node, 0)  # type: ignore[attr-defined]
        sights = {id: Sight(id, "Open", view) for id in "012"}
        record = Record(1, self.floor, 0, {}) if self.floor else None
        asyncio.run(self.users.sync(ensemble, cast(Nodes, nodes), sights, record))

    def agents_read(self, nodes: str = "012") -> None:
        """As the kubelet lets them; what they do by it, the operator did before."""
        self.editions |= dict.fromkeys(nodes, edition_in(self.users_secret))

    @property
    def users_secret(self) -> Object:
        return self.objects["Secret", "store", "main-users"]

    @property
    def in_file(self) -> set[str]:
        return {*parse_users(self.objects.get(("Secret", "store", "main-users"), {}))}


@pytest.fixture
def world() -> World:
    world = World()
    world.publish()
    world.publish("stays")
    world.sync()
    assert world.in_file == {"shop/orders", "shop/stays"}
    return world


def move(world: World, *, with_secret: bool) -> None:
    world.make_lock(uid="l-2", ensembleRef={"name": "other", "namespace": "store"})
    if with_secret:
        del world.objects["Secret", "shop", "leasekeeper-orders"]


@pytest.mark.parametrize("with_secret", [True, False])
def test_a_lock_made_again_on_another_ensemble_is_cut_off_here(
    world: World, with_secret: bool
) -> None:
    move(world, with_secret=with_secret)
    world.sync()
    assert world.in_file == {"shop/stays"}
    assert all({*users} == {"shop/stays"} for users in world.on_nodes.values())


def leave(world: World) -> None:
    move(world, with_secret=True)
    world.sync()
    world.agents_read()
    world.sync(lock_users.RECHECK_SECONDS)


def test_a_lock_that_left_is_named_until_its_longest_lease_has_ended(world: World) -> None:
    leave(world)
    assert "shop/orders" in known_locks(world.users_secret)
    world.sync(31)  # the quarantine of the sample: 32 s
    assert "shop/orders" in known_locks(world.users_secret)
    world.sync(1, changed=False)
    assert known_locks(world.users_secret) == {"shop/stays"}


def test_an_old_copy_of_the_file_lets_nobody_in_who_leads_elsewhere(world: World) -> None:
    """Agents that begin again go by what the kubelet has brought, however long ago."""
    old = {id: dict(users) for id, users in world.on_nodes.items()}
    move(world, with_secret=True)
    world.sync()
    world.agents_read("0")
    for _ in range(20):
        world.sync(30)
    assert "shop/orders" in known_locks(world.users_secret)
    for node in "12":
        world.on_nodes[node] = dict(old[node])
    world.sync(60)
    assert "shop/orders" in known_locks(world.users_secret)
    # From now on, one of three could do so, and that is no quorum.
    world.agents_read("1")
    world.sync(60)
    world.sync(31)
    assert "shop/orders" in known_locks(world.users_secret)
    world.sync(1)
    assert "shop/orders" not in known_locks(world.users_secret)


def test_a_new_pod_with_an_old_copy_of_the_file_is_waited_for_again(world: World) -> None:
    """Node 2 has not read it yet: together they would be a quorum that lets in who left."""
    old = edition_in(world.users_secret)
    move(world, with_secret=True)
    world.sync()
    world.agents_read("01")
    world.sync(lock_users.RECHECK_SECONDS)
    world.editions["1"] = old
    for _ in range(10):
        world.sync(30)
    assert "shop/orders" in known_locks(world.users_secret)
    world.agents_read("1")
    world.sync(lock_users.RECHECK_SECONDS)
    world.sync(31)
    assert "shop/orders" in known_locks(world.users_secret)
    world.sync(1)
    assert "shop/orders" not in known_locks(world.users_secret)


def test_an_edition_is_never_used_twice(world: World) -> None:
    """What an agent has read proves nothing about another file of the same number."""
    first = edition_in(world.users_secret)
    world.sync()
    assert edition_in(world.users_secret) == first, "it is the same file"
    world.publish("more")
    world.sync()
    second = edition_in(world.users_secret)
    assert second > first
    del world.objects["Secret", "store", "main-users"]
    world.start_operator()
    world.sync()
    assert edition_in(world.users_secret) >= second


def test_a_file_of_an_operator_before_this_one_is_numbered(world: World) -> None:
    text = base64.b64decode(world.users_secret["data"]["users"]).decode()
    numbered = edition_in(world.users_secret)
    plain = text.partition("\n")[2].encode()
    world.users_secret["data"]["users"] = base64.b64encode(plain).decode()
    assert edition_in(world.users_secret) == 0
    world.start_operator()
    world.sync()
    assert edition_in(world.users_secret) > numbered


def test_an_operator_that_starts_anew_waits_anew(world: World) -> None:
    leave(world)
    world.start_operator()
    world.sync(40)
    assert "shop/orders" in known_locks(world.users_secret)
    world.sync(32)
    assert known_locks(world.users_secret) == {"shop/stays"}


def test_the_wait_begins_when_the_nodes_that_may_know_it_are_no_quorum(world: World) -> None:
    move(world, with_secret=True)
    world.silent = {"0", "1"}
    world.sync()
    world.agents_read()
    world.sync(100)
    assert "shop/orders" in known_locks(world.users_secret)
    world.silent = {"0"}
    world.sync()
    world.sync(31)
    assert "shop/orders" in known_locks(world.users_secret)
    world.sync(1)
    assert "shop/orders" not in known_locks(world.users_secret)


def test_a_node_that_let_it_in_again_begins_the_wait_anew(world: World) -> None:
    leave(world)
    world.on_nodes["0"]["shop/orders"] = frozenset({"of an old file"})
    world.sync(30)
    assert "shop/orders" not in world.on_nodes["0"]
    world.sync(5)
    assert "shop/orders" in known_locks(world.users_secret)


def test_a_lock_made_again_here_does_not_wait(world: World) -> None:
    del world.objects["DistributedLock", "shop", "orders"]
    world.sync()
    world.publish(uid="l-2")
    world.sync()
    assert world.in_file == {"shop/orders", "shop/stays"}
    assert "departing" not in world.users_secret["data"]


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


# -- what the locks' reconciler tells, instead of a reading of all locks --------------------------


def test_a_lock_that_comes_is_let_in_without_a_reading_of_all(world: World) -> None:
    before = world.readings
    world.publish("new")
    lock = world.make_lock("new")
    world.sync(changed=False)
    assert "shop/new" not in world.in_file  # the control: nobody has told
    world.users.seen(lock)
    world.users.published(Ensemble.parse(world.ensemble), world.secret("new"))
    world.sync(changed=False)
    assert "shop/new" in world.in_file
    assert all("shop/new" in users for users in world.on_nodes.values())
    assert world.readings == before


def test_a_lock_that_goes_is_cut_off_without_a_reading_of_all(world: World) -> None:
    before = world.readings
    del world.objects["DistributedLock", "shop", "orders"]
    world.users.gone("shop/orders")
    world.sync(changed=False)
    assert world.in_file == {"shop/stays"}
    assert all({*users} == {"shop/stays"} for users in world.on_nodes.values())
    assert world.readings == before


def test_what_is_told_while_a_node_is_brought_up_to_date_is_not_forgotten(world: World) -> None:
    """A lock that comes while the API server is asked about a user that nobody knows."""
    world.publish("new")
    lock, ensemble = world.make_lock("new"), Ensemble.parse(world.ensemble)
    ask = world.get

    async def asked(kind: Kind, namespace: str, name: str) -> Object | None:
        if (kind.name, name) == ("DistributedLock", "stranger"):
            world.users.seen(lock)
            world.users.published(ensemble, world.secret("new"))
            await asyncio.sleep(0)
        return await ask(kind, namespace, name)

    world.get = asked  # type: ignore[method-assign]
    world.on_nodes["0"]["shop/stranger"] = frozenset()
    world.sync(lock_users.RECHECK_SECONDS, changed=False)
    assert "shop/stranger" not in world.on_nodes["0"]
    assert "shop/new" not in world.in_file, "it came too late for this look"
    world.sync(changed=False)
    assert "shop/new" in world.in_file


def test_nobody_is_cut_off_by_hearsay(world: World) -> None:
    """The control is the test above: there it is true."""
    world.users.gone("shop/orders")
    world.users.withdrawn("shop/stays")
    world.sync(changed=False)
    assert world.in_file == {"shop/orders", "shop/stays"}
    assert all({*users} == world.in_file for users in world.on_nodes.values())
    assert "departing" not in world.users_secret["data"]


def test_who_is_not_told_reads_all_again_after_a_while(world: World) -> None:
    world.publish("new")
    world.make_lock("new")
    world.sync(lock_index.REREAD_SECONDS - 1, changed=False)
    assert "shop/new" not in world.in_file
    world.sync(2, changed=False)
    assert "shop/new" in world.in_file


def test_only_the_ensembles_of_a_lock_are_told_of_it(world: World) -> None:
    looked: list[Any] = []
    world.users = LockUsers(cast(Api, world), cast(Applier, world), PLACE, looked.append)
    world.sync()
    lock = world.make_lock()
    world.users.seen(lock)
    world.users.published(Ensemble.parse(world.ensemble), world.secret())
    assert looked == []  # all of it was known
    world.users.seen(world.make_lock(ensembleRef={"name": "other", "namespace": "store"}))
    assert {*looked} == {ensemble_key(*PLACE), ensemble_key("store", "other")}


async def test_what_is_said_during_a_reading_is_newer_than_what_it_finds() -> None:
    followed: Followed[int] = Followed()

    async def load() -> dict[str, int]:
        followed.put("changed", 2)
        followed.put("gone", None)
        followed.put("new", 1)
        return {"changed": 1, "gone": 1, "same": 1}

    await followed.read(load)
    assert dict(followed.items()) == {"changed": 2, "new": 1, "same": 1}


def test_a_lock_is_elsewhere_as_soon_as_we_write_it_there(world: World) -> None:
    """However old the reading of all ensembles' files is."""
    other = ensemble_key("store", "other")

    def elsewhere(lock: str) -> Any:
        return asyncio.run(world.users.elsewhere(lock, other))

    assert elsewhere("shop/new") is None
    before = world.readings
    world.publish("new")
    world.users.seen(world.make_lock("new"))
    world.users.published(Ensemble.parse(world.ensemble), world.secret("new"))
    world.sync(changed=False)
    assert elsewhere("shop/new") == ensemble_key(*PLACE)
    assert elsewhere("shop/never") is None
    assert asyncio.run(world.users.elsewhere("shop/new", ensemble_key(*PLACE))) is None
    assert world.readings == before  # a thousand new locks are not a thousand readings


def test_a_lock_is_elsewhere_while_nodes_are_taught_of_it(world: World) -> None:
    """Which a node that hangs makes long: deleted meanwhile, and made again on another ensemble, it
    is named here for a look all the same, and who was let in by that may lead."""
    other, said = ensemble_key("store", "other"), []
    teach = world.teach

    async def taught(node: str, life: str, least: Mapping[str, int]) -> Answered:
        for kind, name in (("DistributedLock", "new"), ("Secret", "leasekeeper-new")):
            world.objects.pop((kind, "shop", name), None)
        world.users.gone("shop/new")
        world.users.withdrawn("shop/new")
        said.append(await world.users.elsewhere("shop/new", other))
        return await teach(node, life, least)

    world.publish_at(PUBLISHED)
    world.teach = taught  # type: ignore[method-assign]
    world.sync()
    assert said == [ensemble_key(*PLACE)] * 3
    world.sync()
    assert "shop/new" not in world.in_file
    assert "shop/new" in known_locks(world.users_secret)


# -- what tokens of a new lock begin above --------------------------------------------------------

PUBLISHED = "2026-11-19T01:02:03Z"
LEAST = 1_795_050_124_000
"""The end of that second."""


def taught(world: World) -> list[int]:
    return [node.get("shop/new", 0) for node in world.taught.values()]


def test_a_new_lock_is_taught_before_anybody_lets_it_in(world: World) -> None:
    """Also agents that read ENSEMBLE-users before the operator comes to them, or instead of it."""
    world.publish_at(PUBLISHED)
    world.sync()
    assert taught(world) == [LEAST] * 3
    assert "shop/new" in world.in_file
    assert all("shop/new" in users for users in world.on_nodes.values())


@pytest.mark.parametrize("hindered", ["silent", "refusing"])
def test_a_lock_that_too_few_nodes_were_taught_is_let_in_nowhere_yet(
    world: World, hindered: str
) -> None:
    """A quorum of the others would hand out smaller tokens."""
    setattr(world, hindered, {"0", "1"})
    world.publish_at(PUBLISHED)
    world.sync()
    assert "shop/new" not in world.in_file
    assert not any("shop/new" in users for users in world.on_nodes.values())
    setattr(world, hindered, {"0"})
    world.sync(changed=False)
    assert taught(world) == [0, LEAST, LEAST]
    assert "shop/new" in world.in_file


def test_who_has_a_successor_is_not_counted_among_those_who_were_taught(world: World) -> None:
    """That one may have learnt from the others before they were taught."""
    world.silent = {"0"}
    world.vectors = {"1": {"1": 1, "2": 2}}
    world.publish_at(PUBLISHED)
    world.sync()
    assert "shop/new" not in world.in_file
    world.silent = set()
    world.sync(changed=False)
    assert "shop/new" in world.in_file


def test_a_lock_that_was_let_in_is_not_taught_again(world: World) -> None:
    """Its Secret may be a later one, and its leader have a smaller token."""
    world.publish_at(PUBLISHED, "orders")
    world.start_operator()
    for node in world.on_nodes.values():
        node.clear()
    world.sync()
    assert all("shop/orders" in users for users in world.on_nodes.values())
    assert not any(world.taught.values())


def test_what_is_below_the_floor_of_the_birth_needs_no_teaching(world: World) -> None:
    world.floor = LEAST
    world.publish_at(PUBLISHED)
    world.sync()
    assert "shop/new" in world.in_file
    assert not any(world.taught.values())
