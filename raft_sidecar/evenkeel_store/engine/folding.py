"""Folding: merging recent rows from the log into the partitions' tables, in the background.

Applying only appends to a log, which is fast. Reading pays for the rows in the log, so the log is kept short: a group
is folded once it has many rows there, or some for a while.

Folding proceeds from one readable index to the next and keeps the rows that it replaces (`table_layout`), so neither
pins nor scans block it. It runs in one transaction: readers see all of it or nothing, and the same rows either way.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from evenkeel_store.engine.database import Cursor, Database, run
from evenkeel_store.engine.group_state import Group
from evenkeel_store.engine.table_layout import TableLayout

__all__ = ["FOLD_ROWS", "fold", "fold_steps"]

FOLD_ROWS: Final = 65_536
"""Rows of a group in the log above which it is folded at once."""


def fold_steps(applied: int, readable: list[int]) -> Iterator[tuple[int, int | None]]:
    """Yield each index to fold up to, and the earlier index to keep replaced rows for, or None."""
    marks = [index for index in readable if index < applied] + [applied]
    yield marks[0], None
    for earlier, later in pairwise(marks):
        yield later, earlier


def fold(database: Database, cursor: Cursor, group: Group) -> int:
    """Fold a group up to its applied index; returns how many rows left the log. The caller holds `tables_lock`."""
    layout = group.layout
    if layout is None:
        return 0
    applied, readable = group.readable()
    with database.transaction(cursor):
        count, newest = _unfolded(cursor, layout, applied)
        if count:
            # Set before the commit: a reader at an earlier index checks it after its query.
            group.folded_to = newest
            for until, keep_for in fold_steps(applied, readable):
                if _unfolded(cursor, layout, until)[0]:
                    run(cursor, *layout.fold(until=until, keep_for=keep_for))
        if layout.keyed:
            run(cursor, layout.forget_old(min(readable, default=None)))
        if layout.changes:
            run(cursor, f"DELETE FROM {layout.change_table} WHERE i <= {group.metadata.forgotten}")
    group.count(-count)
    [(group.folded,)] = cursor.execute(f"SELECT count(*) FROM {layout.rows}").fetchall()
    run(cursor, "DROP TABLE IF EXISTS temp.folding")
    return count


def _unfolded(cursor: Cursor, layout: TableLayout, until: int) -> tuple[int, int]:
    """Return the number of rows in the log up to an index, and the index of the newest one."""
    query = f"SELECT count(*), max(i) FROM {layout.log} WHERE g = {layout.group} AND i <= {until}"
    [(count, newest)] = cursor.execute(query).fetchall()
    return int(count), int(newest or 0)
