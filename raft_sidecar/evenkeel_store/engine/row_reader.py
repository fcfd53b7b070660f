"""Rows read out of the database, by any thread.

Reading and applying do not wait for each other. When the tables themselves change under a reader (columns are added,
the group is restored), it notices after the fact that the layout it read by is no longer the group's, and reads again.
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
    """SQL, its parameters, and Arrow tables that it refers to by name."""

    sql: str
    parameters: Sequence[Any] = ()
    tables: Mapping[str, pa.Table] = {}


_ATTEMPTS: Final = 10
_HASHED_AT_ONCE: Final = 65_536


class RowReader:
    """Reads rows of groups; `tables_lock` is held while tables change."""

    def __init__(self, database: Database, tables_lock: threading.Lock) -> None:
        self.database = database
        self._tables_lock = tables_lock

    def read(self, group: Group, ask: Callable[[TableLayout], Query]) -> tuple[TableLayout, pa.Table]:
        """Return all that a query finds, and the layout it was made for."""

        def run(cursor: Cursor, query: Query) -> pa.Table:
            with contextlib.closing(cursor):
                return cursor.sql(query.sql, params=list(query.parameters)).to_arrow_table()

        return self._settled(group, ask, run)

    def begin(
        self, group: Group, ask: Callable[[TableLayout], Query], *, batch_rows: int
    ) -> tuple[Cursor, Iterator[pa.RecordBatch]]:
        """Begin to read what a query finds: all batches are of one moment. The cursor is to be closed in the end."""

        def run(cursor: Cursor, query: Query) -> tuple[Cursor, Iterator[pa.RecordBatch]]:
            try:
                reader = _pulled(cursor.sql(query.sql, params=list(query.parameters)).to_arrow_reader(batch_rows))
                # With the first batch it is decided which moment that is.
                first = list(islice(reader, 1))
            except BaseException:
                cursor.close()
                raise
            return cursor, (batch for batch in chain(first, reader) if batch.num_rows)

        return self._settled(group, ask, run)[1]

    def _settled(
        self, group: Group, ask: Callable[[TableLayout], Query], run: Callable[[Cursor, Query], _T]
    ) -> tuple[TableLayout, _T]:
        """Run a query on tables that were the group's all the while."""
        for _ in range(_ATTEMPTS):
            layout = self._layout(group)
            query = ask(layout)
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
        raise UnavailableError(f"group {group.number}: its tables keep changing; try again")

    def _layout(self, group: Group) -> TableLayout:
        layout = group.layout
        if layout is None and group.metadata.schema is not None:
            with self._tables_lock:
                layout = group.layout
        if layout is None:
            raise UnavailableError(
                f"table {group.metadata.name} has no columns yet on partition {group.metadata.partition}"
            )
        return layout


def _pulled(reader: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pull batches; what DuckDB meets on the way comes as an error of Arrow's, and goes on as its own again."""
    try:
        yield from reader
    except (pa.ArrowException, OSError) as error:
        kind = duckdb.FatalException if "FATAL" in str(error) else duckdb.IOException
        raise kind(str(error)) from error


def state_hash(rows: RowReader, group: Group, *, at: int, version: int) -> str:
    """Return how many rows there were at an index that is held, and the sum of their hashes over so many columns."""
    columns = [f"c{place}" for place in range(version)]

    def ask(layout: TableLayout) -> Query:
        return Query(f"SELECT {', '.join(columns)} FROM ({layout.source(columns, at=at)})")

    cursor, batches = rows.begin(group, ask, batch_rows=_HASHED_AT_ONCE)
    count, total = 0, 0
    with contextlib.closing(cursor):
        for batch in batches:
            count += batch.num_rows
            total += sum_of_hashes(hash_rows(batch))
    return f"{count}:{total % (1 << 64):016x}"
