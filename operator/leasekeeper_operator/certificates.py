"""A CA of our own, and a server certificate that it signs: for the webhook, and for ensembles.

Both live in one Secret, so that all replicas have the same. The CA outlives many server
certificates: what others check by stays the same when one is made anew.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from leasekeeper_operator.api import Object
from leasekeeper_operator.manifests.common import text_of

CA_LIFE = timedelta(days=3650)
SERVER_LIFE = timedelta(days=90)
RENEW_BEFORE = timedelta(days=30)
"""Long enough for an operator that was down for weeks, or a clock that is days behind."""
BACKDATED = timedelta(hours=1)
"""The API server's clock may be behind ours."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """All as PEM."""

    ca: str
    ca_key: str
    server: str
    server_key: str

    def to_data(self) -> dict[str, str]:
        """Under the usual names of a TLS Secret."""
        return {
            "ca.crt": self.ca,
            "ca.key": self.ca_key,
            "tls.crt": self.server,
            "tls.key": self.server_key,
        }

    @classmethod
    def from_secret(cls, secret: Object) -> Certificates:
        """The reverse; what is missing is empty."""
        return cls(
            *(text_of(secret, k, "replace") for k in ("ca.crt", "ca.key", "tls.crt", "tls.key"))
        )


def renewed(
    old: Certificates | None,
    server_names: Sequence[str],
    now: datetime | None = None,
    *,
    subject: str = "leasekeeper webhook",
) -> Certificates:
    """`old`, if it will do for a while; else with a new server certificate, and if need be CA."""
    now = now or datetime.now(UTC)
    if old is not None and can_sign(old, now):
        whole = _usable(old.server, now, server_names) and _belongs(old.server_key, old.server)
        if whole and signed(old.server, old.ca):
            return old
        return _issue(old.ca, old.ca_key, server_names, now, subject)
    return _issue(*_make_ca(now, subject), server_names, now, subject)


def can_sign(known: Certificates, now: datetime | None = None) -> bool:
    """Whether there is a CA for another while. Secrets are edited by hand: a key that cannot be
    read, or is another one's, would else stop the operator at each of its starts."""
    return _usable(known.ca, now or datetime.now(UTC)) and _belongs(known.ca_key, known.ca)


def server_context(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load(context, certificates)
    return context


def load(context: ssl.SSLContext, certificates: Certificates) -> None:
    """Also into a context that is in use: new connections get the new certificate."""
    _load(context, certificates.server, certificates.server_key)


def _load(context: ssl.SSLContext, server: str, server_key: str) -> None:
    """By a file in memory: the ssl module takes only paths, and the container's disk cannot be
    written to."""
    descriptor = os.memfd_create("tls")
    try:
        with os.fdopen(os.dup(descriptor), "w") as file:
            file.write(server_key + server)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _usable(pem: str, now: datetime, server_names: Sequence[str] = ()) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
    except ValueError:
        return False
    if not certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - RENEW_BEFORE:
        return False
    if not server_names:
        return True
    try:
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return False  # not one of ours
    return set(server_names) <= set(alternatives.value.get_values_for_type(x509.DNSName))


def _belongs(key_pem: str, pem: str) -> bool:
    """Whether this is the key of that certificate, which can be read."""
    try:
        key = serialization.load_pem_private_key(key_pem.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False
    # Of the kind that we make.
    return isinstance(key, ec.EllipticCurvePrivateKey) and key.public_key() == (
        x509.load_pem_x509_certificate(pem.encode()).public_key()
    )


def signed(server: str, ca: str) -> bool:
    """Whether this CA signed that certificate."""
    try:
        issuer = x509.load_pem_x509_certificate(ca.encode())
        x509.load_pem_x509_certificate(server.encode()).verify_directly_issued_by(issuer)
    except Exception:  # noqa: BLE001  the library names several, and each of them means "no"
        return False
    return True


def readable(pem: str) -> bool:
    """Whether this is one certificate that TLS takes: one that it does not spoils those beside it,
    because nobody can load the file any more."""
    try:
        x509.load_pem_x509_certificate(pem.encode())
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem)
    except (ValueError, ssl.SSLError):
        return False
    return True


def refusal(ca: str, server: str, server_key: str) -> str:
    """Why a client that trusts these CAs would not talk to a server with this certificate, which
    may have others behind it that lead to a CA; empty: it would. They are made to try, because the
    rules of chains are many. Names are not looked at."""
    try:
        ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _load(ours, server, server_key)
        theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        theirs.check_hostname = False
        theirs.load_verify_locations(cadata=ca)
        _shake_hands(ours, theirs)
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except ssl.SSLError as error:
        return error.reason or str(error)
    return ""


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """In memory: what one end says is there when it is the other's turn."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)]
    for _ in range(10):  # two or three, by the version of TLS
        for end in [*ends]:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
                ends.remove(end)
    if ends:
        raise ssl.SSLError("it comes to no end")


def _make_ca(now: datetime, subject: str) -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _common(f"{subject} CA"))])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(name, name, key.public_key(), now, CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return _pem(certificate), _key_pem(key)


def _issue(
    ca: str, ca_key: str, server_names: Sequence[str], now: datetime, common: str
) -> Certificates:
    issuer = x509.load_pem_x509_certificate(ca.encode())
    signer = serialization.load_pem_private_key(ca_key.encode(), password=None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey), "we made it"
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _common(common))])
    alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in server_names])
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    certificate = (
        _builder(subject, issuer.subject, key.public_key(), now, SERVER_LIFE)
        .add_extension(alternatives, critical=False)
        .add_extension(authority, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    return Certificates(ca, ca_key, _pem(certificate), _key_pem(key))


def _common(name: str) -> str:
    """X.509 allows 64 characters; nobody checks by it, so what is cut off is not missed."""
    return name[:64]


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    life: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
