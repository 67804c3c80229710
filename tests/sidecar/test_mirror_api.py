"""The mirror of a real sidecar against a real kube-apiserver, with our resource and its rules.

(What an API server cannot be made to do at will, slowness, 409 and nonsense, is in test_mirror.py.)
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from kube_lease import control_plane
from lock_api import LockApi
from servers import wait_until

if TYPE_CHECKING:
    from tests.sidecar.conftest import Cast, Pod

pytestmark = pytest.mark.parametrize("ensemble", ["valkey"], indirect=True)

NAMESPACE = "test"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LockApi]:
    with control_plane() as plane:
        yield LockApi.prepare(plane, NAMESPACE, tmp_path_factory.mktemp("account"))


def test_a_tenure_reaches_the_status_and_nothing_that_the_api_says_reaches_the_election(
    api: LockApi, cast: Cast
) -> None:
    """403 without the right, 200 with it, the farewell, 422 for a token that went down, 404."""
    name = cast.lock.partition("/")[2]
    api.create(name)
    cast.be_patient()
    first, second, third = cast.make(3)
    for pod in (first, second, third):
        pod.environment |= api.environment

    def outcomes(pod: Pod) -> list[str]:
        return [event["outcome"] for event in pod.events("not-mirrored")]

    first.start()
    wait_until(lambda: outcomes(first) == ["forbidden"], "403 to be told")
    assert first.leads
    api.allow(name)
    wait_until(lambda: first.events("mirrored"), "the right to be used", patience=60)
    token = first.verdict().token
    status = api.status(name)
    assert (status["holder"], status["token"]) == (first.name, token)
    assert status["acquireTime"] == first.said()["acquired"]

    first.send(signal.SIGTERM)
    assert first.wait() == 0
    assert (api.status(name)["holder"], api.status(name)["token"]) == ("", token)

    larger = json.dumps({"status": {"token": token + 1_000_000}})
    api.kubectl("patch", "dlock", name, "--subresource=status", "--type=merge", "-p", larger)
    second.start()
    wait_until(lambda: second.events("looked-at-nodes"), "a look at the nodes")
    assert outcomes(second) == ["refused"]
    assert second.leads, "only the nodes depose"
    second.send(signal.SIGTERM)
    assert second.wait() == 0

    api.kubectl("delete", "dlock", name)
    third.start()
    wait_until(lambda: outcomes(third) == ["not-found"], "404 to be told")
    third.wait_renewed()
    assert third.leads
