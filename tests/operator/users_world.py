"""LockUsers of one ensemble: the API server, the nodes and the clock are played here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from leasekeeper_operator.api import Api, Kind
from leasekeeper_operator.apply import Applier
from leasekeeper_operator.link import NodeError
from leasekeeper_operator.lock_users import LockUsers
from leasekeeper_operator.manifests.ensemble import edition_in, parse_users
from leasekeeper_operator.manifests.lock import lock_secret
from leasekeeper_operator.model import Ensemble, Lock
from leasekeeper_operator.nodes import (
    Answered,
    NewUser,
    Nodes,
    Sight,
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


def published_world() -> World:
    """Two locks, of which the nodes know."""
    world = World()
    world.publish()
    world.publish("stays")
    world.sync()
    assert world.in_file == {"shop/orders", "shop/stays"}
    return world
