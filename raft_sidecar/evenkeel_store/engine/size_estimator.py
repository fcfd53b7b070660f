"""Estimates a group's size: the bytes of a snapshot of it, which is what a move copies.

The estimate is the known number of rows times the bytes per row of a sample. A sample is written like a snapshot: all
rows of a small group, one file's worth of a large one. Partitions of one table are alike, so they share a sample until
a partition has a newer one of its own. A group is sampled again once as many rows were written as it had, because rows
may have become wider. The cost of sampling is therefore a small part of the cost of writing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from evenkeel_store.engine.database import Cursor, Database
from evenkeel_store.engine.group_state import Group, SizeSample
from evenkeel_store.engine.snapshot_files import STEP_ROWS, copy_rows

__all__ = ["SizeEstimator"]

_MIN_WRITTEN: Final = 1024
"""Rows written before a group is sampled again, however few it had."""
_REPORTED_FRACTION: Final = 20
"""A change of less than one twentieth is not reported."""


class SizeEstimator:
    """Measures groups, on one thread."""

    def __init__(self, database: Database, *, full: Callable[[], str]) -> None:
        """`full` returns why the disk takes no writes; empty while there is room."""
        self._database = database
        self._full = full
        self._widths: dict[tuple[str, str], float] = {}
        """Bytes per row of the newest sample of any partition, by table and kind of rows."""

    def measure(self, group: Group, *, written: int = 0) -> bool:
        """Estimate a group's size after `written` more rows; returns whether it changed noticeably."""
        group.written += written
        size, before = self._size(group), group.size
        if size is None or (before is not None and abs(size - before) * _REPORTED_FRACTION <= before):
            return False
        group.size = size
        return True

    def _size(self, group: Group) -> int | None:
        """Return the estimate; None while nothing is known."""
        layout = group.layout
        if layout is None:
            return None
        with contextlib.closing(self._database.cursor()) as cursor:
            width = self._width(cursor, group, layout.rows, group.folded)
            size = None if width is None else group.estimated_rows * width
            if size is not None and layout.changes:
                [(kept,)] = cursor.execute(f"SELECT count(*) FROM {layout.change_table}").fetchall()
                size += kept * (self._width(cursor, group, layout.change_table, kept) or 0.0)
        return None if size is None else round(size)

    def _width(self, cursor: Cursor, group: Group, table: str, rows: int) -> float | None:
        kind = table.partition("_")[0]
        shared, own = self._widths.get((group.metadata.table, kind)), group.samples.get(kind)
        if own is None and shared is not None:
            own = group.samples[kind] = SizeSample(shared, rows, group.written)
        due = own is None or group.written - own.written >= max(own.rows, _MIN_WRITTEN)
        if rows and due and not self._full():
            own = group.samples[kind] = SizeSample(self._sample(cursor, table, rows), rows, group.written)
            self._widths[group.metadata.table, kind] = own.width
        if own is None:
            return None if rows else 0.0
        return own.width

    def _sample(self, cursor: Cursor, table: str, rows: int) -> float:
        """Return the bytes per row of a new sample."""
        file = self._database.directory / "sample.parquet"
        try:
            written = _write_sample(cursor, table, rows, file)
            return file.stat().st_size / max(1, written)
        finally:
            file.unlink(missing_ok=True)


def _write_sample(cursor: Cursor, table: str, rows: int, file: Path) -> int:
    """Write a sample of a table; returns its number of rows."""
    if rows <= STEP_ROWS:
        return copy_rows(cursor, f"SELECT * FROM {table}", file)
    [(last,)] = cursor.execute(f"SELECT max(rowid) FROM {table}").fetchall()
    # The newest file's worth of rows: future rows will resemble them.
    where = f"rowid > {last - STEP_ROWS}"
    return copy_rows(cursor, f"SELECT * FROM {table} WHERE {where}", file)
