"""Keys, certificates and kubeconfigs of a throw-away cluster, by openssl.

One CA signs everything. All certificates serve both ends: this guards tests from accidents, not a
cluster from attackers.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from localkube.shell import ClusterError

DAYS = "3650"

API_SERVER_NAMES = (
    "DNS:localhost",
    "DNS:kubernetes",
    "DNS:kubernetes.default",
    "DNS:kubernetes.default.svc",
    "DNS:kubernetes.default.svc.cluster.local",
    "IP:127.0.0.1",
)


@dataclass(frozen=True)
class Identity:
    """Who a certificate names; with a server address also where it serves."""

    name: str
    subject: str
    alt_names: tuple[str, ...] = ()


CONTROL_PLANE = (
    Identity("admin", "/O=system:masters/CN=admin"),
    Identity("controller-manager", "/CN=system:kube-controller-manager"),
    Identity("scheduler", "/CN=system:kube-scheduler"),
)


def node_identity(name: str, ip: str) -> Identity:
    return Identity(name, f"/O=system:nodes/CN=system:node:{name}", (f"DNS:{name}", f"IP:{ip}"))


def create(
    folder: Path, *, server: str, server_ips: Sequence[str], identities: Sequence[Identity]
) -> None:
    """Writes the CA, the API server's certificate, the service accounts' key, and for each
    identity a certificate and a kubeconfig for `server`."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{folder}/ca.key")
    _openssl(
        *("req", "-x509", "-new", "-key", f"{folder}/ca.key", "-subj", "/CN=leasekeeper-test-ca"),
        *("-days", DAYS, "-out", f"{folder}/ca.crt"),
        *("-addext", "basicConstraints=critical,CA:TRUE"),
        *("-addext", "keyUsage=critical,keyCertSign,digitalSignature,cRLSign"),
    )
    names = (*API_SERVER_NAMES, *(f"IP:{ip}" for ip in server_ips))
    api_server = Identity("apiserver", "/CN=kube-apiserver", names)
    with ThreadPoolExecutor(max_workers=4) as pool:
        jobs = [pool.submit(_service_account_key, folder)]
        jobs += [pool.submit(_sign, folder, each) for each in (api_server, *identities)]
        for job in jobs:
            job.result()
    for identity in identities:
        _kubeconfig(folder, identity.name, server)


def _service_account_key(folder: Path) -> None:
    _openssl("genrsa", "-out", f"{folder}/sa.key", "2048")
    _openssl("rsa", "-in", f"{folder}/sa.key", "-pubout", "-out", f"{folder}/sa.pub")


def _sign(folder: Path, identity: Identity) -> None:
    stem = folder / identity.name
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{stem}.key")
    _openssl("req", "-new", "-key", f"{stem}.key", "-subj", identity.subject, "-out", f"{stem}.csr")
    extensions = ["keyUsage=critical,digitalSignature", "extendedKeyUsage=serverAuth,clientAuth"]
    if identity.alt_names:
        extensions.append(f"subjectAltName={','.join(identity.alt_names)}")
    stem.with_name(f"{identity.name}.ext").write_text("\n".join(extensions) + "\n")
    # A random serial: a counter file would be a race between the signers.
    _openssl(
        *("x509", "-req", "-in", f"{stem}.csr", "-days", DAYS, "-extfile", f"{stem}.ext"),
        *("-CA", f"{folder}/ca.crt", "-CAkey", f"{folder}/ca.key"),
        *("-set_serial", f"0x{_random_hex()}", "-out", f"{stem}.crt"),
    )


def _random_hex() -> str:
    return "1" + Path("/proc/sys/kernel/random/uuid").read_text().strip().replace("-", "")[:30]


def _kubeconfig(folder: Path, name: str, server: str) -> None:
    """Everything inline, so that the file can be copied; JSON is YAML."""

    def inline(file: str) -> str:
        return base64.b64encode((folder / file).read_bytes()).decode()

    cluster = {"server": server, "certificate-authority-data": inline("ca.crt")}
    user = {
        "client-certificate-data": inline(f"{name}.crt"),
        "client-key-data": inline(f"{name}.key"),
    }
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "leasekeeper", "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "leasekeeper", "context": {"cluster": "leasekeeper", "user": name}}],
        "current-context": "leasekeeper",
    }
    path = folder / f"{name}.kubeconfig"
    path.write_text(json.dumps(config, indent=1))
    path.chmod(0o600)


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"openssl {arguments[0]} failed: {done.stderr[-1000:]}")
