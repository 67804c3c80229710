"""The toy app of a candidate: while its leader file says so, it appends its token to the journal.

Run as a file, with no package around it: an app needs nothing of ours but the rule of the leader
file (docs/app-contract.md).
"""

from __future__ import annotations

import json
import os
import sys
import time

PIECE_OF_WORK = 0.1  # seconds


def leading_token(folder: str) -> int | None:
    """The fencing token if this candidate leads now, else None."""
    try:
        with open(f"{folder}/leader") as file:
            said = json.load(file)
        # The clocks after the file.
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        with open("/proc/uptime") as file:
            uptime_cs = int(file.read().split()[0].replace(".", ""))
        if (
            said["leader"] is True
            and said["boot"] == boot
            and uptime_cs < said["deadlineCs"]
            and int(time.time()) < said["expiresUnix"]
        ):
            return int(said["token"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def main(name: str, folder: str, journal: str) -> None:
    # One write a line, at the end of the file: lines of several apps never mix.
    out = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    while True:
        began = time.clock_gettime(time.CLOCK_BOOTTIME)
        token = leading_token(folder)
        if token is not None:
            ended = time.clock_gettime(time.CLOCK_BOOTTIME)
            os.write(out, f"{token} {name} {began:.6f} {ended:.6f}\n".encode())
        time.sleep(PIECE_OF_WORK)


if __name__ == "__main__":
    main(*sys.argv[1:])
