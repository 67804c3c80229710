"""kopf, as the engine for watching only: every event becomes a key in the queue, and no more.

Its handlers for creation and change, its daemons and timers are not used: each of them would put a
finalizer or an annotation on users' objects, and a deletion would hang while the operator is down.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

import kopf

from leasekeeper_operator import names
from leasekeeper_operator.api import (
    CONFIG_MAP,
    ENDPOINT_SLICE,
    ENSEMBLE,
    LOCK,
    POD,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    Kind,
    Object,
)
from leasekeeper_operator.ensemble import EnsembleReconciler
from leasekeeper_operator.injection import wanted_locks
from leasekeeper_operator.lock import LockReconciler
from leasekeeper_operator.model import Place, ensemble_key, lock_key
from leasekeeper_operator.queue import Queue

WATCHED_OBJECTS = (STATEFUL_SET, SERVICE, CONFIG_MAP, SECRET, ENDPOINT_SLICE)
"""Those of ours whose loss stops something. Only objects with our label are asked for."""


SILENCE_SECONDS = 70.0
"""A watch that is silent for longer is taken for dead and made anew, from where it was: a network
may swallow everything and keep the connection. The API server says something at least once a minute
(bookmarks)."""


class Tirelessly:
    """Seconds between tries, without an end. kopf's own list ends after 54, and what a starting API
    server says then (403, before it has read its own rules) would end us, the webhook included."""

    def __iter__(self) -> Iterator[float]:
        return chain((1, 1, 2, 3), repeat(5))


class Watches:
    """Who is told when something changed."""

    def __init__(self, queue: Queue, ensembles: EnsembleReconciler, locks: LockReconciler) -> None:
        self._queue = queue
        self._ensembles = ensembles
        self._locks = locks

    def lock_event(self, obj: Object, gone: bool = False) -> None:
        key, version = lock_key(*_place(obj)), obj["metadata"]["resourceVersion"]
        self._queue.add_unless(key, lambda: not gone and self._locks.knows(key, version))

    def ensemble_event(self, obj: Object, gone: bool = False) -> None:
        version = "" if gone else obj["metadata"]["resourceVersion"]
        self._ensembles.shown(ensemble_key(*_place(obj)), version)

    def pod_event(self, obj: Object) -> None:
        """A candidate's: ready, ending or gone is what a leader-only Service must know."""
        # A pod that has just lost its label is shown once more, without it.
        label = (obj["metadata"].get("labels") or {}).get(names.LABEL_LOCK)
        for lock in wanted_locks(obj) or filter(None, [label]):
            self._queue.add(lock_key(obj["metadata"]["namespace"], lock))

    def owned_event(self, obj: Object, gone: bool = False) -> None:
        """Owners are found by label, because an object that was orphaned has no other trace."""
        labels, namespace = obj["metadata"].get("labels", {}), obj["metadata"]["namespace"]
        if lock := labels.get(names.LABEL_LOCK):
            key = lock_key(namespace, lock)
            self._queue.add_unless(key, lambda: not gone and self._locks.as_left(obj))
        elif ensemble := labels.get(names.LABEL_ENSEMBLE):
            key = ensemble_key(namespace, ensemble)
            self._ensembles.objects_changed(key, None if gone else obj)

    def registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        # Named, because kopf would else try every client library that it finds, and import them.
        kopf.on.login(registry=registry, id="kubeconfig")(kopf.login_with_kubeconfig)
        kopf.on.login(registry=registry, id="service-account")(kopf.login_with_service_account)

        def listen(kind: Kind, tell: Callable[[Object, bool], None]) -> None:
            # The event as it came: kopf's views of it cost more than all that we do with it.
            async def on_event(event: Any, **_: Any) -> None:
                obj = {**event["object"], "apiVersion": kind.api_version, "kind": kind.name}
                tell(obj, event["type"] == "DELETED")

            kopf.on.event(*_address(kind), registry=registry, id=f"on_{kind.plural}")(on_event)

        listen(LOCK, self.lock_event)
        listen(ENSEMBLE, self.ensemble_event)
        listen(POD, lambda pod, _: self.pod_event(pod))
        for kind in WATCHED_OBJECTS:
            listen(kind, self.owned_event)
        return registry


class NoMemory(kopf.DiffBaseStorage, kopf.ProgressStorage):
    """kopf would take a deep copy of every object of every event, twice, to see what changed since
    its handlers last ran. That was half of what an event costs, and we have none of those handlers.
    """

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> Any:
        return None

    def clear(self, *, essence: Any) -> Any:
        return essence

    def store(self, **_: Any) -> None:
        pass

    def purge(self, **_: Any) -> None:
        pass

    def touch(self, **_: Any) -> None:
        pass


def watch_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.persistence.diffbase_storage = settings.persistence.progress_storage = NoMemory()
    settings.posting.enabled = False
    # The CRDs are installed before us; without this, kopf needs the right to watch all CRDs.
    settings.scanning.disabled = True
    settings.networking.error_backoffs = Tirelessly()
    settings.watching.inactivity_timeout = SILENCE_SECONDS
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


def _place(obj: Object) -> Place:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]
