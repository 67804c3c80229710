"""Each lock has an ACL user of its own on the nodes of its ensemble. Here they are kept in step.

Three places must agree: the Secrets that were published to the locks' namespaces (the source), the
Secret ENSEMBLE-users (what a node reads when it opens), and the open nodes themselves, which are
told at once. A user is taken away only when the API server says that its lock does not exist: a
Secret that is missing for any other reason must not cut off a running election.

The key of a deleted lock stays in the nodes' memory (about 100 bytes, and with it F: a lock of the
same name goes on above it). `lk1_forget` is not called: it raises the node's floor above the tokens
of the other locks, and their leaders would be refused at their next renewal.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from leasekeeper.redlock import users
from leasekeeper_operator import names
from leasekeeper_operator.api import LOCK, SECRET, Api, Object
from leasekeeper_operator.apply import Applier, digest
from leasekeeper_operator.manifests.common import text_of
from leasekeeper_operator.manifests.ensemble import parse_users, users_secret
from leasekeeper_operator.manifests.lock import password_of, published_for
from leasekeeper_operator.model import Ensemble, Key
from leasekeeper_operator.nodes import OPEN, NodeError, Nodes, Sight

log = logging.getLogger(__name__)

REREAD_SECONDS = 60.0  # should an event of a Secret be missed
RECHECK_SECONDS = 10.0
"""An agent that begins again with an old copy of its file (the kubelet renews it about once a
minute) sets the users of that copy, one too many or too few; this is how long it can last."""


@dataclass(slots=True)
class _State:
    wanted: dict[str, str] = field(default_factory=dict)
    read_at: float | None = None
    """When `wanted` was last made from the API server's objects; none: it must be made anew."""
    told: dict[str, tuple[str, float]] = field(default_factory=dict)
    """By node: what it was last brought to, and when."""


class LockUsers:
    """Of all ensembles."""

    def __init__(
        self, api: Api, applier: Applier, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._applier = applier
        self._now = now
        self._states: dict[Key, _State] = {}

    def invalidate(self, ensemble: Key) -> None:
        """A lock of this ensemble came, went or changed."""
        if state := self._states.get(ensemble):
            state.read_at = None

    def drop(self, ensemble: Key) -> None:
        self._states.pop(ensemble, None)

    def locks(self, ensemble: Key) -> list[tuple[str, str]]:
        """Namespace and name of the locks of an ensemble, as last read."""
        state = self._states.get(ensemble, _State())
        return [_split(lock) for lock in state.wanted]

    async def sync(self, ensemble: Ensemble, nodes: Nodes, sights: Mapping[str, Sight]) -> None:
        state = self._states.setdefault(ensemble.key, _State())
        if state.read_at is None or self._now() - state.read_at > REREAD_SECONDS:
            # Set before reading: what is invalidated while we read is read again.
            state.read_at = self._now()
            try:
                state.wanted = await self._wanted(ensemble)
                await self._applier.bring(users_secret(ensemble, state.wanted))
            except BaseException:
                state.read_at = None
                raise
        opened = [sight for sight in sights.values() if sight.state == OPEN]
        await asyncio.gather(*(self._tell(ensemble, state, nodes, sight) for sight in opened))

    async def _wanted(self, ensemble: Ensemble) -> dict[str, str]:
        wanted = {}
        for secret in await self._api.find(SECRET, labels=published_for(ensemble)):
            namespace = secret["metadata"]["namespace"]
            lock = secret["metadata"]["labels"][names.LABEL_LOCK]
            password = password_of(secret)
            if password and _trustworthy(secret, lock) and ensemble.allows(namespace):
                wanted[f"{namespace}/{lock}"] = users.digest(password)
        name = names.users_secret(ensemble.name)
        current = await self._api.get(SECRET, ensemble.namespace, name) or {}
        for lock, known in parse_users(text_of(current, "users")).items():
            if lock not in wanted and await self._exists(lock):
                wanted[lock] = known
        return wanted

    async def _exists(self, lock: str) -> bool:
        return await self._api.get(LOCK, *_split(lock)) is not None

    async def _tell(self, ensemble: Ensemble, state: _State, nodes: Nodes, sight: Sight) -> None:
        assert sight.view is not None, "an open node has a view"
        wanted = dict(state.wanted)
        target = digest([sight.view.life, sight.view.incarnation, wanted])
        done, when = state.told.get(sight.id, ("", 0.0))
        if done == target and self._now() - when < RECHECK_SECONDS:
            return
        try:
            await self._bring(ensemble, nodes, sight.id, wanted)
        except NodeError as error:
            # The node will be Unreachable or Closed at the next look; the others go on.
            log.warning(
                'users-not-told ensemble=%s node=%s error="%s"', ensemble.key, sight.id, error
            )
        else:
            state.told[sight.id] = (target, self._now())

    async def _bring(
        self, ensemble: Ensemble, nodes: Nodes, node: str, wanted: Mapping[str, str]
    ) -> None:
        present = await nodes.users(node)
        for lock, known in wanted.items():
            if present.get(lock) != known:
                await nodes.set_user(node, lock, known)
                log.info("user-set ensemble=%s node=%s lock=%s", ensemble.key, node, lock)
        for lock in present.keys() - wanted.keys():
            if not await self._exists(lock):
                await nodes.delete_user(node, lock)
                log.info("user-deleted ensemble=%s node=%s lock=%s", ensemble.key, node, lock)


def _trustworthy(secret: Object, lock: str) -> bool:
    """Who may write Secrets can write one that looks like ours. It gives him no more than his own
    namespace's locks; but a name that no lock can have would spoil the file for everybody."""
    return names.valid_lock_name(lock) and secret["metadata"]["name"] == names.lock_objects(lock)


def _split(lock: str) -> tuple[str, str]:
    namespace, _, name = lock.partition("/")
    return namespace, name
