"""Shared by the store's tests: small tables, entries, and an engine without a socket."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from evenkeel.rows.row_schema import ColumnDef, RowSchema, arrow_schema, key_schema
from evenkeel.wire.socket_messages import Applied, Apply, Failed, LoggedEntry
from evenkeel_store.engine.folding import fold
from evenkeel_store.engine.group_state import Group
from evenkeel_store.engine.log_entries import (
    AddColumns,
    Append,
    Condition,
    Conditional,
    Delete,
    Upsert,
    encode_entry,
)
from evenkeel_store.engine.row_reader import Query, RowReader, state_hash
from evenkeel_store.engine.table_engine import Request, TableEngine

KEYED = RowSchema(
    (ColumnDef("id", "int64", False), ColumnDef("name", "string"), ColumnDef("amount", "decimal(12,2)", True, "0.00")),
    ("id",),
    ("id",),
)
PLAIN = RowSchema((ColumnDef("text", "string"), ColumnDef("number", "int32")))
WIDER = RowSchema((*KEYED.columns, ColumnDef("note", "string", False, "it's new")), ("id",), ("id",))

GROUP, REPLICA = 7, 3


def rows_of(schema: RowSchema, rows: Iterable[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=arrow_schema(schema))


def upsert(
    rows: Sequence[dict[str, Any]], schema: RowSchema = KEYED, *, token: tuple[str, int] = ("", 0), at: int = 0
) -> bytes:
    return encode_entry(Upsert(*token, schema.version, at), rows_of(schema, rows))


def append(rows: Sequence[dict[str, Any]], schema: RowSchema = PLAIN, *, token: tuple[str, int] = ("", 0)) -> bytes:
    return encode_entry(Append(*token, schema.version, 0), rows_of(schema, rows))


def delete(ids: Sequence[int], schema: RowSchema = KEYED, *, token: tuple[str, int] = ("", 0), at: int = 0) -> bytes:
    keys = pa.RecordBatch.from_pylist([{"id": key} for key in ids], schema=key_schema(schema))
    return encode_entry(Delete(*token, schema.version, at), keys)


def conditional(
    rows: Sequence[dict[str, Any]], condition: Condition, *, token: tuple[str, int], schema: RowSchema = KEYED
) -> bytes:
    return encode_entry(Conditional(*token, schema.version, 0, "upsert", condition), rows_of(schema, rows))


def columns(schema: RowSchema = KEYED, *, changes: bool = False) -> bytes:
    return encode_entry(AddColumns(schema, changes))


class Bench:
    """An engine, with helpers to apply entries to one group and read its rows."""

    def __init__(self, directory: Path, **options: Any) -> None:
        directory.mkdir(exist_ok=True)
        self.engine = TableEngine(directory, **options)
        self.rows = RowReader(self.engine.database, self.engine.tables_lock)

    def close(self) -> None:
        self.engine.close()

    def open(self, group: int = GROUP, replica: int = REPLICA) -> Group:
        self.engine.open(group, replica, table="orders.1", partition=0)
        return self.engine.groups[group]

    @property
    def group(self) -> Group:
        return self.engine.groups[GROUP]

    def apply(self, *entries: bytes, group: int = GROUP, replica: int = REPLICA) -> Applied | Failed:
        [answer] = self.engine.apply([self.request(*entries, group=group, replica=replica)])
        return answer

    def request(self, *entries: bytes, group: int = GROUP, replica: int = REPLICA, first: int = 0) -> Request:
        first = first or self.engine.groups[group].metadata.applied + 1
        logged = [LoggedEntry(first + place, entry) for place, entry in enumerate(entries)]
        return Request(group, replica, Apply(first, first + len(entries) - 1, logged))

    def fold(self, group: int = GROUP) -> int:
        with contextlib.closing(self.engine.database.cursor()) as cursor, self.engine.tables_lock:
            return fold(self.engine.database, cursor, self.engine.groups[group])

    def table(self, group: int = GROUP, *, at: int | None = None) -> pa.Table:
        def ask(layout: Any) -> Query:
            order = ", ".join(layout.keys)
            wanted = ", ".join(layout.columns)
            return Query(f"SELECT {wanted} FROM ({layout.source(layout.columns, at=at)}) ORDER BY {order}")

        layout, found = self.rows.read(self.engine.groups[group], ask)
        return found.rename_columns(layout.schema.names)

    def all(self, group: int = GROUP, *, at: int | None = None) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.table(group, at=at).to_pylist()
        return rows

    def ids(self, group: int = GROUP, *, at: int | None = None) -> list[int]:
        return [row["id"] for row in self.all(group, at=at)]

    def names(self, group: int = GROUP, *, at: int | None = None) -> dict[int, str]:
        return {row["id"]: row["name"] for row in self.all(group, at=at)}

    def hash(self, group: int = GROUP, *, at: int | None = None) -> str:
        known = self.engine.groups[group]
        assert known.layout is not None
        with known.holding(at) as index:
            return state_hash(self.rows, known, at=index, version=known.layout.schema.version)

    def changes(self, group: int = GROUP) -> list[tuple[int, int, int, int]]:
        def ask(layout: Any) -> Query:
            return Query(f"SELECT i, s, op, c0 FROM ({layout.changed(['c0'])}) ORDER BY i, s")

        return [tuple(row.values()) for row in self.rows.read(self.engine.groups[group], ask)[1].to_pylist()]
