"""What is logged: a small head, and rows as one Arrow batch behind it.

    u32 little-endian   length of the head
    head                msgpack, one of the kinds below
    zeros               up to a multiple of 16, so that Arrow's buffers stay aligned
    batch               an Arrow IPC record batch message without its schema; empty where the kind has no rows

The schema of a batch is the table's schema (`evenkeel.rows.row_schema`) at the version in the entry's head: whole rows
for `upsert` and `append`, primary keys for `delete`.

A token, (writer, sequence), lets an entry be applied once however often it is logged. A writer counts its sequence up;
what is older than the last 1,024 of a writer is refused, for nobody can tell any more whether it was applied. Times
(`at` and others) are log times in milliseconds, stamped by the leader that proposed (`logtime`): replicas compare them
with each other and never with a clock of their own.
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
    """How many columns the table had for whoever proposed."""
    at: int


class Upsert(_Write, tag="upsert", frozen=True):
    """Put whole rows, in place of those with the same keys."""


class Append(_Write, tag="append", frozen=True):
    """Add rows to a table without a primary key."""


class Delete(_Write, tag="delete", frozen=True):
    """Remove the rows with these keys, where they are there."""


class Fence(Struct, tag="fence", array_like=True, frozen=True):
    """Nobody has written under this name with a higher number; from now on, nobody may with a lower one."""

    name: str
    number: Sequence


class Absent(Struct, tag="absent", array_like=True, frozen=True):
    """None of the keys is there."""


class Present(Struct, tag="present", array_like=True, frozen=True):
    """All of the keys are there."""


Condition = Fence | Absent | Present


class Conditional(_Write, tag="conditional", frozen=True):
    """Do it if the condition holds, all of it or nothing; what came of it is kept with the token."""

    op: Literal["upsert", "append", "delete"]
    condition: Condition


class AddColumns(Struct, tag="add_column", array_like=True, frozen=True):
    """Have these columns: the first such entry makes the table, later ones add at the end. Also switches changes."""

    schema: RowSchema
    changes: bool = False


class Pin(Struct, tag="pin", array_like=True, frozen=True):
    """Keep the rows as they are here readable; a pin that is there already lives longer."""

    name: str
    expires: int
    at: int


class Unpin(Struct, tag="unpin", array_like=True, frozen=True):
    """Let a pin go."""

    name: str


class Hash(Struct, tag="hash", array_like=True, frozen=True):
    """Take the hash of the rows, here and on every other replica."""


class Compare(Struct, tag="compare", array_like=True, frozen=True):
    """Compare the hash that was taken at an index with the leader's; a replica that has another one says so."""

    index: int
    hash: str


class Expire(Struct, tag="expire", array_like=True, frozen=True):
    """Forget pins that expired up to one time, writers silent since another, changes up to an index."""

    pins: int = 0
    writers: int = 0
    changes: int = 0
    at: int = 0


class LogTime(Struct, tag="log_time", array_like=True, frozen=True):
    """Keep log time; the first such entry of a group begins it. Replicas of the first release do not know it."""

    at: Annotated[int, Meta(ge=1)]


class Stage(Struct, tag="stage", array_like=True, frozen=True):
    """Reserved: rows of a job, not visible yet."""


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
    """Return what is proposed."""
    metadata = _encoder.encode(entry)
    if batch is None:
        return _LENGTH.pack(len(metadata)) + metadata
    padding = -(_LENGTH.size + len(metadata)) % _ALIGNMENT
    return b"".join((_LENGTH.pack(len(metadata)), metadata, bytes(padding), batch.serialize()))


def decode_entry(data: bytes) -> tuple[Entry, memoryview]:
    """Read what was logged, and where its batch is; what is no entry stops the group: skipping it would fork it."""
    try:
        (length,) = _LENGTH.unpack_from(data)
        end = _LENGTH.size + length
        entry: Entry = _decoder.decode(memoryview(data)[_LENGTH.size : end])
    except (struct.error, ValueError) as error:
        raise StateMachineError(
            f"cannot read an entry: {error}; if a newer release wrote it, run that one; otherwise the log is damaged"
        ) from error
    return entry, memoryview(data)[end + -end % _ALIGNMENT :]
