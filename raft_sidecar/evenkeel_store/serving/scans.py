"""Scans: requests answered in batches, however many rows there are.

One statement answers a request, and its transaction shows the rows as of one moment for as long as batches are read.
A half-read scan blocks nothing: DuckDB 2.0 writes checkpoints beside it, unless tables were altered or dropped since it
began. It does keep old row versions, so a scan whose client reads nothing for a minute is ended.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import msgspec
import pyarrow as pa

from evenkeel.errors import RequestError, RetentionError, UnavailableError
from evenkeel.rows.row_schema import RowSchema
from evenkeel.wire.flight import ReadRequest
from evenkeel_store.engine.database import Cursor
from evenkeel_store.engine.group_state import Group
from evenkeel_store.engine.row_reader import Query, RowReader
from evenkeel_store.engine.table_layout import TableLayout
from evenkeel_store.serving.request_sql import answer_schema, changes_query, read_query

__all__ = ["IDLE_SECONDS", "ScanResult", "Scanner"]

IDLE_SECONDS: Final = 60.0
BATCH_ROWS: Final = 65_536
_MAX_CHANGES: Final = 262_144


class ScanResult:
    """The answer to a request: its columns, the index it includes at least, and its batches."""

    def __init__(self, schema: pa.Schema, index: int, cursor: Cursor, batches: Iterator[pa.RecordBatch]) -> None:
        self.schema = schema
        self.index = index
        self.read_at = time.monotonic()
        self._cursor: Cursor | None = cursor
        self._batches = batches
        self._ended_because = ""
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        with self._lock:
            self.read_at = time.monotonic()
            if self._ended_because:
                raise UnavailableError(self._ended_because)
            try:
                batch = next(self._batches)
            except BaseException:
                self._close()
                raise
            return pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)

    def __del__(self) -> None:
        self.end()

    def end(self, why: str = "") -> None:
        """End the scan; a later read raises `UnavailableError` with this reason. Does nothing if it has ended."""
        with self._lock:
            if self._cursor is not None:
                self._ended_because = why
            self._close()

    def _close(self) -> None:
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            self._batches = iter(())
            cursor.close()


class Scanner:
    """Starts scans; used by any thread."""

    def __init__(self, rows: RowReader) -> None:
        self._rows = rows
        self._open: weakref.WeakSet[ScanResult] = weakref.WeakSet()
        rows.database.before_reopening.append(self.end_all)

    def scan(self, group: Group, request: ReadRequest, *, held: tuple[object, int] | None = None) -> ScanResult:
        """Start a scan; `held` is an index of the group to read at, released once the scan has begun."""
        schema = _schema(group)
        if request.columns is None:
            # A column that is added during the scan is not part of it.
            request = msgspec.structs.replace(request, columns=schema.names)
        shape = answer_schema(request, schema)
        if not len(shape):
            raise RequestError("columns: name at least one; to count rows, use the aggregate count")
        if request.changes_after is not None:
            return self._changes(group, request, shape)
        if held is not None:
            result = self._at(group, request, shape, held[1])
            group.release(held)
            return result
        applied = group.metadata.applied
        return self._begin(group, lambda layout: read_query(request, layout, folded=group.is_folded), shape, applied)

    def _at(self, group: Group, request: ReadRequest, shape: pa.Schema, index: int) -> ScanResult:
        """Read at an index, from the group's own table alone if that matches the index before and after the query."""
        if group.table_is_at(index):
            result = self._begin(group, partial(read_query, request, folded=True), shape, index)
            if group.folded_to <= index:
                return result
            result.end()
        return self._begin(group, partial(read_query, request, at=index), shape, index)

    def end_idle(self) -> None:
        """End the scans that no client reads any more."""
        now = time.monotonic()
        for result in list(self._open):
            if now - result.read_at > IDLE_SECONDS:
                result.end(f"the scan ended because nothing was read for {IDLE_SECONDS:g} s; start it again")

    def end_all(self) -> None:
        """End every scan."""
        for result in list(self._open):
            result.end("the scan ended because the database was reopened; start it again")

    def _begin(self, group: Group, ask: Callable[[TableLayout], Query], shape: pa.Schema, index: int) -> ScanResult:
        cursor, batches = self._rows.begin(group, ask, batch_rows=BATCH_ROWS)
        result = ScanResult(shape, index, cursor, batches)
        self._open.add(result)
        return result

    # Changes

    def _changes(self, group: Group, request: ReadRequest, shape: pa.Schema) -> ScanResult:
        _check_changes(group, request)
        assert request.changes_after is not None
        # A replica may lag behind the one that answered last; it must not move the client's position back.
        until = max(self._last_change(group, request), request.changes_after)
        result = self._begin(group, partial(changes_query, request, until=until), shape, until)
        # Changes may have expired before the query began.
        _check_changes(group, request)
        return result

    def _last_change(self, group: Group, request: ReadRequest) -> int:
        """Return the last index of the answer: an index is never split, so the next request continues after it."""
        most = min(request.limit or _MAX_CHANGES, _MAX_CHANGES)
        applied, after = group.metadata.applied, request.changes_after

        def ask(layout: TableLayout) -> Query:
            source = f"SELECT i FROM ({layout.changed(())}) WHERE i > {after} AND i <= {applied}"
            return Query(f"SELECT min(i), (SELECT i FROM ({source}) ORDER BY i LIMIT 1 OFFSET {most}) FROM ({source})")

        first, beyond = (column[0].as_py() for column in self._rows.read(group, ask)[1].columns)
        if beyond is None:
            return applied
        return int(beyond - 1 if first < beyond else beyond)


def _schema(group: Group) -> RowSchema:
    schema = group.metadata.schema
    assert schema is not None, "await_fresh has checked that there are columns"
    return schema


def _check_changes(group: Group, request: ReadRequest) -> None:
    metadata = group.metadata
    assert request.changes_after is not None
    if not metadata.changes:
        raise RequestError(f"table {metadata.name} keeps no changes: add `changes` to its spec")
    if request.changes_after < metadata.forgotten:
        first = metadata.forgotten + 1
        raise RetentionError(
            f"table {metadata.name}, partition {metadata.partition}: changes after index {request.changes_after} have "
            f"expired; the first available index is {first}: read the table again, then follow its changes",
            first=first,
        )
    newest = request.max_age is None and request.at_least is None
    if newest and request.changes_after > metadata.applied:
        raise RequestError(
            f"table {metadata.name}, partition {metadata.partition}: changes after index {request.changes_after} were "
            f"requested, but the newest index is {metadata.applied}; do not reuse a position of a dropped table"
        )
