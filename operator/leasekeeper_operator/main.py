"""`leasekeeper-operator`: all its parts in one event loop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, cast

import kopf
from aiohttp import web

from leasekeeper import __version__
from leasekeeper.lease import ConfigurationError
from leasekeeper_operator.anothers import Anothers, say
from leasekeeper_operator.api import ENSEMBLE, LOCK, Api, ApiError
from leasekeeper_operator.apply import Applier
from leasekeeper_operator.election import Deadman, Election, Gate, LeaderApi
from leasekeeper_operator.ensemble import EnsembleReconciler
from leasekeeper_operator.lock import LockReconciler
from leasekeeper_operator.metrics import Metrics
from leasekeeper_operator.model import Key
from leasekeeper_operator.queue import Queue
from leasekeeper_operator.settings import Settings
from leasekeeper_operator.watches import Watches, quiet_logs, watch_settings
from leasekeeper_operator.webhook import Webhook

log = logging.getLogger("leasekeeper_operator")

WORKERS = 16
"""Keys of each kind that are worked on at once. Each waits for the network nearly all the time: at
a start with a thousand locks, 16 keep two cores busy that are shared with the API server."""

CLOSE_SECONDS = 3.0
"""For kopf to end. It has nothing to save, and the Lease was given back before."""

Pages = Mapping[str, Callable[[web.Request], Awaitable[web.Response]]]


class Health:
    """/healthz: the event loop turns, and the election with it. /readyz: pods can be injected, and
    somebody leads. Whether it is us does not matter: a standby is as ready as a leader. Nor does it
    later, when a standby takes over: its webhook is the one that is left, and must be asked.
    """

    def __init__(self, election: Election, watching: asyncio.Event, webhook: Webhook | None):
        self._election = election
        self._watching = watching
        self._webhook = webhook
        self._begun = False

    @property
    def why_not_ready(self) -> str:
        if self._webhook is not None and not self._webhook.serving:
            return "the webhook does not serve"
        why = "" if self._begun else self._why_not_begun
        self._begun = not why
        return why

    @property
    def _why_not_begun(self) -> str:
        if not self._election.knows.is_set():
            return "no replica leads yet"
        if self._election.leads and not self._watching.is_set():
            return "the watches do not run yet"
        return ""

    async def _readyz(self, _: web.Request) -> web.Response:
        why = self.why_not_ready
        return web.Response(text=f"{why or 'ok'}\n", status=503 if why else 200)

    async def _healthz(self, _: web.Request) -> web.Response:
        if self._election.alive:
            return web.Response(text="ok\n")
        return web.Response(text="the election stands still\n", status=503)

    @property
    def pages(self) -> Pages:
        return {"/healthz": self._healthz, "/readyz": self._readyz}


@contextlib.asynccontextmanager
async def serve(port: int, pages: Pages) -> AsyncIterator[None]:
    app = web.Application()
    for path, page in pages.items():
        app.router.add_get(path, page)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
        yield
    finally:
        await runner.cleanup()


class Operator:
    """Everything between the API server and the nodes, in the elected replica."""

    def __init__(
        self,
        api: Api,
        settings: Settings,
        ensembles: EnsembleReconciler,
        queue: Queue,
        gate: Gate,
    ) -> None:
        self._api = api
        self._settings = settings
        self._queue = queue
        self._ensembles = ensembles
        self._locks = LockReconciler(api, Applier(api), settings, ensembles)
        self._workers: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._stopped = asyncio.Event()
        self._stopped.set()
        self.watching = asyncio.Event()
        self.metrics = Metrics(
            leads=lambda: gate.open,
            writes=lambda: gate.passed,
            waiting=lambda: queue.depth,
            failing=lambda: queue.failing,
            nodes=ensembles.nodes_open,
        )

    async def reconcile(self, key: Key) -> float | None:
        ours = self._ensembles if key.kind == ENSEMBLE.name else self._locks
        try:
            return await ours.reconcile(key)
        except Anothers as refused:
            await say(self._api, key, refused)
            raise

    async def run(self, listen: Callable[[], None]) -> None:
        """Until `close`. `listen` is called when kopf has taken the signals for itself."""
        self._stopped.clear()
        # Before kopf: it takes every task that is made after its start for one of its own.
        self._workers = self._queue.start(self.metrics.counted(self.reconcile), WORKERS)
        before = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=Watches(self._queue, self._ensembles, self._locks).registry(),
            settings=watch_settings(),
            standalone=True,
            clusterwide=not self._settings.served,
            namespaces=self._settings.served,
            # Given, because kopf would else ask for the user's name, and a container whose uid
            # has no line in /etc/passwd has none.
            identity=cast(Any, "leasekeeper"),
            ready_flag=self.watching,
            stop_flag=self._stop,
        )
        listen()
        try:
            await kopf.run_tasks(tasks, ignored=before)
        finally:
            await self.rest()
            await self._ensembles.close()
            self._stopped.set()

    async def rest(self) -> None:
        """Ends the work on keys; the watches go on, and write nothing."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    async def close(self) -> None:
        self._stop.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._stopped.wait()


async def run(settings: Settings, deadman: Deadman | None = None) -> None:
    async with AsyncExitStack() as stack:
        api = await Api.connect()
        stack.push_async_callback(api.close)
        election = await Election.join(
            settings.namespace, settings.election_lease, settings.election_lease_seconds, deadman
        )
        leader_api = await LeaderApi.behind(election.gate)
        api.served = leader_api.served = settings.served
        stack.push_async_callback(leader_api.close)
        queue = Queue()
        ensembles = EnsembleReconciler(leader_api, Applier(leader_api), settings, queue)
        operator = Operator(leader_api, settings, ensembles, queue, election.gate)
        stack.push_async_callback(operator.close)
        webhook = Webhook(api, settings) if settings.webhook_service else None
        health = Health(election, operator.watching, webhook)
        await stack.enter_async_context(serve(settings.http_port, health.pages))
        numbers = {"/metrics": operator.metrics.page}
        await stack.enter_async_context(serve(settings.metrics_port, numbers))
        if webhook is not None:
            await stack.enter_async_context(webhook.serve())
            keeper = asyncio.create_task(webhook.keep_certificates(), name="certificates")
            stack.callback(keeper.cancel)
        log.info("started version=%s namespace=%s", __version__, settings.namespace)
        await wait_for_kinds(api)
        await election.run(lambda: operator.run(election.listen), operator.rest)
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
    deadman = Deadman()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(deadman)) as runner:
        runner.run(run(settings, deadman))


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
  LEASEKEEPER_WATCH_NAMESPACES       namespaces that are served beside the own, with commas (all)
  LEASEKEEPER_DEFAULT_ENSEMBLE       LockEnsemble, in the own namespace, of locks without
                                     spec.ensembleRef (default)
  LEASEKEEPER_WEBHOOK_SERVICE        Service, in the own namespace, in front of the webhook
                                     (none: no webhook is served)
  LEASEKEEPER_WEBHOOK_CONFIGURATION  MutatingWebhookConfiguration that is given the CA (none)
  LEASEKEEPER_WEBHOOK_CERTIFICATE    Secret, in the own namespace, by which it serves, kept by
                                     somebody else such as cert-manager (none: one of its own)
  LEASEKEEPER_WEBHOOK_PORT           port of the webhook: TLS, path /inject (9443)
  LEASEKEEPER_ELECTION_LEASE         Lease, in the own namespace, by which one of several replicas
                                     is elected (leasekeeper-operator)
  LEASEKEEPER_ELECTION_LEASE_SECONDS how long after its last renewal a dead leader is succeeded (15)
  LEASEKEEPER_HTTP_PORT              port of /healthz and /readyz (8080)
  LEASEKEEPER_METRICS_PORT           port of /metrics (8081)
  LEASEKEEPER_LOG_LEVEL              DEBUG, INFO, WARNING or ERROR (INFO)
  KUBECONFIG                         how to reach the API server (none: as the pod it runs in)
"""


if __name__ == "__main__":
    main()
