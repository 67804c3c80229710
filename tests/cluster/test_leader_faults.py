"""2. The leader's pod, its sidecar or its machine fails: who leads next, and how soon.

Each time: the next token is larger, and by the reader's rule the old one's file says no before the
new one's says yes (the watcher fails the scenario otherwise).
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping

import pytest

from tests.cluster.client import Client, condition, until
from tests.cluster.faults import Faults, machine_of, name_of, pause
from tests.cluster.installation import Installation
from tests.cluster.recorder import Recorder
from tests.cluster.workload import DEADLINE, LEASE, PATIENCE, Workload


def test_its_pod_is_deleted(shop: Workload, faults: Faults) -> None:
    old = shop.settle()
    deleted = faults.delete(shop.pod(old.holder))
    done = shop.next_leader(old, deleted, "pod deleted")
    assert done.new.holder != old.holder
    assert done.released, "and not waited for"
    until("the status names the new holder", lambda: shop.mirrored(done.new))


def test_its_sidecar_is_frozen_past_the_lease(shop: Workload, faults: Faults) -> None:
    """Its file cannot change any more, and ceases to be true by itself."""
    old = shop.settle()
    frozen = shop.pod(old.holder)
    with faults.frozen(frozen, "leasekeeper") as since:
        done = shop.next_leader(old, since, "sidecar frozen")
        assert done.new.holder != old.holder
        # Nodes keep the entry for the whole lease, and the file says no before.
        assert done.gap >= LEASE - DEADLINE
        assert shop.is_leader(old.holder) is None
        assert _file_says_leader(shop, old.holder), "it is the reader who knows better"
    until("the thawed sidecar is a standby", lambda: not _file_says_leader(shop, old.holder))
    pause(2 * TURN)
    assert shop.leads_still(done.new), "a sidecar that wakes up takes nothing back"


TURN = 1.0  # the retry period of the workload


def _file_says_leader(shop: Workload, pod: str) -> bool:
    """What the sidecar wrote last, whether it is still true or not."""
    show = ("exec", pod, "-c", "app", "--", "cat", "/var/run/lock/leader")
    return json.loads(shop.client.kubectl("-n", shop.namespace, *show))["leader"] is True


def test_its_sidecar_is_killed_and_goes_on_as_the_same_holder(
    shop: Workload, faults: Faults, recorder: Recorder
) -> None:
    """Its successor finds lease and token on its volume. If kubelet and Python take longer than the
    deadline to start it, on a busy machine, it says so, and another pod leads."""
    old = shop.settle()
    pod = shop.pod(old.holder)
    restarts = _restarts(pod)
    killed = faults.kill(pod, "leasekeeper")

    def first_line() -> str | None:
        if _restarts(shop.pod(old.holder)) == restarts:
            return None
        logs = ("-n", shop.namespace, "logs", old.holder, "-c", "leasekeeper")
        line, whole, _ = shop.client.run("kubectl", *logs).stdout.partition("\n")
        return line if whole else None

    said = until("the sidecar is back", first_line, seconds=PATIENCE, every=0.05)
    back = time.clock_gettime(time.CLOCK_BOOTTIME) - killed
    if said.startswith("resuming "):
        pause(2 * TURN)
        assert shop.leads_still(old), "the file was true all the time"
        assert shop.is_leader(old.holder) == old.token
        recorder.measured("same holder, same token; sidecar back after", back, "s")
    else:
        assert said.startswith("started ")
        assert "the earlier lease has run out" in said, "nothing else may keep it from going on"
        shop.next_leader(old, killed, "sidecar killed, and back too late to go on")


def _restarts(pod: dict[str, object]) -> int:
    statuses = pod["status"]["initContainerStatuses"]  # type: ignore[index]
    (sidecar,) = [one for one in statuses if one["name"] == "leasekeeper"]
    return int(sidecar["restartCount"])


def test_its_sidecar_is_told_to_stop(shop: Workload, faults: Faults) -> None:
    old = shop.settle()
    stopped = faults.kill(shop.pod(old.holder), "leasekeeper", signal.SIGTERM)
    done = shop.next_leader(old, stopped, "sidecar told to stop (SIGTERM)")
    assert done.released


def test_it_is_asked_to_step_down(shop: Workload, recorder: Recorder) -> None:
    """By a wish that names the tenure, and not the pod: asked twice, it ends no later one."""
    old = shop.settle()
    wish = {"stepDown": {"token": old.token, "seconds": 1}}
    asked = recorder.moment(f"kubectl patch dlock orders: {json.dumps(wish)}")
    _wish(shop, wish)
    done = shop.next_leader(old, asked, "asked to step down")
    assert done.new.holder != old.holder
    # Its app is given its time to stop, and the lease is not waited for.
    assert done.gap < LEASE
    _wish(shop, wish)
    pause(2 * TURN)
    assert shop.leads_still(done.new)


@pytest.mark.long
def test_a_paused_lock_has_no_leader_until_it_is_resumed(
    shop: Workload, recorder: Recorder
) -> None:
    old = shop.settle()
    with recorder.fault("the lock is paused") as since:
        _wish(shop, {"paused": True})
        until("nobody leads", lambda: shop.leader() is None, seconds=PATIENCE)
        pause(2 * LEASE)
        assert shop.leader() is None
        _wish(shop, {"paused": False})
    shop.next_leader(old, since, "paused, and resumed", seconds=PATIENCE)
    shop.settle()


def _wish(shop: Workload, spec: Mapping[str, object]) -> None:
    patch = ("patch", "dlock", "orders", "--type=merge", "-p", json.dumps({"spec": spec}))
    shop.client.kubectl("-n", shop.namespace, *patch)


@pytest.mark.long
def test_its_pod_is_evicted(client: Client, shop: Workload, recorder: Recorder) -> None:
    old = shop.settle()
    path = f"/api/v1/namespaces/{shop.namespace}/pods/{old.holder}/eviction"
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": old.holder, "namespace": shop.namespace},
    }
    evicted = recorder.moment(f"{old.holder} evicted")
    client.kubectl("create", "--raw", path, "-f", "-", given=json.dumps(eviction))
    done = shop.next_leader(old, evicted, "pod evicted")
    assert done.new.holder != old.holder
    assert done.released


@pytest.mark.long
def test_its_pod_is_force_deleted(shop: Workload, faults: Faults) -> None:
    """Gone from the API at once, while its processes may still run: what the API says is nobody's
    reason to lead."""
    old = shop.settle()
    deleted = faults.delete(shop.pod(old.holder), "--force", "--grace-period=0")
    done = shop.next_leader(old, deleted, "pod force-deleted")
    assert done.new.holder != old.holder


@pytest.fixture
def lead_from_the_smaller_machine(shop: Workload, installation: Installation) -> str:
    """The leader is on the machine with fewer nodes of the ensemble: the other has a quorum."""
    machines = [machine_of(node) for node in installation.nodes()]
    smaller = min(set(machines), key=machines.count)

    def there() -> bool:
        leader = shop.settle()
        pod = shop.pod(leader.holder)
        if machine_of(pod) == smaller:
            return True
        shop.client.kubectl("-n", shop.namespace, "delete", "pod", name_of(pod))
        return False

    until(f"a pod on {smaller} leads", there, seconds=2 * PATIENCE)
    return smaller


@pytest.mark.long
def test_its_machine_stands_still(
    shop: Workload, faults: Faults, lead_from_the_smaller_machine: str
) -> None:
    """Pods, kubelet and container runtime of one machine, all frozen in one instant, and with them
    a minority of the ensemble."""
    old = shop.settle()
    with faults.machine_frozen(lead_from_the_smaller_machine) as since:
        done = shop.next_leader(old, since, "machine stands still")
        assert done.new.holder != old.holder
        assert done.gap >= LEASE - DEADLINE
        pause(LEASE)
    pause(2 * TURN)
    assert shop.leads_still(done.new), "a machine that wakes up takes nothing back"
    shop.settle()


@pytest.mark.long
def test_its_machine_is_cut_off(
    shop: Workload,
    faults: Faults,
    installation: Installation,
    lead_from_the_smaller_machine: str,
) -> None:
    """The old leader runs on, alone, and knows by its own clock when to stop."""
    old = shop.settle()
    with faults.machine_cut_off(lead_from_the_smaller_machine) as since:
        done = shop.next_leader(old, since, "machine cut off")
        assert done.new.holder != old.holder
        assert done.gap >= LEASE - DEADLINE
        pause(LEASE)
    shop.settle()
    installation.wait_until_open()


@pytest.mark.long
def test_kubelet_and_container_runtime_of_its_machine_are_killed(
    shop: Workload, faults: Faults, lead_from_the_smaller_machine: str
) -> None:
    """Its containers run on, and nothing is missing in the path of a renewal: it leads on."""
    old = shop.settle()
    machine = lead_from_the_smaller_machine
    with faults.components_killed(f"{machine}.containerd", f"{machine}.kubelet"):
        pause(2 * LEASE)
        assert shop.leads_still(old)
    answer = ("-n", shop.namespace, "exec", old.holder, "-c", "app", "--", "true")
    until("the kubelet answers", lambda: shop.client.run("kubectl", *answer).returncode == 0)
    until("the machine is ready", lambda: _ready(shop.client, machine), seconds=PATIENCE)
    assert shop.leads_still(old)
    assert shop.is_leader(old.holder) == old.token


def _ready(client: Client, machine: str) -> bool:
    return condition(client.get("default", "node", machine), "Ready") == "True"


@pytest.mark.long
def test_its_machine_is_drained(
    client: Client,
    shop: Workload,
    installation: Installation,
    recorder: Recorder,
    lead_from_the_smaller_machine: str,
) -> None:
    """The nodes of the ensemble on it move one at a time, each after the quarantine of the one
    before: that is what their budget is for."""
    old = shop.settle()
    machine = lead_from_the_smaller_machine
    try:
        with recorder.fault(f"machine {machine} drained") as since:
            options = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=240s")
            client.kubectl("drain", machine, "--force", *options, seconds=260)
        shop.next_leader(old, since, "machine drained")
        assert machine not in {machine_of(pod) for pod in shop.pods()}
        assert machine not in {machine_of(node) for node in installation.nodes()}
    finally:
        client.kubectl("uncordon", machine)
    shop.settle()
    installation.wait_until_open()
    _spread_again(shop.client, installation, machine)


def _spread_again(client: Client, installation: Installation, machine: str) -> None:
    """Two of the nodes back to the machine that was drained, one after the other, as later
    scenarios expect them."""
    for number in (0, 1):
        before = installation.agent(number)
        assert before is not None
        client.kubectl("-n", "leasekeeper", "delete", "pod", f"default-{number}-0")
        installation.open_again(number, before)
    installation.wait_until_open()
    assert machine in {machine_of(node) for node in installation.nodes()}
