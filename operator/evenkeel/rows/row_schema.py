"""The columns and keys of a table, in the form that is logged, stored and sent.

Columns never change, and new ones are added at the end. So the number of columns is the version of the schema, and an
earlier version consists of the first columns.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import msgspec
import pyarrow as pa

from evenkeel.model.columns import column_type
from evenkeel.model.table import TableSpec

__all__ = ["ColumnDef", "Default", "RowSchema", "arrow_schema", "arrow_type", "key_schema", "schema_of_table"]

Default = bool | int | float | str | None

_SIMPLE: Final = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}


class ColumnDef(msgspec.Struct, array_like=True, frozen=True):
    """One column; `type` and `default` are as in the Table's YAML."""

    name: str
    type: str
    nullable: bool = True
    default: Default = None

    @property
    def duckdb(self) -> str:
        """The DuckDB name of the type."""
        return column_type(self.type).duckdb


class RowSchema(msgspec.Struct, frozen=True):
    """Columns, keys and the number of partitions."""

    columns: tuple[ColumnDef, ...]
    primary_key: tuple[str, ...] = ()
    partition_key: tuple[str, ...] = ()
    partitions: int = 1

    @property
    def version(self) -> int:
        """The number of columns."""
        return len(self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> ColumnDef | None:
        """Return a column by name; None if there is none."""
        return next((column for column in self.columns if column.name == name), None)

    def extends(self, other: RowSchema) -> bool:
        """Whether this is the other schema, with or without columns added at the end."""
        return (
            self.columns[: other.version] == other.columns
            and self.primary_key == other.primary_key
            and self.partition_key == other.partition_key
            and self.partitions == other.partitions
        )


@cache
def arrow_type(name: str) -> pa.DataType:
    """Return the Arrow type of a column type."""
    if name in _SIMPLE:
        return _SIMPLE[name]
    precision, scale = column_type(name).name[len("decimal(") : -1].split(",")
    return pa.decimal128(int(precision), int(scale))


@cache
def arrow_schema(schema: RowSchema, *, version: int = 0) -> pa.Schema:
    """Return the Arrow schema of whole rows, optionally of an earlier version."""
    return _fields(schema.columns[: version or None])


@cache
def key_schema(schema: RowSchema) -> pa.Schema:
    """Return the Arrow schema of primary keys, in the order of `primaryKey`."""
    columns = {column.name: column for column in schema.columns}
    return _fields(tuple(columns[name] for name in schema.primary_key))


def _fields(columns: tuple[ColumnDef, ...]) -> pa.Schema:
    return pa.schema([pa.field(column.name, arrow_type(column.type), column.nullable) for column in columns])


def schema_of_table(spec: TableSpec) -> RowSchema:
    """Return the schema of a Table's spec."""
    schema = spec.table_schema
    columns = [{"name": c.name, "type": c.type, "nullable": c.nullable, "default": c.default} for c in schema.columns]
    return RowSchema(
        columns=tuple(ColumnDef(**column) for column in columns),  # type: ignore[arg-type]
        primary_key=schema.primary_key,
        partition_key=schema.partition_key,
        partitions=spec.partitions,
    )
