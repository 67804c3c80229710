"""How much the operator asks of the API server and of nodes: counted, not timed.

With a thousand locks each request more for a lock is a second of a start, and each list of all
locks is a tenth of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from leasekeeper_operator.api import Api
from leasekeeper_operator.link import Link
from leasekeeper_operator.model import Key, lock_key
from leasekeeper_operator.queue import Queue
from leasekeeper_operator.watches import Watches

from tests.operator.conftest import Cluster
from tests.operator.real_world import SHORT, World, three_nodes

Object = dict[str, Any]
LOOK = "FCALL lk1_state + FCALL lk1_entries"
"""One round trip."""


@pytest.fixture
async def world(managed: Cluster, managed_api: Api) -> AsyncIterator[World]:
    """Three open nodes."""
    async with three_nodes(managed, managed_api) as world:
        await world.until_open(3)
        await world.until(lambda: world.condition("Updated")[0] == "True", "the last pod is known")
        yield world


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch, world: World) -> Iterator[Counter[str]]:
    """Requests to the API server, and calls of nodes by their command. Not those about ensembles
    that other tests left in their namespaces.
    """
    count: Counter[str] = Counter()
    request, calls = Api._request, Link.calls

    async def counting_request(self: Api, method: str, path: str, *rest: Any) -> Any:
        parts = path.split("/")
        plural = parts[parts.index("namespaces") + 2] if "namespaces" in parts else parts[-1]
        single = len(parts) > parts.index(plural) + 1
        if "namespaces" not in parts or world.namespace in parts:
            count[f"{method if single or method != 'GET' else 'LIST'} {plural}"] += 1
        return await request(self, method, path, *rest)

    async def counting_calls(self: Link, *commands: Sequence[str]) -> Any:
        count[" + ".join(" ".join(command[:2]) for command in commands)] += 1
        return await calls(self, *commands)

    with monkeypatch.context() as patch:
        patch.setattr(Api, "_request", counting_request)
        patch.setattr(Link, "calls", counting_calls)
        yield count


def declare(world: World, number: int) -> list[Key]:
    locks = [f"lock-{i}" for i in range(number)]
    for name in locks:
        world.cluster.lock(world.namespace, name, ensembleRef={"name": "main"}, **SHORT)
    return [lock_key(world.namespace, name) for name in locks]


@pytest.mark.parametrize("number", [3, 9])
async def test_new_locks_cost_five_requests_each_and_nothing_that_grows_faster(
    world: World, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    keys = declare(world, number)
    with counted(monkeypatch, world) as count:
        for key in keys:
            await world.locks.reconcile(key)
        lists = {what: count.pop(what) for what in [*count] if what.startswith("LIST")}
        assert count == {
            "GET distributedlocks": number,
            "POST secrets": number,
            "POST roles": number,
            "POST rolebindings": number,
            "PATCH distributedlocks": number,
        }
        # Who is where is read once a second, for all that come in it.
        assert {*lists} == {"LIST lockensembles", "LIST secrets"}
    with counted(monkeypatch, world) as count:
        await world.ensembles.reconcile(world.key)
        assert count.pop(" + ".join(["ACL SETUSER"] * number)) == 3
        # All are told together, whatever their number: none is listed or read.
        assert count == {
            "FCALL lk1_learn": 3,
            "GET lockensembles": 1,
            "GET secrets": 1,
            "PATCH secrets": 1,
            LOOK: 3,
            "ACL LIST": 3,
        }


async def test_locks_that_come_in_a_crowd_are_looked_for_the_less_often_the_more_wait(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def add(queue: Queue, key: Key, after: float = 0.0) -> None:
        if key == world.key:
            pauses.append(after)

    monkeypatch.setattr(Queue, "add", add)
    monkeypatch.setattr(world.ensembles, "_now", lambda: 0.0)  # the clock stands
    for waiting, key in zip((0, 500), declare(world, 2), strict=True):
        monkeypatch.setattr(Queue, "depth", waiting)
        await world.ensembles.reconcile(world.key)
        await world.locks.reconcile(key)
    assert [*dict.fromkeys(pauses)] == [1.0, 3.0]


async def test_a_look_at_rest_is_one_call_of_each_node(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the control: until the watch has shown that it sees the LockEnsemble, that is read."""
    for key in declare(world, 3):
        await world.locks.reconcile(key)
    await world.ensembles.reconcile(world.key)
    for count in await looks(world, monkeypatch):
        assert count == {"GET lockensembles": 1, LOOK: 3}
    show_ensemble(world)
    for count in await looks(world, monkeypatch):
        assert count == {LOOK: 3}


async def test_a_new_operator_rests_as_well(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its watch shows the LockEnsemble before its first look, and never again."""
    await world.ensembles.close()
    world.start_operator(world.api)
    show_ensemble(world)
    await world.ensembles.reconcile(world.key)
    await world.ensembles.reconcile(world.key)
    for count in await looks(world, monkeypatch):
        assert count == {LOOK: 3}


async def looks(world: World, monkeypatch: pytest.MonkeyPatch) -> list[Counter[str]]:
    counts = []
    for _ in range(3):
        with counted(monkeypatch, world) as count:
            assert await world.ensembles.reconcile(world.key) == 5.0
            counts.append(count)
    return counts


def show_ensemble(world: World) -> None:
    """As the watch would."""
    found = world.cluster.get(world.namespace, "lens", "main") or {}
    world.ensembles.shown(world.key, found["metadata"]["resourceVersion"])


async def test_what_happens_while_all_rests_is_seen_by_the_next_look(world: World) -> None:
    """Of the nodes, of the locks, of the spec and of what belongs to the ensemble."""

    async def rest() -> None:
        await world.until_open(3)
        await world.until_updated()
        for _ in range(2):
            await world.ensembles.reconcile(world.key)
            show_ensemble(world)

    await rest()
    world.nodes.nodes[0].server.pause()
    await world.ensembles.reconcile(world.key)
    assert world.status()["openNodes"] == 2
    world.nodes.nodes[0].server.resume()
    await rest()
    password = await world.publish("orders")
    assert all(world.may_enter(node, "orders", password) for node in range(3))
    await rest()
    world.cluster.run("-n", world.namespace, "delete", "service", "main-1")
    world.ensembles.objects_changed(world.key)
    await world.ensembles.reconcile(world.key)
    assert world.cluster.get(world.namespace, "service", "main-1")
    await rest()
    body = {"spec": {"allowedNamespaces": ["elsewhere"]}}
    changed = world.cluster.patch(world.namespace, "lens", "main", body)
    show_ensemble(world)
    await world.ensembles.reconcile(world.key)
    assert world.status()["observedGeneration"] == changed["metadata"]["generation"]


async def test_what_we_wrote_ourselves_is_not_looked_at_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the control: what somebody else wrote to the same objects is."""
    (key,) = declare(world, 1)
    watches = Watches(Queue(), world.ensembles, world.locks)
    await world.locks.reconcile(key)
    await world.ensembles.reconcile(world.key)
    await world.ensembles.reconcile(world.key)
    added: list[Key] = []
    monkeypatch.setattr(Queue, "add", lambda _, key, after=0.0: added.append(key))
    shown = {
        ("dlock", key.name): watches.lock_event,
        ("secret", f"leasekeeper-{key.name}"): watches.owned_event,
        ("lens", "main"): watches.ensemble_event,
        ("secret", "main-users"): watches.owned_event,
        ("secret", "main-server"): watches.owned_event,
        ("sts", "main-0"): watches.owned_event,
    }

    def show() -> set[Key]:
        added.clear()
        for (kind, name), tell in shown.items():
            found = world.cluster.get(world.namespace, kind, name)
            assert found is not None, f"{kind} {name}"
            tell(found)
        return {*added}

    assert show() == set()
    annotation = {"metadata": {"annotations": {"example.test/by": "somebody"}}}
    for kind, name in shown:
        concerned = key if key.name in name else world.key
        world.cluster.patch(world.namespace, kind, name, annotation)
        assert show() == {concerned}, f"{kind} {name}"
        await world.locks.reconcile(key)
        await world.ensembles.reconcile(world.key)
        assert show() == set(), f"{kind} {name}, looked at"


async def test_a_change_that_came_between_our_reading_and_our_writing_is_no_echo(
    world: World,
) -> None:
    """Between our reading of a lock and our writing of its status somebody changes its spec: the
    answer to our patch has that already, and our own event must not be taken for an echo."""
    (key,) = declare(world, 1)
    patch_status = world.api.patch_status

    async def late(obj: Object, status: Object) -> Object:
        body = {"spec": {"serviceAccountNames": ["other"]}}
        world.cluster.patch(world.namespace, "dlock", key.name, body)
        return await patch_status(obj, status)

    world.api.patch_status = late  # type: ignore[method-assign]
    try:
        await world.locks.reconcile(key)
    finally:
        world.api.patch_status = patch_status  # type: ignore[method-assign]
    found = world.cluster.get(world.namespace, "dlock", key.name) or {}
    assert not world.locks.knows(key, found["metadata"]["resourceVersion"])
    await world.locks.reconcile(key)
    found = world.cluster.get(world.namespace, "dlock", key.name) or {}
    assert world.locks.knows(key, found["metadata"]["resourceVersion"])
