"""Frames of the peer protocol and their encoding.

A connection carries either raft messages or the files of one snapshot; the hello says which. Either end may send
`Alive` at any time, and does so when it has nothing else to send.
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
    """Identifies the sender, the intended receiver and the purpose. The dialling end sends it first.

    The fields up to `version` never change, so that any two releases can name each other. `version` is that of the peer
    protocol; `supported` are the cluster versions that the sidecar supports.
    """

    version: int
    cluster: str = ""
    store: str = ""
    volume: str = ""
    to: str = ""
    purpose: str = "raft"
    supported: VersionRange = VersionRange()


class Refused(Struct, tag="refused", array_like=True, frozen=True):
    """Sent instead of a hello: why the connection is refused."""

    reason: str
    detail: str


class Alive(Struct, tag="alive", array_like=True, frozen=True):
    """Keepalive, or a clock request or answer (see `clock_skew`). The first release uses it without fields."""

    asked: float | None = None
    """Clock request: the sender's monotonic clock, to be returned in `answers`."""
    answers: float | None = None
    wall: float = 0.0
    """In an answer: seconds since 1970 by the sender's wall clock."""


class Batch(Struct, tag="batch", array_like=True, frozen=True):
    """Raft messages of any number of groups."""

    messages: list[AnyMessage]


class Inquiry(Struct, tag="inquiry", array_like=True, frozen=True):
    """Asks whether the sender's replica is still a member of a group. Only the leader knows."""

    number: int
    group: int
    store: str
    replica: int


class Verdict(Struct, tag="verdict", array_like=True, frozen=True):
    """Answers an inquiry. `excluded`: a leader, confirmed by a quorum since the inquiry, does not list the replica."""

    number: int
    excluded: bool


class Offer(Struct, tag="offer", array_like=True, frozen=True):
    """Offers the files of a snapshot, with the raft message for the receiving replica."""

    message: InstallSnapshot
    manifest: Manifest


class Resume(Struct, tag="resume", array_like=True, frozen=True):
    """Accepts an offer: start each file at this offset; everything before it is verified."""

    offsets: list[int]


class Declined(Struct, tag="declined", array_like=True, frozen=True):
    """Rejects an offer: the receiver does not need the files or cannot store them."""

    detail: str


class Chunk(Struct, tag="chunk", array_like=True, frozen=True):
    """The next part of a file. Large data is a view of the received frame."""

    file: int
    offset: int
    data: memoryview


class Finished(Struct, tag="finished", array_like=True, frozen=True):
    """All chunks were sent."""


class Corrupt(Struct, tag="corrupt", array_like=True, frozen=True):
    """The chunk at this offset does not match its checksum in the manifest."""

    file: int
    offset: int


class Stored(Struct, tag="stored", array_like=True, frozen=True):
    """All files are durable and verified."""


class Cancelled(Struct, tag="cancelled", array_like=True, frozen=True):
    """The sender aborts the transfer."""


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
    """Return the payload of a `Chunk` without its data, so that the data can be sent without copying."""
    head = PEER_CODEC.encode(Chunk(file, offset, _EMPTY))
    assert head.endswith(_EMPTY_BYTES)
    return head[: -len(_EMPTY_BYTES)] + _BYTES.pack(_BYTES_CODE, length)


def batch_payload(messages: Sequence[AnyMessage]) -> list[Bytes]:
    """Return the payload of a `Batch`, in several pieces if entries are large."""
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
    """Whether the entries are probably large; entries of one message usually have similar sizes."""
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
