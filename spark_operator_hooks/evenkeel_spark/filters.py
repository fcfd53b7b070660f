"""Spark's conditions as stores understand them.

A condition is handed to the stores only where both mean exactly the same by it; Spark then does not look again. What
compares floating-point numbers stays with Spark, and so does what has no counterpart.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

from pyspark.sql import datasource as s

from evenkeel.rows.schema import ColumnDef, RowSchema
from evenkeel.rows.values import from_json, to_json

__all__ = ["condition_of"]

_COMPARISONS: Final = {
    s.EqualTo: "=",
    s.GreaterThan: ">",
    s.GreaterThanOrEqual: ">=",
    s.LessThan: "<",
    s.LessThanOrEqual: "<=",
}
_TEXT: Final = {s.StringStartsWith: "starts_with", s.StringEndsWith: "ends_with", s.StringContains: "contains"}
_MOST_VALUES: Final = 1000


def condition_of(given: s.Filter, schema: RowSchema) -> list[Any] | None:
    """Return a condition for the stores; None where they cannot judge it as Spark would."""
    if isinstance(given, s.Not):
        inner = condition_of(given.child, schema)
        return None if inner is None else ["not", inner]
    column = _column(given, schema)
    if column is None:
        return None
    if isinstance(given, s.IsNull):
        return ["is_null", column.name]
    if isinstance(given, s.IsNotNull):
        return ["not", ["is_null", column.name]]
    return _comparison(given, column)


def _column(given: s.Filter, schema: RowSchema) -> ColumnDef | None:
    path = getattr(given, "attribute", ())
    return schema.column(path[0]) if len(path) == 1 else None


def _comparison(given: Any, column: ColumnDef) -> list[Any] | None:
    if isinstance(given, s.In):
        values = [_value(value, column) for value in given.value]
        fits = len(values) <= _MOST_VALUES and None not in values
        return ["in", column.name, values] if fits else None
    operator = _COMPARISONS.get(type(given)) or _TEXT.get(type(given))
    value = _value(getattr(given, "value", None), column)
    if operator is None or value is None or (type(given) in _TEXT and column.type != "string"):
        return None
    return [operator, column.name, value]


def _value(value: Any, column: ColumnDef) -> Any:
    """Return a value in the column's notation; None where it is none of the column's."""
    if column.type.startswith("float") or not isinstance(value, _types(column)):
        return None
    if isinstance(value, datetime) and value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    try:
        written = to_json(value)
        return written if from_json(column.type, written) == value else None
    except ValueError:
        return None


def _types(column: ColumnDef) -> type | tuple[type, ...]:
    return _TYPES.get(column.type.partition("(")[0], int)


_TYPES: Final[dict[str, type | tuple[type, ...]]] = {
    "bool": bool,
    "string": str,
    "bytes": (bytes, bytearray),
    "date": date,
    "timestamp": datetime,
    "decimal": (Decimal, int),
}
