"""A changed ensemble is rolled one node at a time, while the leader leads.

The StatefulSet and the disruption controller are Kubernetes' own; servers, agents and the sidecar
are real; only the kubelet is ours (real_world.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ensemble import Ensemble as RealNodes
from leasekeeper_operator.api import POD, Api
from leasekeeper_operator.rolling import NodePod, Roll, decide

from tests.operator.conftest import Cluster
from tests.operator.real_world import BROKEN_IMAGE, Executioner, Kubelet, World, candidate
from tests.sidecar.conftest import Pod, Watcher

Object = dict[str, Any]


class Rolling:
    """An ensemble of three open nodes, and a sidecar that leads."""

    def __init__(self, world: World, kubelet: Kubelet, leader: Pod) -> None:
        self.world = world
        self.kubelet = kubelet
        self.leader = leader

    async def step(self) -> None:
        await self.kubelet.look()
        await self.world.ensembles.reconcile(self.world.key)

    async def until(self, true: Callable[[], Any], what: str, patience: float = 240.0) -> None:
        """Longer than the two minutes for which Kubernetes counts a pod as disrupted that was to be
        evicted and was not, because whoever asked was cut off in the middle."""
        end = asyncio.get_running_loop().time() + patience
        while not true():
            if asyncio.get_running_loop().time() > end:
                raise TimeoutError(f"{what}\n{self.world.status()}\n{self.world.nodes.logs()}")
            await self.step()
            await asyncio.sleep(0.1)

    def change(self, **spec: Any) -> None:
        self.world.cluster.patch(self.world.namespace, "lens", "main", {"spec": spec})

    async def until_rolled(self) -> None:
        def rolled() -> bool:
            status = self.world.status()
            found = self.world.cluster.get(self.world.namespace, "lens", "main") or {}
            return bool(
                status.get("observedGeneration") == found["metadata"]["generation"]
                and self.world.condition("Updated")[0] == "True"
                and status.get("openNodes") == 3
            )

        await self.until(rolled, "the change to be rolled out")

    async def pods(self) -> dict[str, Object]:
        found = await self.world.api.find(POD, self.world.namespace)
        return {pod["metadata"]["labels"]["leasekeeper.dev/node"]: pod for pod in found}

    async def uids(self) -> dict[str, str]:
        return {node: pod["metadata"]["uid"] for node, pod in (await self.pods()).items()}


@pytest.fixture(scope="module")
def world(managed: Cluster) -> Iterator[World]:
    with RealNodes(3, registry=False, max_ttl=4.0, quarantine=4.1) as nodes:
        world = World(managed, nodes)
        world.make_ensemble()
        yield world


@pytest.fixture(scope="module")
def kubelet(world: World) -> Kubelet:
    return Kubelet(world)


@pytest.fixture
async def rolling(
    world: World, kubelet: Kubelet, managed_api: Api, tmp_path: Path
) -> AsyncIterator[Rolling]:
    world.start_operator(managed_api)
    password = await world.publish("orders")
    leader = candidate(world, tmp_path, "orders", password).start()
    made = Rolling(world, kubelet, leader)
    try:
        await made.until_rolled()
        await made.until(lambda: leader.path.exists() and leader.leads, "a leader")
        kubelet.most_closed = 0
        yield made
    finally:
        leader.terminate()
        await world.ensembles.close()


async def test_a_bad_change_stalls_at_one_node_says_why_and_can_be_taken_back(
    rolling: Rolling,
) -> None:
    good = (rolling.world.cluster.get(rolling.world.namespace, "lens", "main") or {})["spec"]
    token = rolling.leader.said()["token"]
    rolling.change(image=BROKEN_IMAGE)
    await rolling.until(lambda: rolling.world.condition("Updated")[1] == "Stalled", "a stall")
    for _ in range(5):
        await rolling.step()
    images = [pod["spec"]["containers"][0]["image"] for pod in (await rolling.pods()).values()]
    assert sorted(images) == sorted([BROKEN_IMAGE, good["image"], good["image"]])
    message = rolling.world.condition("Updated")[2]
    assert message == (
        "1 of 3 nodes; node 0: container server: ImagePullBackOff: no such image. The other nodes"
        " are not touched and go on voting. Correct the spec"
    )
    assert rolling.world.condition("QuorumAvailable")[0] == "True"
    assert rolling.leader.leads
    rolling.change(image=good["image"])
    await rolling.until_rolled()
    assert rolling.kubelet.most_closed == 1
    assert rolling.leader.said()["token"] == token


async def test_what_the_api_server_refuses_is_said_and_the_rest_goes_on(rolling: Rolling) -> None:
    before = await rolling.uids()
    rolling.change(affinity={"nodeAffinity": "everywhere"})
    await rolling.until(lambda: rolling.world.condition("Updated")[1] == "Refused", "a refusal")
    message = rolling.world.condition("Updated")[2]
    assert message.startswith("it cannot be carried out, correct the spec: StatefulSet main-0: ")
    assert rolling.world.condition("Ready")[0] == "True"
    assert await rolling.uids() == before
    await rolling.world.publish("later")  # users of new locks are still told
    rolling.change(affinity=None)
    await rolling.until(lambda: rolling.world.condition("Updated")[0] == "True", "the end of it")


async def test_a_rollout_restart_by_hand_is_rolled_as_carefully(rolling: Rolling) -> None:
    before = await rolling.uids()
    restart = ("rollout", "restart", "statefulset/main-1")
    rolling.world.cluster.run("-n", rolling.world.namespace, *restart)
    rolling.world.ensembles.objects_changed(rolling.world.key)  # as the watch would
    await rolling.until(
        lambda: rolling.world.condition("Updated")[0] == "False", "the restart to be seen"
    )
    await rolling.until_rolled()
    assert [n for n, uid in (await rolling.uids()).items() if uid != before[n]] == ["1"]
    assert rolling.kubelet.most_closed == 1


async def test_a_change_is_rolled_one_node_at_a_time_by_operators_killed_at_every_step(
    rolling: Rolling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All the time one pod leads, with one token."""
    before, token = await rolling.uids(), rolling.leader.said()["token"]
    executioner = Executioner(monkeypatch, rolling.world)
    with Watcher([rolling.leader]) as watcher:
        rolling.change(podAnnotations={"team": "till"})
        # For each node that is replaced, and for the looks in between: all steps, one by one.
        for _ in range(3):
            async for _ in executioner.every_step():
                await rolling.kubelet.look()
        await rolling.until_rolled()
        assert rolling.leader.leads
    watcher.check()
    assert watcher.tenures == [("pod-0", token)]
    pods = await rolling.pods()
    assert {pod["metadata"]["annotations"]["team"] for pod in pods.values()} == {"till"}
    assert not {*before.values()} & {pod["metadata"]["uid"] for pod in pods.values()}
    assert rolling.kubelet.most_closed == 1
    assert rolling.world.status()["updatedNodes"] == 3
    assert rolling.world.status()["registry"]["generation"] == 1  # and no total loss
    events = rolling.world.cluster.run("-n", rolling.world.namespace, "get", "events")
    assert {"NodeReplaced", "NodeLost", "NodeOpen", "Born"} <= {*events.split()}


async def test_a_change_that_is_changed_in_the_middle_ends_as_it_was_last_said(
    rolling: Rolling,
) -> None:
    """Also a node that has the first change already gets the second one."""
    token = rolling.leader.said()["token"]
    before = await rolling.uids()
    with Watcher([rolling.leader]) as watcher:
        rolling.change(podAnnotations={"edit": "first"})
        changed = 0
        while changed != 1:
            await rolling.step()
            changed = sum(uid != before.get(n) for n, uid in (await rolling.uids()).items())
        rolling.change(podAnnotations={"edit": "second"})
        await rolling.until_rolled()
    watcher.check()
    assert watcher.tenures == [("pod-0", token)]
    pods = (await rolling.pods()).values()
    assert [pod["metadata"]["annotations"]["edit"] for pod in pods] == ["second"] * 3
    assert rolling.kubelet.most_closed == 1


async def test_two_operators_by_mistake_do_not_replace_two_nodes(rolling: Rolling) -> None:
    """Both see three open nodes; the disruption budget lets one of them evict."""
    other = World.__new__(World)
    other.__dict__.update(rolling.world.__dict__)
    other.start_operator(rolling.world.api)
    before = await rolling.uids()
    rolling.change(podAnnotations={"round": "2"})

    def both() -> Any:
        operators = (rolling.world.ensembles, other.ensembles)
        work = [operator.reconcile(rolling.world.key) for operator in operators]
        return asyncio.gather(*work, return_exceptions=True)

    while await rolling.uids() == before:
        await both()
    while rolling.world.status()["openNodes"] < 3 or rolling.kubelet.most_closed == 0:
        await rolling.kubelet.look()
        await both()
    await other.ensembles.close()
    assert rolling.kubelet.most_closed == 1
    assert rolling.leader.leads


# -- the decision alone ----------------------------------------------------------------------------


def pod(uid: str = "u") -> Object:
    return {"metadata": {"uid": uid}}


def node(number: int, **facts: Any) -> NodePod:
    return NodePod(node=str(number), **{"open": True, "pod": pod(), **facts})


def rolled(*nodes: NodePod) -> tuple[str, str | None, list[str]]:
    roll: Roll = decide(nodes)
    evicted = roll.evict.node if roll.evict else None
    return roll.condition.reason, evicted, [n.node for n in roll.delete]


def test_nothing_to_do() -> None:
    assert rolled(node(0), node(1), node(2)) == ("UpToDate", None, [])


def test_one_goes_while_all_others_are_open() -> None:
    old = {"outdated": True}
    assert rolled(node(0, **old), node(1, **old), node(2)) == ("Rolling", "0", [])


@pytest.mark.parametrize(
    "other", [{"open": False}, {"open": False, "pod": None}, {"open": False, "leaving": True}]
)
def test_nobody_goes_while_another_one_is_not_open(other: Object) -> None:
    assert rolled(node(0, outdated=True), node(1, **other), node(2)) == (
        "WaitingForNodes",
        None,
        [],
    )


def test_one_that_does_not_vote_goes_first() -> None:
    nodes = (node(0, outdated=True), node(1, outdated=True, open=False), node(2))
    assert rolled(*nodes) == ("Rolling", "1", [])


def test_two_that_do_not_vote_are_not_touched() -> None:
    nodes = [node(i, outdated=True, open=i == 2) for i in range(3)]
    assert rolled(*nodes) == ("WaitingForNodes", None, [])


def test_pods_without_a_memory_are_replaced_at_once() -> None:
    """An ensemble that was made with a wrong image would else wait for itself for ever."""
    nodes = [node(i, outdated=True, open=False, empty=True) for i in range(3)]
    assert rolled(*nodes) == ("Rolling", None, ["0", "1", "2"])


def test_a_node_that_a_holder_needs_is_waited_for() -> None:
    """Found by the test above: with three nodes, the second was replaced before the leader had put
    its entry on the first again, and the leader was deposed."""
    nodes = (node(0), node(1, outdated=True, needed_by="shop/orders"), node(2))
    assert rolled(*nodes) == ("WaitingForNodes", None, [])


def test_an_eviction_that_the_budget_refuses_is_said() -> None:
    roll = decide([node(0, outdated=True), node(1), node(2)]).refused("429: not now")
    assert (roll.done, roll.evict, roll.updated) == (False, None, 2)
    assert roll.condition.message == "2 nodes are; node 0 may not go yet: 429: not now"


def test_a_template_that_its_controller_has_not_seen_is_waited_for() -> None:
    """The pod that would come would be made from the old one."""
    nodes = (node(0, outdated=True), node(1, known=False), node(2))
    assert rolled(*nodes) == ("Rolling", None, [])


def test_a_first_start_that_cannot_be_says_why() -> None:
    """Seen on a real cluster: pods without an image were called up to date, and the only sentence
    was that they do not answer."""
    nodes = [node(i, open=False, trouble="container server: ErrImagePull") for i in range(3)]
    roll = decide(nodes)
    assert (roll.condition.holds, roll.condition.reason) == (False, "Stalled")
    assert "node 0: container server: ErrImagePull" in roll.condition.message
