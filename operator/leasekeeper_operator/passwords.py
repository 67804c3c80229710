"""The passwords of agents, peers and the operator, and how new ones follow old ones: without a
restart, so that no leader notices.

A server lets a user in by any of several passwords, and the operator may set them while it runs
(`ACL SETUSER`); a server that starts reads all that are valid from its configuration.

The steps (rotation.py) are decided from the Secret ENSEMBLE-credentials, what the nodes know, and
the clock.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from leasekeeper.redlock import users
from leasekeeper_operator import names
from leasekeeper_operator.api import SECRET, Api, Object
from leasekeeper_operator.apply import Applier
from leasekeeper_operator.link import NodeError
from leasekeeper_operator.manifests.common import base64_data, ensemble_object, text_of
from leasekeeper_operator.model import Ensemble
from leasekeeper_operator.nodes import USERS, Nodes, Passwords
from leasekeeper_operator.rotation import Rotating, noted

log = logging.getLogger(__name__)

Digests = Mapping[str, frozenset[str]]
"""By user."""


Credentials = Rotating[Passwords]


def advance(
    known: Credentials,
    wanted: int,
    nodes: Mapping[str, Digests],
    total: int,
    now: datetime,
    make: Callable[[], Passwords],
) -> Credentials:
    """One step towards generation `wanted`. `nodes`: what those know that could be asked."""
    new = known.next
    told = new is not None and len(nodes) == total and all(_has(n, new) for n in nodes.values())
    return known.advance(wanted, told, now, make)


def _has(node: Digests, passwords: Passwords) -> bool:
    return all(digest in node.get(user, ()) for user, digest in digests(passwords).items())


def digests(passwords: Passwords) -> dict[str, str]:
    return {user: users.digest(getattr(passwords, user)) for user in USERS}


def valid_digests(credentials: Credentials) -> dict[str, frozenset[str]]:
    sets = [digests(passwords) for passwords in credentials.valid]
    return {user: frozenset(known[user] for known in sets) for user in USERS}


def make_passwords() -> Passwords:
    return Passwords(*(secrets.token_urlsafe(24) for _ in USERS))


class PasswordKeeper:
    def __init__(self, api: Api, applier: Applier) -> None:
        self._api = api
        self._applier = applier

    async def bring(self, ensemble: Ensemble, used: Credentials | None) -> Credentials:
        """Those in the Secret. Servers that run know them, so they are never made anew while there
        is anything left of them: there, or if it was deleted in our own memory (`used`)."""
        name = names.credentials_secret(ensemble.name)
        secret = await self._api.get(SECRET, ensemble.namespace, name)
        found = _parse(secret or {}, used)
        if secret is None:
            # Created and not applied: of two operators, one makes the passwords. The other one's
            # conflict is tried again.
            await self._applier.make(_secret(ensemble, found))
            log.info("passwords-made ensemble=%s", ensemble.key)
        else:
            await self._applier.bring(_secret(ensemble, found), secret)
        return found

    async def rotate(
        self, ensemble: Ensemble, known: Credentials, nodes: Nodes
    ) -> tuple[Credentials, bool]:
        """Brings the nodes to `known`, and takes a step if there is one; in the Secret first. Also
        whether all nodes could be brought to it."""
        asked = await asyncio.gather(*(self._align(known, nodes, n) for n in nodes.ids))
        seen = {node: found for node, found in zip(nodes.ids, asked, strict=True) if found}
        wanted, now = ensemble.password_generation, datetime.now(UTC)
        new = advance(known, wanted, seen, len(nodes.ids), now, make_passwords)
        if new != known:
            await self._applier.bring(_secret(ensemble, new))
            log.info(
                "passwords-step ensemble=%s generation=%d next=%s old=%s",
                *(ensemble.key, new.generation, new.next is not None, new.old is not None),
            )
        return new, len(seen) == len(nodes.ids)

    async def _align(self, known: Credentials, nodes: Nodes, node: str) -> Digests | None:
        """What that node knows afterwards; none: it could not be asked."""
        try:
            return await self._tell(known, nodes, node)
        except NodeError as error:
            log.debug('passwords-not-told node=%s error="%s"', node, error)
        if known.old is None:
            return None
        # A server that began again reads a file that may be a minute old, with the old ones only.
        try:
            async with nodes.coming_by(node, known.old):
                return await self._tell(known, nodes, node)
        except NodeError:
            return None

    async def _tell(self, known: Credentials, nodes: Nodes, node: str) -> Digests:
        found, valid = await nodes.admin_digests(node), valid_digests(known)
        for user, wanted in valid.items():
            if found.get(user) != wanted:
                await nodes.set_digests(node, user, wanted, found.get(user, frozenset()))
        return valid


def _parse(secret: Object, used: Credentials | None) -> Credentials:
    def one(prefix: str) -> Passwords | None:
        values = [text_of(secret, f"{prefix}{user}") for user in USERS]
        return Passwords(*values) if all(values) else None

    fresh, kept = make_passwords(), used.current if used else None
    current = Passwords(
        *(
            text_of(secret, user) or getattr(kept, user, "") or getattr(fresh, user)
            for user in USERS
        )
    )
    if not secret:
        return replace(used, current=current) if used else Credentials(current)
    generation, since = noted(secret)
    old = one("old-")
    return Credentials(current, generation, one("next-"), old, since if old else None)


def _secret(ensemble: Ensemble, credentials: Credentials) -> Object:
    sets = (("", credentials.current), ("next-", credentials.next), ("old-", credentials.old))
    values = {
        f"{prefix}{user}": getattr(passwords, user)
        for prefix, passwords in sets
        if passwords is not None
        for user in USERS
    }
    name = names.credentials_secret(ensemble.name)
    made = ensemble_object(ensemble, SECRET, name, type="Opaque", data=base64_data(**values))
    made["metadata"]["annotations"] = credentials.notes
    return made
