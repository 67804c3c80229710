"""What a user would pull, under the names that a user writes: there is no registry here."""

from __future__ import annotations

import subprocess

from localkube import images, lifecycle, pins
from localkube.progress import Progress

from tests.cluster.client import Client


def bring_debian(client: Client) -> None:
    _name(client, images.APP_IMAGE, "debian:trixie-slim")


def bring_python_and_postgresql(client: Client) -> None:
    progress = Progress()
    made = images.examples(pins.load(), progress)
    lifecycle.load(client.cluster, [made], progress)
    _name(client, made.tag, "python:3.13-slim", "postgres:17-alpine")


def _name(client: Client, image: str, *names: str) -> None:
    for node in client.cluster.nodes:
        ctr = ["ctr", "-a", str(node.containerd_socket), "-n", "k8s.io", "images", "tag", "--force"]
        for name in names:
            full = f"docker.io/library/{name}"
            subprocess.run([*ctr, image, full], check=True, capture_output=True)
