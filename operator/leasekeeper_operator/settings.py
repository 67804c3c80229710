"""What the operator is told by its environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from leasekeeper.lease import ConfigurationError
from leasekeeper_operator.api import Object

DEFAULT_SIDECAR_RESOURCES: Object = {
    "requests": {"cpu": "10m", "memory": "24Mi"},
    "limits": {"memory": "64Mi"},
}

SHORTEST_LEASE = 3.0
"""Of the election, in seconds: the API server's slowest answers must fit into a third of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Each field is the variable LEASEKEEPER_ + its name in capitals."""

    namespace: str
    """The operator's own namespace."""
    watch_namespaces: tuple[str, ...] = ()
    """Namespaces that are served, beside the own. None: the whole cluster."""
    default_ensemble: str = "default"
    """The LockEnsemble, in the own namespace, of locks without `ensembleRef`."""
    sidecar_image: str
    """Image of the injected sidecar and of the node agents."""
    sidecar_pull_policy: str = ""
    """Its imagePullPolicy. Empty: Kubernetes' own rule."""
    sidecar_resources: Object = field(default_factory=lambda: DEFAULT_SIDECAR_RESOURCES)
    """JSON: `resources` of the injected container."""
    webhook_service: str = ""
    """Service, in the own namespace, in front of the webhook. Empty: no webhook is served."""
    webhook_configuration: str = ""
    """MutatingWebhookConfiguration that is given the CA. Empty: none."""
    webhook_certificate: str = ""
    """Secret, in the own namespace, by which the webhook serves: tls.crt, tls.key and ca.crt, as
    cert-manager writes them. Empty: the operator makes its certificate itself."""
    webhook_port: int = 9443
    """Port of the webhook (TLS, path /inject)."""
    election_lease: str = "leasekeeper-operator"
    """Lease, in the own namespace, by which one of several replicas is elected."""
    election_lease_seconds: float = 15.0
    """How long after its last renewal a dead leader is succeeded."""
    http_port: int = 8080
    """Port of /healthz and /readyz."""
    metrics_port: int = 8081
    """Port of /metrics: its own, because scrapers need no other page."""
    log_level: str = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""

    @property
    def served(self) -> tuple[str, ...]:
        """All namespaces that are served; none: the whole cluster."""
        return tuple(sorted({self.namespace, *self.watch_namespaces})) * bool(self.watch_namespaces)

    @property
    def default_place(self) -> tuple[str, str]:
        """Namespace and name of the default ensemble."""
        return self.namespace, self.default_ensemble

    @property
    def webhook_names(self) -> list[str]:
        """Under which the API server calls: the first is what it verifies."""
        full = f"{self.webhook_service}.{self.namespace}.svc"
        return [full, f"{full}.cluster.local", f"{self.webhook_service}.{self.namespace}"]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        def text(name: str, default: str | None = None) -> str:
            value = environment.get(f"LEASEKEEPER_{name}") or default
            if value is None:
                raise ConfigurationError(f"LEASEKEEPER_{name} must be set")
            return value

        def port(name: str, default: int) -> int:
            value = text(name, str(default))
            if not value.isdecimal() or not 0 <= int(value) < 65536:
                raise ConfigurationError(f"LEASEKEEPER_{name} ({value!r}) must be a port's number")
            return int(value)

        def seconds(name: str, default: float) -> float:
            value = text(name, str(default))
            number = float(value) if value.replace(".", "", 1).isdecimal() else 0.0
            if not SHORTEST_LEASE <= number <= 3600:
                raise ConfigurationError(
                    f"LEASEKEEPER_{name} ({value!r}) must be seconds, {SHORTEST_LEASE:g} to 3600"
                )
            return number

        return cls(
            namespace=text("NAMESPACE"),
            watch_namespaces=tuple(text("WATCH_NAMESPACES", "").replace(",", " ").split()),
            default_ensemble=text("DEFAULT_ENSEMBLE", "default"),
            sidecar_image=text("SIDECAR_IMAGE"),
            sidecar_pull_policy=text("SIDECAR_PULL_POLICY", ""),
            sidecar_resources=_resources(text("SIDECAR_RESOURCES", "")),
            webhook_service=text("WEBHOOK_SERVICE", ""),
            webhook_configuration=text("WEBHOOK_CONFIGURATION", ""),
            webhook_certificate=text("WEBHOOK_CERTIFICATE", ""),
            webhook_port=port("WEBHOOK_PORT", 9443),
            election_lease=text("ELECTION_LEASE", "leasekeeper-operator"),
            election_lease_seconds=seconds("ELECTION_LEASE_SECONDS", 15.0),
            http_port=port("HTTP_PORT", 8080),
            metrics_port=port("METRICS_PORT", 8081),
            log_level=text("LOG_LEVEL", "INFO").upper(),
        )


def _resources(text: str) -> Object:
    if not text:
        return DEFAULT_SIDECAR_RESOURCES
    try:
        value = json.loads(text)
    except ValueError as wrong:
        raise ConfigurationError(f"LEASEKEEPER_SIDECAR_RESOURCES is not JSON: {wrong}") from None
    if not isinstance(value, dict):
        raise ConfigurationError("LEASEKEEPER_SIDECAR_RESOURCES must be a JSON object")
    return value
