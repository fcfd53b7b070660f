"""The messages between clients and stores over Arrow Flight; they are JSON, so that any Flight client can use them.

    DoGet          ticket: `ReadRequest`
    GetFlightInfo  descriptor: the path `<table>`, or the command `ReadRequest` (without a partition: all partitions)
    DoPut          descriptor: the command `PutRequest`; metadata of each batch: `PutToken` or nothing; the store
                   returns one `PutResult` for each batch
    DoAction       body and results depend on the type: `ACTIONS`. A `lookup` is a message followed by Arrow keys
                   (`pack`)
    errors         `ErrorInfo` in the error's `extra_info`; `decode_error` restores the exception that the store raised

Stores reject requests with unknown fields. Later releases may add fields to answers.

Values in filters and keys have the notation of a column's default (`evenkeel.rows.row_values`).
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from evenkeel.errors import (
    AccessError,
    BusyError,
    DiskFullError,
    FilterError,
    NotLeaderError,
    OutcomeUnknownError,
    RequestError,
    RetentionError,
    RowsError,
    StoreError,
    TableDroppedError,
    TooLargeError,
    UnavailableError,
    UnknownColumnError,
    UnknownPinError,
    UnknownTableError,
    WrongPartitionError,
)

__all__ = [
    "ACTIONS",
    "Aggregate",
    "Condition",
    "ErrorInfo",
    "GroupStatus",
    "HashRequest",
    "HashResult",
    "IfAbsent",
    "IfFence",
    "IfPresent",
    "LookupRequest",
    "PartitionRoute",
    "PinRequest",
    "PinResult",
    "PutRequest",
    "PutResult",
    "PutToken",
    "ReadRequest",
    "ReadStamp",
    "RebuildRequest",
    "RoutesRequest",
    "RoutesResult",
    "StatusRequest",
    "StatusResult",
    "TableRoutes",
    "UnpinRequest",
    "decode",
    "decode_error",
    "encode",
    "encode_error",
    "pack",
    "unpack",
]

Value = bool | int | float | str | None
Index = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Partition = Annotated[int, Meta(ge=0, le=1_000_000)]
Seconds = Annotated[float, Meta(ge=0, le=86_400)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
_T = TypeVar("_T")


class _Request(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    pass


class _Answer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class Aggregate(_Request, frozen=True):
    """One aggregate over all rows, or over each group of rows; `count` needs no column."""

    function: Literal["count", "sum", "min", "max"]
    column: str = ""
    name: str = ""
    """The name of the result column; `<function>_<column>` by default."""


class _Reading(_Request, frozen=True):
    """Which rows to read, and how fresh they must be: by default the read is linearizable."""

    table: Name
    partition: Partition | None = None
    columns: tuple[str, ...] | None = None
    at_least: Index | None = None
    """Read from any replica that has applied this index."""
    max_age: Seconds | None = None
    """Read from any replica; the rows may be this many seconds old."""
    pin: str = ""
    """Read at a pin. With `at_least` set to the pin's index, a replica first waits until it knows the pin."""


class ReadRequest(_Reading, frozen=True):
    """Read the rows or the changes of one partition."""

    filter: Any = None
    """`[op, column, value]`, `["in", column, [value, ...]]`, `["is_null", column]`, `["and", ...]`, `["or", ...]`,
    `["not", filter]`."""
    limit: Index | None = None
    group_by: tuple[str, ...] = ()
    aggregates: tuple[Aggregate, ...] = ()
    ordered: bool = False
    """Order rows by primary key, or by log index if the table has no primary key."""
    after: tuple[Value, ...] | None = None
    """Read only rows with a greater key."""
    up_to: tuple[Value, ...] | None = None
    """Read only rows with a key that is not greater."""
    changes_after: Index | None = None
    """Read the changes after this index, in order, instead of rows."""


class ReadStamp(_Answer, frozen=True):
    """The metadata of each batch: the log index at which the rows were read."""

    index: Index


class IfFence(_Request, tag="fence", tag_field="kind", frozen=True):
    """Write only if no write with this fence name had a higher number."""

    name: Name
    number: Index


class IfAbsent(_Request, tag="absent", tag_field="kind", frozen=True):
    """Write only if none of the keys exists."""


class IfPresent(_Request, tag="present", tag_field="kind", frozen=True):
    """Write only if all of the keys exist."""


Condition = IfFence | IfAbsent | IfPresent


class PutRequest(_Request, frozen=True):
    """How to write the batches that follow; each becomes one log entry."""

    table: Name
    partition: Partition = 0
    op: Literal["upsert", "append", "delete"] = "upsert"
    writer: Annotated[str, Meta(max_length=256)] = ""
    """The name of the writer. Writer and sequence are the write token, by which a store recognises a repeated batch."""
    sequence: Index = 0
    """The sequence of the first batch; each further batch adds one, unless it has a `PutToken`."""
    condition: Condition | None = None


class PutToken(_Request, frozen=True):
    """The sequence of one batch."""

    sequence: Index


class ErrorInfo(_Answer, frozen=True):
    """An encoded `StoreError`."""

    kind: str
    message: str
    store: str = ""
    address: str = ""
    limit: int = 0
    first: int = 0


class PutResult(_Answer, frozen=True):
    """The result of one batch."""

    sequence: Index = 0
    index: Index = 0
    term: Index = 0
    refused: str = ""
    """Why the condition of a batch failed; empty if the batch was written."""
    error: ErrorInfo | None = None


class LookupRequest(_Reading, frozen=True):
    """Read the rows with the keys that follow as an Arrow stream."""


class PinRequest(_Request, frozen=True):
    """Keep the current rows of a partition readable under a name, on every replica."""

    table: Name
    partition: Partition
    name: Name
    seconds: Annotated[float, Meta(gt=0, le=86_400)] = 600.0


class PinResult(_Answer, frozen=True):
    """The pin exists."""

    index: Index
    expires: int
    """Milliseconds since 1970 on the leader's clock."""
    created: bool = False
    """Whether this request created the pin."""


class UnpinRequest(_Request, frozen=True):
    """Delete a pin; succeeds if it does not exist."""

    table: Name
    partition: Partition
    name: Name


class HashRequest(_Request, frozen=True):
    """Make every replica hash its rows at one index and compare the hash with the leader's."""

    table: Name
    partition: Partition


class HashResult(_Answer, frozen=True):
    """The leader's hash: `<rows>:<sum>`. Those of the other replicas are in `GroupStatus.hashes`."""

    index: Index
    hash: str


class RebuildRequest(_Request, frozen=True):
    """Rebuild a replica from its leader because its hash at this index differs from the majority's."""

    table: Name
    partition: Partition
    index: Index
    hash: str


class StatusRequest(_Request, frozen=True):
    """Ask for the status of all tables, one table or one partition on a store."""

    table: str = ""
    partition: Partition | None = None


class GroupStatus(_Answer, frozen=True):
    """The status of one replica."""

    table: str
    partition: int
    group: int
    replica: int
    applied: int
    leader: bool
    term: int
    columns: int
    rows: int
    """Approximate."""
    unfolded: int
    first_change: int | None = None
    """The first index whose changes are retained; None if changes are not retained."""
    log_time: int = 0
    """Milliseconds, at the applied index; 0 if the partition does not record it yet."""
    pins: dict[str, int] = {}
    hashes: dict[int, str] = {}
    damage: str = ""
    differs: str = ""
    """How its rows differed from those of other replicas at the last comparison; empty if they did not."""


class StatusResult(_Answer, frozen=True):
    """The status of a store and its replicas."""

    store: str
    bytes: int
    full: str
    """Why the store accepts no writes; empty if it does."""
    groups: tuple[GroupStatus, ...]


class RoutesRequest(_Request, frozen=True):
    """Ask where the partitions of one table, or of all tables, are."""

    table: str = ""


class PartitionRoute(_Answer, frozen=True):
    """The leader and the replicas of a partition, as names of stores."""

    leader: str = ""
    replicas: tuple[str, ...] = ()


class TableRoutes(_Answer, frozen=True):
    """A table: its name, key, schema (`evenkeel.rows.row_schema.RowSchema`) and partitions."""

    name: str
    key: str
    schema: msgspec.Raw
    partitions: tuple[PartitionRoute, ...]


class RoutesResult(_Answer, frozen=True):
    """Tables and the addresses of stores."""

    tables: tuple[TableRoutes, ...]
    stores: dict[str, str]


ACTIONS: Final = {
    "lookup": "read rows by primary key; body: LookupRequest and an Arrow stream of keys; result: an Arrow stream",
    "pin": "keep the current rows readable; PinRequest -> PinResult",
    "unpin": "delete a pin; UnpinRequest -> nothing",
    "hash": "compare the hash of every replica with the leader's; HashRequest -> HashResult",
    "rebuild": "rebuild a replica of this store that differs from the majority; RebuildRequest -> nothing",
    "status": "report the replicas of this store; StatusRequest -> StatusResult",
    "routes": "report where partitions are; RoutesRequest -> RoutesResult",
}

_KINDS: Final[dict[str, type[StoreError]]] = {
    "request": RequestError,
    "unknown_table": UnknownTableError,
    "unknown_column": UnknownColumnError,
    "filter": FilterError,
    "rows": RowsError,
    "wrong_partition": WrongPartitionError,
    "too_large": TooLargeError,
    "unknown_pin": UnknownPinError,
    "access": AccessError,
    "not_leader": NotLeaderError,
    "busy": BusyError,
    "disk_full": DiskFullError,
    "unavailable": UnavailableError,
    "outcome_unknown": OutcomeUnknownError,
    "table_dropped": TableDroppedError,
    "retention": RetentionError,
    "store": StoreError,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}
_LENGTH: Final = struct.Struct("<I")
_encoder: Final = msgspec.json.Encoder()


def encode(message: Struct) -> bytes:
    """Encode a message as JSON."""
    return _encoder.encode(message)


def decode(kind: type[_T], data: bytes) -> _T:
    """Decode a message; `RequestError` if it is invalid."""
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"not a {kind.__name__}: {error}") from None


def pack(message: Struct, body: bytes) -> bytes:
    """Encode a message followed by bytes."""
    head = encode(message)
    return _LENGTH.pack(len(head)) + head + body


def unpack(kind: type[_T], data: bytes) -> tuple[_T, memoryview]:
    """Decode a message and return the bytes that follow it."""
    try:
        (length,) = _LENGTH.unpack_from(data)
    except struct.error:
        raise RequestError(f"not a {kind.__name__} followed by data: only {len(data)} bytes") from None
    end = _LENGTH.size + length
    return decode(kind, data[_LENGTH.size : end]), memoryview(data)[end:]


def encode_error(error: StoreError) -> ErrorInfo:
    """Encode an error."""
    fields = {name: getattr(error, name) for name in ("store", "address", "limit", "first") if hasattr(error, name)}
    return ErrorInfo(kind=_NAMES.get(type(error), "store"), message=str(error), **fields)


def decode_error(info: ErrorInfo | bytes) -> StoreError:
    """Restore the error that a store raised."""
    if isinstance(info, bytes):
        info = decode(ErrorInfo, info)
    kind = _KINDS.get(info.kind, StoreError)
    if issubclass(kind, NotLeaderError):
        return NotLeaderError(info.message, store=info.store, address=info.address)
    if issubclass(kind, TooLargeError):
        return TooLargeError(info.message, limit=info.limit)
    if issubclass(kind, RetentionError):
        return RetentionError(info.message, first=info.first)
    return kind(info.message)
