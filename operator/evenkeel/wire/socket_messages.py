"""The kinds of the state-machine socket.

Every frame is `[id, group, replica, [kind, ...]]`. Each end numbers its own requests from 1; an answer repeats the
number, group and replica of its request. A number is used once per connection, and answers come in any order.

The first frame of each end is a hello (numbered 0, of no group). What follows in it after `version` may change with
the version; what stands before may not, so that two versions can at least name each other.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from evenkeel.versions import FIRST, VersionRange
from evenkeel.wire.frame_codec import Codec, kinds_of
from evenkeel.wire.payload_pieces import LARGE_BYTES, NOTHING, Bytes, Pieces

__all__ = [
    "MAX_ENTRY_BYTES",
    "MAX_PROPOSED_BYTES",
    "SIDECAR_CODEC",
    "STORE_CODEC",
    "VERSION",
    "Applied",
    "Apply",
    "Busy",
    "Close",
    "Committed",
    "Destroy",
    "Done",
    "Doubt",
    "Drain",
    "Drained",
    "Failed",
    "FromSidecar",
    "FromStore",
    "Hello",
    "LoggedEntry",
    "NotLeader",
    "Open",
    "Opened",
    "Propose",
    "ProposeOutcome",
    "ReadAt",
    "ReadIndex",
    "ReadOutcome",
    "Refused",
    "Restore",
    "Role",
    "SidecarSays",
    "Size",
    "Snapshot",
    "SnapshotTaken",
    "StoreSays",
    "TooLarge",
    "Unavailable",
    "Unknown",
    "Version",
    "apply_payload",
    "propose_payload",
]

VERSION: Final = 1

# Half a frame, so that an entry fits in one whatever travels with it.
MAX_ENTRY_BYTES: Final = 32 << 20
# What one store may have proposed without an answer; past it proposals are Busy before they are sent.
MAX_PROPOSED_BYTES: Final = 64 << 20


class Hello(Struct, tag="hello", array_like=True, frozen=True):
    """Who is there. A store without a volume of its own yet says "" and takes the sidecar's.

    `version` is the socket's. `credit` is the store's: how many bytes of entries it is ready to have unanswered.
    `sizes` is the sidecar's: whether it takes `Size`, which a sidecar of an older release does not know. `supported`
    are the cluster versions that this end can work with, and `cluster` is the present one, by the sidecar.
    """

    version: int
    volume: str = ""
    credit: int = 0
    sizes: bool = False
    supported: VersionRange = VersionRange()
    cluster: int = FIRST


class Refused(Struct, tag="refused", array_like=True, frozen=True):
    """The sidecar's last word to a store that it does not work with."""

    reason: str
    detail: str


# The sidecar asks


class Open(Struct, tag="open", array_like=True, frozen=True):
    """Get ready to apply for this partition of this table. May be asked again: it also tells whether one is there."""

    table: str = ""
    partition: int = 0


class LoggedEntry(Struct, array_like=True, frozen=True, gc=False):
    """A committed entry, as it was proposed."""

    index: int
    data: bytes


class Apply(Struct, tag="apply", array_like=True, frozen=True):
    """Everything committed from `first` to `last`; indexes without an entry are raft's own and change nothing."""

    first: int
    last: int
    entries: list[LoggedEntry]


class Snapshot(Struct, tag="snapshot", array_like=True, frozen=True):
    """Write the state to files in this directory, which exists and is empty."""

    dir: str


class Restore(Struct, tag="restore", array_like=True, frozen=True):
    """Replace the state by the snapshot at `index` in this directory, whole or not at all."""

    dir: str
    index: int


class Close(Struct, tag="close", array_like=True, frozen=True):
    """Stop the group, keep its data."""


class Destroy(Struct, tag="destroy", array_like=True, frozen=True):
    """Delete the group's data; done where there is none."""


class Role(Struct, tag="role", array_like=True, frozen=True):
    """Whether this replica leads, and which store to send clients to if not ("" where nobody knows). Not answered."""

    leader: bool
    term: int
    hint: str = ""


class Version(Struct, tag="version", array_like=True, frozen=True):
    """The cluster version from now on. Of no group, not answered; only for stores that support a later one than 1."""

    cluster: int


# The store answers


class Opened(Struct, tag="opened", array_like=True, frozen=True):
    """How far the state is durable. `empty`: there is none. `damaged`: there is, and it cannot be relied on."""

    applied: int
    state: Literal["ok", "empty", "damaged"]
    detail: str = ""


class Applied(Struct, tag="applied", array_like=True, frozen=True, gc=False):
    """The state at `index` or later is durable: `last` of the request or past it."""

    index: int


class SnapshotTaken(Struct, tag="snapshot_taken", array_like=True, frozen=True):
    """The files are written; they hold the state at `index`. Names are relative to the directory."""

    index: int
    files: list[str]


class Done(Struct, tag="done", array_like=True, frozen=True):
    """The group is closed, or its data is deleted."""


class Failed(Struct, tag="failed", array_like=True, frozen=True):
    """The store could not do it, and skipped nothing: the group waits to be opened again."""

    detail: str


# The store asks


class Propose(Struct, tag="propose", array_like=True, frozen=True, gc=False):
    """Log this entry."""

    data: bytes


class ReadIndex(Struct, tag="read_index", array_like=True, frozen=True):
    """From which applied index on may a read be answered that begins now?"""


class Doubt(Struct, tag="doubt", array_like=True, frozen=True):
    """The group's state may not be what it should be, and why; "" where that is over. Not answered.

    `unfit`: it is known to be wrong, and about to be given up; let another replica lead. Opening a group ends its
    doubts, so a store that still has them says so again.
    """

    detail: str
    unfit: bool = False


class Size(Struct, tag="size", array_like=True, frozen=True, gc=False):
    """About how many bytes a snapshot of the group would have now. Not answered, and optional: a store tells it when
    it has changed noticeably, and after the group was opened.
    """

    bytes: int


class Drain(Struct, tag="drain", array_like=True, frozen=True):
    """The store is about to stop: hand over what is led here. Of no group."""


# The sidecar answers


class Committed(Struct, tag="committed", array_like=True, frozen=True, gc=False):
    """The entry is committed at this index; it will be applied everywhere."""

    index: int
    term: int


class NotLeader(Struct, tag="not_leader", array_like=True, frozen=True):
    """Never appended: try the store named by `hint`, where there is one."""

    hint: str = ""


class Unknown(Struct, tag="unknown", array_like=True, frozen=True):
    """May or may not be committed, now or later. Only a token makes it safe to propose again."""


class Busy(Struct, tag="busy", array_like=True, frozen=True):
    """Never appended: too much is under way. Try again later."""


class TooLarge(Struct, tag="too_large", array_like=True, frozen=True):
    """Never appended: an entry takes at most `limit` bytes."""

    limit: int = MAX_ENTRY_BYTES


class ReadAt(Struct, tag="read_at", array_like=True, frozen=True, gc=False):
    """Read once this index is applied."""

    index: int


class Unavailable(Struct, tag="unavailable", array_like=True, frozen=True):
    """Nobody could confirm who leads. Ask again."""


class Drained(Struct, tag="drained", array_like=True, frozen=True):
    """Leaderships are handed over, but for `remaining` that nobody could take."""

    remaining: int = 0


ProposeOutcome = Committed | NotLeader | Unknown | Busy | TooLarge
ReadOutcome = ReadAt | Unavailable

_SIDECAR_SAYS: Final = (
    *(Hello, Refused, Open, Apply, Snapshot, Restore, Close, Destroy, Role, Version),
    *(Committed, NotLeader, Unknown, Busy, TooLarge, ReadAt, Unavailable, Drained),
)
_STORE_SAYS: Final = (Hello, Opened, Applied, SnapshotTaken, Done, Failed, Propose, ReadIndex, Doubt, Size, Drain)

SidecarSays = (
    Hello
    | Refused
    | Open
    | Apply
    | Snapshot
    | Restore
    | Close
    | Destroy
    | Role
    | Version
    | Committed
    | NotLeader
    | Unknown
    | Busy
    | TooLarge
    | ReadAt
    | Unavailable
    | Drained
)
StoreSays = Hello | Opened | Applied | SnapshotTaken | Done | Failed | Propose | ReadIndex | Doubt | Size | Drain


class FromSidecar(Struct, array_like=True):
    """A frame the sidecar sends."""

    id: int
    group: int
    replica: int
    body: SidecarSays


class FromStore(Struct, array_like=True):
    """A frame the store sends."""

    id: int
    group: int
    replica: int
    body: StoreSays


_BODY: Final = (3, 0)


def apply_payload(number: int, group: int, replica: int, apply: Apply) -> list[Bytes]:
    """Return the payload of the frame that asks to apply, in pieces where entries are large."""
    entries = apply.entries
    if not entries or len(entries[0].data) < LARGE_BYTES:
        return [SIDECAR_CODEC.encode(FromSidecar(number, group, replica, apply))]
    pieces = Pieces()
    pieces.add(FromSidecar(number, group, replica, Apply(apply.first, apply.last, NOTHING)))
    pieces.add_list(len(entries))
    for entry in entries:
        if len(entry.data) >= LARGE_BYTES:
            pieces.add(LoggedEntry(entry.index, NOTHING))
            pieces.add_large(entry.data)
        else:
            pieces.add(entry)
    return pieces.take()


def propose_payload(number: int, group: int, replica: int, data: bytes) -> list[Bytes]:
    """Return the payload of the frame that asks to log an entry, in pieces where it is large."""
    if len(data) < LARGE_BYTES:
        return [STORE_CODEC.encode(FromStore(number, group, replica, Propose(data)))]
    pieces = Pieces()
    pieces.add(FromStore(number, group, replica, Propose(NOTHING)))
    pieces.add_large(data)
    return pieces.take()


SIDECAR_CODEC: Final = Codec[FromSidecar, FromStore](FromStore, kinds=kinds_of(*_STORE_SAYS), path=_BODY)
STORE_CODEC: Final = Codec[FromStore, FromSidecar](FromSidecar, kinds=kinds_of(*_SIDECAR_SAYS), path=_BODY)
