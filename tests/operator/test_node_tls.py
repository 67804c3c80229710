"""TLS of an ensemble: certificates that the operator makes or is given, and a CA that follows
another one while a pod leads."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtensionOID, NameOID
from ensemble import Ensemble as RealNodes
from leasekeeper_operator import tls
from leasekeeper_operator.api import Api
from leasekeeper_operator.certificates import renewed
from leasekeeper_operator.tls import KEEP, SETTLE, Material, Offer, advance, objection

from tests.operator.conftest import Cluster
from tests.operator.real_world import World, candidate
from tests.operator.samples import ensemble
from tests.sidecar.conftest import Pod, Watcher

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOSTS = ["main-0.store.svc", "main-1.store.svc"]


def offered(names: list[str] = HOSTS, now: datetime = NOW) -> Offer:
    made = renewed(None, names, now)
    return Offer(made.ca, made.server, made.server_key)


def used(offer: Offer) -> Material:
    return advance(None, offer, NOW)


def test_the_first_offer_is_used() -> None:
    offer = offered()
    assert used(offer) == Material(offer.ca, offer.cert, offer.key, NOW)
    assert advance(used(offer), offer, NOW + 2 * KEEP) == used(offer)


def test_a_new_certificate_of_the_same_ca_is_used_at_once() -> None:
    made = renewed(None, HOSTS, NOW)
    again = renewed(made, HOSTS, NOW + timedelta(days=80))
    assert (again.ca, again.server) != (made.ca, made.server)
    assert again.ca == made.ca
    offer = Offer(again.ca, again.server, again.server_key)
    after = advance(used(Offer(made.ca, made.server, made.server_key)), offer, NOW)
    assert (after.trusted, after.cert) == (made.ca, again.server)


def test_a_new_ca_is_trusted_before_its_certificate_is_used_and_the_old_one_goes_last() -> None:
    old, new = offered(), offered()
    first = advance(used(old), new, NOW)
    assert first == Material(old.ca + new.ca, old.cert, old.key, NOW)
    assert advance(first, new, NOW + SETTLE / 2) == first
    later = NOW + SETTLE
    second = advance(first, new, later)
    assert second == Material(old.ca + new.ca, new.cert, new.key, later)
    assert advance(second, new, later + KEEP / 2) == second
    assert advance(second, new, later + KEEP).trusted == new.ca


@pytest.mark.parametrize("key", ["tls.crt", "tls.key", "ca.crt"])
@pytest.mark.parametrize("nonsense", [b"", b"nonsense", b"\xff\xfe"])
def test_what_somebody_spoilt_in_the_nodes_own_secret_comes_back(key: str, nonsense: bytes) -> None:
    offer = offered()
    secret = tls._tls_object(ensemble(), used(offer))
    secret["data"][key] = base64.b64encode(nonsense).decode()
    assert advance(tls.material_in(secret), offer, NOW + KEEP) in (
        Material(offer.ca, offer.cert, offer.key, when) for when in (NOW, NOW + KEEP)
    )


TODAY = datetime.now(UTC)
"""OpenSSL goes by the clock."""
GOOD = offered(now=TODAY)
JUNK = "-----BEGIN CERTIFICATE-----\nZm9v\n-----END CERTIFICATE-----\n"


def issued(
    key: ec.EllipticCurvePrivateKey, name: str, by: tuple[ec.EllipticCurvePrivateKey, str], ca: bool
) -> str:
    """A certificate for all hosts, as PEM."""
    subject, issuer = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)]) for common in (name, by[1])
    )
    hosts = x509.SubjectAlternativeName([x509.DNSName(host) for host in HOSTS])
    made = (
        x509.CertificateBuilder(issuer, subject, key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(TODAY - timedelta(hours=1))
        .not_valid_after(TODAY + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(hosts, critical=False)
        .sign(by[0], hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM).decode()


def by_way_of_another(*, complete: bool) -> Offer:
    """A root, a CA below it, and a certificate by that one, as cert-manager hands them out."""
    root, between, leaf = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    ca = issued(root, "root", (root, "root"), True)
    chain = issued(leaf, "leaf", (between, "between"), False)
    if complete:
        chain += issued(between, "between", (root, "root"), True)
    return Offer(ca, chain, _pem_of(leaf))


def _pem_of(key: ec.EllipticCurvePrivateKey) -> str:
    kind, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, kind, plain).decode()


ODD_CURVE = """\
-----BEGIN CERTIFICATE-----
MIIBcjCCAS+gAwIBAgIUag7GMSUk1r1I66vZTPcQqfDcBdMwCgYIKoZIzj0EAwIw
DjEMMAoGA1UEAwwDb2RkMCAXDTI2MTExOTA3MDcwNloYDzIxMjYxMDI2MDcwNzA2
WjAOMQwwCgYDVQQDDANvZGQwPjAQBgcqhkjOPQIBBgUrgQQACQMqAARxAIbdCTKm
+iLDnwpPUat+T3fLuTbTnxyw3Uu8zcC+O/9V5h9hYk2oo4GDMIGAMB0GA1UdDgQW
BBT7fpPpZzgXf0pPYaTuciu0tuCVlDAfBgNVHSMEGDAWgBT7fpPpZzgXf0pPYaTu
ciu0tuCVlDAPBgNVHRMBAf8EBTADAQH/MC0GA1UdEQQmMCSCEG1haW4tMC5zdG9y
ZS5zdmOCEG1haW4tMS5zdG9yZS5zdmMwCgYIKoZIzj0EAwIDMQAwLgIVALm9vKlA
pHejyCrxJs4VxtXBTeo1AhUAs+izyNeXhXl0AG8Cb6K2u4WeVvg=
-----END CERTIFICATE-----
"""
"""On secp160k1, which OpenSSL can make and the library does not know."""


def twice() -> str:
    """With two lists of alternative names, which no library makes: the second was another one."""
    good = x509.load_pem_x509_certificate(GOOD.cert.encode())
    (names,) = [e.value for e in good.extensions if e.oid == ExtensionOID.SUBJECT_ALTERNATIVE_NAME]
    key = ec.generate_private_key(ec.SECP256R1())
    made = (
        x509.CertificateBuilder(good.issuer, good.subject, key.public_key())
        .serial_number(1)
        .not_valid_before(TODAY)
        .not_valid_after(TODAY + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.IssuerAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    der = made.public_bytes(serialization.Encoding.DER)
    return ssl.DER_cert_to_PEM_cert(der.replace(b"\x55\x1d\x12", b"\x55\x1d\x11"))


UNREADABLE_CA = "ca.crt has a certificate in it that cannot be read"
REFUSED = "a client that trusts ca.crt would refuse tls.crt: "


@pytest.mark.parametrize(
    ("offer", "said"),
    [
        (GOOD, ""),
        (offered(["*.store.svc"], TODAY), ""),
        (by_way_of_another(complete=True), ""),
        (replace(GOOD, ca=f"# é\n{GOOD.ca}\n{offered().ca}"), ""),
        (
            offered(["elsewhere"], TODAY),
            "tls.crt does not name main-0.store.svc: issue it for every node",
        ),
        (offered(now=TODAY - timedelta(days=900)), "tls.crt is not valid now"),
        (Offer("", *("",) * 2), "it has no CA under the key ca.crt"),
        (Offer(GOOD.ca, "nonsense", ""), "tls.crt or tls.key cannot be read (ValueError)"),
        (replace(GOOD, key=offered().key), "tls.key is not the key of tls.crt"),
        (replace(GOOD, ca=offered(now=TODAY).ca), REFUSED),
        (by_way_of_another(complete=False), REFUSED),
        (replace(GOOD, ca=GOOD.ca + JUNK), UNREADABLE_CA),
        (replace(GOOD, ca=JUNK + GOOD.ca), UNREADABLE_CA),
        (replace(GOOD, cert=GOOD.cert + JUNK), REFUSED),
        (
            replace(GOOD, cert=ODD_CURVE),
            "tls.crt or tls.key cannot be read (UnsupportedAlgorithm)",
        ),
        (
            replace(GOOD, cert=twice()),
            "tls.crt or tls.key cannot be read (DuplicateExtension)",
        ),
    ],
)
def test_what_is_offered_is_looked_at_first(offer: Offer, said: str) -> None:
    found = objection(offer, HOSTS, TODAY)
    assert found == said or (said == REFUSED and found.startswith(said))


class Secured:
    """Three nodes with the certificates that the operator made: this stands where the kubelet would
    mount its Secret."""

    def __init__(self, world: World, home: Path) -> None:
        self.world = world
        self.home = home

    @property
    def name(self) -> str:
        return f"main-0.{self.world.namespace}.svc"

    def secret(self, name: str) -> dict[str, str]:
        found = self.world.cluster.get(self.world.namespace, "secret", name) or {}
        return {k: base64.b64decode(v).decode() for k, v in found.get("data", {}).items()}

    def mount(self) -> None:
        """What stands in the Secrets now, to where servers, agents and the sidecar see it."""
        data, authority = self.secret("main-tls"), self.world.nodes.authority
        assert authority is not None
        _replace(authority.ca, data["ca.crt"])
        for number in range(3):
            _replace(authority.ca.parent / f"node-{number}.key", data["tls.key"])
            _replace(authority.ca.parent / f"node-{number}.crt", data["tls.crt"])
        if published := self.secret("leasekeeper-orders"):
            _replace(self.home / "ca.crt", published["ca.crt"])

    async def until(self, true: Callable[[], Any], what: str, patience: float = 60.0) -> None:
        end = asyncio.get_running_loop().time() + patience
        while not true():
            if asyncio.get_running_loop().time() > end:
                raise TimeoutError(f"{what}\n{self.world.status()}\n{self.world.nodes.logs()}")
            self.world.ensembles.objects_changed(self.world.key)
            await self.world.ensembles.reconcile(self.world.key)
            await asyncio.sleep(0.2)

    def candidate(self, password: str, name: str) -> Pod:
        pod = candidate(self.world, self.home, "orders", password, name)
        config = self.home / "orders.json"
        said = json.loads(config.read_text())
        said["redlock"]["tls"] = {"caFile": "ca.crt", "serverName": self.name}
        config.write_text(json.dumps(said))
        return pod


def _replace(path: Path, text: str) -> None:
    aside = path.with_suffix(".new")
    aside.write_text(text)
    os.replace(aside, path)


@pytest.fixture
async def secured(managed: Cluster, managed_api: Api, tmp_path: Path) -> AsyncIterator[Secured]:
    nodes = RealNodes(3, flavour="redis", registry=False, max_ttl=4.0, quarantine=4.1, tls=True)
    world = World(managed, nodes)
    try:
        world.start_operator(managed_api)
        world.make_ensemble(tls={})
        secured = Secured(world, tmp_path)
        await world.ensembles.reconcile(world.key)
        secured.mount()
        for node in nodes.nodes:
            node.agent.options["tls-name"] = secured.name
        nodes.start()
        await secured.until(lambda: world.status().get("openNodes") == 3, "all nodes to be open")
        yield secured
    finally:
        nodes.close()
        await world.ensembles.close()


async def test_a_ca_follows_another_one_while_a_pod_leads(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = secured.world
    password = await world.publish("orders")
    secured.mount()
    leader = secured.candidate(password, "pod-0").start()
    newcomer = secured.candidate(password, "pod-1")
    try:
        await secured.until(lambda: leader.path.exists() and leader.leads, "a leader")
        token, first = leader.said()["token"], secured.secret("main-ca")["ca.crt"]
        with Watcher([leader]) as watcher:
            # Somebody asks for a new CA.
            world.cluster.run("-n", world.namespace, "delete", "secret", "main-ca")
            await secured.until(lambda: secured.secret("main-ca"), "a new CA")
            second = secured.secret("main-ca")["ca.crt"]
            await secured.until(
                lambda: secured.secret("main-tls")["ca.crt"] == first + second, "both to be trusted"
            )
            before = secured.secret("main-tls")["tls.crt"]
            await world.publish("orders", made=True)  # as the queue would
            assert secured.secret("leasekeeper-orders")["ca.crt"] == first + second
            secured.mount()
            monkeypatch.setattr(tls, "SETTLE", timedelta(0))
            await secured.until(
                lambda: secured.secret("main-tls")["tls.crt"] != before, "its certificate in use"
            )
            secured.mount()
            agents = [node.agent for node in world.nodes.nodes]
            read = [len(agent.events("certificate-read")) for agent in agents]
            await secured.until(
                lambda: (
                    all(
                        len(agent.events("certificate-read")) > n
                        for agent, n in zip(agents, read, strict=True)
                    )
                    or all(agent.events("certificate-read") for agent in agents)
                ),
                "servers to read it",
            )
            monkeypatch.setattr(tls, "KEEP", timedelta(0))
            await secured.until(
                lambda: secured.secret("main-tls")["ca.crt"] == second, "the old one to go"
            )
            await world.publish("orders", made=True)
            secured.mount()
            # The operator and a newcomer, who trust the new one only, are at home everywhere.
            await world.ensembles.close()
            world.start_operator(world.api)
            await secured.until(lambda: world.status()["openNodes"] == 3, "sight of all nodes")
            newcomer.start()
            await secured.until(lambda: newcomer.path.exists(), "the newcomer")
            leader.terminate()
            await secured.until(lambda: newcomer.leads, "the newcomer to lead")
        watcher.check()
        assert watcher.tenures == [("pod-0", token)]
    finally:
        leader.kill()
        newcomer.kill()


async def test_a_given_secret_that_will_not_do_is_said_and_nothing_else_stops(
    cluster: Cluster, api: Api
) -> None:
    from leasekeeper_operator.apply import Applier
    from leasekeeper_operator.ensemble import EnsembleReconciler
    from leasekeeper_operator.model import ensemble_key
    from leasekeeper_operator.queue import Queue

    from tests.operator.samples import SETTINGS

    namespace = cluster.namespace()
    cluster.ensemble(namespace, nodes=3, tls={"secretName": "given"})
    operator = EnsembleReconciler(
        api, Applier(api), SETTINGS, Queue(), resolve=lambda _: ("127.0.0.1", 1)
    )

    async def updated() -> str:
        operator.objects_changed(ensemble_key(namespace, "main"))
        await operator.reconcile(ensemble_key(namespace, "main"))
        status = (cluster.get(namespace, "lens", "main") or {})["status"]
        (found,) = [c for c in status["conditions"] if c["type"] == "Updated"]
        return str(found["message"])

    assert f"there is no Secret {namespace}/given (spec.tls.secretName)" in await updated()
    assert cluster.names(namespace, "statefulset") == ["main-0", "main-1", "main-2"]
    made = renewed(None, [f"main-{i}.{namespace}.svc" for i in range(3)])
    literals = {"ca.crt": made.ca, "tls.crt": made.server, "tls.key": made.server_key}
    options = [f"--from-literal={key}={value}" for key, value in literals.items()]
    cluster.run("-n", namespace, "create", "secret", "generic", "given", *options)
    assert "given" not in await updated()
    data = (cluster.get(namespace, "secret", "main-tls") or {})["data"]
    assert base64.b64decode(data["tls.crt"]).decode() == made.server
    await operator.close()
