"""What goes over a connection between two stores.

A connection is for raft messages or for the files of one snapshot; the hello says which. Either end may say `Alive`
at any time, and does so when it has nothing else to say.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, Literal, TypeGuard

from msgspec import Struct

from evenkeel.versions import VersionRange
from evenkeel.wire.frame_codec import Codec, kinds_of
from evenkeel.wire.payload_pieces import LARGE_BYTES, NOTHING, Bytes, Pieces
from evenkeel_raft.core.raft_messages import AnyMessage, Append, InstallSnapshot
from evenkeel_raft.core.raft_types import Entry
from evenkeel_raft.net.files.snapshot_manifest import Manifest

__all__ = [
    "PEER_CODEC",
    "VERSION",
    "Alive",
    "AnyFrame",
    "Batch",
    "Cancelled",
    "Chunk",
    "Corrupt",
    "Declined",
    "Finished",
    "Hello",
    "Inquiry",
    "Offer",
    "Purpose",
    "Refused",
    "Resume",
    "Stored",
    "Verdict",
    "batch_payload",
    "chunk_head",
]

VERSION: Final = 1

Purpose = Literal["raft", "files"]


class Hello(Struct, tag="hello", array_like=True, frozen=True):
    """Who speaks, to whom, and what about. The dialling end says it first.

    What stands up to `version` never changes, so that two versions can at least name each other. `version` is that of
    the links; `supported` are the cluster versions that the sidecar can work with.
    """

    version: int
    cluster: str = ""
    store: str = ""
    volume: str = ""
    to: str = ""
    purpose: str = "raft"
    supported: VersionRange = VersionRange()


class Refused(Struct, tag="refused", array_like=True, frozen=True):
    """Instead of a hello: why there will be none."""

    reason: str
    detail: str


class Alive(Struct, tag="alive", array_like=True, frozen=True):
    """Nothing to say; or what the time is (`skew`). The first release sends and reads it without fields."""

    asked: float | None = None
    """What time is it with you? By the asking end's monotonic clock; to be answered with the same number."""
    answers: float | None = None
    wall: float = 0.0
    """Where it answers: seconds since 1970 by the sender's wall clock."""


class Batch(Struct, tag="batch", array_like=True, frozen=True):
    """Raft messages of any groups."""

    messages: list[AnyMessage]


class Inquiry(Struct, tag="inquiry", array_like=True, frozen=True):
    """Is this replica of a group, which the sender holds, a member of it? Only a leader can tell."""

    number: int
    group: int
    store: str
    replica: int


class Verdict(Struct, tag="verdict", array_like=True, frozen=True):
    """The answer to an inquiry. `excluded`: a leader, confirmed by a quorum since it was asked, does not list it."""

    number: int
    excluded: bool


class Offer(Struct, tag="offer", array_like=True, frozen=True):
    """A snapshot's files are ready; the message is for the replica that gets them."""

    message: InstallSnapshot
    manifest: Manifest


class Resume(Struct, tag="resume", array_like=True, frozen=True):
    """Begin each file here; what is before is verified already."""

    offsets: list[int]


class Declined(Struct, tag="declined", array_like=True, frozen=True):
    """The files are not wanted, or cannot be kept."""

    detail: str


class Chunk(Struct, tag="chunk", array_like=True, frozen=True):
    """The next part of a file; where it is large, a view of the frame it came in."""

    file: int
    offset: int
    data: memoryview


class Finished(Struct, tag="finished", array_like=True, frozen=True):
    """Everything was sent."""


class Corrupt(Struct, tag="corrupt", array_like=True, frozen=True):
    """This part of a file arrived with another checksum than the manifest's."""

    file: int
    offset: int


class Stored(Struct, tag="stored", array_like=True, frozen=True):
    """All files are durable and verified."""


class Cancelled(Struct, tag="cancelled", array_like=True, frozen=True):
    """The sender does not want them delivered any more."""


AnyFrame = (
    Hello
    | Refused
    | Alive
    | Batch
    | Inquiry
    | Verdict
    | Offer
    | Resume
    | Declined
    | Chunk
    | Finished
    | Corrupt
    | Stored
    | Cancelled
)
_KINDS: Final = (
    *(Hello, Refused, Alive, Batch, Inquiry, Verdict),
    *(Offer, Resume, Declined, Chunk, Finished, Corrupt, Stored, Cancelled),
)

_EMPTY: Final = memoryview(b"")
_EMPTY_BYTES: Final = b"\xc4\x00"
_BYTES: Final = struct.Struct(">BI")
_BYTES_CODE: Final = 0xC6


def chunk_head(file: int, offset: int, length: int) -> bytes:
    """Return the payload of a `Chunk` up to its data, which then need not be copied to be sent."""
    head = PEER_CODEC.encode(Chunk(file, offset, _EMPTY))
    assert head.endswith(_EMPTY_BYTES)
    return head[: -len(_EMPTY_BYTES)] + _BYTES.pack(_BYTES_CODE, length)


def batch_payload(messages: Sequence[AnyMessage]) -> list[Bytes]:
    """Return the payload of a `Batch`, in pieces where entries are large."""
    if not any(map(_is_large, messages)):
        return [PEER_CODEC.encode(Batch(list(messages)))]
    pieces = Pieces()
    pieces.add(Batch(NOTHING))
    pieces.add_list(len(messages))
    for message in messages:
        if _is_large(message):
            _add_append(pieces, message)
        else:
            pieces.add(message)
    return pieces.take()


def _is_large(message: AnyMessage) -> TypeGuard[Append]:
    """Whether entries are probably worth pieces of their own: those of one message are mostly alike."""
    return type(message) is Append and bool(message.entries) and len(message.entries[0].data) >= LARGE_BYTES


def _add_append(pieces: Pieces, m: Append) -> None:
    pieces.add(
        Append(m.group, m.generation, m.sender, m.receiver, m.term, m.prev_index, m.prev_term, m.commit, NOTHING)
    )
    pieces.add_list(len(m.entries))
    for entry in m.entries:
        if len(entry.data) >= LARGE_BYTES:
            pieces.add(Entry(entry.index, entry.term, entry.kind, NOTHING))
            pieces.add_large(entry.data)
        else:
            pieces.add(entry)


PEER_CODEC: Final = Codec[AnyFrame, AnyFrame](AnyFrame, kinds=kinds_of(*_KINDS))
