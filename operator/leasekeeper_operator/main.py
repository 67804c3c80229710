"""`leasekeeper-operator`: all its parts in one event loop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, cast

import kopf
from aiohttp import web

from leasekeeper import __version__
from leasekeeper.lease import ConfigurationError
from leasekeeper_operator.api import ENSEMBLE, LOCK, Api, ApiError
from leasekeeper_operator.apply import Applier
from leasekeeper_operator.ensemble import EnsembleReconciler
from leasekeeper_operator.lock import LockReconciler
from leasekeeper_operator.model import Key
from leasekeeper_operator.queue import Queue
from leasekeeper_operator.settings import Settings
from leasekeeper_operator.watches import Watches, quiet_logs, watch_settings
from leasekeeper_operator.webhook import Webhook

log = logging.getLogger("leasekeeper_operator")

WORKERS = 8
"""Keys that are worked on at once. Each waits for the network nearly all the time; more would only
ask more of the API server at a start with many locks."""


class Health:
    """/healthz: the event loop turns. /readyz: pods can be injected, and changes are seen."""

    def __init__(self, watching: asyncio.Event, webhook: Webhook | None) -> None:
        self._watching = watching
        self._webhook = webhook

    @property
    def why_not_ready(self) -> str:
        if self._webhook is not None and not self._webhook.serving:
            return "the webhook does not serve yet"
        return "" if self._watching.is_set() else "the watches do not run yet"

    async def _readyz(self, _: web.Request) -> web.Response:
        why = self.why_not_ready
        return web.Response(text=f"{why or 'ok'}\n", status=503 if why else 200)

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    @contextlib.asynccontextmanager
    async def serve(self, port: int) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, port=port).start()
            yield
        finally:
            await runner.cleanup()


class Operator:
    """Everything between the API server and the nodes; tests start it without `main`."""

    def __init__(
        self, api: Api, settings: Settings, ensembles: EnsembleReconciler, queue: Queue
    ) -> None:
        self._settings = settings
        self._queue = queue
        self._ensembles = ensembles
        self._locks = LockReconciler(api, Applier(api), settings, ensembles.locks_changed)
        self.watching = asyncio.Event()

    async def reconcile(self, key: Key) -> float | None:
        if key.kind == ENSEMBLE.name:
            return await self._ensembles.reconcile(key)
        return await self._locks.reconcile(key)

    async def run(self) -> None:
        """Until a signal (kopf listens for SIGTERM and SIGINT) or a cancellation."""
        # Before kopf: it takes every task that is made after its start for one of its own.
        workers = self._queue.start(self.reconcile, WORKERS)
        registry = Watches(self._queue, self._ensembles).registry()

        async def stop_work(**_: Any) -> None:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

        # Early: kopf waits for what the workers have begun, and they would begin more.
        kopf.on.cleanup(registry=registry)(stop_work)
        try:
            await kopf.operator(
                registry=registry,
                settings=watch_settings(),
                standalone=True,
                clusterwide=True,
                # Given, because kopf would else ask for the user's name, and a container whose uid
                # has no line in /etc/passwd has none.
                identity=cast(Any, "leasekeeper"),
                ready_flag=self.watching,
            )
        finally:
            await stop_work()
            await self._ensembles.close()


async def run(settings: Settings) -> None:
    async with AsyncExitStack() as stack:
        api = await Api.connect()
        stack.push_async_callback(api.close)
        queue = Queue()
        ensembles = EnsembleReconciler(api, Applier(api), settings, queue)
        operator = Operator(api, settings, ensembles, queue)
        webhook = Webhook(api, settings) if settings.webhook_service else None
        health = Health(operator.watching, webhook)
        await stack.enter_async_context(health.serve(settings.http_port))
        if webhook is not None:
            await stack.enter_async_context(webhook.serve())
            keeper = asyncio.create_task(webhook.keep_certificates(), name="certificates")
            stack.callback(keeper.cancel)
        log.info("started version=%s namespace=%s", __version__, settings.namespace)
        await wait_for_kinds(api)
        await operator.run()
        log.info("stopped")


async def wait_for_kinds(api: Api) -> None:
    """kopf looks once for what it shall watch; a chart may install the CRDs a moment after us."""
    for kind in (LOCK, ENSEMBLE):
        while True:
            try:
                await api.find(kind)
                break
            except ApiError as error:
                log.warning('kind-missing kind=%s error="%s"', kind.name, error)
                await asyncio.sleep(2.0)


def main() -> None:
    parse_arguments()
    try:
        settings = Settings.from_environment(os.environ)
    except ConfigurationError as wrong:
        sys.exit(f"leasekeeper-operator: {wrong}")
    logging.basicConfig(
        level=settings.log_level, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout
    )
    quiet_logs()
    asyncio.run(run(settings))


def parse_arguments() -> None:
    parser = argparse.ArgumentParser(
        prog="leasekeeper-operator",
        description="Keeps LockEnsembles and DistributedLocks, and injects sidecars.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.parse_args()


_HELP = """\
All settings are environment variables:
  LEASEKEEPER_NAMESPACE              the operator's own namespace (must be set)
  LEASEKEEPER_SIDECAR_IMAGE          image of sidecars and node agents (must be set)
  LEASEKEEPER_SIDECAR_PULL_POLICY    their imagePullPolicy (Kubernetes' own rule)
  LEASEKEEPER_SIDECAR_RESOURCES      `resources` of injected sidecars, as JSON
  LEASEKEEPER_DEFAULT_ENSEMBLE       LockEnsemble, in the own namespace, of locks without
                                     spec.ensembleRef (default)
  LEASEKEEPER_WEBHOOK_SERVICE        Service, in the own namespace, in front of the webhook
                                     (none: no webhook is served)
  LEASEKEEPER_WEBHOOK_CONFIGURATION  MutatingWebhookConfiguration that is given the CA (none)
  LEASEKEEPER_WEBHOOK_PORT           port of the webhook: TLS, path /inject (9443)
  LEASEKEEPER_HTTP_PORT              port of /healthz and /readyz (8080)
  LEASEKEEPER_LOG_LEVEL              DEBUG, INFO, WARNING or ERROR (INFO)
  KUBECONFIG                         how to reach the API server (none: as the pod it runs in)
"""


if __name__ == "__main__":
    main()
