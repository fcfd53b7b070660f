"""The DuckDB tables of a group, and the SQL that creates, fills and reads them.

    log_k       rows as they were logged, of all groups with the same column types: one statement per transaction
                serves them all, and a statement costs 1.5-2 ms whatever its size
    rows_n      the folded rows of one partition as of some index
    old_n       rows of `rows_n` that folding replaced while a pin or scan may still need them
    changes_n   rows that folding removed from the log, for tables that keep their changes

Columns are called c0, c1, ... in the order of the table's schema, because DuckDB ignores the case of names. Further
columns are:

    g, i, s     group, log index, position within the entry
    op          0 the row was written, 1 it was deleted
    u, x        in `old_n`: the row as it was before index u (x: whether it existed)

The newest row of a key is the one in the log with the highest (i, s), else the one in `rows_n`. As of an earlier index
p it is the one in `old_n` with the lowest u > p, else the one in the log up to p, else the one in `rows_n`. (A key is
never in both of the first two: what `old_n` keeps with u > p was folded after p.)

A table without a primary key only gains rows, so `rows_n` carries (i, s), which is its key.
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
    """Return the column types; groups share a log if theirs are equal."""
    return tuple(column.duckdb for column in schema.columns)


def physical_schema(columns: Sequence[ColumnDef], *, at: Sequence[int] = ()) -> pa.Schema:
    """Return the Arrow schema of columns, with their names in DuckDB."""
    places = at or range(len(columns))
    return pa.schema([(f"c{place}", arrow_type(column.type)) for place, column in zip(places, columns, strict=True)])


def literal(column: ColumnDef) -> str:
    """Return a column's default as SQL."""
    value = default_scalar(column).as_py()
    if value is None:
        return f"CAST(NULL AS {column.duckdb})"
    if isinstance(value, bytes):
        return f"from_hex('{value.hex()}')"
    text = str(value).replace("'", "''")
    return f"CAST('{text}' AS {column.duckdb})"


class TableLayout:
    """The tables of one group. Compared by identity: another object means other tables."""

    def __init__(self, group: int, schema: RowSchema, *, rows: int, log: int, changes: bool) -> None:
        self.group = group
        self.schema = schema
        self.changes = changes
        self.rows_number = rows
        self.log_number = log
        self.rows = f"rows_{rows}"
        self.old = f"old_{rows}"
        self.change_table = f"changes_{rows}"
        self.log = f"log_{log}"

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns in DuckDB."""
        return tuple(f"c{place}" for place in range(self.schema.version))

    @cached_property
    def keyed(self) -> bool:
        """Whether the table has a primary key."""
        return bool(self.schema.primary_key)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        names = self.schema.names
        return tuple(f"c{names.index(name)}" for name in self.schema.primary_key) or ("i", "s")

    # Creating and altering

    def create(self) -> list[str]:
        """Return the statements that create the partition's own tables."""
        typed = ", ".join(f"c{place} {column.duckdb}" for place, column in enumerate(self.schema.columns))
        if not self.keyed:
            return [f"CREATE TABLE {self.rows} (i BIGINT, s INTEGER, {typed})", *self.create_changes(typed)]
        return [
            f"CREATE TABLE {self.rows} ({typed})",
            f"CREATE TABLE {self.old} (u BIGINT, x BOOLEAN, {typed})",
            *self.create_changes(typed),
        ]

    def create_changes(self, typed: str) -> list[str]:
        """Return the statement that creates the change table, if changes are kept."""
        return [f"CREATE TABLE {self.change_table} (i BIGINT, s INTEGER, op TINYINT, {typed})"] if self.changes else []

    def create_log(self) -> str:
        """Return the statement that creates the log."""
        typed = ", ".join(f"c{place} {column.duckdb}" for place, column in enumerate(self.schema.columns))
        return f"CREATE TABLE {self.log} ({_LOG_HEAD_SQL}, {typed})"

    def tables(self) -> list[str]:
        """Return the names of the partition's own tables."""
        return [self.rows, *([self.old] if self.keyed else []), *([self.change_table] if self.changes else [])]

    def drop(self, *, from_log: bool = True) -> list[str]:
        """Return the statements that delete the group; with `from_log`, also its part of the log."""
        tables = [f"DROP TABLE {table}" for table in self.tables()]
        return [*tables, f"DELETE FROM {self.log} WHERE g = {self.group}"] if from_log else tables

    def migrate_to(self, other: TableLayout) -> list[str]:
        """Return the statements that add columns or turn changes on or off; the log may be another one."""
        added = list(enumerate(other.schema.columns))[self.schema.version :]
        common = [table for table in self.tables() if table in other.tables()]
        statements = [
            f"ALTER TABLE {table} ADD COLUMN c{place} {column.duckdb} DEFAULT {literal(column)}"
            for table in common
            for place, column in added
        ]
        if other.changes and not self.changes:
            typed = ", ".join(f"c{place} {column.duckdb}" for place, column in enumerate(other.schema.columns))
            statements += other.create_changes(typed)
        elif self.changes and not other.changes:
            statements.append(f"DROP TABLE {self.change_table}")
        if other.log != self.log:
            # Deleted rows get the defaults too; their values are never read.
            values = ", ".join(["g, i, s, op", *self.columns, *(literal(column) for _, column in added)])
            statements.append(f"INSERT INTO {other.log} SELECT {values} FROM {self.log} WHERE g = {self.group}")
            statements.append(f"DELETE FROM {self.log} WHERE g = {self.group}")
        return statements

    # Reading

    def source(self, columns: Sequence[str], *, at: int | None = None, among: str = "", folded: bool = False) -> str:
        """Return a query for the rows with their keys, at the newest index or at a held one.

        `among` is a relation of keys to look up; without it all rows are read. With `folded` the log is not read, which
        is correct if the group has no rows there that the caller must see, and two thirds cheaper.
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
        """Return a query for the last row of each key in the log."""
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
        """Return a query for all changes that are kept, folded or not."""
        wanted = ", ".join(["i, s, op", *columns])
        return (
            f"SELECT {wanted} FROM {self.change_table} UNION ALL SELECT {wanted} FROM {self.log} WHERE g = {self.group}"
        )

    # Folding

    def fold(self, *, until: int, keep_for: int | None) -> list[str]:
        """Return the statements that fold the log up to an index; `keep_for` is the newest readable index before it."""
        columns, keys = ", ".join(self.columns), ", ".join(self.keys)
        where = f"WHERE g = {self.group} AND i <= {until}"
        statements = []
        if self.changes:
            statements.append(
                f"INSERT INTO {self.change_table} SELECT i, s, op, {columns} FROM {self.log} {where} ORDER BY i, s"
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
        """Return the statement that keeps the rows to be replaced, once per key since `keep_for`."""
        keys, rows = ", ".join(self.keys), self.rows
        values = ", ".join(f"{'f' if column in self.keys else 'r'}.{column}" for column in self.columns)
        return (
            f"INSERT INTO {self.old} SELECT {until}, r.there IS NOT NULL, {values} "
            f"FROM folding f LEFT JOIN (SELECT true AS there, * FROM {rows}) r USING ({keys}) "
            f"ANTI JOIN (SELECT {keys} FROM {self.old} WHERE u > {keep_for}) o USING ({keys})"
        )

    def forget_old(self, oldest_readable: int | None) -> str:
        """Return the statement that deletes old rows that no pin or scan needs."""
        return f"DELETE FROM {self.old}" + ("" if oldest_readable is None else f" WHERE u <= {oldest_readable}")
