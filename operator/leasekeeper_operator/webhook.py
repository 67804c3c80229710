"""The server that the API server asks about every pod that wants a lock, and that it tells who asks
a lock's holder for something.

It answers from one look at the API server (does the lock exist?) and a pure function. It has no
side effects, so a dry run is answered like everything else.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from aiohttp import web

from leasekeeper_operator import names, wishes
from leasekeeper_operator.api import (
    LOCK,
    SECRET,
    WEBHOOK_CONFIGURATION,
    Api,
    ApiError,
    Conflict,
    Object,
)
from leasekeeper_operator.certificates import Certificates, load, renewed, server_context
from leasekeeper_operator.injection import (
    Denied,
    Patch,
    inject,
    metadata_patch,
    wanted_locks,
)
from leasekeeper_operator.manifests.common import base64_data
from leasekeeper_operator.settings import Settings

log = logging.getLogger(__name__)

CHECK_SECONDS = 60.0
"""How often certificate and `caBundle` are looked at: a chart's upgrade may take the latter away,
and pods that ask for a lock cannot be made until it is back."""

LARGEST_REVIEW = 8 * 2**20  # the API server's own limit for an object is 3 MiB; a review holds two


class Webhook:
    def __init__(
        self, api: Api, settings: Settings, server_names: Sequence[str] | None = None
    ) -> None:
        self._api = api
        self._settings = settings
        self._names = server_names or settings.webhook_names
        self._certificates: Certificates | None = None
        self._context: ssl.SSLContext | None = None
        self.serving = False

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Listens, with a certificate that the API server was told to trust."""
        context = await self._prepare()
        app = web.Application(client_max_size=LARGEST_REVIEW)
        app.router.add_post("/inject", self._inject)
        app.router.add_post("/asked", self._asked)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, port=self._settings.webhook_port, ssl_context=context).start()
            self.serving = True
            log.info("webhook-serving port=%d", self._settings.webhook_port)
            yield
        finally:
            self.serving = False
            await runner.cleanup()

    async def keep_certificates(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                await self.refresh()
            except ApiError as error:
                log.warning('certificate-check-failed error="%s"', error)

    async def _prepare(self) -> ssl.SSLContext:
        """Waits for the API server, if it must: a webhook without a certificate serves nobody."""
        pause = 0.5
        while True:
            try:
                await self.refresh()
            except ApiError as error:
                log.warning('certificate-check-failed retry_in=%.1f error="%s"', pause, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 10.0)
            else:
                assert self._context is not None, "made by refresh"
                return self._context

    async def refresh(self) -> None:
        """Brings certificate, server and webhook configuration in step with the Secret."""
        certificates = await self._bring_certificates()
        if certificates != self._certificates:
            if self._context is None:
                self._context = server_context(certificates)
            else:
                load(self._context, certificates)
            self._certificates = certificates
            log.info("certificate-loaded names=%s", ",".join(self._names))
        await self._bring_ca_bundle(certificates.ca)

    async def _bring_certificates(self) -> Certificates:
        name = names.certificate_secret(self._settings.webhook_service)
        secret = await self._api.get(SECRET, self._settings.namespace, name)
        old = Certificates.from_secret(secret) if secret else None
        new = renewed(old, self._names)
        if new == old:
            return new
        desired: Object = {
            "apiVersion": SECRET.api_version,
            "kind": SECRET.name,
            "metadata": {
                "name": name,
                "namespace": self._settings.namespace,
                "labels": {"app.kubernetes.io/name": "leasekeeper", **names.MANAGED},
            },
            "type": "Opaque",
            "data": base64_data(**new.to_data()),
        }
        if secret is not None:
            await self._api.apply(desired)
            return new
        try:
            await self._api.create(desired)
        except Conflict:  # another replica was first: serve what it made
            return await self._bring_certificates()
        log.info("certificate-made secret=%s", name)
        return new

    async def _bring_ca_bundle(self, ca: str) -> None:
        name = self._settings.webhook_configuration
        if not name:
            return
        current = await self._api.get(WEBHOOK_CONFIGURATION, None, name)
        if current is None:
            log.warning("webhook-configuration-missing name=%s", name)
            return
        bundle = base64.b64encode(ca.encode()).decode()
        webhooks = current.get("webhooks", [])
        if all(webhook["clientConfig"].get("caBundle") == bundle for webhook in webhooks):
            return
        metadata = {"name": name, "uid": current["metadata"]["uid"]}  # never creates it
        await self._api.apply(
            {
                "apiVersion": WEBHOOK_CONFIGURATION.api_version,
                "kind": WEBHOOK_CONFIGURATION.name,
                "metadata": metadata,
                "webhooks": [
                    {"name": webhook["name"], "clientConfig": {"caBundle": bundle}}
                    for webhook in webhooks
                ],
            }
        )
        log.info("ca-bundle-applied name=%s", name)

    async def _inject(self, request: web.Request) -> web.Response:
        review, asked = await _review(request)
        return _reviewed(review, await self._answer(asked["object"], asked.get("namespace", "")))

    async def _asked(self, request: web.Request) -> web.Response:
        """Notes the user; it forbids nothing, that is what the rights on locks are for."""
        review, asked = await _review(request)
        user = str(asked.get("userInfo", {}).get("username", ""))
        values = wishes.stamp(asked["object"], user)
        return _reviewed(review, _patched(metadata_patch(asked["object"], "annotations", values)))

    async def _answer(self, pod: Object, namespace: str) -> Object:
        pod_name = pod["metadata"].get("name") or pod["metadata"].get("generateName", "")
        locks = wanted_locks(pod)
        lock = ",".join(locks)
        try:
            patch = inject(pod, self._settings)
            for name in locks:
                await self._check_exists(namespace, name)
        except Denied as denied:
            log.info(
                'injection-denied pod=%s/%s lock=%s why="%s"', namespace, pod_name, lock, denied
            )
            return _denial(403, str(denied))
        except ApiError as error:
            return _denial(503, f"the lock {namespace}/{lock} cannot be looked up now: {error}")
        if patch:
            log.info("injected pod=%s/%s lock=%s", namespace, pod_name, lock)
        return _patched(patch)

    async def _check_exists(self, namespace: str, lock: str) -> None:
        if await self._api.get(LOCK, namespace, lock) is None:
            raise Denied(
                f"there is no DistributedLock {lock!r} in the namespace {namespace!r}: create it"
                f" first, or correct the annotation {names.LABEL_LOCK}"
            )


async def _review(request: web.Request) -> tuple[Object, Object]:
    """The review, and what is asked in it."""
    try:
        review = json.loads(await request.read())
        asked: Object = review["request"]
        asked["uid"], asked["object"]["metadata"]
    except (ValueError, KeyError, TypeError) as wrong:
        raise web.HTTPBadRequest(text=f"not an AdmissionReview: {wrong!r}") from None
    return review, asked


def _reviewed(review: Object, answer: Object) -> web.Response:
    return web.json_response(
        {
            "apiVersion": review.get("apiVersion", "admission.k8s.io/v1"),
            "kind": "AdmissionReview",
            "response": {"uid": review["request"]["uid"], **answer},
        }
    )


def _patched(patch: Patch) -> Object:
    if not patch:
        return {"allowed": True}
    text = base64.b64encode(json.dumps(patch).encode()).decode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": text}


def _denial(code: int, message: str) -> Object:
    return {"allowed": False, "status": {"code": code, "message": message}}
