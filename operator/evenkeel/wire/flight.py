"""What clients and stores say to each other over Arrow Flight, beside the rows: JSON, so that any Flight client can.

    DoGet          ticket: `ReadRequest`
    GetFlightInfo  descriptor: the path `<table>`, or the command `ReadRequest` (without a partition: all of them)
    DoPut          descriptor: the command `PutRequest`; with each batch, if anything, `PutToken` as its metadata; for
                   each batch one `PutResult` comes back
    DoAction       body and results by the action's type: `ACTIONS`. A `lookup` is a message with Arrow keys behind it
                   (`pack`)
    errors         `ErrorInfo` in the error's `extra_info`; `decode_error` makes it the exception that the store raised

Requests with fields that a store does not know are refused; what stores answer may grow.

Values in filters and keys are written like a column's default (`evenkeel.rows.row_values`).
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
    """One figure over the rows, or over each group of them; `count` needs no column."""

    function: Literal["count", "sum", "min", "max"]
    column: str = ""
    name: str = ""
    """What to call it; `<function>_<column>` where it is left out."""


class _Reading(_Request, frozen=True):
    """How fresh rows must be: without any of these they are those of a linearizable read."""

    table: Name
    partition: Partition | None = None
    columns: tuple[str, ...] | None = None
    at_least: Index | None = None
    """From any replica, once it has applied this index."""
    max_age: Seconds | None = None
    """From any replica, as they were at most so many seconds ago."""
    pin: str = ""
    """As they were at a pin; with `at_least`, the pin's index, on a replica that may not know the pin yet."""


class ReadRequest(_Reading, frozen=True):
    """Rows of one partition; or what changed there."""

    filter: Any = None
    """`[op, column, value]`, `["in", column, [value, ...]]`, `["is_null", column]`, `["and", ...]`, `["or", ...]`,
    `["not", filter]`."""
    limit: Index | None = None
    group_by: tuple[str, ...] = ()
    aggregates: tuple[Aggregate, ...] = ()
    ordered: bool = False
    """By primary key; by log index where there is none."""
    after: tuple[Value, ...] | None = None
    """Only rows whose key is greater."""
    up_to: tuple[Value, ...] | None = None
    """Only rows whose key is not greater."""
    changes_after: Index | None = None
    """What changed past this index, in order, in place of rows."""


class ReadStamp(_Answer, frozen=True):
    """The metadata of every batch that is read: the rows are as of this index."""

    index: Index


class IfFence(_Request, tag="fence", tag_field="kind", frozen=True):
    """Nobody has written under this name with a higher number."""

    name: Name
    number: Index


class IfAbsent(_Request, tag="absent", tag_field="kind", frozen=True):
    """None of the keys is there."""


class IfPresent(_Request, tag="present", tag_field="kind", frozen=True):
    """All of the keys are there."""


Condition = IfFence | IfAbsent | IfPresent


class PutRequest(_Request, frozen=True):
    """What to do with the batches that follow; each is one entry of the log."""

    table: Name
    partition: Partition = 0
    op: Literal["upsert", "append", "delete"] = "upsert"
    writer: Annotated[str, Meta(max_length=256)] = ""
    """Whoever writes; with a sequence, what lets a batch be sent again without being written twice."""
    sequence: Index = 0
    """Of the first batch; the others count on, unless they say otherwise."""
    condition: Condition | None = None


class PutToken(_Request, frozen=True):
    """The sequence of one batch."""

    sequence: Index


class ErrorInfo(_Answer, frozen=True):
    """A `StoreError` on its way."""

    kind: str
    message: str
    store: str = ""
    address: str = ""
    limit: int = 0
    first: int = 0


class PutResult(_Answer, frozen=True):
    """What became of one batch."""

    sequence: Index = 0
    index: Index = 0
    term: Index = 0
    refused: str = ""
    """Why a conditional batch was not written; empty if it was."""
    error: ErrorInfo | None = None


class LookupRequest(_Reading, frozen=True):
    """The rows with these keys, which follow as an Arrow stream."""


class PinRequest(_Request, frozen=True):
    """Keep a partition's rows as they are now readable under a name, here and on every replica."""

    table: Name
    partition: Partition
    name: Name
    seconds: Annotated[float, Meta(gt=0, le=86_400)] = 600.0


class PinResult(_Answer, frozen=True):
    """The pin is there."""

    index: Index
    expires: int
    """Milliseconds since 1970, by the leader's clock."""
    created: bool = False
    """Whether there was none of that name before."""


class UnpinRequest(_Request, frozen=True):
    """Let a pin go; done where there is none."""

    table: Name
    partition: Partition
    name: Name


class HashRequest(_Request, frozen=True):
    """Have every replica take the hash of its rows at one index, and compare it with the leader's."""

    table: Name
    partition: Partition


class HashResult(_Answer, frozen=True):
    """The leader's own hash: `<rows>:<sum>`. The other replicas' are in their status."""

    index: Index
    hash: str


class RebuildRequest(_Request, frozen=True):
    """Build a replica anew from its leader's: at this index most replicas have this hash, and it has another."""

    table: Name
    partition: Partition
    index: Index
    hash: str


class StatusRequest(_Request, frozen=True):
    """What a store has of a table, or of all; of a table, one partition alone where that is asked for."""

    table: str = ""
    partition: Partition | None = None


class GroupStatus(_Answer, frozen=True):
    """One partition as one store has it."""

    table: str
    partition: int
    group: int
    replica: int
    applied: int
    leader: bool
    term: int
    columns: int
    rows: int
    """About how many."""
    unfolded: int
    first_change: int | None = None
    """The first index from which on changes are kept; None where none are."""
    log_time: int = 0
    """In milliseconds, at the applied index; 0 where the partition does not keep it yet."""
    pins: dict[str, int] = {}
    hashes: dict[int, str] = {}
    damage: str = ""
    differs: str = ""
    """How its rows differ from the other replicas', when they were last compared."""


class StatusResult(_Answer, frozen=True):
    """A store and what it has."""

    store: str
    bytes: int
    full: str
    """Why nothing more can be written; empty while there is room."""
    groups: tuple[GroupStatus, ...]


class RoutesRequest(_Request, frozen=True):
    """Where a table's partitions are, or those of all tables."""

    table: str = ""


class PartitionRoute(_Answer, frozen=True):
    """Who leads a partition, and who else has it."""

    leader: str = ""
    replicas: tuple[str, ...] = ()


class TableRoutes(_Answer, frozen=True):
    """A table by name and key, its schema (`evenkeel.rows.row_schema.RowSchema`) and its partitions."""

    name: str
    key: str
    schema: msgspec.Raw
    partitions: tuple[PartitionRoute, ...]


class RoutesResult(_Answer, frozen=True):
    """Tables, and the addresses of stores."""

    tables: tuple[TableRoutes, ...]
    stores: dict[str, str]


ACTIONS: Final = {
    "lookup": "rows by their primary keys; body: LookupRequest and an Arrow stream of keys; result: an Arrow stream",
    "pin": "keep rows readable as they are now; PinRequest -> PinResult",
    "unpin": "let a pin go; UnpinRequest -> nothing",
    "hash": "have every replica compare the hash of its rows with the leader's; HashRequest -> HashResult",
    "rebuild": "build a replica here anew, for most others have other rows; body: RebuildRequest; result: empty",
    "status": "what this store has; StatusRequest -> StatusResult",
    "routes": "where partitions are; RoutesRequest -> RoutesResult",
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
    """Return a message as JSON."""
    return _encoder.encode(message)


def decode(kind: type[_T], data: bytes) -> _T:
    """Read a message; `RequestError` says what is wrong with it."""
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"not a {kind.__name__}: {error}") from None


def pack(message: Struct, body: bytes) -> bytes:
    """Return a message with bytes behind it."""
    head = encode(message)
    return _LENGTH.pack(len(head)) + head + body


def unpack(kind: type[_T], data: bytes) -> tuple[_T, memoryview]:
    """Read a message, and where the bytes behind it are."""
    try:
        (length,) = _LENGTH.unpack_from(data)
    except struct.error:
        raise RequestError(f"not a {kind.__name__} with something behind it: {len(data)} bytes") from None
    end = _LENGTH.size + length
    return decode(kind, data[_LENGTH.size : end]), memoryview(data)[end:]


def encode_error(error: StoreError) -> ErrorInfo:
    """Return an error as it travels."""
    fields = {name: getattr(error, name) for name in ("store", "address", "limit", "first") if hasattr(error, name)}
    return ErrorInfo(kind=_NAMES.get(type(error), "store"), message=str(error), **fields)


def decode_error(info: ErrorInfo | bytes) -> StoreError:
    """Return the error that a store raised."""
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
