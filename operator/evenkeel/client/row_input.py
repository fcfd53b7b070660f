"""Converts the rows and keys that users pass (Arrow, pandas, dicts) to Arrow batches of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from numbers import Number
from typing import Any, Final

import numpy as np
import pyarrow as pa

from evenkeel.errors import RowsError, UnknownColumnError
from evenkeel.rows.conform import conform_keys, conform_rows, overflowed
from evenkeel.rows.row_schema import RowSchema, arrow_schema, key_schema
from evenkeel.rows.row_values import default_scalar

__all__ = ["key_batches", "row_batches"]

_SAFE_ANYWHERE: Final = frozenset((type(None), str, bytes))
_SAFE: Final = {pa.int64(): _SAFE_ANYWHERE | {int}, pa.float64(): _SAFE_ANYWHERE | {int, float}}
"""Python types that Arrow converts exactly or rejects, so their values need no check."""


def row_batches(rows: Any, schema: RowSchema) -> list[pa.RecordBatch]:
    """Return whole rows with the table's schema."""
    return [conform_rows(batch, schema) for batch in _batches(rows, arrow_schema(schema), schema)]


def key_batches(keys: Any, schema: RowSchema) -> list[pa.RecordBatch]:
    """Return primary keys; a plain value is a key of one column."""
    if isinstance(keys, Sequence) and not isinstance(keys, str | bytes) and keys and len(schema.primary_key) == 1:
        name = schema.primary_key[0]
        keys = [key if isinstance(key, Mapping) else {name: key} for key in keys]
    shape = key_schema(schema) if schema.primary_key else arrow_schema(schema)
    return [conform_keys(batch, schema) for batch in _batches(keys, shape, schema, what="keys")]


def _batches(rows: Any, shape: pa.Schema, schema: RowSchema, *, what: str = "rows") -> list[pa.RecordBatch]:
    if isinstance(rows, pa.RecordBatch):
        return [rows] if rows.num_rows else []
    if isinstance(rows, pa.Table):
        return [batch for batch in rows.combine_chunks().to_batches() if batch.num_rows]
    if isinstance(rows, pa.RecordBatchReader):
        return [batch for batch in rows if batch.num_rows]
    if isinstance(rows, Mapping):
        return [_from_dicts([rows], shape, schema)]
    if isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
        return [_from_dicts(rows, shape, schema)] if rows else []
    if hasattr(rows, "__arrow_c_stream__"):
        return _batches(pa.table(rows), shape, schema, what=what)
    if type(rows).__module__.partition(".")[0] == "pandas":
        return _batches(pa.Table.from_pandas(rows, preserve_index=False), shape, schema, what=what)
    raise RowsError(
        f"{what} may not be of type {type(rows).__name__}; allowed: Arrow tables or batches, pandas frames, lists of "
        + ("dicts" if what == "rows" else "keys or dicts")
    )


def _from_dicts(rows: Sequence[Any], shape: pa.Schema, schema: RowSchema) -> pa.RecordBatch:
    """Convert dicts; a column that a dict does not name has its default."""
    named: dict[str, None] = {}
    for row in rows:
        if not isinstance(row, Mapping):
            raise RowsError(f"a row is a {type(row).__name__}; allowed: a dict of columns")
        named.update(dict.fromkeys(row))
    unknown = [name for name in named if not isinstance(name, str) or shape.get_field_index(name) < 0]
    if unknown:
        raise UnknownColumnError(f"the table has no column {unknown[0]}; there are: {', '.join(shape.names)}")
    fields = [shape.field(name) for name in named]
    defaults = {name: value for name in named if (value := _default(schema, name)) is not None}
    arrays = [
        _array([row.get(field.name, defaults.get(field.name)) for row in rows], field, schema) for field in fields
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _array(values: list[Any], field: pa.Field, schema: RowSchema) -> pa.Array:
    try:
        _check_exact(values, field.type)
        return pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        column = schema.column(field.name)
        kind = column.type if column is not None else field.type
        raise RowsError(f"column {field.name} is of type {kind}, but a row has another value: {error}") from error


def _check_exact(values: list[Any], wanted: pa.DataType) -> None:
    """Raise `ValueError` for values that Arrow would silently change."""
    for kind in set(map(type, values)):
        if kind in _SAFE.get(wanted, _SAFE_ANYWHERE):
            continue
        if wrong := _change_by_arrow(kind, [value for value in values if type(value) is kind], wanted):
            raise ValueError(wrong)


def _change_by_arrow(kind: type, values: list[Any], wanted: pa.DataType) -> str:
    if issubclass(kind, datetime) and any(value.tzinfo is None for value in values):
        return "the datetime has no time zone; add one"
    if issubclass(kind, datetime) and pa.types.is_date(wanted):
        return f"{values[0]} is a datetime, not a date; use its .date()"
    if issubclass(kind, bool | np.bool_) and not pa.types.is_boolean(wanted):
        return f"{values[0]} is a boolean"
    if issubclass(kind, Number) and pa.types.is_temporal(wanted):
        return f"{values[0]} is a number; use a {date.__name__ if pa.types.is_date(wanted) else datetime.__name__}"
    if issubclass(kind, float | np.floating | Decimal) and pa.types.is_integer(wanted):
        return next((f"{value} is not an integer" for value in values if not _is_whole(value)), "")
    if issubclass(kind, float | np.floating) and overflowed(pa.array(values, pa.float64()), wanted):
        return f"a number is too large for {wanted}"
    return ""


def _is_whole(value: Any) -> bool:
    try:
        return bool(int(value) == value)
    except (ValueError, OverflowError):
        return False


def _default(schema: RowSchema, name: str) -> Any:
    column = schema.column(name)
    return default_scalar(column).as_py() if column is not None and column.default is not None else None
