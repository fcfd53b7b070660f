"""How large a group is: about how many bytes a snapshot of it would have, which is what a move of it copies.

That is the number of rows, which is always known, times the bytes that a row takes in a snapshot. The latter is
found by writing a sample the way a snapshot is written: all rows of a small group, one file's worth of a large one.
Partitions of one table are alike, so a sample serves them all until a partition has a newer one of its own. A group is
sampled again once as many rows were written to it as it had: its rows may have become wider by then. So the cost of
samples is a small part of the cost of the writes before them.
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

_LEAST_WRITTEN: Final = 1024
"""Rows written before a group is sampled once more, however few it had."""
_NOTICEABLE: Final = 20
"""A size that changed by less than a twentieth is not told."""


class SizeEstimator:
    """Measures groups, on one thread."""

    def __init__(self, database: Database, *, full: Callable[[], str]) -> None:
        """`full` says why nothing may be written."""
        self._database = database
        self._full = full
        self._widths: dict[tuple[str, str], float] = {}
        """By table and kind of rows: of the newest sample of any partition."""

    def measure(self, group: Group, *, written: int = 0) -> bool:
        """Estimate a group's size after so many rows were written; whether it is worth telling."""
        group.written += written
        size, before = self._size(group), group.size
        if size is None or (before is not None and abs(size - before) * _NOTICEABLE <= before):
            return False
        group.size = size
        return True

    def _size(self, group: Group) -> int | None:
        """None where nothing is known yet."""
        layout = group.layout
        if layout is None:
            return None
        with contextlib.closing(self._database.cursor()) as cursor:
            width = self._width(cursor, group, layout.rows, group.folded)
            size = None if width is None else group.about_rows * width
            if size is not None and layout.changes:
                [(kept,)] = cursor.execute(f"SELECT count(*) FROM {layout.kept}").fetchall()
                size += kept * (self._width(cursor, group, layout.kept, kept) or 0.0)
        return None if size is None else round(size)

    def _width(self, cursor: Cursor, group: Group, table: str, rows: int) -> float | None:
        kind = table.partition("_")[0]
        shared, own = self._widths.get((group.metadata.table, kind)), group.samples.get(kind)
        if own is None and shared is not None:
            own = group.samples[kind] = SizeSample(shared, rows, group.written)
        due = own is None or group.written - own.written >= max(own.rows, _LEAST_WRITTEN)
        if rows and due and not self._full():
            own = group.samples[kind] = SizeSample(self._sample(cursor, table, rows), rows, group.written)
            self._widths[group.metadata.table, kind] = own.width
        if own is None:
            return None if rows else 0.0
        return own.width

    def _sample(self, cursor: Cursor, table: str, rows: int) -> float:
        """Bytes per row of a sample."""
        file = self._database.directory / "sample.parquet"
        try:
            written = _write_sample(cursor, table, rows, file)
            return file.stat().st_size / max(1, written)
        finally:
            file.unlink(missing_ok=True)


def _write_sample(cursor: Cursor, table: str, rows: int, file: Path) -> int:
    """Write a sample of a table; returns how many rows are in it."""
    if rows <= STEP_ROWS:
        return copy_rows(cursor, f"SELECT * FROM {table}", file)
    [(last,)] = cursor.execute(f"SELECT max(rowid) FROM {table}").fetchall()
    # The newest whole file: the rows that were written last, of which more are to come.
    where = f"rowid > {last - STEP_ROWS}"
    return copy_rows(cursor, f"SELECT * FROM {table} WHERE {where}", file)
