"""Reads rows from the database, on any thread.

Reading and applying do not block each other. If a group's tables change during a query (columns are added, the group is
restored), the reader notices afterwards that its layout is no longer the group's, and queries again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final, NamedTuple, TypeVar

import duckdb
import pyarrow as pa

from evenkeel.errors import UnavailableError
from evenkeel.rows.row_hashing import hash_rows, sum_of_hashes
from evenkeel_store.engine.database import Cursor, Database
from evenkeel_store.engine.group_state import Group
from evenkeel_store.engine.table_layout import TableLayout

__all__ = ["Query", "RowReader", "state_hash"]

_T = TypeVar("_T")


class Query(NamedTuple):
    """SQL, its parameters, and the Arrow tables that it refers to by name."""

    sql: str
    parameters: Sequence[Any] = ()
    tables: Mapping[str, pa.Table] = {}


_MAX_ATTEMPTS: Final = 10
_HASH_BATCH_ROWS: Final = 65_536


class RowReader:
    """Reads rows of groups; `tables_lock` is held while tables change."""

    def __init__(self, database: Database, tables_lock: threading.Lock) -> None:
        self.database = database
        self._tables_lock = tables_lock

    def read(self, group: Group, make_query: Callable[[TableLayout], Query]) -> tuple[TableLayout, pa.Table]:
        """Return the result of a query and the layout that it was made for."""

        def run(cursor: Cursor, query: Query) -> pa.Table:
            with contextlib.closing(cursor):
                return cursor.sql(query.sql, params=list(query.parameters)).to_arrow_table()

        return self._on_stable_layout(group, make_query, run)

    def begin(
        self, group: Group, make_query: Callable[[TableLayout], Query], *, batch_rows: int
    ) -> tuple[Cursor, Iterator[pa.RecordBatch]]:
        """Start a query whose batches are all of one moment. The caller closes the cursor at the end."""

        def run(cursor: Cursor, query: Query) -> tuple[Cursor, Iterator[pa.RecordBatch]]:
            try:
                reader = _with_duckdb_errors(
                    cursor.sql(query.sql, params=list(query.parameters)).to_arrow_reader(batch_rows)
                )
                # The first batch fixes that moment.
                first = list(islice(reader, 1))
            except BaseException:
                cursor.close()
                raise
            return cursor, (batch for batch in chain(first, reader) if batch.num_rows)

        return self._on_stable_layout(group, make_query, run)[1]

    def _on_stable_layout(
        self, group: Group, make_query: Callable[[TableLayout], Query], run: Callable[[Cursor, Query], _T]
    ) -> tuple[TableLayout, _T]:
        """Run a query; repeat it if the group's layout changed during it."""
        for _ in range(_MAX_ATTEMPTS):
            layout = self._layout(group)
            query = make_query(layout)
            cursor = self.database.cursor()
            for name, table in query.tables.items():
                cursor.register(name, table)
            try:
                found = run(cursor, query)
            except duckdb.CatalogException:
                if group.layout is layout:
                    raise
                continue
            if group.layout is layout:
                return layout, found
            cursor.close()
        raise UnavailableError(f"the tables of group {group.number} keep changing; retry later")

    def _layout(self, group: Group) -> TableLayout:
        layout = group.layout
        if layout is None and group.metadata.schema is not None:
            with self._tables_lock:
                layout = group.layout
        if layout is None:
            raise UnavailableError(
                f"partition {group.metadata.partition} of table {group.metadata.name} has no columns yet; retry later"
            )
        return layout


def _with_duckdb_errors(reader: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches; DuckDB's errors, which arrive as Arrow's, are raised as DuckDB's again."""
    try:
        yield from reader
    except (pa.ArrowException, OSError) as error:
        kind = duckdb.FatalException if "FATAL" in str(error) else duckdb.IOException
        raise kind(str(error)) from error


def state_hash(rows: RowReader, group: Group, *, at: int, version: int) -> str:
    """Return the number of rows at a held index and the sum of their hashes over the first `version` columns."""
    columns = [f"c{place}" for place in range(version)]

    def make_query(layout: TableLayout) -> Query:
        return Query(f"SELECT {', '.join(columns)} FROM ({layout.source(columns, at=at)})")

    cursor, batches = rows.begin(group, make_query, batch_rows=_HASH_BATCH_ROWS)
    count, total = 0, 0
    with contextlib.closing(cursor):
        for batch in batches:
            count += batch.num_rows
            total += sum_of_hashes(hash_rows(batch))
    return f"{count}:{total % (1 << 64):016x}"
