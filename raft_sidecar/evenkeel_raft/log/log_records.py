"""Record types of the log and their encoding.

Every record names its group, replica id and generation. A round's records are one MessagePack array, so that msgspec
decodes them in a single call. Fields may be added at the end of a record and of the core's types; older records decode
with the new field's default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from evenkeel_raft.core.raft_types import Entry, HardState, SnapshotMeta

__all__ = [
    "Append",
    "Compacted",
    "Created",
    "Destroyed",
    "Metastore",
    "Moved",
    "Record",
    "StoredRecord",
    "decode_records",
    "encode_records",
    "entry_sizes",
    "index_range",
    "meta_size",
]

# The prefix of a MessagePack array with a 32-bit length.
_ARRAY: Final = b"\xdd"
# Typical encoded size of an entry's index, term, kind and length.
_ENTRY_OVERHEAD: Final = 16


class Created(Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Creates a replica, with an id that the volume never held before. Recovery returns the caller's `label`."""

    group: int
    replica: int
    generation: int
    label: bytes = b""


class Destroyed(Struct, frozen=True, array_like=True, tag=2, gc=False):
    """Destroys a replica; its id is never used again."""

    group: int
    replica: int


class Append(Struct, frozen=True, array_like=True, tag=3, gc=False):
    """The contents of a `core.rawnode.AppendBatch`.

    A snapshot replaces the whole log. Entries replace the log from the first of them on, so they also truncate it.
    """

    group: int
    replica: int
    generation: int
    snapshot: SnapshotMeta | None
    entries: list[Entry]
    hard_state: HardState | None


class Compacted(Struct, frozen=True, array_like=True, tag=4, gc=False):
    """Compacts a log: it begins after `meta`, and later entries stay."""

    group: int
    replica: int
    generation: int
    meta: SnapshotMeta


class Moved(Struct, frozen=True, array_like=True, tag=5, gc=False):
    """Live records copied out of a segment that will be freed. They replace only their originals."""

    group: int
    replica: int
    generation: int
    label: bytes | None
    meta: SnapshotMeta | None
    entries: list[Entry]
    hard_state: HardState | None


class Metastore(Struct, frozen=True, array_like=True, tag=6, gc=False):
    """The metastore that this volume follows: its cluster and the highest revision seen.

    `adopted` is the user's request to follow this metastore instead of an earlier one; the first release has no such
    field.
    """

    cluster: int
    revision: int
    adopted: str = ""


Record = Created | Destroyed | Append | Compacted | Metastore
StoredRecord = Record | Moved

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[StoredRecord])


def encode_records(records: Sequence[StoredRecord], buffer: bytearray) -> list[int]:
    """Append a round's records to a buffer; returns the encoded size of each."""
    buffer += _ARRAY + len(records).to_bytes(4, "big")
    sizes = []
    end = len(buffer)
    encode = _encoder.encode_into
    for record in records:
        encode(record, buffer, -1)
        start, end = end, len(buffer)
        sizes.append(end - start)
    return sizes


def decode_records(body: bytes | memoryview) -> list[StoredRecord]:
    """Decode a round's records; raises `msgspec.MsgspecError` if they are invalid."""
    return _decoder.decode(body)


def meta_size(meta: SnapshotMeta) -> int:
    """Return the encoded size of a log's beginning."""
    return len(_encoder.encode(meta))


def entry_sizes(entries: Sequence[Entry]) -> list[int]:
    """Estimate the encoded size of each entry."""
    return [len(entry.data) + _ENTRY_OVERHEAD for entry in entries]


def index_range(entries: Sequence[Entry]) -> tuple[int, int]:
    """Return the range [first, end) of indexes of consecutive entries."""
    return entries[0].index, entries[-1].index + 1
