"""A certificate authority for tests: what a cluster's CA, or cert-manager, would issue."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Issued:
    """The paths of a certificate and its key, as a Secret of cert-manager has them."""

    cert: Path
    key: Path


class Authority:
    """A CA whose certificate is `ca`, in a folder. All authorities have the same name: only their
    keys differ, as with a CA that was made anew.
    """

    def __init__(self, folder: Path, *, ends: timedelta = DAY) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ensemble CA")])
        self.ca = folder / "ca.crt"
        basic = x509.BasicConstraints(ca=True, path_length=None)
        made = self._builder(self._name, self._key, ends).add_extension(basic, critical=True)
        replace(self.ca, _pem(made.sign(self._key, hashes.SHA256())))

    def issue(self, name: str = "tls", *, host: str = "127.0.0.1", ends: timedelta = DAY) -> Issued:
        """A certificate for a host's name or address; under the same `name` it replaces the last
        one.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        try:
            san: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            san = x509.DNSName(host)
        made = self._builder(subject, key, ends).add_extension(
            x509.SubjectAlternativeName([san]), critical=False
        )
        issued = Issued(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        replace(
            issued.key,
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )
        replace(issued.cert, _pem(made.sign(self._key, hashes.SHA256())))
        return issued

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, ends: timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 10 * DAY)
            .not_valid_after(now + ends)
        )


def replace(path: Path, content: bytes) -> None:
    """As the kubelet does it: a reader sees the old file or the new one."""
    aside = path.with_name(f".{path.name}.new")
    aside.write_bytes(content)
    os.replace(aside, path)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
