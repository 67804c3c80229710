"""cgroup v2, as far as it can be tried on a machine that has v1: what is written, and where."""

from __future__ import annotations

from pathlib import Path

import pytest
from localkube import cgroups
from localkube.shell import ClusterError
from localkube.topology import Cluster

CLUSTER = Cluster("some")


@pytest.fixture
def v2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Plain files instead of the kernel's: the root's, and those of the cluster's own folder."""
    monkeypatch.setattr(cgroups, "MOUNT", tmp_path)
    for folder in (tmp_path, tmp_path / CLUSTER.cgroup):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids rdma\n")
    return tmp_path


def test_the_kubelets_are_handed_their_controllers(v2: Path) -> None:
    """By every cgroup above theirs; without, they end with "missing controllers"."""
    cgroups.create(CLUSTER)
    for folder in (v2, v2 / CLUSTER.cgroup):
        handed_down = (folder / "cgroup.subtree_control").read_text()
        assert handed_down == "+cpu +cpuset +memory +pids +hugetlb"
    for node in CLUSTER.nodes:
        assert (v2 / node.cgroup).is_dir()


def test_what_the_machine_does_not_have_is_not_asked_for(v2: Path) -> None:
    (v2 / "cgroup.controllers").write_text("cpu memory pids\n")
    cgroups.check()
    assert (v2 / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"


def test_without_the_controllers_one_sentence_says_so(v2: Path) -> None:
    (v2 / "cgroup.controllers").write_text("cpu\n")
    with pytest.raises(ClusterError, match=r"cpu, memory, pids.* cannot .*: it has only cpu;"):
        cgroups.check()


def test_a_root_that_refuses_is_quoted(v2: Path) -> None:
    """As that of a container does, in which processes run."""
    (v2 / "cgroup.subtree_control").mkdir()
    with pytest.raises(ClusterError, match="cannot hand them down: Is a directory"):
        cgroups.check()


def test_on_v1_nothing_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "MOUNT", tmp_path)
    cgroups.check()
    assert list(tmp_path.iterdir()) == []


def test_a_machine_is_frozen_by_one_file_of_either_version(v2: Path) -> None:
    node = CLUSTER.nodes[0]
    own = v2 / "freezer" / node.cgroup
    for folder in (v2 / node.cgroup, own):
        folder.mkdir(parents=True)
    for frozen, said in ((True, "1"), (False, "0")):
        cgroups.freeze(node, frozen)
        assert (v2 / node.cgroup / "cgroup.freeze").read_text() == said
    (v2 / "cgroup.controllers").unlink()
    for frozen, said in ((True, "FROZEN"), (False, "THAWED")):
        cgroups.freeze(node, frozen)
        assert (own / "freezer.state").read_text() == said
