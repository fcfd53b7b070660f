"""The entries of the log: a small header, followed by rows as one Arrow batch.

    u32 little-endian   length of the header
    header              msgpack, one of the kinds below
    zeros               up to a multiple of 16, so that Arrow's buffers stay aligned
    batch               an Arrow IPC record batch message without its schema; empty for kinds without rows

The schema of a batch is the table's schema (`evenkeel.rows.row_schema`) at the version in the header: whole rows for
`upsert` and `append`, primary keys for `delete`.

A write token, (writer, sequence), makes an entry apply once however often it is logged. A writer counts its sequence
up. A token older than the last 1,024 of its writer is not applied, because it is unknown whether it was applied before.
Times (`at` and others) are log times in milliseconds, stamped by the leader that proposed the entry (`log_time`).
Replicas compare them with each other, never with a clock of their own.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final, Literal

import msgspec
import pyarrow as pa
from msgspec import Meta, Struct

from evenkeel.errors import StateMachineError
from evenkeel.rows.row_schema import RowSchema

__all__ = [
    "TOKENS_KEPT",
    "Absent",
    "AddColumns",
    "Append",
    "Commit",
    "Compare",
    "Condition",
    "Conditional",
    "Delete",
    "Entry",
    "Expire",
    "Fence",
    "Hash",
    "LogTime",
    "Pin",
    "Present",
    "Stage",
    "Unpin",
    "Upsert",
    "Write",
    "decode_entry",
    "encode_entry",
]

TOKENS_KEPT: Final = 1024

Sequence = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_LENGTH: Final = struct.Struct("<I")
_ALIGNMENT: Final = 16


class _Write(Struct, array_like=True, frozen=True, gc=False):
    writer: str
    sequence: Sequence
    version: int
    """The number of columns that the proposer knew."""
    at: int


class Upsert(_Write, tag="upsert", frozen=True):
    """Insert whole rows, replacing those with the same keys."""


class Append(_Write, tag="append", frozen=True):
    """Add rows to a table without a primary key."""


class Delete(_Write, tag="delete", frozen=True):
    """Delete the rows with these keys, if they exist."""


class Fence(Struct, tag="fence", array_like=True, frozen=True):
    """No write under this name had a higher number; from now on, lower numbers are refused."""

    name: str
    number: Sequence


class Absent(Struct, tag="absent", array_like=True, frozen=True):
    """None of the keys exists."""


class Present(Struct, tag="present", array_like=True, frozen=True):
    """All of the keys exist."""


Condition = Fence | Absent | Present


class Conditional(_Write, tag="conditional", frozen=True):
    """Write all rows if the condition holds, else none; the result is stored with the write token."""

    op: Literal["upsert", "append", "delete"]
    condition: Condition


class AddColumns(Struct, tag="add_column", array_like=True, frozen=True):
    """Set the columns: the first such entry creates the table, later ones append. Also turns changes on or off."""

    schema: RowSchema
    changes: bool = False


class Pin(Struct, tag="pin", array_like=True, frozen=True):
    """Keep the rows readable as of this index; an existing pin is prolonged."""

    name: str
    expires: int
    at: int


class Unpin(Struct, tag="unpin", array_like=True, frozen=True):
    """Remove a pin."""

    name: str


class Hash(Struct, tag="hash", array_like=True, frozen=True):
    """A barrier: every replica hashes its rows at this index."""


class Compare(Struct, tag="compare", array_like=True, frozen=True):
    """The leader's hash at a barrier, which every replica compares with its own."""

    index: int
    hash: str


class Expire(Struct, tag="expire", array_like=True, frozen=True):
    """Remove pins that expired by one time, writers silent since another, and changes up to an index."""

    pins: int = 0
    writers: int = 0
    changes: int = 0
    at: int = 0


class LogTime(Struct, tag="log_time", array_like=True, frozen=True):
    """Advance log time; the first such entry of a group starts it. The first release cannot read it."""

    at: Annotated[int, Meta(ge=1)]


class Stage(Struct, tag="stage", array_like=True, frozen=True):
    """Reserved: rows of a job that are not visible yet."""


class Commit(Struct, tag="commit", array_like=True, frozen=True):
    """Reserved: a job's staged rows become visible."""


Write = Upsert | Append | Delete | Conditional
Entry = (
    Upsert
    | Append
    | Delete
    | Conditional
    | AddColumns
    | Pin
    | Unpin
    | Hash
    | Compare
    | Expire
    | LogTime
    | Stage
    | Commit
)

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Entry)


def encode_entry(entry: Entry, batch: pa.RecordBatch | None = None) -> bytes:
    """Encode an entry."""
    header = _encoder.encode(entry)
    if batch is None:
        return _LENGTH.pack(len(header)) + header
    padding = -(_LENGTH.size + len(header)) % _ALIGNMENT
    return b"".join((_LENGTH.pack(len(header)), header, bytes(padding), batch.serialize()))


def decode_entry(data: bytes) -> tuple[Entry, memoryview]:
    """Decode an entry and return its batch; an invalid one raises, because skipping it would make replicas differ."""
    try:
        (length,) = _LENGTH.unpack_from(data)
        end = _LENGTH.size + length
        entry: Entry = _decoder.decode(memoryview(data)[_LENGTH.size : end])
    except (struct.error, ValueError) as error:
        raise StateMachineError(
            f"cannot decode a log entry: {error}; run the newer release that wrote it, or restore a damaged log"
        ) from error
    return entry, memoryview(data)[end + -end % _ALIGNMENT :]
