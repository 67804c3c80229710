"""The certificates of an ensemble's nodes, and how one CA is followed by another: two steps.

    offered: by a CA of our own (Secret ENSEMBLE-ca), or by a Secret that cert-manager writes
    in use:  Secret ENSEMBLE-tls, mounted by the nodes; its CAs are handed on to the locks

    a new CA is offered ──▶ trusted beside the old one ──SETTLE──▶ its certificate is used
                                                            └──KEEP──▶ the old one goes

Files are read again for every new connection and servers are told to read theirs (agent), so nobody
restarts and no leader notices. Each step is decided from what stands in the two Secrets and the
clock: an operator that is killed in between is followed by one that goes on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from leasekeeper_operator import names
from leasekeeper_operator.api import SECRET, Api, Object
from leasekeeper_operator.apply import Applier
from leasekeeper_operator.certificates import (
    Certificates,
    readable,
    refusal,
    renewed,
    signed,
)
from leasekeeper_operator.manifests.common import base64_data, ensemble_object, text_of
from leasekeeper_operator.model import Ensemble
from leasekeeper_operator.status import timestamp

SETTLE = timedelta(minutes=10)
"""The kubelet brings a changed Secret to a mounted volume within about two minutes; the rest is for
an API server that is slow, and for locks whose turn comes late."""
KEEP = timedelta(hours=1)
ANNOTATION_SINCE = "leasekeeper.dev/trusted-since"
_UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""What the library has no common base for. One that is not caught would keep the ensemble from all
else: from births, from users, and from its status."""
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Offer:
    """As PEM."""

    ca: str
    cert: str
    key: str


@dataclass(frozen=True, slots=True)
class Material:
    """What the nodes use, and what everybody trusts."""

    trusted: str
    cert: str
    key: str
    since: datetime
    """When `trusted` or the certificate last changed."""


def advance(current: Material | None, offer: Offer, now: datetime) -> Material:
    """One step from what is used to what is offered."""
    offered = _PEM.findall(offer.ca)
    if current is None:
        return Material(_bundle(offered), offer.cert, offer.key, now)
    known = _PEM.findall(current.trusted)
    if not {*offered} <= {*known}:
        more = [pem for pem in offered if pem not in known]
        return replace(current, trusted=_bundle([*known, *more]), since=now)
    settled = now - current.since
    if current.cert != offer.cert:
        if settled < SETTLE and not any(signed(current.cert, ca) for ca in offered):
            return current
        return Material(current.trusted, offer.cert, offer.key, now)
    if current.key != offer.key:  # of one certificate there is one key: somebody spoilt it by hand
        return replace(current, key=offer.key)
    if {*known} != {*offered} and settled >= KEEP:
        return replace(current, trusted=_bundle(offered), since=now)
    return current


def _bundle(pems: Sequence[str]) -> str:
    return "".join(f"{pem}\n" for pem in pems)


def objection(offer: Offer, hosts: Sequence[str], now: datetime) -> str:
    """Why this cannot be used; empty: it can."""
    authorities = _PEM.findall(offer.ca)
    if not authorities:
        return "it has no CA under the key ca.crt"
    if not all(map(readable, authorities)):
        return "ca.crt has a certificate in it that cannot be read"
    try:
        certificate = x509.load_pem_x509_certificate(offer.cert.encode())
        key = serialization.load_pem_private_key(offer.key.encode(), password=None)
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        public = certificate.public_key()
    except _UNREADABLE as wrong:
        return f"tls.crt or tls.key cannot be read ({type(wrong).__name__})"
    if public != key.public_key():
        return "tls.key is not the key of tls.crt"
    if not certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc:
        return "tls.crt is not valid now"
    known = {*alternatives.value.get_values_for_type(x509.DNSName)}
    missing = [host for host in hosts if not {host, _wildcard(host)} & known]
    if missing:
        return f"tls.crt does not name {missing[0]}: issue it for every node"
    why = refusal(_bundle(authorities), offer.cert, offer.key)
    return f"a client that trusts ca.crt would refuse tls.crt: {why}" if why else ""


def _wildcard(host: str) -> str:
    return f"*.{host.partition('.')[2]}"


class NodeTls:
    """Brings both Secrets of an ensemble."""

    def __init__(self, api: Api, applier: Applier) -> None:
        self._api = api
        self._applier = applier

    async def bring(self, ensemble: Ensemble) -> tuple[str, str]:
        """The CAs to trust (empty: none yet), and what is wrong with what is offered."""
        name = names.tls_secret(ensemble.name)
        secret = await self._api.get(SECRET, ensemble.namespace, name)
        current, now = material_in(secret), datetime.now(UTC)
        offer, problem = await self._offer(ensemble, now)
        if offer is None:
            return current.trusted if current else "", problem
        new = advance(current, offer, now)
        await self._applier.bring(_tls_object(ensemble, new), secret)
        return new.trusted, ""

    async def _offer(self, ensemble: Ensemble, now: datetime) -> tuple[Offer | None, str]:
        hosts = [node.host for node in ensemble.membership.nodes]
        assert ensemble.tls is not None, "asked for"
        if not (name := ensemble.tls.get("secretName")):
            made = await self._own(ensemble, hosts, now)
            return Offer(made.ca, made.server, made.server_key), ""
        secret = await self._api.get(SECRET, ensemble.namespace, name)
        if secret is None:
            return None, f"there is no Secret {ensemble.namespace}/{name} (spec.tls.secretName)"
        offer = Offer(*(text_of(secret, k, "replace") for k in ("ca.crt", "tls.crt", "tls.key")))
        wrong = objection(offer, hosts, now)
        return (None, f"Secret {ensemble.namespace}/{name}: {wrong}") if wrong else (offer, "")

    async def _own(self, ensemble: Ensemble, hosts: list[str], now: datetime) -> Certificates:
        """Deleting the Secret asks for a new CA."""
        name = names.ca_secret(ensemble.name)
        secret = await self._api.get(SECRET, ensemble.namespace, name)
        old = Certificates.from_secret(secret) if secret else None
        new = renewed(old, hosts, now, subject=f"leasekeeper {ensemble.full_name}")
        if new != old:
            data = base64_data(**new.to_data())
            desired = ensemble_object(ensemble, SECRET, name, type="Opaque", data=data)
            if secret is None:
                await self._applier.make(desired)  # of two operators, one makes it
            else:
                await self._applier.bring(desired, secret)
        return new


def material_in(secret: Object | None) -> Material | None:
    """Of ENSEMBLE-tls."""
    if secret is None or not text_of(secret, "tls.crt"):
        return None
    since = (secret["metadata"].get("annotations") or {}).get(ANNOTATION_SINCE, "")
    try:
        when = datetime.strptime(since, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        when = datetime.now(UTC)  # somebody took it away: wait anew
    trusted, cert, key = (text_of(secret, key) for key in ("ca.crt", "tls.crt", "tls.key"))
    return Material(trusted, cert, key, when)


def _tls_object(ensemble: Ensemble, material: Material) -> Object:
    data = base64_data(
        **{"ca.crt": material.trusted, "tls.crt": material.cert, "tls.key": material.key}
    )
    name = names.tls_secret(ensemble.name)
    made = ensemble_object(ensemble, SECRET, name, type="Opaque", data=data)
    made["metadata"]["annotations"] = {ANNOTATION_SINCE: timestamp(material.since)}
    return made
