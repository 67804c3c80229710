"""`leasekeeper-operator` on a machine without a cluster's DNS: it is told where the nodes are.

The first argument is the name of a file: JSON, from the host of each node to its port on loopback.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

from leasekeeper_operator import main
from leasekeeper_operator.ensemble import EnsembleReconciler

from leasekeeper.redlock.membership import Node

PORTS = json.loads(Path(sys.argv.pop(1)).read_text())


def resolve(node: Node) -> tuple[str, int]:
    return "127.0.0.1", PORTS[node.host]


setattr(main, "EnsembleReconciler", functools.partial(EnsembleReconciler, resolve=resolve))  # noqa: B010
main.main()
