"""Real servers, agents and sidecars under an operator that works only when it is told to.

The agents stand where the kubelet would have started them; the operator is told their ports.
`Kubelet` is as much of a kubelet as a node of an ensemble needs: it starts a server and an agent
for each new pod, and says whether they run and are ready.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from ensemble import Ensemble as RealNodes
from ensemble import EnsembleNode
from leasekeeper_operator.api import POD, Api
from leasekeeper_operator.apply import Applier
from leasekeeper_operator.ensemble import EnsembleReconciler
from leasekeeper_operator.link import Link
from leasekeeper_operator.lock import LockReconciler
from leasekeeper_operator.model import ensemble_key, lock_key
from leasekeeper_operator.queue import Queue
from redis.backoff import NoBackoff
from redis.retry import Retry

from leasekeeper.redlock.membership import Node
from tests.operator.conftest import Cluster
from tests.operator.samples import SETTINGS
from tests.sidecar.conftest import Pod

Object = dict[str, Any]
SHORT = {"leaseDurationSeconds": 4, "renewDeadlineSeconds": 3, "retryPeriodSeconds": 1}
BROKEN_IMAGE = "example.test/no-such-server:1"


class World:
    def __init__(self, cluster: Cluster, nodes: RealNodes) -> None:
        self.cluster = cluster
        self.nodes = nodes
        self.namespace = cluster.namespace()
        self.key = ensemble_key(self.namespace, "main")

    def start_operator(self, api: Api) -> None:
        """A new one, which remembers nothing."""
        self.api, queue = api, Queue()
        self.ensembles = EnsembleReconciler(
            self.api, Applier(self.api), SETTINGS, queue, resolve=self.resolve
        )
        self.locks = LockReconciler(self.api, Applier(self.api), SETTINGS, self.ensembles)

    def resolve(self, node: Node) -> tuple[str, int]:
        return "127.0.0.1", self.nodes.nodes[int(node.id)].server.port

    def keep_passwords(self) -> None:
        """The servers already run, so their passwords must be there before the operator looks: it
        makes none where there are some."""
        known = self.nodes.passwords
        literals = (f"--from-literal={u}={known.of(u)}" for u in ("agent", "peer", "operator"))
        create = ("-n", self.namespace, "create", "secret", "generic", "main-credentials")
        self.cluster.run(*create, *literals)

    def make_ensemble(self, **spec: Any) -> None:
        """As the servers are that already run."""
        self.keep_passwords()
        known = self.nodes.membership
        delay = int(known.quarantine + 1)
        self.cluster.ensemble(
            self.namespace,
            nodes=len(known.nodes),
            longestLeaseSeconds=int(known.max_ttl),
            restartPolicy={"delaySeconds": delay},
            **spec,
        )

    def mount_users(self) -> None:
        """As the kubelet does it, a minute later or when it can: agents read ENSEMBLE-users."""
        secret = self.cluster.get(self.namespace, "secret", "main-users") or {}
        self.nodes.write_users(base64.b64decode(secret["data"]["users"]).decode())

    async def until(self, true: Callable[[], Any], what: str, patience: float = 30.0) -> None:
        """Looks at the nodes as often as the operator would while somebody waits."""
        end = asyncio.get_running_loop().time() + patience
        while not true():
            if asyncio.get_running_loop().time() > end:
                raise TimeoutError(f"{what}\n{self.status()}\n{self.nodes.logs()}")
            await self.ensembles.reconcile(self.key)
            await asyncio.sleep(0.1)

    async def until_open(self, number: int) -> None:
        def opened() -> bool:
            return bool(self.status().get("openNodes") == number)

        await self.until(opened, f"{number} nodes to be open")

    async def until_updated(self, patience: float = 60.0) -> None:
        def updated() -> bool:
            return self.condition("Updated")[:2] == ("True", "UpToDate")

        await self.until(updated, "all pods to be made from the newest template", patience)

    def condition(self, kind: str) -> tuple[str, str, str]:
        """Status, reason and message; empty: not said yet."""
        found = {c["type"]: c for c in self.status().get("conditions", [])}.get(kind, {})
        return found.get("status", ""), found.get("reason", ""), found.get("message", "")

    def status(self) -> Object:
        found = self.cluster.get(self.namespace, "lens", "main") or {}
        return dict(found.get("status", {}))

    async def publish(self, name: str, made: bool = False) -> str:
        """A lock, if it is not `made` yet; its password."""
        if not made:
            self.cluster.lock(self.namespace, name, ensembleRef={"name": "main"}, **SHORT)
        await self.locks.reconcile(lock_key(self.namespace, name))
        await self.ensembles.reconcile(self.key)
        secret = self.cluster.get(self.namespace, "secret", f"leasekeeper-{name}")
        assert secret is not None
        lock = json.loads(base64.b64decode(secret["data"]["lock.json"]))
        return str(lock["redlock"]["password"])

    def may_enter(self, node: int, name: str, password: str) -> bool:
        """Whether a candidate of that lock can log in there."""
        client = redis.Redis(
            unix_socket_path=str(self.nodes.nodes[node].server.socket),
            username=f"lock:{self.namespace}/{name}",
            password=password,
            retry=Retry(NoBackoff(), 0),  # a wrong password stays one
        )
        try:
            with client:
                return bool(client.ping())
        except redis.AuthenticationError:
            return False


@contextlib.asynccontextmanager
async def three_nodes(cluster: Cluster, api: Api, quarantine: float = 4.1) -> AsyncIterator[World]:
    """And an ensemble that is declared: its nodes are born as soon as somebody looks."""
    with RealNodes(3, registry=False, max_ttl=4.0, quarantine=quarantine) as nodes:
        world = World(cluster, nodes)
        world.start_operator(api)
        world.make_ensemble()
        yield world
        await world.ensembles.close()


class Killed(Exception):
    """The operator, at some step."""


class Executioner:
    """Kills operators: each is left so many steps to live, one more than the one before. A step is
    a request to the API server or to a node; the last one is done, and nobody knows it."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        world: World,
        work: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        """`work`: what an operator does in its life; a look at the ensemble, if nothing is said."""
        self._patch = monkeypatch
        self._world = world
        self._work = work or (lambda: world.ensembles.reconcile(world.key))
        self._left = 0
        self.killed = 0
        self.lived = False
        """Whether the last one came to the end of its work."""

    async def one_more(self, lives: int) -> None:
        """An operator that remembers nothing works once, and dies in it if that takes so long."""
        self._left = lives
        with self._patch.context() as patch:
            for kind, name in ((Api, "_request"), (Link, "calls")):
                patch.setattr(kind, name, self._dying(getattr(kind, name)))
            try:
                await self._work()
            except Killed:
                self.killed += 1
            # Also if somebody on the way took its death for another failure.
            self.lived = self._left > 0
        await self._world.ensembles.close()
        self._world.start_operator(self._world.api)

    async def every_step(self) -> AsyncIterator[int]:
        """Operators that die at the first step, at the second, and so on, until one has done all
        its work: no step is left out."""
        self.lived, lives, before = False, 0, self.killed
        while not self.lived:
            lives += 1
            assert lives < 300, "its work has no end"
            await self.one_more(lives)
            yield lives
        assert self.killed - before == lives - 1 > 10, "it did not die in the middle"

    def _dying(self, original: Any) -> Any:
        async def step(*arguments: Any, **more: Any) -> Any:
            if self._left == 0:  # what runs beside the step at which it died
                raise Killed
            answer = await original(*arguments, **more)
            self._left -= 1
            if self._left == 0:
                raise Killed
            return answer

        return step


class Kubelet:
    """Of all pods of one ensemble. Looks when it is told to, like everything here."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._uids: dict[str, str] = {}
        self.most_closed = 0
        """The largest number of nodes that did not vote at the same time, from now on."""

    async def look(self) -> None:
        found = await self._world.api.find(POD, self._world.namespace)
        pods = {pod["metadata"]["labels"]["leasekeeper.dev/node"]: pod for pod in found}
        for node in self._world.nodes.nodes:
            pod = pods.get(node.id)
            uid = pod["metadata"]["uid"] if pod else ""
            if pod is None and node.id not in self._uids:
                continue  # what runs already is taken over by its first pod
            if uid != self._uids.setdefault(node.id, uid):
                node.agent.kill()
                node.server.kill()
            broken = pod is not None and pod["spec"]["containers"][0]["image"] == BROKEN_IMAGE
            if pod is not None and not broken and not node.server.running:
                node.server.start()
                node.agent.start()
            self._uids[node.id] = uid
            if pod is not None:
                await self._say(pod, broken, _votes(node))
        closed = sum(not _votes(node) for node in self._world.nodes.nodes)
        self.most_closed = max(self.most_closed, closed)

    async def _say(self, pod: Object, broken: bool, ready: bool) -> None:
        waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
        running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        state = waiting if broken else running
        status = {
            "phase": "Pending" if broken else "Running",
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [
                {
                    "name": name,
                    "image": "x",
                    "imageID": "x",
                    "ready": ready,
                    "restartCount": 0,
                    "state": state,
                }
                for name in ("server", "agent")
            ],
        }
        old = pod.get("status", {})
        if any(old.get(key) != value for key, value in status.items() if key != "conditions") or (
            [(c["type"], c["status"]) for c in old.get("conditions", [])] != [("Ready", str(ready))]
        ):
            await self._world.api.patch_status(pod, status)


def _votes(node: EnsembleNode) -> bool:
    """A server that is gone is not asked: the client would try for seconds."""
    return node.server.running and node.open


def candidate(world: World, home: Path, lock: str, password: str, name: str = "pod-0") -> Pod:
    """A real sidecar of a published lock, not started yet. In its lock.json stands where the
    servers really are."""
    return Pod(home / name, name, mount_lock(world, home, lock, password))


def mount_lock(world: World, home: Path, lock: str, password: str) -> Path:
    """Its lock.json, put there as the kubelet does it: another file in the place of the last."""
    config = home / f"{lock}.json"
    aside = config.with_suffix(".new")
    aside.write_text(
        json.dumps(
            {
                "version": 1,
                "lock": f"{world.namespace}/{lock}",
                "store": "redlock",
                "timings": SHORT,
                "redlock": {
                    "membership": world.nodes.membership.to_json(),
                    "username": f"lock:{world.namespace}/{lock}",
                    "password": password,
                },
            }
        )
    )
    return aside.replace(config)
