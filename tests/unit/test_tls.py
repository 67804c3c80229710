"""What is made of the files for TLS, and what is said of those that cannot be used."""

from __future__ import annotations

import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from authority import Authority, replace
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)

from leasekeeper.lease import ConfigurationError
from leasekeeper.redlock.tls import Tls


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def test_certificates_and_names_are_checked_and_old_versions_refused(authority: Authority) -> None:
    context = Tls(ca_file=str(authority.ca)).context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert len(context.get_ca_certs()) == 1, "the given CA, and none of the system's"


def encrypted_key() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))


def into_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


Spoil = Callable[[Path], object]
FILES: dict[str, tuple[str, Spoil, str]] = {
    "no CA": ("ca", Path.unlink, "CA file .*ca.crt cannot be used: No such file.*name a PEM file"),
    "a CA that is a folder": ("ca", into_a_folder, "CA file .*Is a directory"),
    "a CA that is not PEM": ("ca", lambda p: p.write_bytes(b"\x30\x82\xff"), "CA file .*not PEM"),
    "an empty CA": ("ca", lambda p: p.write_text(""), "CA file .*not PEM"),
    "a CA that is cut off": (
        "ca",
        lambda p: p.write_text(p.read_text()[:100] + "\n-----END CERTIFICATE-----\n"),
        "CA file .* cannot be used: .*; name a PEM file with the CA",
    ),
    "no certificate": ("cert", Path.unlink, "certificate file .*tls.crt.*No such file"),
    "no key": ("key", Path.unlink, "key file .*tls.key.*No such file"),
    "a key that is none": ("key", lambda p: p.write_text("secret"), "key file .*not PEM"),
    "an encrypted key": ("key", lambda p: p.write_bytes(encrypted_key()), "key .* is encrypted"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_cannot_be_used_is_named_with_what_to_do(
    case: str, authority: Authority
) -> None:
    which, spoil, sentence = FILES[case]
    issued = authority.issue()
    spoil({"ca": authority.ca, "cert": issued.cert, "key": issued.key}[which])
    with pytest.raises(ConfigurationError, match=sentence) as raised:
        Tls(ca_file=str(authority.ca), cert_file=str(issued.cert), key_file=str(issued.key))
    assert "\n" not in str(raised.value)


def test_a_key_of_another_certificate_is_refused(authority: Authority) -> None:
    mine, other = authority.issue("mine"), authority.issue("other")
    with pytest.raises(ConfigurationError, match=r"key .*other.key is not that of .*mine.crt"):
        Tls(ca_file=str(authority.ca), cert_file=str(mine.cert), key_file=str(other.key))


def test_a_certificate_without_its_key_is_refused(authority: Authority) -> None:
    with pytest.raises(ConfigurationError, match="give both files or none"):
        Tls(ca_file=str(authority.ca), cert_file=str(authority.issue().cert))


def test_one_context_serves_all_connections_until_the_files_change(
    authority: Authority, tmp_path: Path
) -> None:
    tls = Tls(ca_file=str(authority.ca))
    first = tls.context()
    assert tls.context() is first
    replace(authority.ca, Authority(tmp_path / "next").ca.read_bytes())
    second = tls.context()
    assert second is not first
    assert second.get_ca_certs() != first.get_ca_certs()


def test_new_files_that_cannot_be_used_change_nothing_and_are_said(authority: Authority) -> None:
    tls = Tls(ca_file=str(authority.ca))
    first, good = tls.context(), authority.ca.read_bytes()
    replace(authority.ca, b"half of")
    assert tls.context() is first
    assert "not PEM" in tls.problem
    error = ssl.SSLError(1, "")
    assert tls.problem in tls.explain(error, "host"), "a failure that follows names the reason"
    replace(authority.ca, good)
    assert tls.context() is not first
    assert not tls.problem


def test_an_agent_without_tls_does_not_import_ssl() -> None:
    """4 MiB of the agent's 24."""
    program = "import sys, leasekeeper.cli; sys.exit('ssl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
