"""What a Lease object says, and every decision that is taken from it: pure functions.

**Time.** No time of another machine is compared with ours: `renewTime` is for people. Whether a
holder is still there is decided by "this record has stood unchanged for so long on my clock". The
holder counts from *before* it wrote a record, everybody else from *after* they read it, for the
whole duration that stands in it; so the holder's end comes first. client-go does the same.

**A new Lease rests.** One that nobody has held yet may stand in the place of one that was deleted
under its holder, who leads until its next renewal finds that out. So it is taken only when it has
stood for a whole lease. Whoever makes a Lease, and knows that there was none, says so with the
annotation `leasekeeper.dev/fresh: "true"`: then nobody waits. (client-go takes it at once, and has
two leaders then.)

**Token.** The token of a tenure is the `resourceVersion` that its winning write replaced, or the
token in the annotation `leasekeeper.dev/token` plus one, whichever is larger. Why that rises:

- The write is a compare-and-swap on that resourceVersion, so no two tenures replace the same one.
- etcd numbers all its writes in one sequence, deletions included. The next tenure's write replaces
  a version that is at least the one that this tenure's write made: a larger number. It does not
  matter whether the Lease was deleted in between, or by whom it was written.
- So that a deletion cannot hide in between, a Lease that is not there is made *without a holder*
  first, and then taken by a write that names the version and the uid of what was made.
- That resourceVersions of one resource may be compared as decimal numbers is part of the API since
  Kubernetes 1.35 (KEP-5504), and was so before on every API server over etcd. One that is not a
  number is refused, not guessed.

The annotation tells observers the token, and it is the floor where the numbers begin again: a Lease
that is moved to another cluster keeps its tokens' order. What nothing in the cluster can survive is
a restored snapshot of etcd: tokens handed out after the snapshot are forgotten with it. Restored by
`etcdutl snapshot restore --bump-revision 1000000000 --mark-compacted`, as Kubernetes' own
controllers need it, the order holds.
"""

from __future__ import annotations

import math
import time
from copy import deepcopy
from dataclasses import dataclass, field

from leasekeeper.clock import Instant
from leasekeeper.kubernetes.api import Failed, Object
from leasekeeper.lease import Grant, Lost, Request
from leasekeeper.redlock import requests

TOKEN = "leasekeeper.dev/token"
REQUEST = "leasekeeper.dev/request"
FRESH = "leasekeeper.dev/fresh"
LARGEST_TRANSITIONS = 2**31 - 1  # of the API's type; one more, and every write would be refused
LARGEST_TOKEN = 2**53 - 1  # beyond it, a JSON number is not exact for every reader


@dataclass(frozen=True, slots=True)
class Lease:
    """One version of the object."""

    object: Object = field(compare=False, repr=False)
    uid: str
    version: int
    holder: str
    duration: float
    """Seconds that the holder asked for; 0: it did not say."""
    times: tuple[str, str]
    """acquireTime and renewTime, for comparing with what stood there before only."""
    transitions: int
    token: int
    request: Request | None
    new: bool
    """Nobody has held it, as far as it says, and nobody vouches for that."""

    @classmethod
    def parse(cls, obj: Object) -> Lease:
        """Raises Failed. What a stranger may have written wrongly counts as not written."""
        metadata, spec = _dict(obj.get("metadata")), _dict(obj.get("spec"))
        version = str(metadata.get("resourceVersion", ""))
        if not _decimal(version):
            raise Failed(f"the resourceVersion {version!r} is not a number: no token can be had")
        annotations = _dict(metadata.get("annotations"))
        token = str(annotations.get(TOKEN, ""))
        times = (str(spec.get("acquireTime") or ""), str(spec.get("renewTime") or ""))
        return cls(
            object=obj,
            uid=str(metadata.get("uid", "")),
            version=int(version),
            holder=str(spec.get("holderIdentity") or ""),
            duration=float(spec.get("leaseDurationSeconds") or 0),
            times=times,
            transitions=int(spec.get("leaseTransitions") or 0),
            token=int(token) if _decimal(token) and int(token) <= LARGEST_TOKEN else 0,
            request=requests.parse(str(annotations.get(REQUEST, ""))),
            new=not any(times) and not token and annotations.get(FRESH) != "true",
        )

    def unchanged(self, earlier: Lease) -> bool:
        """Nobody has renewed or taken it since. Labels and the like may have changed: who edits
        them keeps no dead holder alive."""
        return (self.uid, self.holder, self.duration, self.times, self.transitions) == (
            *(earlier.uid, earlier.holder, earlier.duration, earlier.times, earlier.transitions),
        )


@dataclass(frozen=True, slots=True)
class Sighting:
    """A Lease, and since when its record has stood unchanged before our eyes."""

    lease: Lease
    since: Instant


def see(before: Sighting | None, lease: Lease, now: Instant) -> Sighting:
    """`now` is read after the answer came."""
    if before is not None and lease.unchanged(before.lease):
        return Sighting(lease, before.since)
    return Sighting(lease, now)


def free_in(seen: Sighting, candidate: str | None, ttl: float, now: Instant) -> float:
    """Seconds until the lock may be taken by this candidate, or by anybody; 0 or less: now.

    An older attempt of our own (the nonce in the id is this process's) blocks nobody: known bug 13.
    """
    lease = seen.lease
    if lease.holder.rpartition("/")[0] == candidate or not (lease.holder or lease.new):
        return 0.0
    duration = (lease.duration if lease.holder else 0) or ttl
    # The smaller of the two clocks' differences: whoever waits must err towards "not yet".
    waited = min(now.boot - seen.since.boot, now.raw - seen.since.raw)
    return duration - waited


def next_token(lease: Lease) -> int:
    """Of the tenure that begins by replacing this version."""
    return max(lease.token + 1, lease.version)


def deposed(lease: Lease | None, grant: Grant, known: Lease | None) -> Lost | None:
    """Whether what was read says that the lease is not ours. Somebody else's label on the object,
    and a renewal of ours whose answer was lost, do not."""
    if lease is None:
        return Lost("the Lease was deleted")
    if lease.holder != grant.id:
        return Lost(f"the Lease names {lease.holder or 'nobody'}")
    if lease.token > grant.token:
        return Lost(f"the Lease has the later token {lease.token}")
    if known is not None and lease.uid != known.uid:
        return Lost("the Lease was deleted and made again")
    if known is not None and lease.version < known.version:
        return Lost("the API server's memory was rolled back")
    return None


# -- what is written -----------------------------------------------------------------------------


def made(namespace: str, name: str) -> Object:
    """Without a holder: see above, "Token"."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 0},
    }


def taken(lease: Lease, holder: str, token: int, ttl: float, wall: float) -> Object:
    now = stamp(wall, lease.times[1])
    return _changed(
        lease,
        token,
        holderIdentity=holder,
        leaseDurationSeconds=math.ceil(ttl),
        acquireTime=now,
        renewTime=now,
        leaseTransitions=min(lease.transitions + 1, LARGEST_TRANSITIONS),
    )


def renewed(lease: Lease, token: int, ttl: float, wall: float) -> Object:
    now = stamp(wall, lease.times[1])
    return _changed(lease, token, leaseDurationSeconds=math.ceil(ttl), renewTime=now)


def released(lease: Lease, token: int, wall: float) -> Object:
    """As client-go does it: nobody, for a second. The token stays: it never goes down."""
    now = stamp(wall, lease.times[1])
    return _changed(lease, token, holderIdentity="", leaseDurationSeconds=1, renewTime=now)


def stamp(wall: float, before: str) -> str:
    """Never the text that stands there: the API server would take an equal object for no change,
    and others would take a renewal on a clock that was set back for none."""
    text = _micro_time(wall)
    return text if text != before else _micro_time(wall + 1e-6)


def _micro_time(wall: float) -> str:
    seconds, micros = divmod(round(wall * 1e6), 1_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{micros:06d}Z"


def _changed(lease: Lease, token: int, **spec: object) -> Object:
    """The object as it was read, so that fields of others and of later versions stay."""
    obj = deepcopy(lease.object)
    metadata = obj["metadata"]
    metadata.pop("managedFields", None)
    metadata["annotations"] = {**_dict(metadata.get("annotations")), TOKEN: str(token)}
    obj["spec"] = {**_dict(obj.get("spec")), **spec}
    return obj


def _decimal(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20


def _dict(value: object) -> Object:
    return value if isinstance(value, dict) else {}
