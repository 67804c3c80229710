"""TLS to the nodes: one place that makes the context, reads rotated files again, and says in words
why a handshake failed.

`ssl` is imported when a context is made, not at the top: an agent without TLS need not carry its
4 MiB. (Candidates have it either way, because asyncio imports it.)
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from leasekeeper.lease import ConfigurationError

if TYPE_CHECKING:
    import ssl

TLS_ALERT = b"\x15\x03"
"""How a server that speaks TLS begins its answer to one who does not."""
SPEAKS_TLS = "the node speaks TLS at this port, and was spoken to without; turn TLS on here"
SPEAKS_NO_TLS = "the node does not speak TLS at this port; turn TLS on there, or off here"

PLAIN_WORD = b"PING\r\n"
"""A server without TLS takes our handshake for the beginning of a command and waits for its end, as
one that hangs would. So who got no answer says this on a new connection, and no secret with it;
what begins like RESP is no TLS."""
PLAIN_PATIENCE = 0.2  # a server that hangs is waited for this much longer, and no more

# Of OpenSSL's X509_V_ERR_…, which the ssl module gives as bare numbers.
_NOT_YET_VALID, _EXPIRED = 9, 10
_UNKNOWN_SIGNER = (7, 18, 19, 20, 21)
_OTHER_NAME = (62, 64)

_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
_CERTIFICATE_WANTED = ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE")
_CERTIFICATE_REFUSED = (
    "TLSV1_ALERT_UNKNOWN_CA",
    "TLSV1_ALERT_DECRYPT_ERROR",
    "SSLV3_ALERT_BAD_CERTIFICATE",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
)
_TOO_OLD = ("TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL")

Signature = tuple[int, int, int] | None


def signature(path: str | None) -> Signature:
    """What tells one version of a file from the next; none if there is no such file."""
    try:
        found = os.stat(path) if path is not None else None
    except OSError:
        return None
    return None if found is None else (found.st_ino, found.st_mtime_ns, found.st_size)


def is_plain(answer: bytes) -> bool:
    """Whether this is how a server without TLS answers to PLAIN_WORD."""
    return answer[:1] in (b"+", b"-")


def cut_short(tls: Tls | None) -> str:
    """For a connection that ended before the first answer: why that may be. Servers cut who speaks
    plainly to their TLS port, or shows no certificate, and the alert that says so is often lost.
    """
    if tls is None:
        return "closed by the node before it answered; if it speaks TLS at this port, turn TLS on"
    return (
        "closed by the node during the handshake; if it wants client certificates, give one that"
        " its CA signed"
    )


class Tls:
    """The files of one client, and the context that was made from them.

    Mounted Secrets and cert-manager replace files without a signal, so each new connection looks
    whether they are others than before. New ones that cannot be used change nothing: the context
    stays the one that worked, and `problem` says why.
    """

    def __init__(
        self,
        *,
        ca_file: str,
        cert_file: str | None = None,
        key_file: str | None = None,
        server_name: str | None = None,
    ) -> None:
        """Raises ConfigurationError. `server_name`: what the nodes' certificates are for, if that
        is not the host at which each node is found.
        """
        if (cert_file is None) != (key_file is None):
            raise ConfigurationError(
                "a client certificate needs its key, and a key its certificate: give both files or"
                " none"
            )
        self.ca_file = ca_file
        self._cert_file = cert_file
        self._key_file = key_file
        self._server_name = server_name
        self._seen = self._look()
        self._context = self._make()
        self.problem = ""
        """Why the files that are there now are not in use; empty: they are."""

    def context(self) -> ssl.SSLContext:
        """For one new connection; the same for all of them while the files are the same."""
        seen = self._look()
        if seen != self._seen:
            self._seen = seen
            try:
                self._context, self.problem = self._make(), ""
            except ConfigurationError as wrong:
                self.problem = str(wrong)
        return self._context

    def name_of(self, host: str) -> str:
        """What the certificate of the node at `host` must be for."""
        return self._server_name or host

    def _look(self) -> tuple[Signature, ...]:
        return tuple(signature(path) for path in (self.ca_file, self._cert_file, self._key_file))

    def _make(self) -> ssl.SSLContext:
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificates and names
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        remedy = "name a PEM file with the CA that signed the nodes' certificates"
        ca = _pem(self.ca_file, "CA", "BEGIN CERTIFICATE", remedy)
        try:
            context.load_verify_locations(cadata=ca)
        except ssl.SSLError as wrong:
            raise _unusable("CA", self.ca_file, _reason(wrong), remedy) from None
        if self._cert_file is not None and self._key_file is not None:
            _load_chain(context, self._cert_file, self._key_file)
        return context

    # -- in words --------------------------------------------------------------------------------

    def explain(self, error: ssl.SSLError, host: str) -> str:
        """Why the node at `host` could not be spoken to, and what to do."""
        why = self._why(error, host)
        return f"{why} (and the new files are not in use: {self.problem})" if self.problem else why

    def _why(self, error: ssl.SSLError, host: str) -> str:
        code, reason = getattr(error, "verify_code", None), getattr(error, "reason", "")
        if code in _UNKNOWN_SIGNER:
            return (
                f"the node's certificate is not signed by the CA in {self.ca_file}; put the CA that"
                " signed it there"
            )
        if code in _OTHER_NAME:
            return (
                f"the node's certificate is not for {self.name_of(host)}; issue one that names it,"
                " or say for which name it is (server name)"
            )
        if code == _EXPIRED:
            return self._expired()
        if code == _NOT_YET_VALID:
            return "the node's certificate is not valid yet; compare the clocks of both machines"
        if reason in _NO_TLS:
            return SPEAKS_NO_TLS
        if reason in _CERTIFICATE_WANTED and self._cert_file is None:
            return "the node wants a client certificate; give one with its key"
        if reason in (*_CERTIFICATE_WANTED, *_CERTIFICATE_REFUSED):
            return (
                f"the node refused the client certificate {self._cert_file or ''}".rstrip()
                + f" ({_reason(error)}); give one that the node's CA signed"
            )
        if reason in _TOO_OLD:
            return "the node speaks only versions of TLS before 1.2; let it speak 1.2 or 1.3"
        return f"TLS failed: {getattr(error, 'verify_message', '') or _reason(error)}"

    def _expired(self) -> str:
        """OpenSSL does not tell which certificate of the chain it means."""
        import ssl

        for ca in self._context.get_ca_certs():
            end = str(ca["notAfter"])
            if ssl.cert_time_to_seconds(end) < time.time():
                return f"the CA in {self.ca_file} has expired ({end}); put its successor there"
        return "the node's certificate has expired; renew it on the node, no restart is needed"


def _load_chain(context: ssl.SSLContext, cert_file: str, key_file: str) -> None:
    import ssl

    remedy = "name a PEM file with the client certificate"
    _pem(cert_file, "certificate", "BEGIN CERTIFICATE", remedy)
    _pem(key_file, "key", "PRIVATE KEY", "name a PEM file with the certificate's private key")

    def passphrase() -> str:  # or OpenSSL would ask for it at the terminal
        raise ConfigurationError(f"the key {key_file} is encrypted; give it without a passphrase")

    try:
        context.load_cert_chain(cert_file, key_file, password=passphrase)
    except ssl.SSLError as wrong:
        if wrong.reason == "KEY_VALUES_MISMATCH":
            raise ConfigurationError(
                f"the key {key_file} is not that of the certificate {cert_file}; give the two that"
                " were issued together"
            ) from None
        files = f"{cert_file} or its key {key_file}"
        raise _unusable("certificate", files, _reason(wrong), remedy) from None
    except OSError as wrong:
        raise _unusable("certificate", cert_file, wrong.strerror or str(wrong), remedy) from None


def _pem(path: str, what: str, mark: str, remedy: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            text = file.read()
    except OSError as wrong:
        raise _unusable(what, path, wrong.strerror or str(wrong), remedy) from None
    if mark not in text:
        raise _unusable(what, path, "not PEM, or something else", remedy)
    # Tools write the certificate in words above it; the ssl module takes nothing but ASCII.
    return text.encode("ascii", "replace").decode()


def _unusable(what: str, path: str, why: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"the TLS {what} file {path} cannot be used: {why}; {remedy}")


def _reason(error: ssl.SSLError) -> str:
    return (getattr(error, "reason", "") or str(error)).replace("_", " ").lower()
