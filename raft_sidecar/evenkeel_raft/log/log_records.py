"""What the log is told, and how it is spelled.

Every record names its group, replica id and generation. A round's records are one MessagePack array, so that both
directions are a single call into msgspec whatever the number of entries. Fields may be added at the end of a record, of
the core's types too: older records read with the new field's default.
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
    "meta_size",
]

# MessagePack's array with a 32-bit length.
_ARRAY: Final = b"\xdd"
# Index, term, kind and length of an entry of middle age.
_ENTRY_OVERHEAD: Final = 16


class Created(Struct, frozen=True, array_like=True, tag=1, gc=False):
    """A replica begins, with an id the volume never held of its group. Recovery gives the caller's `label` back."""

    group: int
    replica: int
    generation: int
    label: bytes = b""


class Destroyed(Struct, frozen=True, array_like=True, tag=2, gc=False):
    """A replica ends, and its id is used up for good."""

    group: int
    replica: int


class Append(Struct, frozen=True, array_like=True, tag=3, gc=False):
    """What `core.rawnode.AppendBatch` asks to write.

    A snapshot replaces the whole log. Entries replace the log from the first of them on: they are the truncation, too.
    """

    group: int
    replica: int
    generation: int
    snapshot: SnapshotMeta | None
    entries: list[Entry]
    hard_state: HardState | None


class Compacted(Struct, frozen=True, array_like=True, tag=4, gc=False):
    """The log begins after `meta`; entries above it stay."""

    group: int
    replica: int
    generation: int
    meta: SnapshotMeta


class Moved(Struct, frozen=True, array_like=True, tag=5, gc=False):
    """Copies of what is live, out of a segment to be freed. They replace nothing: entries fill the place they had."""

    group: int
    replica: int
    generation: int
    label: bytes | None
    meta: SnapshotMeta | None
    entries: list[Entry]
    hard_state: HardState | None


class Metastore(Struct, frozen=True, array_like=True, tag=6, gc=False):
    """The metastore this volume follows: its cluster and the highest revision seen.

    `adopted` is the user's request by which it came to follow it; the first release writes none.
    """

    cluster: int
    revision: int
    adopted: str = ""


Record = Created | Destroyed | Append | Compacted | Metastore
StoredRecord = Record | Moved

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[StoredRecord])


def encode_records(records: Sequence[StoredRecord], buffer: bytearray) -> list[int]:
    """Append a round's records to a buffer; returns how long each of them became."""
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
    """Read a round's records; raises `msgspec.MsgspecError` if it is not what `encode_records` writes."""
    return _decoder.decode(body)


def meta_size(meta: SnapshotMeta) -> int:
    """Return how many bytes the beginning of a log takes up in it."""
    return len(_encoder.encode(meta))


def entry_sizes(entries: Sequence[Entry]) -> list[int]:
    """Estimate how many bytes each entry takes up in a log."""
    return [len(entry.data) + _ENTRY_OVERHEAD for entry in entries]
