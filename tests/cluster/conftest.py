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

import contextlib
import fcntl
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
from tests.cluster.watcher import Watcher, failures  # noqa: E402
from tests.cluster.workload import Workload  # noqa: E402

NAME = os.environ.get("LEASEKEEPER_CLUSTER", "default")

KEEP_LOGS = 5
"""Folders of earlier failures that are kept; each has some megabytes."""

OUTCOME = pytest.StashKey[str]()
RECORDING = pytest.StashKey[Recorder]()
COLLECTED: list[tuple[BaseException | None, str]] = []
"""What failed, and where the logs are: a fixture that many tests share fails once for all."""
PAGES: list[Path] = []
"""The record of this run, when it is written."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: runs with LEASEKEEPER_LONG=1 only")
    config.addinivalue_line(
        "markers", "control(why, lock): the watcher must find two leaders of this lock"
    )


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
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    if os.geteuid() != 0 and not os.environ.get("CI"):
        pytest.skip("a cluster needs root")
    cluster = topology.Cluster(NAME)
    with _alone(cluster, request.config):
        # Before this run makes any: what it prints the name of stays.
        for old in sorted(LOGS.iterdir())[:-KEEP_LOGS] if LOGS.exists() else ():
            shutil.rmtree(old, ignore_errors=True)
        was_up = lifecycle.is_up(cluster)
        cluster_py("load" if was_up else "up")
        yield Client(cluster)
        if not was_up and not os.environ.get("LEASEKEEPER_KEEP_CLUSTER"):
            cluster_py("down")


@contextlib.contextmanager
def _alone(cluster: topology.Cluster, config: pytest.Config) -> Iterator[None]:
    """One session of these tests a cluster at a time: another one's faults would be in its
    scenarios. A lock of its own, because `cluster.py` takes the other one for each command."""
    cluster.folder.parent.mkdir(parents=True, exist_ok=True)
    with (cluster.folder.parent / f".{cluster.name}.tests.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
                print(
                    f"\nother tests run on the cluster {cluster.name!r}: waiting for their end"
                    " (LEASEKEEPER_CLUSTER=NAME takes another one)",
                    flush=True,
                )
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def recorder(client: Client, request: pytest.FixtureRequest) -> Iterator[Recorder]:
    shutil.rmtree(RECORD, ignore_errors=True)
    recording = Recorder(RECORD)
    request.config.stash[RECORDING] = recording
    recording.environment(**_environment(client))
    yield recording
    recording.close()
    PAGES.append(report.write(RECORD))


def _environment(client: Client) -> dict[str, str]:
    version = json.loads(client.kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"]
    return {
        "Kubernetes": version,
        "Linux": os.uname().release,
        "cores": str(os.cpu_count()),
        "commit": _commit() or "unknown",
        "on": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def _commit() -> str:
    argv = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:  # an unpacked archive, on a machine without git
        return ""


@pytest.fixture(scope="session")
def watcher(client: Client, recorder: Recorder) -> Iterator[Watcher]:
    out = recorder.folder / "watched.jsonl"
    with Watcher(client.kubelet_roots(), out, client.cluster.logs) as running:
        yield running
    assert running.take() == [], "it was found after the last scenario"


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
    _begin(recorder, request.node)
    if control:
        recorder.must_be_found(*control.args, **control.kwargs)
    if "shop" in request.fixturenames:
        recorder.namespace(request.getfixturevalue("shop").namespace)
    yield
    wrong = failures(watcher.take(), control.kwargs["lock"] if control else "")
    recorder.end("failed" if wrong else request.node.stash.get(OUTCOME, "failed"))
    assert wrong == []


def _begin(recorder: Recorder, item: pytest.Item) -> None:
    chapter = (item.getparent(pytest.Module).obj.__doc__ or "").partition("\n")[0]  # type: ignore[union-attr]
    recorder.begin(item.name, chapter=chapter, title=_title(item))


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
        if call.when == "setup":
            _record_as_failed(item)
        failed = call.excinfo.value if call.excinfo else None
        where = next((where for known, where in COLLECTED if known is failed), None)
        if where is None:
            where = _collect(item)
            COLLECTED.append((failed, where))
        report.sections.append(("logs of the cluster", where))  # type: ignore[attr-defined]
    return report


def _record_as_failed(item: pytest.Item) -> None:
    """A scenario that could not begin is none that passed. One that has begun ends as usual."""
    recorder = item.config.stash.get(RECORDING, None)
    if recorder is not None and not recorder.begun:
        _begin(recorder, item)
        recorder.end("failed")


def _collect(item: pytest.Item) -> str:
    folder = LOGS / f"{time.strftime('%Y%m%d-%H%M%S')}-{item.name}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        cluster_py("logs", str(folder))
    except subprocess.CalledProcessError as failed:
        return f"could not be collected: {failed}"
    for file in RECORD.glob("*.jsonl"):
        shutil.copy(file, folder)
    return str(folder)
