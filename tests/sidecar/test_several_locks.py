"""Several locks in one pod: one sidecar, one file each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from leasekeeper_sidecar.claim import Verdict, read_leader
from leasekeeper_sidecar.host import Proc
from servers import wait_until

if TYPE_CHECKING:
    from tests.sidecar.conftest import Cast, Pod

pytestmark = pytest.mark.parametrize("ensemble", ["valkey"], indirect=True)


class Locks:
    """Two locks that one pod is a candidate of."""

    def __init__(self, cast: Cast, folder: Path, *names: str) -> None:
        suffix = os.urandom(3).hex()
        self.cast = cast
        self.names = list(names) or [f"orders-{suffix}", f"stock-{suffix}"]
        self.paths = []
        for name in self.names:
            contents = json.loads(cast.config.read_text())
            user, password = cast.ensemble.add_lock(f"test/{name}")
            contents["lock"] = f"test/{name}"
            contents["redlock"] |= {"username": user, "password": password}
            self.paths.append(folder / f"{name}.json")
            self.paths[-1].write_text(json.dumps(contents))

    def pod(self, *numbers: int) -> Pod:
        (pod,) = self.cast.make(1)
        paths = [str(self.paths[number]) for number in numbers or (0, 1)]
        pod.environment["LEASEKEEPER_CONFIG"] = ",".join(paths)
        return pod.start()

    def verdict(self, pod: Pod, number: int) -> Verdict:
        return read_leader(str(pod.leader_dir / self.names[number] / "leader"), Proc())


@pytest.fixture
def locks(cast: Cast, tmp_path: Path) -> Locks:
    cast.be_patient()
    return Locks(cast, tmp_path)


def get(port: int, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def program(pod: Pod, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", str(pod.leader_dir / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_each_lock_has_a_file_a_page_and_metrics_of_its_own(locks: Locks) -> None:
    other = locks.pod(1)  # a pod with only the second lock: its file stands where it always does
    wait_until(lambda: other.leads, "the other pod to lead")
    pod = locks.pod()
    wait_until(lambda: locks.verdict(pod, 0).leader, "the first lock")
    orders, stock = locks.names
    assert not locks.verdict(pod, 1).leader
    wait_until(
        lambda: json.loads((pod.leader_dir / stock / "leader").read_text())["holder"] == other.name,
        "the second lock's holder to be known",
    )
    assert not pod.path.exists(), "with several locks no file could mean all of them"

    assert json.loads(get(pod.local_port, "/locks")[1]) == {"locks": locks.names}
    assert get(pod.local_port, f"/locks/{orders}/leader")[0] == 200
    assert get(pod.local_port, f"/locks/{stock}/leader")[0] == 503
    assert json.loads(get(pod.local_port, f"/locks/{stock}")[1])["name"] == other.name
    status, text = get(pod.local_port, "/leader")
    assert (status, f"/locks/{orders}/leader" in text) == (404, True)
    page = get(pod.http_port, "/metrics")[1].splitlines()
    assert f'leasekeeper_leading{{lock="test/{orders}"}} 1' in page
    assert f'leasekeeper_leading{{lock="test/{stock}"}} 0' in page
    assert f'leader_election_master_status{{name="{orders}"}} 1' in page

    token = str(locks.verdict(pod, 0).token)
    assert program(pod, "is-leader", "--lock", orders, "--token").stdout.strip() == token
    assert program(pod, f"{orders}/is-leader", "--token").stdout.strip() == token
    assert program(pod, "is-leader", "--lock", stock).returncode == 1
    assert program(pod, "is-leader").returncode == 1, "which one?"
    assert program(pod, "is-leader", "--lock", f"../{orders}").returncode == 2
    ran = program(pod, "run-as-leader", "--lock", orders, "sh", "-c", "echo $LEASEKEEPER_TOKEN")
    assert ran.stdout.strip() == token
    assert program(other, "is-leader", "--lock", stock).returncode == 0
    assert program(other, "is-leader", "--lock", orders, "--explain").returncode == 1


def test_a_killed_sidecar_resumes_all_its_tenures_and_a_stopped_one_releases_them(
    locks: Locks,
) -> None:
    pod = locks.pod()

    def tokens() -> list[int]:
        return [locks.verdict(pod, number).token for number in (0, 1)]

    wait_until(lambda: all(tokens()), "both locks")
    before = tokens()
    pod.kill()
    assert tokens() == before
    pod.start()
    wait_until(lambda: len(pod.events("leading")) == 4, "both tenures to go on")
    assert tokens() == before
    pod.send(signal.SIGTERM)
    assert pod.wait() == 0
    assert tokens() == [0, 0]
    assert len(pod.events("stopped")) == 2
    wait_until(_frees(locks), "another pod to lead both")


def test_no_name_of_a_lock_is_in_the_way_of_the_sidecars_own_files(
    cast: Cast, tmp_path: Path
) -> None:
    cast.be_patient()
    locks = Locks(cast, tmp_path, "sidecar.lock", "state.lock")
    pod = locks.pod()
    wait_until(lambda: all(locks.verdict(pod, n).leader for n in (0, 1)), "both locks")


def _frees(locks: Locks) -> Callable[[], bool]:
    second = locks.pod()
    return lambda: all(locks.verdict(second, number).leader for number in (0, 1))
