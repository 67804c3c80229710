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
from leasekeeper_operator.api import LOCK, Api, ApiError, Object
from leasekeeper_operator.injection import (
    Denied,
    Patch,
    asked_locks,
    inject,
    metadata_patch,
)
from leasekeeper_operator.settings import Settings
from leasekeeper_operator.webhook_tls import CHECK_SECONDS, WebhookTls

log = logging.getLogger(__name__)

LINGER_SECONDS = 5.0
"""For which it answers after it was told to stop. Whoever sends reviews here hears of the end no
sooner than we do, and needs a moment to send them elsewhere; a review that nobody answers is a pod
that is not made, and one without a controller is not tried again."""

LARGEST_REVIEW = 8 * 2**20  # the API server's own limit for an object is 3 MiB; a review holds two


class Webhook:
    def __init__(
        self,
        api: Api,
        settings: Settings,
        server_names: Sequence[str] | None = None,
        linger: float = LINGER_SECONDS,
    ) -> None:
        self._api = api
        self._settings = settings
        self._linger = linger
        self.tls = WebhookTls(api, settings, server_names or settings.webhook_names)
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
            self.serving = False
            log.info("webhook-ending in=%g", self._linger)
            await asyncio.sleep(self._linger)
        finally:
            self.serving = False
            await runner.cleanup()

    async def keep_certificates(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                await self.tls.refresh()
            except ApiError as error:
                log.warning('certificate-check-failed error="%s"', error)
            except Exception:  # nobody would look at the certificate any more until it runs out
                log.exception("certificate-check-failed")

    async def _prepare(self) -> ssl.SSLContext:
        """Waits for the API server, if it must: a webhook without a certificate serves nobody."""
        pause = 0.5
        while True:
            try:
                await self.tls.refresh()
            except ApiError as error:
                log.warning('certificate-check-failed retry_in=%.1f error="%s"', pause, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 10.0)
            else:
                assert self.tls.context is not None, "made by refresh"
                return self.tls.context

    async def _inject(self, request: web.Request) -> web.Response:
        review, asked = await _review(request)
        answer = await self._answer(asked["object"], asked.get("namespace", ""))
        return self._reviewed(review, answer)

    async def _asked(self, request: web.Request) -> web.Response:
        """Notes the user; it forbids nothing, that is what the rights on locks are for."""
        review, asked = await _review(request)
        user = str(asked.get("userInfo", {}).get("username", ""))
        values = wishes.stamp(asked["object"], user)
        noted = wishes.note_of(asked.get("oldObject"), asked["object"])
        if noted is not None:
            values = {wishes.ANNOTATION_ASKED_BY: noted}
        patch = metadata_patch(asked["object"], "annotations", values)
        return self._reviewed(review, _patched(patch))

    def _reviewed(self, review: Object, answer: Object) -> web.Response:
        response = web.json_response(
            {
                "apiVersion": review.get("apiVersion", "admission.k8s.io/v1"),
                "kind": "AdmissionReview",
                "response": {"uid": review["request"]["uid"], **answer},
            }
        )
        if not self.serving:
            response.force_close()  # the next review of this API server shall find another replica
        return response

    async def _answer(self, pod: Object, namespace: str) -> Object:
        name = pod["metadata"].get("name") or pod["metadata"].get("generateName", "")
        locks = asked_locks(pod)
        lock = ",".join(locks)
        what = f"pod={_plain(namespace)}/{_plain(name)} lock={_plain(lock)}"
        try:
            patch = inject(pod, self._settings)
            for name in locks:
                await self._check_exists(namespace, name)
        except Denied as denied:
            log.info('injection-denied %s why="%s"', what, _plain(str(denied)))
            return _denial(403, str(denied))
        except ApiError as error:
            return _denial(503, f"the lock {namespace}/{lock} cannot be looked up now: {error}")
        if patch:
            log.info("injected %s", what)
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


def _plain(text: str) -> str:
    """On one line: nobody has checked yet what users wrote there."""
    return text[:300].encode("unicode_escape").decode()


def _patched(patch: Patch) -> Object:
    if not patch:
        return {"allowed": True}
    text = base64.b64encode(json.dumps(patch).encode()).decode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": text}


def _denial(code: int, message: str) -> Object:
    return {"allowed": False, "status": {"code": code, "message": message}}
