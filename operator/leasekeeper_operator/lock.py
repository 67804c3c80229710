"""Publishes a DistributedLock to its namespace, and says whether it can be used.

What cannot be done is said in the status, and what runs is left as it is: a lock whose spec became
impossible keeps its Secret, its user on the nodes, and its leader. Two things come before that: a
namespace that its ensemble no longer serves is cut off, and a lock that was deleted and made again
on another ensemble is published only when the old one can have no leader of it (lock_users.py).
"""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from leasekeeper_operator import leadership, names, wishes
from leasekeeper_operator.api import ENSEMBLE, LOCK, SECRET, Api, ApiError, Object
from leasekeeper_operator.apply import Applier, stamped
from leasekeeper_operator.board import Board
from leasekeeper_operator.events import Happening, tell
from leasekeeper_operator.manifests.ensemble import known_locks
from leasekeeper_operator.manifests.lock import (
    ensemble_of,
    lock_secret,
    own_ensemble,
    password_of,
    published_by,
    role,
    role_binding,
)
from leasekeeper_operator.model import Ensemble, Key, Lock, Place, ensemble_for, ensemble_key
from leasekeeper_operator.routing import Routing
from leasekeeper_operator.settings import Settings
from leasekeeper_operator.status import (
    READY,
    Condition,
    changed,
    merge_conditions,
    quorum_condition,
    timestamp,
)
from leasekeeper_operator.tls import material_in

log = logging.getLogger(__name__)

MOVING = "MovingEnsemble"
MOVING_SECONDS = 2.0  # how often a lock that waits for its old ensemble is looked at
RESYNC_SECONDS = 600.0  # for what no watch reports: Role and RoleBinding edited by hand


@dataclass(frozen=True, slots=True)
class Refused(Exception):
    """The spec cannot be carried out as it is."""

    reason: str
    message: str


class Ensembles(Protocol):
    """What this side knows of the other reconciler."""

    board: Board

    def locks_changed(self, key: Key) -> None:
        """A lock of this ensemble came, went or changed."""

    def look(self, key: Key) -> None:
        """A lock of this ensemble may have another holder now."""


class LockReconciler:
    def __init__(
        self, api: Api, applier: Applier, settings: Settings, ensembles: Ensembles
    ) -> None:
        self._api = api
        self._applier = applier
        self._settings = settings
        self._ensembles = ensembles
        self._locks_changed = ensembles.locks_changed
        self._routing = Routing(api, applier)

    async def reconcile(self, key: Key) -> float | None:
        obj = await self._api.get(LOCK, key.namespace, key.name)
        if obj is None or obj["metadata"].get("deletionTimestamp"):
            await self._clean_up(key)
            return None
        lock = Lock.parse(obj)
        place = ensemble_for(obj, self._settings.default_place)
        found = await self._api.get(ENSEMBLE, *place)
        try:
            if lock.ensemble is not None:
                found = await self._bring_ensemble(lock, found)
            ensemble = self._accept(lock, place, found)
            await self._publish(lock, ensemble)
        except Refused as refused:
            ready = Condition(READY, False, refused.reason, refused.message)
        else:
            ready = Condition(READY, True, "Published", "pods can be candidates of this lock")
        await self._write_status(lock, obj, place, found, ready)
        return MOVING_SECONDS if ready.reason == MOVING else RESYNC_SECONDS

    async def _bring_ensemble(self, lock: Lock, found: Object | None) -> Object:
        """Of a lock that brings its own."""
        wanted = own_ensemble(lock)
        (owner,) = wanted["metadata"]["ownerReferences"]
        owners = found["metadata"].get("ownerReferences", []) if found else []
        if found is not None and owner["uid"] not in [known["uid"] for known in owners]:
            raise Refused(
                "EnsembleConflict",
                f"the LockEnsemble {lock.full_name} is not this lock's own: give the lock another"
                " name, or name that ensemble in spec.ensembleRef of a new lock",
            )
        try:
            return await self._applier.bring(wanted)
        except ApiError as error:
            if error.status not in (400, 422):
                raise
            raise Refused("EnsembleRefused", f"spec.ensemble: {error}") from error

    def _accept(self, lock: Lock, place: tuple[str, str], found: Object | None) -> Ensemble:
        wanted = "/".join(place)
        if found is None:
            raise Refused(
                "EnsembleNotFound",
                f"there is no LockEnsemble {wanted}: create it, or name another one in"
                " spec.ensembleRef of a new lock",
            )
        ensemble = Ensemble.parse(found)
        if not ensemble.allows(lock.namespace):
            raise Refused(
                "EnsembleNotAllowed",
                f"LockEnsemble {wanted} does not serve locks of the namespace {lock.namespace}:"
                " add it to the ensemble's spec.allowedNamespaces. Until then its candidates are"
                " cut off",
            )
        longest = lock.lease_duration + lock.lock_delay
        if longest > ensemble.longest_lease:
            raise Refused(
                "LeaseTooLong",
                f"spec.leaseDurationSeconds + spec.lockDelaySeconds ({longest}) must not exceed"
                f" spec.longestLeaseSeconds ({ensemble.longest_lease:g}) of LockEnsemble {wanted}:"
                " its nodes would refuse every candidate. The last valid timings stay in force",
            )
        return ensemble

    async def _publish(self, lock: Lock, ensemble: Ensemble) -> None:
        await self._bring_secret(lock, ensemble)
        await self._applier.bring(role(lock))
        await self._applier.bring(role_binding(lock))

    async def _bring_secret(self, lock: Lock, ensemble: Ensemble) -> None:
        name = names.lock_objects(lock.name)
        trusted = await self._trusted(ensemble)
        current = await self._api.get(SECRET, lock.namespace, name)
        if current is None:
            await self._refuse_while_elsewhere(lock, ensemble)
            # Created and not applied: of two operators, one makes the password. The other one's
            # conflict is tried again.
            await self._api.create(stamped(lock_secret(lock, ensemble, _password(), trusted)))
            log.info("lock-published lock=%s ensemble=%s", lock.key, ensemble.key)
            self._locks_changed(ensemble.key)
            return
        await self._check_secret(lock, ensemble, current)
        password = password_of(current) or _password()
        after = await self._applier.bring(lock_secret(lock, ensemble, password, trusted))
        if after["metadata"]["resourceVersion"] != current["metadata"]["resourceVersion"]:
            log.info("lock-republished lock=%s ensemble=%s", lock.key, ensemble.key)
            self._locks_changed(ensemble.key)

    async def _trusted(self, ensemble: Ensemble) -> str:
        """The CAs of the nodes' certificates; empty: the nodes speak without TLS."""
        if ensemble.tls is None:
            return ""
        name = names.tls_secret(ensemble.name)
        if used := material_in(await self._api.get(SECRET, ensemble.namespace, name)):
            return used.trusted
        raise Refused(
            "NoCertificates", f"LockEnsemble {ensemble.full_name} has no certificates yet"
        )

    async def _refuse_while_elsewhere(self, lock: Lock, ensemble: Ensemble) -> None:
        """A lock of this name may have been deleted on another ensemble a moment ago, and its pods
        may still elect a leader there."""
        others = [Ensemble.parse(found) for found in await self._api.find(ENSEMBLE)]
        # All at once: with ten ensembles and a thousand locks, one by one took half of a start.
        secrets = {
            (found["metadata"]["namespace"], found["metadata"]["name"]): found
            for found in await self._api.find(SECRET, labels=names.OF_ENSEMBLES)
        }
        for other in others:
            secret = secrets.get((other.namespace, names.users_secret(other.name)))
            if other.key == ensemble.key or secret is None:
                continue
            if lock.full_name in known_locks(secret):
                self._locks_changed(other.key)
                raise _moving(other.full_name, ensemble)

    async def _check_secret(self, lock: Lock, ensemble: Ensemble, secret: Object) -> None:
        name = f"{lock.namespace}/{secret['metadata']['name']}"
        published = ensemble_of(secret)
        if published is None:
            raise Refused(
                "SecretConflict",
                f"the Secret {name} is not Leasekeeper's: rename or delete it, or give the lock"
                " another name",
            )
        if published != (ensemble.namespace, ensemble.name):
            if published_by(secret, lock.name) not in ("", lock.uid):
                # Of a lock that is gone: this one has nothing to lose yet, and can be moved.
                await self._api.delete(secret)
                self._locks_changed(ensemble_key(*published))
                raise _moving("/".join(published), ensemble)
            raise Refused(
                "EnsembleChanged",
                f"this lock was published on LockEnsemble {'/'.join(published)} and now asks for"
                f" {ensemble.full_name}, and two ensembles could elect two leaders at once: stop"
                " its pods, delete the lock, and create it again",
            )

    async def _clean_up(self, key: Key) -> None:
        """Owner references do it as well, but later; candidates are cut off as soon as the Secret
        is gone and the ensemble looks."""
        secret = await self._api.get(SECRET, key.namespace, names.lock_objects(key.name))
        if secret is None or (published := ensemble_of(secret)) is None:
            return
        if not published_by(secret, key.name):
            # An ensemble called leasekeeper-X has a Secret of the name that a lock's could have.
            return
        await self._api.delete(secret)
        log.info("lock-gone lock=%s ensemble=%s", key, "/".join(published))
        self._locks_changed(ensemble_key(*published))

    async def _write_status(
        self,
        lock: Lock,
        obj: Object,
        place: tuple[str, str],
        found: Object | None,
        ready: Condition,
    ) -> None:
        old = obj.get("status", {})
        conditions = [ready]
        new: Object = {"observedGeneration": lock.generation, "ensemble": "/".join(place)}
        happened: list[Happening] = []
        if found is not None:
            total = Ensemble.parse(found).nodes
            opened = found.get("status", {}).get("openNodes", 0)
            quorum = quorum_condition(opened, total)
            if ready.holds and not quorum.holds:
                ready = Condition(READY, False, quorum.reason, quorum.message)
            held, more, happened = await self._leadership(lock, obj, ensemble_key(*place))
            problem = await self._route(lock, obj, place)
            degraded = leadership.degraded_condition(problem, opened, total)
            conditions = [ready, quorum, degraded]
            if held is not None:
                conditions.append(held)
            new |= {"nodes": f"{opened}/{total}", "quorum": total // 2 + 1, **more}
        if lock.service is not None:
            new["service"] = lock.service["name"]
        elif "service" in old:
            new["service"] = None
        new["conditions"] = merge_conditions(
            old.get("conditions", []), conditions, lock.generation, datetime.now(UTC)
        )
        if changed(old, new):
            await self._api.patch_status(obj, new)
            await tell(self._api, obj, happened)

    async def _route(self, lock: Lock, obj: Object, place: Place) -> tuple[str, str]:
        outlook = self._ensembles.board.outlook(ensemble_key(*place))
        return await self._routing.bring(lock, outlook, obj.get("status", {}).get("service") or "")

    async def _leadership(
        self, lock: Lock, obj: Object, ensemble: Key
    ) -> tuple[Condition | None, Object, list[Happening]]:
        """Who holds it, and what is asked of the holder: the condition (none: this operator has not
        looked yet, and leaves what the last one said), what else the status says, and what
        happened."""
        old, now = obj.get("status", {}), datetime.now(UTC)
        outlook = self._ensembles.board.outlook(ensemble)
        if outlook is None:
            return None, {}, []
        held = leadership.held_condition(lock.full_name, outlook, lock.paused)
        holder = outlook.holders.get(lock.full_name)
        if old.get("token", 0) > (holder.token if holder else 0):
            self._ensembles.look(ensemble)  # a sidecar says that it won, and we have not seen it
        past = old.get("transitions", [])
        passed = leadership.transitions(past, holder, now)
        before = {c["type"]: c["status"] for c in old.get("conditions", [])}.get("Held", "")
        happened = leadership.happenings(past, passed, before, held)
        by = wishes.asked_by(obj)
        asked = old.get("request")
        record = wishes.recorded(lock, asked, holder, by, int(time.time() * 1000), timestamp(now))
        new: Object = {"transitions": passed} if passed else {}
        if record is not None and record != asked:
            # In the status first: a node that is told of it by a dying operator is told the same by
            # the next one.
            await self._api.patch_status(obj, {"request": record})
            log.info("asked lock=%s kind=%s by=%s", lock.key, record["kind"], record["by"])
            happened.append(wishes.happening(record))
        if self._ensembles.board.ask(ensemble, lock.full_name, wishes.request_of(record)):
            self._ensembles.look(ensemble)
        return held, new, happened


def _moving(old: str, new: Ensemble) -> Refused:
    return Refused(
        MOVING,
        f"a lock of this name was on LockEnsemble {old}, whose nodes may still have a leader of it:"
        f" it is published on {new.full_name} when they have cut off its pods and its longest lease"
        " has ended. Should too few of them answer, bring them back or delete that ensemble",
    )


def _password() -> str:
    return secrets.token_urlsafe(24)
