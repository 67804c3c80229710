"""What the leader file says, and the rule by which it is read.

The file carries its own end, so that a sidecar that hangs, is killed or is frozen leaves no lie
behind. The rule:

    leader is true, the boot id is this kernel's, uptime is before `deadlineCs`, and the wall clock
    is before `expiresUnix`; anything else means: not the leader. Read the file first and the clocks
    after it.

Why four conditions: uptime cannot be set by anyone, so it decides; the boot id makes a file on a
disk worthless after a reboot; the wall clock covers runtimes that show each container an uptime of
its own (lxcfs). Integers only, because the shells of small images have no others.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from math import floor

from leasekeeper.clock import Clock
from leasekeeper.lease import Grant, Timings
from leasekeeper_sidecar.host import Host
from leasekeeper_sidecar.log import timestamp

# A holder's name comes from the store, so another tenant may have written it, and `leader.env` is
# read by shells: whatever is not the name of a pod is shown as unknown.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")

# `/proc/uptime` is truncated to hundredths, by the writer's kernel and by the reader's. The
# writer's truncation makes the deadline earlier, the reader's makes its time look earlier: one
# hundredth less covers the second.
TRUNCATION_CS = 1


# Between two renewals the file must stay true for readers, who have whole seconds of the wall
# clock: one may go to `expiresUnix`, which is rounded down, and one is for a slow renewal.
ROOM_SECONDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The contents of the leader file. Times are on the wall clock, for people; `deadline_cs` is
    what decides.
    """

    lock: str
    leader: bool
    boot: str
    holder: str = ""
    """Name of the holder's pod; empty: unknown, which is an answer."""
    token: int = 0
    acquired: float | None = None
    expires: float | None = None
    expires_unix: int = 0
    deadline_cs: int = 0
    seen: float | None = None
    """Standby only: when the holder was last seen. What a standby knows is hearsay, and hearsay has
    an age.
    """

    def fields(self) -> dict[str, object]:
        fields: dict[str, object] = {
            "lock": self.lock,
            "leader": self.leader,
            "holder": self.holder,
            "token": self.token,
            "acquired": _optional_timestamp(self.acquired),
            "expires": _optional_timestamp(self.expires),
            "expiresUnix": self.expires_unix,
            "deadlineCs": self.deadline_cs,
            "boot": self.boot,
        }
        if not self.leader:
            fields["seen"] = _optional_timestamp(self.seen)
        return fields

    def to_json(self) -> str:
        return json.dumps(self.fields(), separators=(",", ":")) + "\n"

    def to_env(self) -> str:
        """The same as KEY=value lines. No quoting, because nothing in it needs any: see
        `holder_name`.
        """
        names = {"expiresUnix": "EXPIRES_UNIX", "deadlineCs": "DEADLINE_CS"}
        lines = []
        for key, value in self.fields().items():
            text = ("false", "true")[value] if isinstance(value, bool) else str(value or "")
            if isinstance(value, int) and not isinstance(value, bool):
                text = str(value)
            lines.append(f"LEASEKEEPER_{names.get(key, key.upper())}={text}\n")
        return "".join(lines)


def holder_name(candidate_id: str | None) -> str:
    """The pod's name out of a candidate's id (name/uid/nonce/attempt), or nothing if it cannot be
    one.
    """
    name = (candidate_id or "").split("/", 1)[0]
    return name if _NAME.fullmatch(name) else ""


def leading_claim(grant: Grant, *, name: str, acquired: float, clock: Clock, host: Host) -> Claim:
    """The deadline, moved to the clocks that readers have.

    The readers' clocks are read *first*, and what is left of the lease after them: a process that
    is paused in between then claims too little. The other way round it would claim the length of
    the pause too much.
    """
    uptime_cs = host.uptime_cs()
    wall = host.wall()
    left = grant.deadline.left(clock.now())
    return Claim(
        lock=grant.lock,
        leader=True,
        boot=host.boot_id(),
        holder=name,
        token=grant.token,
        acquired=acquired,
        expires=wall + left,
        expires_unix=floor(wall + left),
        deadline_cs=floor(uptime_cs + left * 100) - TRUNCATION_CS,
    )


def flicker(timings: Timings) -> str:
    """What to tell a person whose timings would make the file say no between two renewals, though
    the pod leads; empty if they leave room. Safe either way, and the API server refuses such locks:
    so this is a warning.
    """
    if timings.renew_deadline >= timings.retry_period + ROOM_SECONDS:
        return ""
    return (
        f"renewDeadlineSeconds ({timings.renew_deadline:g}) is less than retryPeriodSeconds"
        f" ({timings.retry_period:g}) + {ROOM_SECONDS}: readers have whole seconds, and may see"
        " `not the leader` for a moment before a renewal; raise the deadline or lower the retry"
        " period"
    )


def standby_claim(lock: str, *, boot: str, holder: str = "", seen: float | None = None) -> Claim:
    return Claim(lock=lock, leader=False, boot=boot, holder=holder, seen=seen if holder else None)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a reader makes of the file."""

    leader: bool
    token: int
    why: str


def judge(text: str | bytes, *, uptime_cs: int, boot: str, wall: float) -> Verdict:
    """The reader's rule, as a pure function. Whatever is not understood means: not the leader."""
    try:
        said = json.loads(text)
        leader, boot_id, token = said["leader"], said["boot"], said["token"]
        deadline_cs, expires_unix = said["deadlineCs"], said["expiresUnix"]
        if not all(type(number) is int for number in (token, deadline_cs, expires_unix)):
            raise TypeError("not an integer")
    except (ValueError, KeyError, TypeError) as wrong:
        return Verdict(False, 0, f"the file cannot be read as a claim: {wrong!r}")
    if leader is not True:
        return Verdict(False, 0, "the file says no")
    if boot_id != boot:
        return Verdict(False, 0, "the file is from another boot")
    if uptime_cs >= deadline_cs:
        return Verdict(False, 0, f"the deadline passed {uptime_cs - deadline_cs} cs ago")
    if floor(wall) >= expires_unix:
        return Verdict(False, 0, f"it expired {floor(wall) - expires_unix} s ago on the wall clock")
    return Verdict(True, token, f"{deadline_cs - uptime_cs} cs left")


def read_leader(path: str, host: Host) -> Verdict:
    """As an app does it: the file first, the clocks after it."""
    try:
        with open(path, "rb") as file:
            text = file.read(65536)
    except OSError as wrong:
        return Verdict(False, 0, f"no file: {wrong.strerror}")
    return judge(text, uptime_cs=host.uptime_cs(), boot=host.boot_id(), wall=host.wall())


def _optional_timestamp(wall: float | None) -> str | None:
    return None if wall is None else timestamp(wall)
