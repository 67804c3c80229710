"""Sidecars as real processes on nodes that speak TLS only."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from authority import Authority, replace
from ensemble import Ensemble
from servers import TLS_FLAVOURS, wait_until

if TYPE_CHECKING:
    from tests.sidecar.conftest import Cast


@pytest.fixture(params=TLS_FLAVOURS)
def ensemble(request: pytest.FixtureRequest) -> Iterator[Ensemble]:
    with Ensemble(3, flavour=request.param, tls=True, max_ttl=12.0, quarantine=12.5) as running:
        running.wait_open()
        yield running


def test_a_sidecar_with_a_wrong_ca_says_why_and_leads_when_the_file_is_mended(
    cast: Cast, ensemble: Ensemble, tmp_path: Path
) -> None:
    assert ensemble.authority is not None
    cast.be_patient()
    lock = json.loads(cast.config.read_text())
    lock["redlock"]["tls"] = {"caFile": "ca.crt"}
    cast.config.write_text(json.dumps(lock))
    ca = cast.config.parent / "ca.crt"
    shutil.copy(Authority(tmp_path / "wrong").ca, ca)
    pod = cast.add()[0]
    wait_until(lambda: "is not signed by the CA in" in pod.output(), "the sidecar to say why")
    assert str(ca) in pod.output()
    assert not pod.leads
    replace(ca, ensemble.authority.ca.read_bytes())
    assert cast.leader() is pod
