"""A request carried out: rows in batches, however many there are.

One statement answers a request, and its transaction shows the rows as of one moment for as long as batches are taken
from it. A scan that is only half read keeps nobody waiting: DuckDB 2.0 writes checkpoints beside it, unless tables were
altered or dropped since it began. What it does keep are versions of rows that nobody else needs, so one whose client
takes nothing for a minute is ended.
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
_MOST_CHANGES: Final = 262_144


class ScanResult:
    """What comes back: the columns, the index it is as of at least, and batches."""

    def __init__(self, schema: pa.Schema, index: int, cursor: Cursor, batches: Iterator[pa.RecordBatch]) -> None:
        self.schema = schema
        self.index = index
        self.asked_at = time.monotonic()
        self._cursor: Cursor | None = cursor
        self._batches = batches
        self._why = ""
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        with self._lock:
            self.asked_at = time.monotonic()
            if self._why:
                raise UnavailableError(self._why)
            try:
                batch = next(self._batches)
            except BaseException:
                self._close()
                raise
            return pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)

    def __del__(self) -> None:
        self.end()

    def end(self, why: str = "") -> None:
        """Give the scan up, and tell whoever goes on reading why; done where it has ended already."""
        with self._lock:
            if self._cursor is not None:
                self._why = why
            self._close()

    def _close(self) -> None:
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            self._batches = iter(())
            cursor.close()


class Scanner:
    """Carries out requests; any thread may ask."""

    def __init__(self, rows: RowReader) -> None:
        self._rows = rows
        self._open: weakref.WeakSet[ScanResult] = weakref.WeakSet()
        rows.database.before_reopening.append(self.end_all)

    def scan(self, group: Group, request: ReadRequest, *, held: tuple[object, int] | None = None) -> ScanResult:
        """Begin; `held` is an index of the group to read at, and is released once that is certain."""
        schema = _schema(group)
        if request.columns is None:
            # Columns that are added meanwhile are for those who ask later.
            request = msgspec.structs.replace(request, columns=schema.names)
        shape = answer_schema(request, schema)
        if not len(shape):
            raise RequestError("columns: name at least one; how many rows there are is the aggregate count")
        if request.changes_after is not None:
            return self._changes(group, request, shape)
        if held is not None:
            answer = self._at(group, request, shape, held[1])
            group.release(held)
            return answer
        applied = group.metadata.applied
        return self._begin(group, lambda layout: read_query(request, layout, folded=group.is_folded), shape, applied)

    def _at(self, group: Group, request: ReadRequest, shape: pa.Schema, index: int) -> ScanResult:
        """Read at an index: out of the group's own table alone, if that is as it was then, and still is afterwards."""
        if group.is_as_at(index):
            answer = self._begin(group, partial(read_query, request, folded=True), shape, index)
            if group.folded_to <= index:
                return answer
            answer.end()
        return self._begin(group, partial(read_query, request, at=index), shape, index)

    def end_idle(self) -> None:
        """End the scans that nobody reads."""
        now = time.monotonic()
        for answer in list(self._open):
            if now - answer.asked_at > IDLE_SECONDS:
                answer.end(f"nothing was read for {IDLE_SECONDS:g} s, so the scan was ended: read anew")

    def end_all(self) -> None:
        """End every scan."""
        for answer in list(self._open):
            answer.end("the database had to be opened again, which ended the scan: read anew")

    def _begin(self, group: Group, ask: Callable[[TableLayout], Query], shape: pa.Schema, index: int) -> ScanResult:
        cursor, batches = self._rows.begin(group, ask, batch_rows=BATCH_ROWS)
        answer = ScanResult(shape, index, cursor, batches)
        self._open.add(answer)
        return answer

    # Changes

    def _changes(self, group: Group, request: ReadRequest, shape: pa.Schema) -> ScanResult:
        _check_changes(group, request)
        assert request.changes_after is not None
        # A replica that lags behind whoever answered last has nothing more to tell; it must not send anybody back.
        until = max(self._last_change(group, request), request.changes_after)
        answer = self._begin(group, partial(changes_query, request, until=until), shape, until)
        # What was asked for may have been forgotten while the question was put.
        _check_changes(group, request)
        return answer

    def _last_change(self, group: Group, request: ReadRequest) -> int:
        """Up to which index to answer: an index is given whole, so that the next request can go on behind it."""
        most = min(request.limit or _MOST_CHANGES, _MOST_CHANGES)
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
    assert schema is not None, "whoever asks has seen that there are columns"
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
