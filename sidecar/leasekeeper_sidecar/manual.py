"""What `--help` prints: every setting, and the file that says what the lock is."""

from __future__ import annotations

from leasekeeper_sidecar.config import SETTINGS
from leasekeeper_sidecar.stores import STORES

LOCK_JSON = """\
  {
    "version": 1,
    "lock": "NAMESPACE/NAME",
    "store": "kubernetes",
    "timings": {
      "leaseDurationSeconds": 15,
      "renewDeadlineSeconds": 10,
      "retryPeriodSeconds": 2,
      "lockDelaySeconds": 0
    }
  }
"""


def usage() -> str:
    lines = ["usage: leasekeeper-sidecar [--FLAG VALUE]...", ""]
    lines.append("Takes part in the election of a lock, and keeps the leader file of its pod.")
    lines.append(
        "Each flag can also be given as the environment variable beside it; the flag wins."
    )
    lines.append("")
    for setting in SETTINGS:
        default = "required" if setting.default is None else setting.default
        lines.append(f"  {setting.flag:18} {setting.variable}")
        lines.append(f"      {setting.help}" + (f" [{default}]" if default else ""))
    lines += [
        "",
        "What the lock is (lock.json): the operator publishes it in the lock's Secret, or it is",
        "made by hand. A list of such objects is several locks. These timings are the default, and",
        "can be left out:",
        "",
        LOCK_JSON,
        f"Stores: {', '.join(STORES)}.",
        "All but kubernetes need an object under their name, too (host, password, ...), see",
        "docs/stores.md; redlock needs what the operator publishes.",
    ]
    return "\n".join(lines) + "\n"
