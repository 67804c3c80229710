"""1. The README's own commands, as they stand there: one pod leads, and everyone can see which."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator

import pytest
from readme import README, Command, commands

from tests.cluster.client import Client, until
from tests.cluster.conftest import REPOSITORY
from tests.cluster.installation import Installation
from tests.cluster.published import bring_debian
from tests.cluster.recorder import Recorder
from tests.cluster.watcher import Watcher
from tests.cluster.workload import Tenure, Workload

NAMESPACE = "shop"
IMAGES = re.compile(r"add to the first command `(--set [^`]+)`")
POD = re.compile(r"\borders-[0-9a-f]{6,10}-[a-z0-9]{5}\b")


@pytest.fixture
def nothing_installed(client: Client, chart: Installation) -> Iterator[None]:
    """As a newcomer begins, except that Debian's image is here."""
    chart.remove()
    client.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", seconds=180)
    bring_debian(client)
    yield
    client.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false")
    chart.remove()


@pytest.mark.long
def test_the_commands_of_the_readme_make_one_pod_lead(
    client: Client, watcher: Watcher, recorder: Recorder, nothing_installed: None
) -> None:
    """Two things differ, and the README says so or cannot know it: where the images are, and which
    pod leads when it is deleted."""
    shop = Workload(client, watcher, recorder, NAMESPACE)
    recorder.namespace(NAMESPACE)
    shown = [command for command in commands(README) if command.needs_a_cluster]
    assert [c.text.split()[:2] for c in shown[:1]] == [["helm", "install"]]
    checked = 0
    for command in shown:
        if POD.search(command.text):
            old = shop.settle()
            since = recorder.moment(f"$ {command.text}")
            _run(client, command, old.holder)
            done = shop.next_leader(old, since, "the README's kubectl delete pod")
            assert done.new.holder != old.holder
            until("the status names the new holder", lambda: shop.mirrored(_leader(shop)))
            continue
        recorder.moment(f"$ {command.text}")
        _run(client, command)
        if "HOLDER" in command.answer:
            _check(shop, client, command)
            checked += 1
    assert checked == 2, "before and after the hand-over"


def _leader(shop: Workload) -> Tenure:
    return until("a pod leads", shop.leader)


def _check(shop: Workload, client: Client, command: Command) -> None:
    """The columns that the page shows, with what is true now."""
    leader = shop.settle()

    def shown() -> bool:
        head, line = _run(client, command).splitlines()[:2]
        row = dict(zip(head.split(), line.split(), strict=False))
        wanted = command.answer.split("\n")[0].split()
        assert head.split() == wanted, f"the page shows {wanted}"
        return (row["HOLDER"], row["TOKEN"]) == (leader.holder, str(leader.token))

    until("kubectl shows holder and token", shown)


def _run(client: Client, command: Command, pod: str = "") -> str:
    text = POD.sub(pod, command.text) if pod else command.text
    if command.text.startswith("helm install"):
        (images,) = IMAGES.findall(README.read_text(encoding="utf-8"))
        text += f" {images}"
    path = f"{client.cluster.wrappers}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", text],
        cwd=REPOSITORY,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, f"$ {text}\n{done.stderr}"
    return done.stdout
