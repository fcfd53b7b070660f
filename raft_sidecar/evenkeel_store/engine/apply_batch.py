"""Entries of one group on their way into a transaction.

An `ApplyBatch` is the group's state after the transaction: metadata, write tokens, and the rows to add to the log. The
group itself does not change before the commit.

`AddColumns`, `Expire` and a group's first `LogTime` each take a transaction of their own: `AddColumns` because it
alters tables, the others because a `Step` forgets writers before it adds tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from evenkeel.errors import StateMachineError
from evenkeel.rows.row_schema import RowSchema
from evenkeel.rows.row_values import default_scalar
from evenkeel.wire.socket_messages import Apply
from evenkeel_store.engine.group_metadata import (
    ENDED_KEPT,
    MAX_PIN_MILLISECONDS,
    GroupMetadata,
    PinnedAt,
    Step,
    advanced,
    with_stamp,
)
from evenkeel_store.engine.group_state import AppliedTimestamps, Group
from evenkeel_store.engine.log_entries import (
    Absent,
    AddColumns,
    Append,
    Compare,
    Conditional,
    Delete,
    Entry,
    Expire,
    Fence,
    Hash,
    LogTime,
    Pin,
    Present,
    Unpin,
    Upsert,
    Write,
    decode_entry,
)
from evenkeel_store.engine.table_layout import DELETED, LOG_HEAD, PUT, TableLayout, physical_schema
from evenkeel_store.engine.write_tokens import TokenUse

__all__ = ["ApplyBatch", "EntryRows", "IndexedEntry", "KeyCounter", "PendingEntries", "expired", "log_rows"]

KeyCounter = Callable[["ApplyBatch", pa.RecordBatch], int]
"""Returns how many distinct keys of a batch exist, as an `ApplyBatch` sees the rows."""


class IndexedEntry(NamedTuple):
    """An entry, its log index, and its encoded rows."""

    at: int
    entry: Entry
    body: memoryview

    def stands_alone(self, metadata: GroupMetadata) -> bool:
        """Whether it needs a transaction of its own in a group with this metadata."""
        return isinstance(self.entry, AddColumns | Expire) or (isinstance(self.entry, LogTime) and not metadata.time)


class PendingEntries:
    """Requests for one group, in order, split where an entry needs a transaction of its own."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.failure = ""
        self._logged: deque[IndexedEntry] = deque()
        self._last = group.metadata.applied

    def add(self, replica: int, request: Apply) -> bool:
        """Add a request; returns False if it cannot be applied, which stops the group before it."""
        if self.failure:
            return False
        try:
            self._check(replica, request)
            logged = [IndexedEntry(entry.index, *decode_entry(entry.data)) for entry in request.entries]
        except StateMachineError as error:
            self.fail(str(error), first=request.first)
            return False
        self._logged += logged
        self._last = request.last
        return True

    def _check(self, replica: int, request: Apply) -> None:
        metadata = self.group.metadata
        if metadata.replica != replica:
            raise StateMachineError(f"it is not open for replica {replica}: open it first")
        if metadata.damage:
            raise StateMachineError(f"its rows are damaged: {metadata.damage}")
        if request.first != self._last + 1:
            raise StateMachineError(f"{self._last} is applied, so {self._last + 1} is the next")

    def fail(self, detail: str, *, first: int = 0) -> None:
        """Record why the group stops."""
        before = first or self.group.metadata.applied + 1
        self.failure = f"group {self.group.number} stops before {before}: {detail}"

    @property
    def more(self) -> bool:
        """Whether entries are left to apply."""
        return self.group.metadata.applied < self._last

    def stop(self, detail: str) -> None:
        """Drop the entries that are left."""
        self.fail(detail)
        self._last = self.group.metadata.applied

    def next_part(self) -> tuple[list[IndexedEntry], int]:
        """Return the entries of the next transaction and its last index, without those already applied."""
        applied = self.group.metadata.applied
        while self._logged and self._logged[0].at <= applied:
            self._logged.popleft()
        part: list[IndexedEntry] = []
        for logged in self._logged:
            if logged.stands_alone(self.group.metadata):
                return ([logged], logged.at) if not part else (part, logged.at - 1)
            part.append(logged)
        return part, self._last


class EntryRows(NamedTuple):
    """The rows of one entry."""

    at: int
    op: int
    rows: pa.RecordBatch


class ApplyBatch:
    """A group's state after the transaction."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.metadata = group.metadata
        self.time = group.metadata.time
        self.stamps = AppliedTimestamps()
        self.tokens = group.tokens.begin()
        self.pieces: list[EntryRows] = []
        self.written = 0
        """Rows already inserted into the database."""
        self.hashes: list[int] = []
        self.compares: list[Compare] = []

    @property
    def layout(self) -> TableLayout:
        """The tables that its rows go to."""
        layout = self.group.layout
        if layout is None:
            raise StateMachineError("rows were logged before the table's columns")
        return layout

    def take(self, logged: IndexedEntry, count_keys: KeyCounter) -> None:
        """Carry out one entry that shares its transaction."""
        match logged.entry:
            case Upsert() | Append() | Delete() | Conditional() as write:
                self._write(logged.at, write, logged.body, count_keys)
            case Pin(name) as requested if name not in self.metadata.ended:
                expires = self._expiry(requested)
                at = self.metadata.pins.get(name, PinnedAt(logged.at, expires))
                pin = PinnedAt(at.index, max(at.expires, expires))
                self._change(pins={**self.metadata.pins, name: pin})
            case Unpin(name):
                self._change(pins={known: pin for known, pin in self.metadata.pins.items() if known != name})
            case Pin():
                pass
            case LogTime(at):
                self._stamped(at)
            case Hash():
                self.hashes.append(logged.at)
            case Compare() as compare:
                self.compares.append(compare)
            case other:
                raise StateMachineError(
                    f"entry {logged.at} has the reserved kind {type(other).__name__}; run a newer release"
                )

    def step(self, applied: int) -> Step:
        """Return the change that the transaction makes to the group."""
        changed = self.metadata is not self.group.metadata
        return Step(self.group.number, applied, self.tokens.uses, self.metadata if changed else None, time=self.time)

    def take_pieces(self) -> list[EntryRows]:
        """Return and clear the rows that are not in the database yet."""
        pieces, self.pieces = self.pieces, []
        self.written += sum(piece.rows.num_rows for piece in pieces)
        return pieces

    def _stamped(self, at: int) -> int:
        """Return an entry's log time, or its stamp while the group keeps no log time."""
        if self.time:
            at = self.time = advanced(self.time, at)
        self.stamps = AppliedTimestamps(self.stamps.number + 1, at)
        return at

    def _expiry(self, pin: Pin) -> int:
        at = self._stamped(pin.at)
        return at + min(max(0, pin.expires - pin.at), MAX_PIN_MILLISECONDS) if self.time else pin.expires

    def _change(self, **fields: object) -> None:
        self.metadata = msgspec.structs.replace(self.metadata, **fields)

    def _write(self, index: int, write: Write, body: memoryview, count_keys: KeyCounter) -> None:
        at = self._stamped(write.at)
        if write.writer and not self.tokens.is_new(write.writer, write.sequence):
            return
        op = DELETED if isinstance(write, Delete) or (isinstance(write, Conditional) and write.op == "delete") else PUT
        batch = _read_batch(self.layout, write.version, op, body)
        result = self._refusal(write, batch, count_keys) if isinstance(write, Conditional) else ""
        if not result:
            self.pieces.append(EntryRows(index, op, _complete(self.layout, batch, op)))
            if self.metadata.changes:
                self.metadata = with_stamp(self.metadata, at=at, index=index)
        if write.writer:
            self.tokens.use(TokenUse(write.writer, write.sequence, result, at))

    def _refusal(self, write: Conditional, batch: pa.RecordBatch, count_keys: KeyCounter) -> str:
        """Return why a conditional write is not carried out; empty if it is."""
        match write.condition:
            case Fence(name, number):
                highest = self.metadata.fences.get(name, 0)
                if number < highest:
                    return f"fenced: {name} is at {highest}"
                if number > highest:
                    self._change(fences={**self.metadata.fences, name: number})
            case Absent():
                there = count_keys(self, batch)
                return f"exists: {there} of the keys are there" if there else ""
            case Present():
                keys = batch.select(list(self.layout.keys))
                wanted = pa.Table.from_batches([keys]).group_by(list(self.layout.keys)).aggregate([]).num_rows
                missing = wanted - count_keys(self, batch)
                return f"missing: {missing} of the keys are not there" if missing else ""
        return ""


def expired(metadata: GroupMetadata, entry: Expire) -> GroupMetadata:
    """Return metadata without what an `Expire` entry removes."""
    ending = sorted((pin.expires, name) for name, pin in metadata.pins.items() if pin.expires <= entry.pins)
    ended = (*metadata.ended, *(name for _, name in ending))[-ENDED_KEPT:]
    pins = {name: pin for name, pin in metadata.pins.items() if pin.expires > entry.pins}
    forgotten = (
        max(metadata.forgotten, min(entry.changes, metadata.applied)) if metadata.changes else metadata.forgotten
    )
    stamps = tuple(stamp for stamp in metadata.stamps if stamp[1] > forgotten)
    return msgspec.structs.replace(metadata, pins=pins, ended=ended, forgotten=forgotten, stamps=stamps)


def _read_batch(layout: TableLayout, version: int, op: int, body: memoryview) -> pa.RecordBatch:
    """Decode a batch, with the column names of DuckDB."""
    schema = layout.schema
    if version > schema.version:
        raise StateMachineError(f"the rows have {version} columns, but the table has only {schema.version}")
    if op == DELETED:
        places = [schema.names.index(name) for name in schema.primary_key]
        shape = physical_schema([schema.columns[place] for place in places], at=places)
    else:
        shape = physical_schema(schema.columns[:version])
    try:
        return pa.ipc.read_record_batch(pa.py_buffer(body), shape)
    except (pa.ArrowException, OSError) as error:
        raise StateMachineError(f"cannot decode the rows of an entry: {error}") from error


def _complete(layout: TableLayout, batch: pa.RecordBatch, op: int) -> pa.RecordBatch:
    """Fill in missing columns: those added later, or for a delete everything but the key."""
    schema: RowSchema = layout.schema
    if batch.num_columns == schema.version:
        return batch
    arrays = {name: batch.column(place) for place, name in enumerate(batch.schema.names)}
    shape = physical_schema(schema.columns)
    for place, column in enumerate(schema.columns):
        if f"c{place}" not in arrays:
            value = default_scalar(column) if op == PUT else pa.scalar(None, shape.field(place).type)
            arrays[f"c{place}"] = pa.repeat(value, batch.num_rows)
    return pa.RecordBatch.from_arrays([arrays[name] for name in shape.names], schema=shape)


def log_rows(groups: Sequence[int], pieces: Sequence[EntryRows]) -> pa.Table:
    """Return rows for the log; `groups` has the group of each piece."""
    lengths = [piece.rows.num_rows for piece in pieces]
    rows = pa.Table.from_batches([piece.rows for piece in pieces])
    if len(pieces) > 1:
        # DuckDB has a fixed cost per chunk.
        rows = rows.combine_chunks()
    ends = np.cumsum(lengths)
    places = np.arange(ends[-1], dtype=np.int32) - np.repeat(ends - lengths, lengths).astype(np.int32)
    metadata = [
        np.repeat(np.array(groups, np.int64), lengths),
        np.repeat(np.array([piece.at for piece in pieces], np.int64), lengths),
        places,
        np.repeat(np.array([piece.op for piece in pieces], np.int8), lengths),
    ]
    return pa.table([*map(pa.array, metadata), *rows.columns], names=[*LOG_HEAD.names, *rows.schema.names])
