"""Several replicas, one certificate: whatever happens to the Secret, and in whatever order they
look at it, none serves what the API server does not trust."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
from collections.abc import Callable
from typing import Any, cast

import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from leasekeeper_operator.api import Api, ApiError
from leasekeeper_operator.certificates import Certificates, renewed, signed
from leasekeeper_operator.manifests.common import base64_data
from leasekeeper_operator.settings import Settings
from leasekeeper_operator.webhook import Webhook
from leasekeeper_operator.webhook_tls import CHECK_SECONDS, KEEP_SECONDS, Unusable, WebhookTls

from tests.operator.conftest import Cluster
from tests.operator.samples import SETTINGS
from tests.operator.test_operator import webhook_configuration

Object = dict[str, Any]
SECRET = "hook-certificate"


class Replicas:
    """Two of them, with one clock, on one configuration."""

    def __init__(self, cluster: Cluster, api: Api, **settings: Any) -> None:
        self.cluster = cluster
        self.namespace = cluster.namespace()
        self.settings: Settings = dataclasses.replace(
            SETTINGS,
            namespace=self.namespace,
            webhook_configuration=self.namespace,
            **settings,
        )
        self.time = 0.0
        self._api = api
        self.both = (self.another(), self.another())
        cluster.apply(webhook_configuration(self.namespace))

    def another(self) -> WebhookTls:
        return WebhookTls(self._api, self.settings, ["hook.test"], lambda: self.time)

    def trusted(self) -> str:
        found = self.cluster.get("", "mutatingwebhookconfiguration", self.namespace) or {}
        (webhook,) = found["webhooks"]
        return base64.b64decode(webhook["clientConfig"].get("caBundle", "")).decode()

    def kept(self) -> Certificates:
        secret = self.cluster.get(self.namespace, "secret", SECRET)
        assert secret is not None
        return Certificates.from_secret(secret)

    def edit(self, certificates: Certificates, name: str = SECRET) -> None:
        """By hand: whoever else keeps it is not asked."""
        place = ("-n", self.namespace, "--force-conflicts", "--server-side")
        document = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": self.namespace},
            "data": base64_data(**certificates.to_data()),
        }
        self.cluster.run("apply", *place, "-f", "-", document=document)

    def all_trusted(self) -> bool:
        cas = [f"{pem}-----END CERTIFICATE-----\n" for pem in _split(self.trusted())]
        return all(
            any(signed(served_by(one).server, ca) for ca in cas)
            for one in self.both
            if one.context is not None
        )


def _split(bundle: str) -> list[str]:
    return [
        part.strip() + "\n" for part in bundle.split("-----END CERTIFICATE-----") if part.strip()
    ]


def served_by(one: WebhookTls) -> Certificates:
    assert one._served is not None
    return one._served


@pytest.fixture
def replicas(cluster: Cluster, api: Api) -> Replicas:
    return Replicas(cluster, api)


async def test_a_secret_that_is_deleted_comes_back_with_the_same_ca(replicas: Replicas) -> None:
    """A new one would cut off every replica that has not looked yet: every second pod, for up to a
    minute."""
    one, two = replicas.both
    await one.refresh()
    await two.refresh()
    before = replicas.kept()
    replicas.cluster.run("-n", replicas.namespace, "delete", "secret", SECRET)
    await one.refresh()
    assert replicas.kept().ca == before.ca
    assert replicas.all_trusted()


@pytest.mark.parametrize("key", ["ca", "ca_key", "server", "server_key"])
async def test_a_secret_that_is_spoilt_is_mended_with_the_same_ca(
    replicas: Replicas, key: str
) -> None:
    one, two = replicas.both
    await one.refresh()
    await two.refresh()
    before = replicas.kept()
    replicas.edit(dataclasses.replace(before, **{key: "nonsense"}))
    await one.refresh()
    assert replicas.kept().ca == before.ca
    assert replicas.all_trusted()


async def test_of_two_that_find_it_spoilt_at_once_one_makes_it(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both read, then both write; what the slower one read is not there any more."""
    one, two = replicas.both
    replicas.edit(Certificates("x", "x", "x", "x"))
    keep, second = one._keep, iter([two.refresh])

    async def after_the_other(*what: Any) -> None:
        for refresh in second:
            await refresh()
        await keep(*what)

    monkeypatch.setattr(one, "_keep", after_the_other)
    await one.refresh()
    assert served_by(one) == served_by(two) == replicas.kept()
    assert replicas.all_trusted()


@pytest.mark.parametrize("order", [(0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1, 0)])
async def test_a_new_ca_is_trusted_before_it_is_served_and_the_old_one_goes_last(
    replicas: Replicas, order: tuple[int, ...]
) -> None:
    for one in replicas.both:
        await one.refresh()
    new = renewed(None, ["hook.test"])
    replicas.edit(new)
    looks: list[Callable[[], Any]] = [replicas.both[n].refresh for n in order]
    for look in looks:
        await look()
        assert replicas.all_trusted()
        replicas.time += CHECK_SECONDS / 2
    assert {served_by(one).ca for one in replicas.both} == {new.ca}
    replicas.time += KEEP_SECONDS
    for one in replicas.both:
        await one.refresh()
    assert replicas.trusted() == new.ca


async def test_by_whom_a_secret_is_kept_for_us_it_is_served_and_never_written(
    cluster: Cluster, api: Api
) -> None:
    """As cert-manager does it; its Secret has no key of the CA."""
    replicas = Replicas(cluster, api, webhook_certificate="given")
    (one, _) = replicas.both
    with pytest.raises(Unusable, match=r"there is no Secret .*/given for the webhook's"):
        await one.refresh()
    made = dataclasses.replace(renewed(None, ["hook.test"]), ca_key="")
    replicas.edit(dataclasses.replace(made, server_key="nonsense"), "given")
    with pytest.raises(Unusable, match=r"given for the webhook's certificate: tls.crt or tls.key"):
        await one.refresh()
    replicas.edit(made, "given")
    before = cluster.get(replicas.namespace, "secret", "given")
    await one.refresh()
    assert replicas.trusted() == made.ca
    assert served_by(one).server == made.server
    assert cluster.get(replicas.namespace, "secret", "given") == before
    assert cluster.names(replicas.namespace, "secret") == ["given"]


async def test_whatever_goes_wrong_with_one_look_there_is_a_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The task that looks after the certificate must not end: it would run out unseen."""
    looks: list[Exception] = []

    class Sick:
        async def refresh(self) -> None:
            looks.append(UnsupportedAlgorithm("curve") if looks else ApiError(500, "down"))
            raise looks[-1]

    monkeypatch.setattr("leasekeeper_operator.webhook.CHECK_SECONDS", 0.0)
    webhook = Webhook(cast(Api, None), SETTINGS)
    webhook.tls = cast(WebhookTls, Sick())
    keeper = asyncio.create_task(webhook.keep_certificates())
    async with asyncio.timeout(30):
        while len(looks) < 3:
            await asyncio.sleep(0)
    assert not keeper.done()
    keeper.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeper
