"""The few questions that starting a cluster has to ask its API server, without a client library."""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 3.0
"""The server is on this machine: what takes longer is a server that has not come up."""


class Api:
    """Reads as the cluster's administrator."""

    def __init__(self, pki: Path, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._tls = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._tls.load_cert_chain(pki / "admin.crt", pki / "admin.key")

    def get(self, path: str) -> bytes | None:
        """The body of a 200 answer; None for everything else, the server not being there
        included: all callers ask again."""
        connection = http.client.HTTPSConnection(
            self._host, self._port, context=self._tls, timeout=TIMEOUT_SECONDS
        )
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            return body if answer.status == http.HTTPStatus.OK else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def get_object(self, path: str) -> dict[str, Any]:
        body = self.get(path)
        return json.loads(body) if body else {}

    def ready(self) -> bool:
        return self.get("/readyz") == b"ok"

    def ready_nodes(self) -> set[str]:
        return {
            node["metadata"]["name"]
            for node in self.get_object("/api/v1/nodes").get("items", [])
            for condition in node["status"].get("conditions", [])
            if condition["type"] == "Ready" and condition["status"] == "True"
        }

    def available(self, namespace: str, deployment: str) -> bool:
        path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{deployment}"
        return bool(self.get_object(path).get("status", {}).get("availableReplicas"))
