"""What the nodes of an ensemble share: configuration, passwords, who may reach and evict them."""

from __future__ import annotations

import json
from collections.abc import Iterable

from leasekeeper.redlock import users, users_file
from leasekeeper.redlock.server_config import ServerTls, server_config
from leasekeeper_operator import names
from leasekeeper_operator.api import CONFIG_MAP, DISRUPTION_BUDGET, NETWORK_POLICY, SECRET, Object
from leasekeeper_operator.manifests.common import base64_data, ensemble_object, selector, text_of
from leasekeeper_operator.manifests.node import AGENT_PORT, DATA, SOCKET, TLS, service, stateful_set
from leasekeeper_operator.model import ALL_NAMESPACES, SERVER_PORT, Ensemble
from leasekeeper_operator.nodes import Passwords

NAMESPACE_NAME = "kubernetes.io/metadata.name"  # the API server puts it on every namespace
DNS_PORT = 53


ANNOTATION_LONGEST = "leasekeeper.dev/longest-lease-seconds"
LONGEST_EVER = 7200.0  # the largest quarantine that the CRD takes

USUAL_LIMIT = "128Mi"  # the CRD's default
MOST_BYTES = 2**63 - 1  # a larger quantity is this one to the API server


def max_memory(resources: Object) -> str:
    """Half of a server's memory limit: connections may take half as much again, and a server that
    the kernel kills has lost its memory."""
    said = resources.get("limits", {}).get("memory", USUAL_LIMIT)
    try:
        limit = _bytes(said)
    except (ValueError, ArithmeticError):
        # The API server says what is wrong with it, when it sees the StatefulSet.
        limit = _bytes(USUAL_LIMIT)
    return f"{max(1, limit // 2**21)}mb"


def _bytes(quantity: str | int) -> int:
    """CRDs are upgraded by hand, and those of an earlier version take any text here. A number of a
    few letters, such as 1e999999999, would keep the whole operator busy for ever when it is written
    out."""
    from kubernetes.utils.quantity import parse_quantity  # here: it costs a fifth of a second

    number = parse_quantity(quantity)  # type: ignore[no-untyped-call]
    if not 0 < number <= MOST_BYTES:
        raise ValueError(f"{quantity} is no amount of memory")
    return int(number)


def server_conf(
    passwords: Passwords, *more: Passwords, resources: Object, tls: bool = False
) -> str:
    """`more`: further passwords by which its users are let in. `resources`: the server's."""

    def digests(user: str) -> str:
        # One word or several: each is a rule of its own, and `#` stands before each.
        return " #".join(users.digest(getattr(p, user)) for p in (passwords, *more))

    files = ServerTls(
        cert_file=f"{TLS}/tls.crt", key_file=f"{TLS}/tls.key", ca_file=f"{TLS}/ca.crt"
    )
    return server_config(
        agent=digests(users.AGENT),
        peer=digests(users.PEER),
        operator=digests(users.OPERATOR),
        directory=DATA,
        port=SERVER_PORT,
        unix_socket=SOCKET,
        tls=files if tls else None,
        max_memory=max_memory(resources),
    )


def ensemble_objects(
    ensemble: Ensemble,
    passwords: Passwords,
    *more: Passwords,
    operator_namespace: str,
    agent_image: str,
    pull_policy: str,
) -> list[Object]:
    """All but the Secrets with passwords and users, in the order in which pods need them. `more`:
    passwords that are valid beside those in use."""
    tls = ensemble.tls is not None
    resources = ensemble.spec.get("resources", {})
    configuration = server_conf(passwords, *more, resources=resources, tls=tls)
    # New passwords are told to servers that run: a new one is no reason to restart them.
    read_at_start = server_conf(Passwords("", "", ""), resources=resources, tls=tls)
    nodes = [node.id for node in ensemble.membership.nodes]
    return [
        server_secret(ensemble, configuration),
        membership(ensemble),
        disruption_budget(ensemble),
        network_policy(ensemble, operator_namespace),
        *(service(ensemble, node) for node in nodes),
        *(
            stateful_set(
                ensemble,
                node,
                agent_image=agent_image,
                pull_policy=pull_policy,
                configuration=read_at_start,
            )
            for node in nodes
        ),
    ]


def server_secret(ensemble: Ensemble, configuration: str) -> Object:
    """A Secret, because the digests of passwords in it can be tried against a dictionary."""
    name, data = names.server_secret(ensemble.name), base64_data(**{"server.conf": configuration})
    return ensemble_object(ensemble, SECRET, name, type="Opaque", data=data)


def users_secret(
    ensemble: Ensemble,
    locks: users_file.Digests,
    departing: Iterable[str] = (),
    *,
    edition: int,
) -> Object:
    """The file of `node-agent --users`: by lock, the digests of its passwords. Beside it, for the
    operator only: the locks that left and may still have a leader here. `edition`: a larger one for
    each other content."""
    lines = sorted((lock, digest) for lock, digests in locks.items() for digest in digests)
    text = users_file.edition_line(edition)
    text += "".join(f"{lock} {digest}\n" for lock, digest in lines)
    name, data = names.users_secret(ensemble.name), base64_data(users=text)
    if left := sorted(departing):
        data |= base64_data(departing="".join(f"{lock}\n" for lock in left))
    made = ensemble_object(ensemble, SECRET, name, type="Opaque", data=data)
    # It outlives its ensemble (ended.py), so that also then nobody forgets who may still lead.
    del made["metadata"]["ownerReferences"]
    made["metadata"]["annotations"] = {ANNOTATION_LONGEST: f"{ensemble.longest_memory:g}"}
    return made


def longest_lease_in(secret: Object) -> float:
    """How long a lease may last after the last node of an ensemble that is gone, by its
    ENSEMBLE-users."""
    text = (secret["metadata"].get("annotations") or {}).get(ANNOTATION_LONGEST, "")
    try:
        seconds = float(text)
    except ValueError:  # somebody took it away
        return LONGEST_EVER
    return seconds if 0 <= seconds <= LONGEST_EVER else LONGEST_EVER


def parse_users(secret: Object) -> dict[str, frozenset[str]]:
    """The reverse of `users_secret`. A line that is spoilt is left out: there are the others."""
    found: dict[str, frozenset[str]] = {}
    for line in text_of(secret, "users", "replace").splitlines():
        if len(pair := line.split()) == 2:
            found[pair[0]] = found.get(pair[0], frozenset()) | {pair[1]}
    return found


def edition_in(secret: Object) -> int:
    """0: somebody else wrote it, or an operator of the version before."""
    return users_file.edition_of(text_of(secret, "users", "replace"))


def parse_departing(secret: Object) -> set[str]:
    return {*text_of(secret, "departing", "replace").split()}


def known_locks(secret: Object) -> set[str]:
    """Of ENSEMBLE-users: the locks that may have a leader on that ensemble."""
    return {*parse_users(secret), *parse_departing(secret)}


def membership(ensemble: Ensemble) -> Object:
    text = json.dumps(ensemble.membership.to_json(), sort_keys=True)
    name, data = names.membership_config_map(ensemble.name), {"membership.json": text}
    return ensemble_object(ensemble, CONFIG_MAP, name, data=data)


def disruption_budget(ensemble: Ensemble) -> Object:
    """One at a time, and a node in quarantine counts as the one, because it is not ready."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": selector(ensemble)}}
    return ensemble_object(ensemble, DISRUPTION_BUDGET, ensemble.name, spec=spec)


def network_policy(ensemble: Ensemble, operator_namespace: str) -> Object:
    """Servers can be reached by each other, the operator and pods with a sidecar; agents' status
    pages by everybody, because the kubelet and Prometheus come from anywhere."""
    server = [{"port": SERVER_PORT, "protocol": "TCP"}]
    dns = [{"port": DNS_PORT, "protocol": protocol} for protocol in ("UDP", "TCP")]
    nodes = {"podSelector": {"matchLabels": selector(ensemble)}}
    operator = {"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: operator_namespace}}}
    spec = {
        "podSelector": {"matchLabels": selector(ensemble)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            {"from": [nodes, operator, _candidates(ensemble)], "ports": server},
            {"ports": [{"port": AGENT_PORT, "protocol": "TCP"}]},
        ],
        "egress": [{"to": [nodes], "ports": server}, {"ports": dns}],
    }
    return ensemble_object(ensemble, NETWORK_POLICY, ensemble.name, spec=spec)


def _candidates(ensemble: Ensemble) -> Object:
    """Pods with the sidecar, in the namespaces that may use this ensemble."""
    namespaces: Object = {}
    if ALL_NAMESPACES not in ensemble.allowed_namespaces:
        values = sorted({ensemble.namespace, *ensemble.allowed_namespaces})
        expression = {"key": NAMESPACE_NAME, "operator": "In", "values": values}
        namespaces = {"matchExpressions": [expression]}
    pods = {"matchExpressions": [{"key": names.LABEL_LOCK, "operator": "Exists"}]}
    return {"namespaceSelector": namespaces, "podSelector": pods}
