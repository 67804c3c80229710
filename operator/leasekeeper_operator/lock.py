"""Publishes a DistributedLock to its namespace, and says whether it can be used.

What cannot be done is said in the status, and what runs is left as it is: a lock whose spec became
impossible keeps its Secret, its user on the nodes, and its leader. Two things come before that: a
namespace that its ensemble no longer serves is cut off, and a lock that was deleted and made again
on another ensemble is published only when the old one can have no leader of it (lock_users.py).
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime

from leasekeeper_operator import names
from leasekeeper_operator.api import ENSEMBLE, LOCK, SECRET, Api, ApiError, Conflict, Object
from leasekeeper_operator.apply import Applier
from leasekeeper_operator.board import Ensembles
from leasekeeper_operator.lock_status import NOT_ALLOWED, LockStatus
from leasekeeper_operator.manifests.lock import (
    digests_of,
    ensemble_of,
    lock_secret,
    own_ensemble,
    passwords_in,
    published_by,
    role,
    role_binding,
)
from leasekeeper_operator.model import Ensemble, Key, Lock, ensemble_for, ensemble_key
from leasekeeper_operator.rotation import SETTLE, Rotating
from leasekeeper_operator.settings import Settings
from leasekeeper_operator.status import READY, Condition
from leasekeeper_operator.tls import material_in

log = logging.getLogger(__name__)

MOVING, ENDING = "MovingEnsemble", "EnsembleEnding"
MOVING_SECONDS = 2.0
"""How often a lock is looked at that waits for an old ensemble, or for nodes to be told of a new
password."""
RESYNC_SECONDS = 600.0  # for what no watch reports: Role and RoleBinding edited by hand


@dataclass(frozen=True, slots=True)
class Refused(Exception):
    """The spec cannot be carried out as it is."""

    reason: str
    message: str


class LockReconciler:
    def __init__(
        self, api: Api, applier: Applier, settings: Settings, ensembles: Ensembles
    ) -> None:
        self._api = api
        self._applier = applier
        self._settings = settings
        self._ensembles = ensembles
        self._users = ensembles.users
        self._status = LockStatus(api, applier, ensembles)
        self._left: dict[Key, str] = {}
        """By lock: the version whose event tells nothing that the last look did not know."""

    def knows(self, key: Key, version: str) -> bool:
        """Whether that version of the DistributedLock has nothing that its last look did not see:
        it may have been made by it."""
        return self._left.get(key) == version

    def as_left(self, obj: Object) -> bool:
        """The same of an object that belongs to a lock."""
        return self._applier.as_left(obj)

    async def reconcile(self, key: Key) -> float | None:
        self._left.pop(key, None)
        obj = await self._api.get(LOCK, key.namespace, key.name)
        if obj is None or obj["metadata"].get("deletionTimestamp"):
            await self._clean_up(key)
            return None
        self._users.seen(obj)
        lock = Lock.parse(obj)
        place = ensemble_for(obj, self._settings.default_place)
        found = self._ensembles.newest(ensemble_key(*place))
        found = found or await self._api.get(ENSEMBLE, *place)
        more: Object = {}
        try:
            if lock.ensemble is not None:
                found = await self._bring_ensemble(lock, found)
            ensemble = self._accept(lock, place, found)
            # Only to ask in the better order: that nobody wrote a status proves nothing.
            passwords = await self._publish(lock, ensemble, likely_new="status" not in obj)
        except Refused as refused:
            ready = Condition(READY, False, refused.reason, refused.message)
            again = MOVING_SECONDS if ready.reason in (MOVING, ENDING) else RESYNC_SECONDS
        else:
            ready = Condition(READY, True, "Published", "pods can be candidates of this lock")
            more, again = self._rotation(obj, ensemble, passwords)
        self._left[key] = await self._status.write(lock, obj, place, found, ready, more)
        return again

    def _rotation(
        self, obj: Object, ensemble: Ensemble, passwords: Rotating[str]
    ) -> tuple[Object, float]:
        """What the status says of a lock's password, and in how many seconds to look again."""
        lock, said = Lock.parse(obj), obj.get("status", {}).get("passwordGeneration", 1)
        if passwords.since is not None:
            left = SETTLE - (datetime.now(UTC) - passwords.since)
            return {}, min(max(left.total_seconds(), MOVING_SECONDS), RESYNC_SECONDS)
        if passwords.generation == said and passwords.generation >= lock.password_generation:
            return {}, RESYNC_SECONDS
        told = self._users.told(ensemble.key, lock.full_name, digests_of(passwords))
        if passwords.next is not None or not told:
            return {}, MOVING_SECONDS
        return {"passwordGeneration": passwords.generation}, RESYNC_SECONDS

    async def _bring_ensemble(self, lock: Lock, found: Object | None) -> Object:
        """Of a lock that brings its own."""
        wanted = own_ensemble(lock)
        (owner,) = wanted["metadata"]["ownerReferences"]
        if found is not None and owner["uid"] not in [o["uid"] for o in _owners(found)]:
            # What is remembered of it may be of the moment before.
            found = await self._api.get(ENSEMBLE, lock.namespace, lock.name)
        if found is not None and owner["uid"] not in [o["uid"] for o in _owners(found)]:
            if any((o["kind"], o["name"]) == (owner["kind"], lock.name) for o in _owners(found)):
                raise Refused(
                    ENDING,
                    f"the LockEnsemble {lock.full_name} belongs to an earlier lock of this name,"
                    " and goes with it",
                )
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
                NOT_ALLOWED,
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

    async def _publish(self, lock: Lock, ensemble: Ensemble, *, likely_new: bool) -> Rotating[str]:
        passwords = await self._bring_secret(lock, ensemble, likely_new)
        for wanted in (role(lock), role_binding(lock)):
            try:
                if likely_new:
                    await self._applier.make(wanted)
                    continue
            except Conflict:
                pass
            await self._applier.bring(wanted)
        return passwords

    async def _bring_secret(
        self, lock: Lock, ensemble: Ensemble, likely_new: bool
    ) -> Rotating[str]:
        name = names.lock_objects(lock.name)
        trusted = await self._trusted(ensemble)
        current = None if likely_new else await self._api.get(SECRET, lock.namespace, name)
        if current is None:
            await self._refuse_while_elsewhere(lock, ensemble)
            # Created and not applied: of two operators, one makes the password.
            first = Rotating(_password(), lock.password_generation)
            try:
                made = await self._applier.make(lock_secret(lock, ensemble, first, trusted))
            except Conflict:
                current = await self._api.get(SECRET, lock.namespace, name)
                if current is None:
                    raise
            else:
                log.info("lock-published lock=%s ensemble=%s", lock.key, ensemble.key)
                self._users.published(ensemble, made)
                return first
        await self._check_secret(lock, ensemble, current)
        known = passwords_in(current, _password)
        told = self._users.told(ensemble.key, lock.full_name, digests_of(known))
        new = known.advance(lock.password_generation, told, datetime.now(UTC), _password)
        after = await self._applier.bring(lock_secret(lock, ensemble, new, trusted), current)
        if after["metadata"]["resourceVersion"] != current["metadata"]["resourceVersion"]:
            log.info(
                "lock-republished lock=%s ensemble=%s generation=%d passwords=%d",
                *(lock.key, ensemble.key, new.generation, len(new.valid)),
            )
        self._users.published(ensemble, after)
        return new

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
        other = await self._users.elsewhere(lock.full_name, ensemble.key)
        if other is not None:
            self._users.withdrawn(lock.full_name)  # should nobody have told that ensemble
            self._ensembles.look(other)
            raise _moving(str(other), ensemble)

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
                self._users.withdrawn(lock.full_name)
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
        self._users.gone(str(key))
        self._ensembles.board.gone(str(key))
        secret = await self._api.get(SECRET, key.namespace, names.lock_objects(key.name))
        if secret is None or (published := ensemble_of(secret)) is None:
            return
        if not published_by(secret, key.name):
            # An ensemble called leasekeeper-X has a Secret of the name that a lock's could have.
            return
        await self._api.delete(secret)
        log.info("lock-gone lock=%s ensemble=%s", key, "/".join(published))
        self._users.withdrawn(str(key))


def _owners(obj: Object) -> list[Object]:
    owners: list[Object] = obj["metadata"].get("ownerReferences", [])
    return owners


def _moving(old: str, new: Ensemble) -> Refused:
    return Refused(
        MOVING,
        f"a lock of this name was on LockEnsemble {old}, whose nodes may still have a leader of it:"
        f" it is published on {new.full_name} when they have cut off its pods and its longest lease"
        " has ended. Should too few of them answer, bring them back or delete that ensemble",
    )


def _password() -> str:
    return secrets.token_urlsafe(24)
