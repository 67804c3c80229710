"""What a sidecar that was killed needs to go on as the same holder, on a volume of the sidecar's
own.

The order on the disk is part of the protocol (design: *a killed sidecar comes back within its
lease*):

    win, renewal:   resume state  ->  leader file says yes
    loss, stop:     leader file says no  ->  resume state erased  ->  first byte of the release

So a state that is found on start belongs to a lease that was never given back, and its holder is
the only one who can have written it. Erased after the release, a sidecar killed in between could
renew a lease that another one has won.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from dataclasses import dataclass

from leasekeeper.clock import Clock, Deadline, Instant
from leasekeeper.lease import Grant, LeaseError
from leasekeeper_sidecar import files
from leasekeeper_sidecar.host import Host

VERSION = 1

OF_THE_STATE, OF_THE_FILE = ".state.lock", ".sidecar.lock"
"""What is locked on each of the two volumes, which may be one. With a dot, because folders with the
names of locks stand beside them, and no lock's name begins with one.
"""


class Occupied(LeaseError):
    """Another sidecar runs on the same volume."""


def occupy(folder: str, name: str) -> int:
    """Locks a volume for the life of this process; the kernel lets go of it, however the process
    ends.
    """
    path = os.path.join(folder, name)
    fd = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise Occupied(f"another sidecar already runs on {folder}") from None
    return fd


@dataclass(frozen=True, slots=True)
class Resumable:
    """A lease of an earlier process, whose deadline is still ahead."""

    grant: Grant
    acquired: float
    """When the tenure began, on the wall clock, for people."""


class ResumeState:
    """The file `resume.json`."""

    def __init__(self, folder: str, *, lock: str, pod_uid: str, clock: Clock, host: Host) -> None:
        self._path = os.path.join(folder, "resume.json")
        self._lock = lock
        self._pod_uid = pod_uid
        self._clock = clock
        self._host = host

    def save(self, grant: Grant, acquired: float) -> None:
        start = grant.deadline.start
        state = {
            "version": VERSION,
            "lock": grant.lock,
            "podUid": self._pod_uid,
            "id": grant.id,
            "token": grant.token,
            "acquired": acquired,
            "boot": self._host.boot_id(),
            "start": {"boot": start.boot, "raw": start.raw},
            "after": grant.deadline.after,
            "leaseEndAfter": grant.lease_end.after,
        }
        files.replace(self._path, json.dumps(state).encode(), 0o600)

    def erase(self) -> None:
        files.remove(self._path)

    def load(self) -> Resumable | str:
        """The lease to go on with, or a sentence why there is none."""
        try:
            with open(self._path, "rb") as file:
                state = json.loads(file.read(65536))
            start = Instant(_number(state["start"]["boot"]), _number(state["start"]["raw"]))
            grant = Grant(
                lock=str(state["lock"]),
                id=str(state["id"]),
                token=int(_number(state["token"])),
                deadline=Deadline(start, _number(state["after"])),
                lease_end=Deadline(start, _number(state["leaseEndAfter"])),
            )
            acquired = _number(state["acquired"])
            version, uid, boot = state["version"], state["podUid"], state["boot"]
        except FileNotFoundError:
            return "no earlier lease"
        except (OSError, ArithmeticError, ValueError, KeyError, TypeError) as wrong:
            return f"the earlier state cannot be read: {wrong!r}"
        if (version, grant.lock, uid) != (VERSION, self._lock, self._pod_uid):
            return "the earlier state is of another version, lock or pod"
        if boot != self._host.boot_id():
            return "the earlier state is from another boot"
        now = self._clock.now()
        if now.boot < start.boot or now.raw < start.raw:
            return "the earlier state is from the future: its clocks are not ours"
        if grant.deadline.passed(now):
            return "the earlier lease has run out"
        return Resumable(grant, acquired)


def _number(value: object) -> float:
    """No comparison with NaN is ever true: a deadline of NaN would never pass."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise TypeError(f"not a number: {value!r}")
    return value
