"""The DuckDB tables that hold a group's rows, and the SQL that makes, fills and reads them.

    log_k       rows as they were logged, of all groups with the same column types: one statement of a transaction
                serves them all, and a statement costs 1.5-2 ms whatever its size
    rows_n      the rows of one partition as of some index: what folding made of the log
    old_n       what folding replaced in `rows_n` while somebody may still ask for it
    changes_n   what folding took out of the log, for tables that keep their changes

Columns are called c0, c1, ... in the order of the table's schema, because DuckDB does not tell `A` from `a`. Beside
them:

    g, i, s     group, log index, place within the entry
    op          0 the row is there from here on, 1 it is gone
    u, x        in `old_n`: the row (x: there was one) is as it was before index u

The newest row of a key is the one in the log with the highest (i, s), else the one in `rows_n`. As of an earlier index
p that is: what `old_n` kept for the lowest u past p; else the log up to p; else `rows_n`. (The first two never both
know a key: what is kept in `old_n` past p was folded past p.)

A table without a primary key is never changed but by adding rows, so `rows_n` carries (i, s), which is its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import pyarrow as pa

from evenkeel.rows.row_schema import ColumnDef, RowSchema, arrow_type
from evenkeel.rows.row_values import default_scalar

__all__ = ["DELETED", "LOG_HEAD", "PUT", "TableLayout", "literal", "physical_schema", "signature"]

PUT: Final = 0
DELETED: Final = 1

LOG_HEAD: Final = pa.schema([("g", pa.int64()), ("i", pa.int64()), ("s", pa.int32()), ("op", pa.int8())])
_LOG_HEAD_SQL: Final = "g BIGINT, i BIGINT, s INTEGER, op TINYINT"


def signature(schema: RowSchema) -> tuple[str, ...]:
    """What groups must have in common to share a log."""
    return tuple(column.duckdb for column in schema.columns)


def physical_schema(columns: Sequence[ColumnDef], *, at: Sequence[int] = ()) -> pa.Schema:
    """Return the Arrow schema of these columns by the names they have in DuckDB."""
    places = at or range(len(columns))
    return pa.schema([(f"c{place}", arrow_type(column.type)) for place, column in zip(places, columns, strict=True)])


def literal(column: ColumnDef) -> str:
    """Return the column's default in SQL."""
    value = default_scalar(column).as_py()
    if value is None:
        return f"CAST(NULL AS {column.duckdb})"
    if isinstance(value, bytes):
        return f"from_hex('{value.hex()}')"
    text = str(value).replace("'", "''")
    return f"CAST('{text}' AS {column.duckdb})"


class TableLayout:
    """Where a group's rows are. Compared by identity: another object means that they are elsewhere."""

    def __init__(self, group: int, schema: RowSchema, *, rows: int, log: int, changes: bool) -> None:
        self.group = group
        self.schema = schema
        self.changes = changes
        self.rows_number = rows
        self.log_number = log
        self.rows = f"rows_{rows}"
        self.old = f"old_{rows}"
        self.kept = f"changes_{rows}"
        self.log = f"log_{log}"

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """All columns."""
        return tuple(f"c{place}" for place in range(self.schema.version))

    @cached_property
    def keyed(self) -> bool:
        """Whether rows have a primary key."""
        return bool(self.schema.primary_key)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The columns that tell rows apart."""
        names = self.schema.names
        return tuple(f"c{names.index(name)}" for name in self.schema.primary_key) or ("i", "s")

    # Making

    def create(self) -> list[str]:
        """Make the partition's own tables."""
        typed = ", ".join(f"c{place} {column.duckdb}" for place, column in enumerate(self.schema.columns))
        if not self.keyed:
            return [f"CREATE TABLE {self.rows} (i BIGINT, s INTEGER, {typed})", *self.create_changes(typed)]
        return [
            f"CREATE TABLE {self.rows} ({typed})",
            f"CREATE TABLE {self.old} (u BIGINT, x BOOLEAN, {typed})",
            *self.create_changes(typed),
        ]

    def create_changes(self, typed: str) -> list[str]:
        """Make the change table, where one is kept."""
        return [f"CREATE TABLE {self.kept} (i BIGINT, s INTEGER, op TINYINT, {typed})"] if self.changes else []

    def create_log(self) -> str:
        """Make the log."""
        typed = ", ".join(f"c{place} {column.duckdb}" for place, column in enumerate(self.schema.columns))
        return f"CREATE TABLE {self.log} ({_LOG_HEAD_SQL}, {typed})"

    def tables(self) -> list[str]:
        """Name the partition's own tables."""
        return [self.rows, *([self.old] if self.keyed else []), *([self.kept] if self.changes else [])]

    def drop(self, *, from_log: bool = True) -> list[str]:
        """Delete everything of the group; its part of the log only if that can be read."""
        tables = [f"DROP TABLE {table}" for table in self.tables()]
        return [*tables, f"DELETE FROM {self.log} WHERE g = {self.group}"] if from_log else tables

    def become(self, other: TableLayout) -> list[str]:
        """Turn into a layout with more columns, or with changes kept or not, in the same tables but another log."""
        added = list(enumerate(other.schema.columns))[self.schema.version :]
        kept = [table for table in self.tables() if table in other.tables()]
        statements = [
            f"ALTER TABLE {table} ADD COLUMN c{place} {column.duckdb} DEFAULT {literal(column)}"
            for table in kept
            for place, column in added
        ]
        if other.changes and not self.changes:
            typed = ", ".join(f"c{place} {column.duckdb}" for place, column in enumerate(other.schema.columns))
            statements += other.create_changes(typed)
        elif self.changes and not other.changes:
            statements.append(f"DROP TABLE {self.kept}")
        if other.log != self.log:
            # A deleted row has no values, the new columns included; nobody looks at them.
            values = ", ".join(["g, i, s, op", *self.columns, *(literal(column) for _, column in added)])
            statements.append(f"INSERT INTO {other.log} SELECT {values} FROM {self.log} WHERE g = {self.group}")
            statements.append(f"DELETE FROM {self.log} WHERE g = {self.group}")
        return statements

    # Reading

    def source(self, columns: Sequence[str], *, at: int | None = None, among: str = "", folded: bool = False) -> str:
        """A query of the rows as they are, or as they were at an index that is held; with their keys.

        `among` is a relation of keys to look up; all rows where it is left out. `folded` says that nothing of the group
        is in the log, as far as whoever asks has to know: that makes the query two thirds cheaper.
        """
        wanted = ", ".join(dict.fromkeys([*self.keys, *columns]))
        if folded and at is None:
            only = f" SEMI JOIN {among} USING ({', '.join(self.keys)})" if among else ""
            return f"SELECT {wanted} FROM {self.rows}{only}"
        if not self.keyed:
            until = "" if at is None else f" AND i <= {at}"
            return (
                f"SELECT {wanted} FROM {self.rows} WHERE true{until} UNION ALL "
                f"SELECT {wanted} FROM {self.log} WHERE g = {self.group}{until}"
            )
        keys = ", ".join(self.keys)
        only = f" SEMI JOIN {among} USING ({keys})" if among else ""
        old = "" if at is None else f"o AS MATERIALIZED ({self._before(wanted, at, only)}), "
        return (
            f"WITH {old}d AS MATERIALIZED ({self.newest(wanted, until=at, only=only)}) "
            f"SELECT {wanted} FROM {self.rows}{only} ANTI JOIN d USING ({keys})"
            + (f" ANTI JOIN o USING ({keys})" if old else "")
            + f" UNION ALL SELECT {wanted} FROM d WHERE op = {PUT}"
            + (f" UNION ALL SELECT {wanted} FROM o WHERE x" if old else "")
        )

    def newest(self, wanted: str, *, until: int | None = None, only: str = "") -> str:
        """A query of the last row of each key in the log."""
        bound = "" if until is None else f" AND i <= {until}"
        return (
            f"SELECT op, {wanted} FROM {self.log}{only} WHERE g = {self.group}{bound} "
            f"QUALIFY row_number() OVER (PARTITION BY {', '.join(self.keys)} ORDER BY i DESC, s DESC) = 1"
        )

    def _before(self, wanted: str, at: int, only: str) -> str:
        return (
            f"SELECT x, {wanted} FROM {self.old}{only} WHERE u > {at} "
            f"QUALIFY row_number() OVER (PARTITION BY {', '.join(self.keys)} ORDER BY u) = 1"
        )

    def changed(self, columns: Sequence[str]) -> str:
        """A query of all changes that are kept, folded or not."""
        wanted = ", ".join(["i, s, op", *columns])
        return f"SELECT {wanted} FROM {self.kept} UNION ALL SELECT {wanted} FROM {self.log} WHERE g = {self.group}"

    # Folding

    def fold(self, *, until: int, keep_for: int | None) -> list[str]:
        """Merge the log up to an index into the partition's tables; `keep_for` is the newest pin before it."""
        columns, keys = ", ".join(self.columns), ", ".join(self.keys)
        where = f"WHERE g = {self.group} AND i <= {until}"
        statements = []
        if self.changes:
            statements.append(
                f"INSERT INTO {self.kept} SELECT i, s, op, {columns} FROM {self.log} {where} ORDER BY i, s"
            )
        if not self.keyed:
            statements.append(f"INSERT INTO {self.rows} SELECT i, s, {columns} FROM {self.log} {where} ORDER BY i, s")
        else:
            statements.append(f"CREATE OR REPLACE TEMP TABLE folding AS {self.newest(columns, until=until)}")
            if keep_for is not None:
                statements.append(self._keep_old(until=until, keep_for=keep_for))
            equal = " AND ".join(f"{self.rows}.{key} = folding.{key}" for key in self.keys)
            statements += [
                f"DELETE FROM {self.rows} USING folding WHERE {equal}",
                f"INSERT INTO {self.rows} SELECT {columns} FROM folding WHERE op = {PUT} ORDER BY {keys}",
            ]
        return [*statements, f"DELETE FROM {self.log} {where}"]

    def _keep_old(self, *, until: int, keep_for: int) -> str:
        """Keep what is about to be replaced, once for each key since the newest pin."""
        keys, rows = ", ".join(self.keys), self.rows
        values = ", ".join(f"{'f' if column in self.keys else 'r'}.{column}" for column in self.columns)
        return (
            f"INSERT INTO {self.old} SELECT {until}, r.there IS NOT NULL, {values} "
            f"FROM folding f LEFT JOIN (SELECT true AS there, * FROM {rows}) r USING ({keys}) "
            f"ANTI JOIN (SELECT {keys} FROM {self.old} WHERE u > {keep_for}) o USING ({keys})"
        )

    def forget_old(self, oldest_pin: int | None) -> str:
        """Delete what nobody can ask for any more."""
        return f"DELETE FROM {self.old}" + ("" if oldest_pin is None else f" WHERE u <= {oldest_pin}")
