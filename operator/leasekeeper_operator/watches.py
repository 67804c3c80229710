"""kopf, as the engine for watching only: every event becomes a key in the queue, and no more.

Its handlers for creation and change, its daemons and timers are not used: each of them would put a
finalizer or an annotation on users' objects, and a deletion would hang while the operator is down.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import kopf

from leasekeeper_operator import names
from leasekeeper_operator.api import (
    CONFIG_MAP,
    ENDPOINT_SLICE,
    ENSEMBLE,
    GROUP,
    LOCK,
    POD,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    VERSION,
    Kind,
    Object,
)
from leasekeeper_operator.ensemble import EnsembleReconciler
from leasekeeper_operator.injection import wanted_locks
from leasekeeper_operator.manifests.lock import ensemble_of
from leasekeeper_operator.model import ensemble_key, lock_key
from leasekeeper_operator.queue import Queue

WATCHED_OBJECTS = (STATEFUL_SET, SERVICE, CONFIG_MAP, SECRET, ENDPOINT_SLICE)
"""Those of ours whose loss stops something. Only objects with our label are asked for."""


class Tirelessly:
    """Seconds between tries, without an end. kopf's own list ends after 54, and what a starting API
    server says then (403, before it has read its own rules) would end us, the webhook included."""

    def __iter__(self) -> Iterator[float]:
        return chain((1, 1, 2, 3), repeat(5))


class Watches:
    """Who is told when something changed."""

    def __init__(self, queue: Queue, ensembles: EnsembleReconciler) -> None:
        self._queue = queue
        self._ensembles = ensembles

    def lock_event(self, namespace: str, name: str) -> None:
        self._queue.add(lock_key(namespace, name))

    def ensemble_event(self, namespace: str, name: str) -> None:
        self._queue.add(ensemble_key(namespace, name))

    def owned_event(self, metadata: Object) -> None:
        """Owners are found by label, because an object that was orphaned has no other trace."""
        labels, namespace = metadata.get("labels", {}), metadata["namespace"]
        if lock := labels.get(names.LABEL_LOCK):
            self._queue.add(lock_key(namespace, lock))
            if place := ensemble_of({"metadata": metadata}):
                self._ensembles.locks_changed(ensemble_key(*place))
        elif ensemble := labels.get(names.LABEL_ENSEMBLE):
            self._ensembles.objects_changed(ensemble_key(namespace, ensemble))

    def registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        # Named, because kopf would else try every client library that it finds, and import them.
        kopf.on.login(registry=registry, id="kubeconfig")(kopf.login_with_kubeconfig)
        kopf.on.login(registry=registry, id="service-account")(kopf.login_with_service_account)

        @kopf.on.event(GROUP, VERSION, LOCK.plural, registry=registry)
        async def on_lock(namespace: str | None, name: str, **_: Any) -> None:
            self.lock_event(namespace or "", name)

        @kopf.on.event(GROUP, VERSION, ENSEMBLE.plural, registry=registry)
        async def on_ensemble(namespace: str | None, name: str, **_: Any) -> None:
            self.ensemble_event(namespace or "", name)

        @kopf.on.event(*_address(POD), registry=registry)
        async def on_candidate(namespace: str | None, meta: Any, **_: Any) -> None:
            # Ready, ending or gone: what a leader-only Service must know.
            # A pod that has just lost its label is shown once more, without it.
            label = (meta.get("labels") or {}).get(names.LABEL_LOCK)
            for lock in wanted_locks({"metadata": meta}) or filter(None, [label]):
                self.lock_event(namespace or "", lock)

        async def on_owned(meta: Any, **_: Any) -> None:
            self.owned_event(dict(meta))

        for kind in WATCHED_OBJECTS:
            kopf.on.event(*_address(kind), registry=registry, id=f"on_{kind.plural}")(on_owned)
        return registry


def watch_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    # The CRDs are installed before us; without this, kopf needs the right to watch all CRDs.
    settings.scanning.disabled = True
    settings.networking.error_backoffs = Tirelessly()
    settings.process.ultimate_exiting_timeout = 10
    settings.watching.label_selectors[_address(POD)] = names.LABEL_LOCK
    for kind in WATCHED_OBJECTS:
        settings.watching.label_selectors[_address(kind)] = names.MANAGED_SELECTOR
    return settings


def quiet_logs() -> None:
    """kopf tells of every event; our own reconcilers tell of every change."""
    logging.getLogger("kopf").setLevel(logging.WARNING)


def _address(kind: Kind) -> tuple[str, str, str]:
    group, _, version = kind.api_version.rpartition("/")
    return group, version, kind.plural
