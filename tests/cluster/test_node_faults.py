"""3. Nodes of the ensemble fail: a minority is no matter, a majority costs the leader, never more.

Each time the token goes on growing, and a node that lost its memory does not vote before its
quarantine is over.
"""

from __future__ import annotations

import signal

import pytest

from tests.cluster.client import Client, condition, until
from tests.cluster.faults import Faults, machine_of, name_of, pause
from tests.cluster.installation import ENSEMBLE, QUARANTINE, SYSTEM, Installation
from tests.cluster.recorder import Recorder
from tests.cluster.workload import DEADLINE, LEASE, PATIENCE, Tenure, Workload


def test_a_node_whose_pod_is_deleted_votes_only_after_its_quarantine(
    shop: Workload, faults: Faults, installation: Installation, recorder: Recorder
) -> None:
    leader = shop.settle()
    first = installation.agent(0)
    assert first is not None
    assert first["open"] is True
    faults.delete(installation.node(0))
    after = installation.open_again(0, first)
    assert after["incarnation"] > first["incarnation"]
    waited = installation.logged(0, "open") - installation.logged(0, "life-begun")
    recorder.measured("quarantine of a node whose pod was deleted", waited, "s")
    assert waited >= QUARANTINE
    assert shop.leads_still(leader)
    assert shop.is_leader(leader.holder) == leader.token
    installation.wait_until_open()


@pytest.mark.parametrize("how", ["killed", "emptied"])
@pytest.mark.long
def test_a_node_that_lost_its_memory_in_place_is_quarantined_too(
    shop: Workload, faults: Faults, installation: Installation, recorder: Recorder, how: str
) -> None:
    """The kubelet starts a killed container again in its pod, and FLUSHALL does not even end the
    process: neither may vote as if nothing had been."""
    leader = shop.settle()
    first = installation.agent(1)
    assert first is not None
    if how == "killed":
        faults.kill(installation.node(1), "server")
    else:
        recorder.moment(f"memory of {ENSEMBLE}-1-0 emptied (FLUSHALL)")
        assert installation.command(1, "FLUSHALL").strip() == "OK"
    after = installation.open_again(1, first)
    assert after["incarnation"] > first["incarnation"]
    waited = installation.logged(1, "open") - installation.logged(1, "life-begun")
    recorder.measured(f"quarantine of a node that was {how}", waited, "s")
    assert waited >= QUARANTINE
    assert shop.leads_still(leader)
    installation.wait_until_open()


@pytest.mark.long
def test_a_killed_agent_costs_nothing(
    shop: Workload, faults: Faults, installation: Installation
) -> None:
    """Its server keeps its memory: the node is the same one when the next agent has registered."""
    leader = shop.settle()
    first = installation.agent(2)
    assert first is not None
    faults.kill(installation.node(2), "agent")

    def back() -> bool:
        found = installation.agent(2)
        return found is not None and bool(found["open"])

    until("the node is open", back, seconds=PATIENCE, every=0.5)
    after = installation.agent(2)
    assert after is not None
    assert (after["life"], after["incarnation"]) == (first["life"], first["incarnation"])
    assert shop.leads_still(leader)
    installation.wait_until_open()


@pytest.mark.long
def test_a_minority_cut_off_is_no_matter(
    shop: Workload, faults: Faults, installation: Installation
) -> None:
    leader = shop.settle()
    with faults.pods_cut_off(installation.nodes()[:2], "server"):
        pause(2 * LEASE)
        assert shop.leads_still(leader)
        deleted = faults.delete(shop.pod(leader.holder))
        done = shop.next_leader(leader, deleted, "pod deleted, two nodes cut off")
        until("the operator sees it", lambda: installation.status()["openNodes"] == 3)
    assert shop.settle().token == done.new.token
    installation.wait_until_open()


@pytest.mark.long
def test_a_majority_cut_off_costs_the_leader_until_it_is_back(
    client: Client, shop: Workload, faults: Faults, installation: Installation
) -> None:
    old = shop.settle()
    with faults.pods_cut_off(installation.nodes()[:3], "server") as since:
        until("nobody leads", lambda: shop.leader() is None, seconds=PATIENCE)
        until(
            "the lock says why",
            lambda: condition(client.get(shop.namespace, "dlock", "orders"), "Ready") == "False",
        )
        (ready,) = [c for c in shop.status()["conditions"] if c["type"] == "Ready"]
        assert "only 2 of 5 nodes vote, but 3 are needed" in ready["message"]
        pause(LEASE)
        assert shop.leader() is None
    done = shop.next_leader(old, since, "three of five nodes cut off, and healed")
    assert done.gap > LEASE - DEADLINE
    installation.wait_until_open()


@pytest.mark.long
def test_a_force_deleted_node_whose_old_server_still_answers(
    client: Client, shop: Workload, faults: Faults, installation: Installation
) -> None:
    """Its kubelet stands still, so nobody ends it; the user is impatient. Two servers have the same
    name, and candidates have connections to the old one."""
    leader = shop.settle()
    old = installation.node(3)
    first = installation.agent(3)
    assert first is not None
    machine = machine_of(old)
    client.kubectl("cordon", machine)
    try:
        with faults.components_frozen(f"{machine}.kubelet"):
            faults.delete(old, "--force", "--grace-period=0")
            until("a new pod of the node", lambda: _replaced(installation, old), seconds=PATIENCE)
            after = installation.open_again(3, first)
            assert after["incarnation"] > first["incarnation"]
            assert faults.pids(old, "server"), "the old server runs on"
            assert shop.leads_still(leader)
            stopped = faults.kill(shop.pod(leader.holder), "leasekeeper", signal.SIGTERM)
            shop.next_leader(leader, stopped, "sidecar told to stop, a node twice there")
    finally:
        client.kubectl("uncordon", machine)
    shop.settle()
    installation.wait_until_open()


def _replaced(installation: Installation, old: dict[str, object]) -> bool:
    names = {name_of(pod): pod["metadata"]["uid"] for pod in installation.nodes()}
    metadata = old["metadata"]
    return metadata["uid"] not in names.values() and metadata["name"] in names  # type: ignore[index]


@pytest.mark.long
def test_all_nodes_killed_at_once(
    client: Client, shop: Workload, faults: Faults, installation: Installation
) -> None:
    """A total loss of memory. The operator remembers the birth: tokens go on above the old ones."""
    old = shop.settle()
    births = installation.status()["registry"]["generation"]
    since = min(faults.kill(pod, "server") for pod in installation.nodes())
    done = shop.next_leader(old, since, "all five nodes killed", seconds=QUARANTINE + 2 * PATIENCE)
    assert done.gap >= LEASE - DEADLINE
    status = installation.status()
    assert status["registry"]["generation"] == births + 1
    (born,) = [c for c in status["conditions"] if c["type"] == "Born"]
    assert born["reason"] == "Reborn"
    installation.wait_until_open()
    until("the status names the new holder", lambda: shop.mirrored(_now(shop)))


def _now(shop: Workload) -> Tenure:
    return until("a pod leads", shop.leader)


@pytest.mark.long
def test_the_operator_may_be_away(
    client: Client, shop: Workload, faults: Faults, recorder: Recorder
) -> None:
    """It is in the path of no renewal and of no hand-over."""
    old = shop.settle()
    deployment = ("-n", SYSTEM, "deployment/leasekeeper-operator")
    (count,) = client.kubectl("get", *deployment, "-o", "jsonpath={.spec.replicas}").split()
    try:
        with recorder.fault("no operator"):
            client.kubectl("scale", *deployment, "--replicas=0")
            pause(2 * LEASE)
            assert shop.leads_still(old)
            stopped = faults.kill(shop.pod(old.holder), "leasekeeper", signal.SIGTERM)
            shop.next_leader(old, stopped, "sidecar told to stop, no operator")
    finally:
        client.kubectl("scale", *deployment, f"--replicas={count}")
        client.kubectl("rollout", "status", *deployment, "--timeout=120s", seconds=150)
