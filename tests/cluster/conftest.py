"""A real cluster for the scenarios of this folder: see kube/README.md.

    LEASEKEEPER_CLUSTER=NAME        which cluster (default: `default`)
    LEASEKEEPER_KEEP_CLUSTER=1      leave it up when the tests are done
    LEASEKEEPER_LONG=1              all scenarios, and not only the quick ones

A cluster that was up before the tests is used as it is, with the project's images built anew, and
stays up: somebody works with it.

All scenarios share the cluster and one installation of the chart; each file has a namespace with a
workload of its own. From the first to the last, one watcher reads all leader files, and one record
is written, of which `report.html` is made.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

KUBE = Path(__file__).resolve().parent / "kube"
REPOSITORY = KUBE.parents[2]
LOGS = REPOSITORY / "build" / "cluster-logs"
RECORD = REPOSITORY / "build" / "cluster-test"

sys.path.insert(0, str(KUBE))

from localkube import lifecycle, topology  # noqa: E402

from tests.cluster import report  # noqa: E402
from tests.cluster.client import Client  # noqa: E402
from tests.cluster.faults import Faults  # noqa: E402
from tests.cluster.installation import Installation  # noqa: E402
from tests.cluster.recorder import Recorder  # noqa: E402
from tests.cluster.watcher import Watcher  # noqa: E402
from tests.cluster.workload import Workload  # noqa: E402

NAME = os.environ.get("LEASEKEEPER_CLUSTER", "default")

KEEP_LOGS = 5
"""Folders of failed runs that are kept; each has some megabytes."""

OUTCOME = pytest.StashKey[str]()
PAGES: list[Path] = []
"""The record of this run, when it is written."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: runs with LEASEKEEPER_LONG=1 only")
    config.addinivalue_line("markers", "control(why): the watcher must find what is wrong")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Left out, and not skipped: in CI a skipped test fails the run."""
    if os.environ.get("LEASEKEEPER_LONG"):
        return
    long = [item for item in items if item.get_closest_marker("long")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for page in PAGES:
        where = f"{page} and {page.with_name('summary.md').name}"
        terminalreporter.write_line(f"the record of this run: {where}")


def cluster_py(command: str, *arguments: str) -> None:
    argv = [sys.executable, str(KUBE / "cluster.py"), command, "--name", NAME, *arguments]
    subprocess.run(argv, check=True)


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    if os.geteuid() != 0 and not os.environ.get("CI"):
        pytest.skip("a cluster needs root")
    cluster = topology.Cluster(NAME)
    was_up = lifecycle.is_up(cluster)
    cluster_py("load" if was_up else "up")
    yield Client(cluster)
    if not was_up and not os.environ.get("LEASEKEEPER_KEEP_CLUSTER"):
        cluster_py("down")


@pytest.fixture(scope="session")
def recorder(client: Client) -> Iterator[Recorder]:
    shutil.rmtree(RECORD, ignore_errors=True)
    recording = Recorder(RECORD)
    recording.environment(**_environment(client))
    yield recording
    recording.close()
    PAGES.append(report.write(RECORD))


def _environment(client: Client) -> dict[str, str]:
    commit = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
    found = subprocess.run(commit, capture_output=True, text=True, check=False)
    version = json.loads(client.kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"]
    return {
        "Kubernetes": version,
        "Linux": os.uname().release,
        "cores": str(os.cpu_count()),
        "commit": found.stdout.strip() or "unknown",
        "on": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


@pytest.fixture(scope="session")
def watcher(client: Client, recorder: Recorder) -> Iterator[Watcher]:
    with Watcher(client.kubelet_roots(), recorder.folder / "watched.jsonl") as running:
        yield running


@pytest.fixture(scope="session")
def faults(client: Client, recorder: Recorder) -> Faults:
    return Faults(client, recorder)


@pytest.fixture(scope="session")
def chart(client: Client) -> Installation:
    """Not necessarily installed: a scenario may begin with that."""
    return Installation(client)


@pytest.fixture(scope="module")
def installation(chart: Installation) -> Installation:
    chart.ensure()
    return chart


@pytest.fixture(scope="module")
def shop(
    request: pytest.FixtureRequest,
    client: Client,
    watcher: Watcher,
    recorder: Recorder,
    installation: Installation,
) -> Iterator[Workload]:
    """Three pods that want one lock, in a namespace with the name of the scenario's file."""
    name = request.module.__name__.rpartition(".")[2].removeprefix("test_").replace("_", "-")
    workload = Workload(client, watcher, recorder, name)
    workload.declare()
    yield workload
    workload.remove()


@pytest.fixture(autouse=True)
def recorded(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test is a scenario of the record, and fails if the watcher sees two leaders meanwhile,
    or a token that does not grow; in a control, if it does not."""
    if "client" not in request.fixturenames:
        yield
        return
    recorder: Recorder = request.getfixturevalue("recorder")
    watcher: Watcher = request.getfixturevalue("watcher")
    control = request.node.get_closest_marker("control")
    before = len(watcher.wrong())
    recorder.begin(
        request.node.name,
        chapter=(request.module.__doc__ or "").partition("\n")[0],
        title=_title(request.node),
    )
    if control:
        recorder.must_be_found(control.args[0])
    if "shop" in request.fixturenames:
        recorder.namespace(request.getfixturevalue("shop").namespace)
    yield
    wrong = watcher.wrong()[before:]
    right = bool(wrong) if control else not wrong
    recorder.end(request.node.stash.get(OUTCOME, "failed") if right else "failed")
    assert right, wrong or "the watcher did not find what it had to find"


def _title(item: pytest.Item) -> str:
    """The test's name as a sentence, with its parameter."""
    name, _, parameter = item.name.removeprefix("test_").partition("[")
    words = name.replace("_", " ")
    return f"{words} ({parameter.rstrip(']')})" if parameter else words


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A failure leaves the logs of every component in one folder, and the report says where."""
    report = yield
    if call.when == "call":
        item.stash[OUTCOME] = report.outcome  # type: ignore[attr-defined]
    uses_cluster = "client" in getattr(item, "fixturenames", ())
    if report.failed and uses_cluster:  # type: ignore[attr-defined]
        report.sections.append(("logs of the cluster", _collect(item)))  # type: ignore[attr-defined]
    return report


def _collect(item: pytest.Item) -> str:
    folder = LOGS / f"{time.strftime('%Y%m%d-%H%M%S')}-{item.name}"
    folder.mkdir(parents=True, exist_ok=True)
    for old in sorted(LOGS.iterdir())[:-KEEP_LOGS]:
        shutil.rmtree(old, ignore_errors=True)
    try:
        cluster_py("logs", str(folder))
    except subprocess.CalledProcessError as failed:
        return f"could not be collected: {failed}"
    for file in RECORD.glob("*.jsonl"):
        shutil.copy(file, folder)
    return str(folder)
