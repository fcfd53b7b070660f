"""The messages of the state-machine socket.

Every frame is `[id, group, replica, [kind, ...]]`. Each end numbers its own requests from 1; an answer repeats the
number, group and replica of its request. A number is used once per connection, and answers arrive in any order.

The first frame of each end is a hello, with number, group and replica 0. The fields after `version` may change with the
version; the fields before it may not, so that ends of two versions can report both versions.
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
    "SidecarMessage",
    "Size",
    "Snapshot",
    "SnapshotTaken",
    "StoreMessage",
    "TooLarge",
    "Unavailable",
    "Unknown",
    "Version",
    "apply_payload",
    "propose_payload",
]

VERSION: Final = 1

# Half a frame, so that a frame always has room for an entry and its overhead.
MAX_ENTRY_BYTES: Final = 32 << 20
# The limit for a store's unanswered proposals; beyond it, proposals are answered with Busy before they are sent.
MAX_PROPOSED_BYTES: Final = 64 << 20


class Hello(Struct, tag="hello", array_like=True, frozen=True):
    """The first message of each end. A store without a volume sends "" and adopts the sidecar's.

    `version` is the version of the socket. A store sets `credit`: how many bytes of entries may be unanswered. A
    sidecar sets `sizes`: whether it supports `Size`, which older releases do not. `supported` are the cluster versions
    that this end supports. A sidecar sets `cluster`, the current cluster version.
    """

    version: int
    volume: str = ""
    credit: int = 0
    sizes: bool = False
    supported: VersionRange = VersionRange()
    cluster: int = FIRST


class Refused(Struct, tag="refused", array_like=True, frozen=True):
    """The sidecar refuses a store and closes the connection."""

    reason: str
    detail: str


# Requests of the sidecar


class Open(Struct, tag="open", array_like=True, frozen=True):
    """Prepare the group of this partition of this table. May be repeated, also to check that the store responds."""

    table: str = ""
    partition: int = 0


class LoggedEntry(Struct, array_like=True, frozen=True, gc=False):
    """A committed entry, as it was proposed."""

    index: int
    data: bytes


class Apply(Struct, tag="apply", array_like=True, frozen=True):
    """All entries committed from `first` to `last`; indexes without an entry belong to raft and change nothing."""

    first: int
    last: int
    entries: list[LoggedEntry]


class Snapshot(Struct, tag="snapshot", array_like=True, frozen=True):
    """Write the state to files in this directory, which exists and is empty."""

    dir: str


class Restore(Struct, tag="restore", array_like=True, frozen=True):
    """Replace the state with the snapshot at `index` in this directory, atomically."""

    dir: str
    index: int


class Close(Struct, tag="close", array_like=True, frozen=True):
    """Stop the group and keep its data."""


class Destroy(Struct, tag="destroy", array_like=True, frozen=True):
    """Delete the group's data; succeeds if there is none."""


class Role(Struct, tag="role", array_like=True, frozen=True):
    """Whether this replica leads; if not, `hint` is the store that does, "" if unknown. Not answered."""

    leader: bool
    term: int
    hint: str = ""


class Version(Struct, tag="version", array_like=True, frozen=True):
    """The new cluster version, with group 0. Not answered; sent only to stores that support a version after 1."""

    cluster: int


# Answers of the store


class Opened(Struct, tag="opened", array_like=True, frozen=True):
    """The index up to which the state is durable. `empty`: there is no state. `damaged`: the state is unusable."""

    applied: int
    state: Literal["ok", "empty", "damaged"]
    detail: str = ""


class Applied(Struct, tag="applied", array_like=True, frozen=True, gc=False):
    """The state is durable up to `index`, which is at least `last` of the request."""

    index: int


class SnapshotTaken(Struct, tag="snapshot_taken", array_like=True, frozen=True):
    """The files hold the state at `index`. Names are relative to the directory."""

    index: int
    files: list[str]


class Done(Struct, tag="done", array_like=True, frozen=True):
    """The group is closed, or its data is deleted."""


class Failed(Struct, tag="failed", array_like=True, frozen=True):
    """The request failed and changed nothing. The group must be opened again."""

    detail: str


# Requests of the store


class Propose(Struct, tag="propose", array_like=True, frozen=True, gc=False):
    """Log this entry."""

    data: bytes


class ReadIndex(Struct, tag="read_index", array_like=True, frozen=True):
    """Ask for the index that must be applied before a read that starts now can be answered."""


class Doubt(Struct, tag="doubt", array_like=True, frozen=True):
    """Why the group's state may be wrong; "" if it no longer is. Not answered.

    `unfit`: the state is known to be wrong and will be discarded; another replica must lead. Opening a group clears its
    doubts, so the store must repeat those that remain.
    """

    detail: str
    unfit: bool = False


class Size(Struct, tag="size", array_like=True, frozen=True, gc=False):
    """The approximate size of a snapshot of the group. Not answered, and optional.

    A store sends it after the group is opened, and when the size has changed noticeably.
    """

    bytes: int


class Drain(Struct, tag="drain", array_like=True, frozen=True):
    """Hand over all leaderships: the store is about to stop. With group 0."""


# Answers of the sidecar


class Committed(Struct, tag="committed", array_like=True, frozen=True, gc=False):
    """The entry is committed at this index; all replicas will apply it."""

    index: int
    term: int


class NotLeader(Struct, tag="not_leader", array_like=True, frozen=True):
    """The entry was not appended; retry on the store `hint`, if it is not empty."""

    hint: str = ""


class Unknown(Struct, tag="unknown", array_like=True, frozen=True):
    """Outcome unknown: the entry may be committed now or later. Propose it again only with the same write token."""


class Busy(Struct, tag="busy", array_like=True, frozen=True):
    """The entry was not appended: the backlog is full. Retry later."""


class TooLarge(Struct, tag="too_large", array_like=True, frozen=True):
    """The entry was not appended: it exceeds `limit` bytes."""

    limit: int = MAX_ENTRY_BYTES


class ReadAt(Struct, tag="read_at", array_like=True, frozen=True, gc=False):
    """The read can be answered once this index is applied."""

    index: int


class Unavailable(Struct, tag="unavailable", array_like=True, frozen=True):
    """No leader confirmed its leadership. Retry."""


class Drained(Struct, tag="drained", array_like=True, frozen=True):
    """All leaderships are handed over except `remaining`, which no other replica could take."""

    remaining: int = 0


ProposeOutcome = Committed | NotLeader | Unknown | Busy | TooLarge
ReadOutcome = ReadAt | Unavailable

_SIDECAR_MESSAGES: Final = (
    *(Hello, Refused, Open, Apply, Snapshot, Restore, Close, Destroy, Role, Version),
    *(Committed, NotLeader, Unknown, Busy, TooLarge, ReadAt, Unavailable, Drained),
)
_STORE_MESSAGES: Final = (Hello, Opened, Applied, SnapshotTaken, Done, Failed, Propose, ReadIndex, Doubt, Size, Drain)

SidecarMessage = (
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
StoreMessage = Hello | Opened | Applied | SnapshotTaken | Done | Failed | Propose | ReadIndex | Doubt | Size | Drain


class FromSidecar(Struct, array_like=True):
    """A frame the sidecar sends."""

    id: int
    group: int
    replica: int
    body: SidecarMessage


class FromStore(Struct, array_like=True):
    """A frame the store sends."""

    id: int
    group: int
    replica: int
    body: StoreMessage


_BODY: Final = (3, 0)


def apply_payload(number: int, group: int, replica: int, apply: Apply) -> list[Bytes]:
    """Encode an `Apply` frame, in several pieces if entries are large."""
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
    """Encode a `Propose` frame, in several pieces if the entry is large."""
    if len(data) < LARGE_BYTES:
        return [STORE_CODEC.encode(FromStore(number, group, replica, Propose(data)))]
    pieces = Pieces()
    pieces.add(FromStore(number, group, replica, Propose(NOTHING)))
    pieces.add_large(data)
    return pieces.take()


SIDECAR_CODEC: Final = Codec[FromSidecar, FromStore](FromStore, kinds=kinds_of(*_STORE_MESSAGES), path=_BODY)
STORE_CODEC: Final = Codec[FromStore, FromSidecar](FromSidecar, kinds=kinds_of(*_SIDECAR_MESSAGES), path=_BODY)
