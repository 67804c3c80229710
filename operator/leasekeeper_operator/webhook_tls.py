"""The webhook's certificate: which one this replica serves, and which CAs the API server trusts.

    kept in one Secret, by the replica that needs it first; or by somebody else (cert-manager)
    a new CA ──▶ trusted beside the old one ──a minute──▶ served ──two minutes──▶ trusted alone

Replicas look at the Secret once a minute, each on its own. No order of their looks has one serve
what the API server does not trust: a pod that asks for a lock would be refused then, and one that
no controller stands behind is not tried again.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
import ssl
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from leasekeeper_operator import names
from leasekeeper_operator.api import (
    SECRET,
    WEBHOOK_CONFIGURATION,
    Api,
    ApiError,
    Conflict,
    Object,
)
from leasekeeper_operator.certificates import (
    Certificates,
    can_sign,
    load,
    renewed,
    server_context,
)
from leasekeeper_operator.manifests.common import base64_data
from leasekeeper_operator.settings import Settings
from leasekeeper_operator.tls import Offer, objection

log = logging.getLogger(__name__)

CHECK_SECONDS = 60.0
"""How often certificate and `caBundle` are looked at: a chart's upgrade may take the latter away,
and pods that ask for a lock cannot be made until it is back."""

KEEP_SECONDS = 2 * CHECK_SECONDS
"""For which an earlier CA stays trusted: every other replica has looked by then."""

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


class Unusable(ApiError):
    """The Secret that somebody else keeps for us cannot be served by."""

    def __init__(self, why: str) -> None:
        super().__init__(0, why)


class WebhookTls:
    def __init__(
        self,
        api: Api,
        settings: Settings,
        server_names: Sequence[str],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._settings = settings
        self._names = server_names
        self._now = now
        self._served: Certificates | None = None
        self._since = now()
        self.context: ssl.SSLContext | None = None

    async def refresh(self) -> None:
        """Brings Secret, webhook configuration and server in step, in this order."""
        certificates = await self._bring_certificates()
        told = await self._bring_ca_bundle(certificates)
        if certificates == self._served or (told and self.context is not None):
            # It was told of a new CA just now, and may not have heard yet: the next look will do.
            return
        if self.context is None:
            self.context = server_context(certificates)
        else:
            load(self.context, certificates)
        self._served, self._since = certificates, self._now()
        log.info("certificate-loaded names=%s", ",".join(self._names))

    async def _bring_certificates(self) -> Certificates:
        if self._settings.webhook_certificate:
            return await self._given(self._settings.webhook_certificate)
        name = names.certificate_secret(self._settings.webhook_service)
        secret = await self._api.get(SECRET, self._settings.namespace, name)
        old = Certificates.from_secret(secret) if secret else None
        if self._served is not None and (old is None or not can_sign(old)):
            # Deleted or spoilt by hand: put back, because the other replicas serve by this CA.
            old, new = None, renewed(self._served, self._names)
        else:
            new = renewed(old, self._names)
        if new == old:
            return new
        try:
            await self._keep(name, new, secret)
        except Conflict:  # another replica was first: serve what it made
            return await self._bring_certificates()
        log.info("certificate-made secret=%s", name)
        return new

    async def _keep(self, name: str, certificates: Certificates, secret: Object | None) -> None:
        """Conflict, if the Secret is not the one that was read."""
        metadata: Object = {
            "name": name,
            "namespace": self._settings.namespace,
            "labels": {"app.kubernetes.io/name": "leasekeeper", **names.MANAGED},
        }
        desired: Object = {
            "apiVersion": SECRET.api_version,
            "kind": SECRET.name,
            "metadata": metadata,
            "type": "Opaque",
            "data": base64_data(**certificates.to_data()),
        }
        if secret is None:
            await self._api.create(desired)
        else:
            metadata["resourceVersion"] = secret["metadata"]["resourceVersion"]
            await self._api.apply(desired)

    async def _given(self, name: str) -> Certificates:
        place = f"{self._settings.namespace}/{name}"
        secret = await self._api.get(SECRET, self._settings.namespace, name)
        if secret is None:
            raise Unusable(f"there is no Secret {place} for the webhook's certificate yet")
        found = Certificates.from_secret(secret)
        offer = Offer(found.ca, found.server, found.server_key)
        if wrong := objection(offer, self._names[:1], datetime.now(UTC)):
            raise Unusable(f"Secret {place} for the webhook's certificate: {wrong}")
        return found

    async def _bring_ca_bundle(self, certificates: Certificates) -> bool:
        """Whether something had to be written."""
        name = self._settings.webhook_configuration
        if not name:
            return False
        current = await self._api.get(WEBHOOK_CONFIGURATION, None, name)
        if current is None:
            log.warning("webhook-configuration-missing name=%s", name)
            return False
        webhooks = current.get("webhooks", [])
        known = [str(webhook["clientConfig"].get("caBundle") or "") for webhook in webhooks]
        wanted = [self._trusted(certificates, bundle) for bundle in known]
        if known == wanted:
            return False
        metadata = {"name": name, "uid": current["metadata"]["uid"]}  # never creates it
        await self._api.apply(
            {
                "apiVersion": WEBHOOK_CONFIGURATION.api_version,
                "kind": WEBHOOK_CONFIGURATION.name,
                "metadata": metadata,
                "webhooks": [
                    {"name": webhook["name"], "clientConfig": {"caBundle": bundle}}
                    for webhook, bundle in zip(webhooks, wanted, strict=True)
                ],
            }
        )
        log.info("ca-bundle-applied name=%s", name)
        return True

    def _trusted(self, certificates: Certificates, bundle: str) -> str:
        """The new CA first, and while somebody may serve by an earlier one, that as well."""
        mine = _pems(certificates.ca)
        settled = certificates == self._served and self._now() - self._since >= KEEP_SECONDS
        others = [] if settled else [pem for pem in _bundled(bundle) if pem not in mine]
        return base64.b64encode("".join(f"{pem}\n" for pem in (*mine, *others)).encode()).decode()


def _pems(text: str) -> list[str]:
    return _PEM.findall(text)


def _bundled(bundle: str) -> list[str]:
    try:
        return _pems(base64.b64decode(bundle).decode())
    except (binascii.Error, UnicodeDecodeError):
        return []  # somebody wrote nonsense there
