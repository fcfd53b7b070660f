"""Recent rows merged into the partitions' tables, behind the writers' back.

Applying only adds to a log, which is fast; reading pays for what is in the log, so it is kept short. A group is folded
once it has many rows there, or when it has had some for a while.

Folding goes from one index that somebody may still ask for to the next, and keeps what it replaces past any of them
(`layout`), so that neither pins nor scans hold it up. It is one transaction of its own: readers see all of it or
nothing, and what they read is the same before and after.
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
"""How many rows of a group may be in the log before it is folded at once."""


def fold_steps(applied: int, readable: list[int]) -> Iterator[tuple[int, int | None]]:
    """Yield up to which index to fold next, and for which earlier index (None: for nobody) to keep what is replaced."""
    marks = [index for index in readable if index < applied] + [applied]
    yield marks[0], None
    for earlier, later in pairwise(marks):
        yield later, earlier


def fold(database: Database, cursor: Cursor, group: Group) -> int:
    """Fold a group as far as it is applied; returns how many rows left the log. To be called with the tables' lock."""
    layout = group.layout
    if layout is None:
        return 0
    applied, readable = group.readable()
    with database.transaction(cursor):
        count, newest = _unfolded(cursor, layout, applied)
        if count:
            # Before anybody can see it: whoever reads at an earlier index looks afterwards whether this has happened.
            group.folded_to = newest
            for until, keep_for in fold_steps(applied, readable):
                if _unfolded(cursor, layout, until)[0]:
                    run(cursor, *layout.fold(until=until, keep_for=keep_for))
        if layout.keyed:
            run(cursor, layout.forget_old(min(readable, default=None)))
        if layout.changes:
            run(cursor, f"DELETE FROM {layout.kept} WHERE i <= {group.metadata.forgotten}")
    group.count(-count)
    [(group.folded,)] = cursor.execute(f"SELECT count(*) FROM {layout.rows}").fetchall()
    run(cursor, "DROP TABLE IF EXISTS temp.folding")
    return count


def _unfolded(cursor: Cursor, layout: TableLayout, until: int) -> tuple[int, int]:
    """Return how many rows are in the log up to an index, and the newest one's own."""
    query = f"SELECT count(*), max(i) FROM {layout.log} WHERE g = {layout.group} AND i <= {until}"
    [(count, newest)] = cursor.execute(query).fetchall()
    return int(count), int(newest or 0)
