"""What several of the objects share."""

from __future__ import annotations

import base64
from typing import Any

from leasekeeper_operator import names
from leasekeeper_operator.api import ENSEMBLE, Kind, Object
from leasekeeper_operator.model import Ensemble

USER_ID = 65532
"""Of every container that we write: the usual id of nobody in particular; no image needs a line in
/etc/passwd for it."""

CONTAINER_SECURITY: Object = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""All that the profile "restricted" asks for, and more."""


def base64_data(**values: str) -> dict[str, str]:
    """As `data` of a Secret; `stringData` is write-only, so it could not be compared."""
    return {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}


def text_of(secret: Object, key: str, errors: str = "strict") -> str:
    """A value of a Secret; empty if it is not there. If strict, also if it is no text: somebody
    wrote it by hand, and it is made anew as if he had taken it away."""
    try:
        return base64.b64decode(secret.get("data", {}).get(key, "")).decode(errors=errors)
    except UnicodeDecodeError:
        return ""


def selector(ensemble: Ensemble, node_id: str | None = None) -> dict[str, str]:
    labels = {names.LABEL_ENSEMBLE: ensemble.name}
    return labels if node_id is None else {**labels, names.LABEL_NODE: node_id}


def ensemble_object(
    ensemble: Ensemble, kind: Kind, name: str, *, node_id: str | None = None, **fields: Any
) -> Object:
    """One object that goes when the ensemble goes."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "metadata": {
            "name": name,
            "namespace": ensemble.namespace,
            "labels": {
                "app.kubernetes.io/name": "leasekeeper",
                "app.kubernetes.io/component": "ensemble",
                "app.kubernetes.io/instance": ensemble.name,
                **names.MANAGED,
                **selector(ensemble, node_id),
            },
            "ownerReferences": [ensemble.owner(ENSEMBLE)],
        },
        **fields,
    }
