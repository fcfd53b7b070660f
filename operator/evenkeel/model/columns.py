"""Column types, and the rules of a table's schema.

A type maps to one type of Arrow, the format of requests, and one of DuckDB, the format on disk. The set is small on
purpose: each type round-trips exactly through both and through Spark. A `timestamp` is an instant (UTC, microseconds),
as in Spark. Floating point columns cannot be keys, because NaN equals nothing and 0.0 equals -0.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal, localcontext
from typing import Annotated, Self

import msgspec
from pydantic import AfterValidator, ConfigDict, Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError

from evenkeel.model.resource_base import ALLOWED, Model, Text, Violation, cel, enforce

__all__ = ["Column", "ColumnType", "Schema", "column_type"]

DECIMAL = r"decimal\(([1-9]|[12][0-9]|3[0-8]),([0-9]|[12][0-9]|3[0-8])\)"
_LONGEST_DECIMAL = 64
_INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


class ColumnType(msgspec.Struct, frozen=True):
    """A column type with its names in Arrow and DuckDB."""

    name: str
    arrow: str
    duckdb: str
    key: bool = True
    """Whether it may be part of a key."""


_SIMPLE = {
    kind.name: kind
    for kind in (
        ColumnType("bool", "bool", "BOOLEAN"),
        ColumnType("int8", "int8", "TINYINT"),
        ColumnType("int16", "int16", "SMALLINT"),
        ColumnType("int32", "int32", "INTEGER"),
        ColumnType("int64", "int64", "BIGINT"),
        ColumnType("float32", "float", "FLOAT", key=False),
        ColumnType("float64", "double", "DOUBLE", key=False),
        ColumnType("string", "string", "VARCHAR"),
        ColumnType("bytes", "binary", "BLOB"),
        ColumnType("date", "date32[day]", "DATE"),
        ColumnType("timestamp", "timestamp[us, tz=UTC]", "TIMESTAMP WITH TIME ZONE"),
    )
}
TYPE_PATTERN = f"^({'|'.join(_SIMPLE)}|{DECIMAL})$"
TYPES_ALLOWED = f"one of {', '.join(_SIMPLE)}, or decimal(p,s) with s <= p <= 38"


def column_type(name: str) -> ColumnType:
    """Return the type of a name; raise ValueError for an unknown name."""
    if name in _SIMPLE:
        return _SIMPLE[name]
    match = re.fullmatch(DECIMAL, name)
    if match is None or int(match[2]) > int(match[1]):
        raise ValueError(f"{name!r} is not {TYPES_ALLOWED}")
    return ColumnType(name, f"decimal128({match[1]}, {match[2]})", f"DECIMAL({match[1]},{match[2]})")


def _known_type(name: str) -> str:
    try:
        return column_type(name).name
    except ValueError:
        raise PydanticCustomError("column_type", "{allowed}", {"allowed": TYPES_ALLOWED}) from None


TypeName = Annotated[
    str,
    AfterValidator(_known_type),
    Field(max_length=16, json_schema_extra={"pattern": TYPE_PATTERN, ALLOWED: TYPES_ALLOWED}),
]
ColumnName = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        max_length=63,
        json_schema_extra={ALLOWED: "a column name: letters, digits and underscores, not starting with a digit"},
    ),
]
KeyColumns = Annotated[tuple[ColumnName, ...], Field(max_length=16)]


class Column(Model):
    """A column of a table."""

    name: ColumnName
    """Name, unique within the table."""
    type: TypeName
    """Type of the values."""
    nullable: bool = True
    """Whether the value may be null."""
    default: Annotated[
        JsonValue,
        Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True, ALLOWED: "a value of the type"}),
    ] = None
    """Value of the column in rows that omit it, including rows written before the column was added."""
    comment: Text = ""
    """Free text; it may change at any time."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                cel(
                    "self.type == oldSelf.type && self.nullable == oldSelf.nullable",
                    "type and nullable of a column cannot change after creation",
                )
            ]
        }
    )

    @model_validator(mode="after")
    def _default_fits(self) -> Self:
        kind = column_type(self.type)
        if self.default is not None and not _holds(kind, self.default):
            enforce([Violation(("default",), self.default, f"a value of type {self.type}")])
        return self


class Schema(Model):
    """Columns and keys of a table."""

    columns: Annotated[
        tuple[Column, ...],
        Field(
            min_length=1,
            max_length=512,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ]
    """Columns in order. Columns can be added at the end; they cannot be changed or removed."""
    primary_key: KeyColumns = ()
    """Columns that identify a row: a write with the same key replaces the row. Without a primary key, writes append."""
    partition_by: KeyColumns = ()
    """Columns whose hash selects the partition of a row. Default: the primary key."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                cel("self.primaryKey == oldSelf.primaryKey", "primaryKey cannot change after creation"),
                cel(
                    "(size(self.partitionBy) > 0 ? self.partitionBy : self.primaryKey)"
                    " == (size(oldSelf.partitionBy) > 0 ? oldSelf.partitionBy : oldSelf.primaryKey)",
                    "partitionBy cannot change after creation",
                ),
                cel(
                    "self.primaryKey.all(k, self.columns.exists(c, c.name == k && !c.nullable))",
                    "every column of primaryKey must exist and have `nullable: false`",
                ),
                cel(
                    "self.partitionBy.all(k, size(self.primaryKey) > 0 ? k in self.primaryKey"
                    " : self.columns.exists(c, c.name == k))",
                    "partitionBy may only name columns of primaryKey, or any columns if there is no primaryKey",
                ),
                # The old columns keep their order and the last one its place, so none was inserted before it.
                cel(
                    "size(self.columns) >= size(oldSelf.columns)"
                    " && self.columns[size(oldSelf.columns) - 1].name"
                    " == oldSelf.columns[size(oldSelf.columns) - 1].name"
                    " && self.columns.filter(c, oldSelf.columns.exists(o, o.name == c.name)).map(c, c.name)"
                    " == oldSelf.columns.map(o, o.name)",
                    "columns can only be added at the end; existing columns keep their order",
                ),
            ]
        }
    )

    @property
    def partition_key(self) -> tuple[str, ...]:
        """The columns that select the partition of a row, with the default applied."""
        return self.partition_by or self.primary_key

    @model_validator(mode="after")
    def _keys_fit(self) -> Self:
        enforce(self._violations())
        return self

    def _violations(self) -> Iterator[Violation]:
        columns = {column.name: column for column in self.columns}
        yield from _repeated("columns", [column.name for column in self.columns], field="name")
        yield from _repeated("primaryKey", self.primary_key)
        yield from _repeated("partitionBy", self.partition_by)
        yield from _key_columns("primaryKey", self.primary_key, columns)
        yield from _key_columns("partitionBy", self.partition_by, columns)
        for i, column in enumerate(self.columns):
            if column.nullable and column.name in self.primary_key:
                allowed = "`nullable: false`, because the column is part of primaryKey"
                yield Violation(("columns", i, "nullable"), True, allowed)
        if self.primary_key:
            yield from _outside("partitionBy", self.partition_by, self.primary_key)


def _repeated(name: str, values: Sequence[str], *, field: str | None = None) -> Iterator[Violation]:
    for i, value in enumerate(values):
        if value in values[:i]:
            yield Violation((name, i) if field is None else (name, i, field), value, "each column once")


def _key_columns(name: str, keys: Iterable[str], columns: dict[str, Column]) -> Iterator[Violation]:
    for i, key in enumerate(keys):
        if key not in columns:
            yield Violation((name, i), key, f"a column of the table ({', '.join(columns)})")
        elif not column_type(columns[key].type).key:
            yield Violation((name, i), key, f"a column that is not {columns[key].type}: floating point cannot be a key")


def _outside(name: str, keys: Iterable[str], allowed: Sequence[str]) -> Iterator[Violation]:
    for i, key in enumerate(keys):
        if key not in allowed:
            yield Violation((name, i), key, f"a column of primaryKey ({', '.join(allowed)})")


def _holds(kind: ColumnType, value: JsonValue) -> bool:
    if kind.name == "bool":
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if kind.name in _INTEGERS:
        bound = 1 << (_INTEGERS[kind.name] - 1)
        return isinstance(value, int) and -bound <= value < bound
    if kind.name in ("float32", "float64"):
        return isinstance(value, int | float)
    return isinstance(value, str) and _text_holds(kind, value)


def _text_holds(kind: ColumnType, value: str) -> bool:
    try:
        if kind.name == "date":
            date.fromisoformat(value)
        elif kind.name == "timestamp":
            return datetime.fromisoformat(value).tzinfo is not None
        elif kind.name == "bytes":
            return re.fullmatch(r"([0-9a-fA-F]{2})*", value) is not None
        elif kind.name.startswith("decimal"):
            return len(value) <= _LONGEST_DECIMAL and _decimal_holds(kind, Decimal(value))
    except (ValueError, ArithmeticError):
        return False
    return True


def _decimal_holds(kind: ColumnType, value: Decimal) -> bool:
    precision, scale = map(int, kind.name[len("decimal(") : -1].split(","))
    with localcontext(prec=2 * _LONGEST_DECIMAL):
        scaled = value.scaleb(scale)
        return scaled == scaled.to_integral_value() and abs(scaled) < Decimal(10) ** precision
