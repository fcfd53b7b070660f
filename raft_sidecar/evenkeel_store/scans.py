"""A request carried out: rows in batches, however many there are.

A result that may be large is read in ranges of keys, each by a statement of its own: a scan that a slow client is half
through with would otherwise keep DuckDB from ever writing a checkpoint. The index that the scan began at is held
meanwhile, so that all ranges show the rows as of one moment. The next range is read while the last one is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from functools import partial
from itertools import pairwise
from typing import Final

import msgspec
import pyarrow as pa

from evenkeel.errors import RequestError, RetentionError
from evenkeel.rows.schema import RowSchema
from evenkeel.wire.flight import ReadRequest
from evenkeel_store.groups import Group
from evenkeel_store.layout import Layout
from evenkeel_store.queries import Span, answer_schema, changes_query, read_query, sample_query
from evenkeel_store.reading import Query, Rows

__all__ = ["Answer", "Scanner"]

_CHUNK_BYTES: Final = 32 << 20
_SMALLEST_CHUNK: Final = 8_192
_LARGEST_CHUNK: Final = 1 << 20
_BATCH_ROWS: Final = 65_536
_SAMPLES_PER_CHUNK: Final = 50
_MOST_CHANGES: Final = 262_144


class Answer:
    """What comes back: the columns, the index it is as of, and batches."""

    def __init__(self, schema: pa.Schema, index: int, batches: Iterator[pa.RecordBatch]) -> None:
        self.schema = schema
        self.index = index
        self.batches = batches


class Scanner:
    """Carries out requests; any thread may ask."""

    def __init__(self, rows: Rows, ahead: Executor, *, chunk_bytes: int = _CHUNK_BYTES) -> None:
        """`ahead` is where the next range is read."""
        self._rows = rows
        self._ahead = ahead
        self._chunk_bytes = chunk_bytes

    def scan(self, group: Group, request: ReadRequest, *, held: tuple[object, int] | None = None) -> Answer:
        """Begin; `held` is an index of the group to read at, and is released in the end."""
        schema = _schema(group)
        if request.columns is None:
            # Columns that are added meanwhile are for those who ask later.
            request = msgspec.structs.replace(request, columns=schema.names)
        shape = answer_schema(request, schema)
        if not len(shape):
            raise RequestError("columns: name at least one; how many rows there are is the aggregate count")
        if request.changes_after is not None:
            return self._changes(group, request, shape)
        chunk = None if _is_small(request) else self._chunk_rows(group, request)
        if chunk is None:
            return self._at_once(group, request, shape, held)
        held = group.hold() if held is None else held
        batches = self._in_ranges(group, request, shape, held, chunk)
        # Once it has begun, the scan lets go of the index however it ends.
        next(batches)
        return Answer(shape, held[1], batches)

    def _at_once(self, group: Group, request: ReadRequest, shape: pa.Schema, held: tuple[object, int] | None) -> Answer:
        index = group.head.applied if held is None else held[1]
        ask = partial(read_query, request, at=None if held is None else index, limit=request.limit)
        try:
            _, found = self._rows.read(group, ask)
        finally:
            if held is not None:
                group.release(held)
        return Answer(shape, index, _batches(found, shape))

    def _in_ranges(
        self, group: Group, request: ReadRequest, shape: pa.Schema, held: tuple[object, int], rows: int
    ) -> Iterator[pa.RecordBatch]:
        def read(span: Span) -> pa.Table:
            ask = partial(read_query, request, at=held[1], span=span, limit=request.limit)
            return self._rows.read(group, ask)[1]

        left = request.limit
        try:
            yield pa.RecordBatch.from_arrays([[]] * len(shape), schema=shape)
            spans = self._spans(group, request, rows)
            coming = self._ahead.submit(read, spans[0])
            for following in (*spans[1:], None):
                found = coming.result()
                if following is not None:
                    coming = self._ahead.submit(read, following)
                if left is not None:
                    found = found.slice(0, left)
                    left -= found.num_rows
                yield from _batches(found, shape)
                if left == 0:
                    return
        finally:
            group.release(held)

    def _chunk_rows(self, group: Group, request: ReadRequest) -> int | None:
        """How many rows to read at a time; None where all of them are few enough."""
        count = self._count(group)[1] + group.unfolded
        if count <= _SMALLEST_CHUNK:
            return None
        _, sample = self._rows.read(group, lambda layout: sample_query(request, layout, 256))
        width = max(1, sample.nbytes // max(1, sample.num_rows))
        rows = min(max(self._chunk_bytes // width, _SMALLEST_CHUNK), _LARGEST_CHUNK)
        return None if count <= rows else rows

    def _spans(self, group: Group, request: ReadRequest, rows: int) -> list[Span]:
        """Cut the keys into ranges of about so many rows, by a sample of them."""
        layout, count = self._count(group)
        chunks = 1 + count // rows
        keys = msgspec.structs.replace(request, columns=())
        _, sample = self._rows.read(group, lambda layout: sample_query(keys, layout, chunks * _SAMPLES_PER_CHUNK))
        ordered = sample.select(list(layout.keys)).sort_by([(key, "ascending") for key in layout.keys])
        cuts = [ordered.slice(place, 1).to_pylist()[0] for place in _places(ordered.num_rows, chunks)]
        bounds = [None, *dict.fromkeys(tuple(cut.values()) for cut in cuts), None]
        return [Span(after, up_to) for after, up_to in pairwise(bounds)]

    def _count(self, group: Group) -> tuple[Layout, int]:
        """How many rows are folded."""
        layout, counted = self._rows.read(group, lambda layout: Query(f"SELECT count(*) FROM {layout.rows}"))
        return layout, counted.column(0)[0].as_py()

    # Changes

    def _changes(self, group: Group, request: ReadRequest, shape: pa.Schema) -> Answer:
        _check_changes(group, request)
        until = self._last_change(group, request)
        _, found = self._rows.read(group, partial(changes_query, request, until=until))
        # What was asked for may have been forgotten while it was read.
        _check_changes(group, request)
        return Answer(shape, until, _batches(found, shape))

    def _last_change(self, group: Group, request: ReadRequest) -> int:
        """Up to which index to answer: an index is given whole, so that the next request can go on behind it."""
        most = min(request.limit or _MOST_CHANGES, _MOST_CHANGES)
        applied, after = group.head.applied, request.changes_after

        def ask(layout: Layout) -> Query:
            source = f"SELECT i FROM ({layout.changed(())}) WHERE i > {after} AND i <= {applied}"
            return Query(f"SELECT min(i), (SELECT i FROM ({source}) ORDER BY i LIMIT 1 OFFSET {most}) FROM ({source})")

        first, beyond = (column[0].as_py() for column in self._rows.read(group, ask)[1].columns)
        if beyond is None:
            return applied
        return int(beyond - 1 if first < beyond else beyond)


def _schema(group: Group) -> RowSchema:
    schema = group.head.schema
    assert schema is not None, "whoever asks has seen that there are columns"
    return schema


def _is_small(request: ReadRequest) -> bool:
    """Whether the result is small however many rows there are."""
    return bool(request.aggregates or request.group_by) or (
        request.limit is not None and request.limit <= _SMALLEST_CHUNK
    )


def _places(count: int, chunks: int) -> list[int]:
    return [place for place in (count * chunk // chunks for chunk in range(1, chunks)) if place < count]


def _check_changes(group: Group, request: ReadRequest) -> None:
    head = group.head
    assert request.changes_after is not None
    if not head.changes:
        raise RequestError(f"table {head.table} keeps no changes: add `changes` to its spec")
    if request.changes_after < head.forgotten:
        first = head.forgotten + 1
        raise RetentionError(
            f"changes of table {head.table}, partition {head.partition}, are kept from index {first} on, and those "
            f"past {request.changes_after} were asked for: read the table anew, then its changes from there",
            first=first,
        )


def _batches(found: pa.Table, shape: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows under their own names."""
    for batch in found.to_batches(max_chunksize=_BATCH_ROWS):
        if batch.num_rows:
            yield pa.RecordBatch.from_arrays(batch.columns, schema=shape)
