"""Converts a batch to the schema of a table, or rejects it with the column and the reason.

Replicas apply a converted batch without further checks: columns are in the table's order and have exact types, defaults
are filled in, nulls are only where they are allowed, and all values are in a range that DuckDB, Arrow and Spark share.
Types with the same values (a smaller integer, large or dictionary-encoded text, another unit or zone of a time) are
converted. Conversions that could lose information are rejected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from evenkeel.errors import RowsError, UnknownColumnError
from evenkeel.rows.row_schema import ColumnDef, RowSchema, arrow_schema, arrow_type, key_schema
from evenkeel.rows.row_values import FIRST_DAY, FIRST_INSTANT, LAST_DAY, LAST_INSTANT, default_scalar

__all__ = ["conform_keys", "conform_rows", "overflowed"]

_FAMILIES: Final[dict[str, Callable[[pa.DataType], bool]]] = {
    "bool": pa.types.is_boolean,
    "int": pa.types.is_integer,
    "float": pa.types.is_floating,
    "decimal": pa.types.is_decimal,
    "string": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind),
    "bytes": lambda kind: (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    ),
    "date": pa.types.is_date,
    "timestamp": lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None,
}
_RANGES: Final = {"date": (FIRST_DAY, LAST_DAY), "timestamp": (FIRST_INSTANT, LAST_INSTANT)}


def conform_rows(batch: pa.RecordBatch, schema: RowSchema) -> pa.RecordBatch:
    """Return whole rows with the table's schema."""
    _check_names(batch.schema, set(schema.names), schema)
    _check_bytes(batch)
    arrays = [_column(batch, column) for column in schema.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(schema))


def conform_keys(batch: pa.RecordBatch, schema: RowSchema) -> pa.RecordBatch:
    """Return primary keys with the table's types; the batch must have no other columns."""
    if not schema.primary_key:
        raise RowsError("the table has no primary key, so rows cannot be looked up or deleted by key")
    _check_names(batch.schema, set(schema.primary_key), schema)
    _check_bytes(batch)
    columns = {column.name: column for column in schema.columns}
    arrays = [_column(batch, columns[name]) for name in schema.primary_key]
    return pa.RecordBatch.from_arrays(arrays, schema=key_schema(schema))


def _check_names(given: pa.Schema, wanted: set[str], schema: RowSchema) -> None:
    names = given.names
    unknown = [name for name in names if name not in wanted]
    if unknown:
        known = schema.column(unknown[0]) is not None
        if known:
            raise RowsError(f"column {unknown[0]} is not part of the primary key ({', '.join(schema.primary_key)})")
        raise UnknownColumnError(f"the table has no column {unknown[0]}; there are: {', '.join(schema.names)}")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise RowsError(f"column {twice} occurs twice")


def _check_bytes(batch: pa.RecordBatch) -> None:
    """Validate a batch from outside: broken offsets would crash the process."""
    try:
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise RowsError(f"the batch is not valid Arrow data: {error}") from error


def _column(batch: pa.RecordBatch, column: ColumnDef) -> pa.Array:
    at = batch.schema.get_field_index(column.name)
    if at < 0:
        return _default_column(column, batch.num_rows)
    array = _converted(batch.column(at), column)
    if array.null_count and not column.nullable:
        raise RowsError(f"column {column.name} has {array.null_count} nulls, but is not nullable")
    _check_range(array, column)
    return array


def _default_column(column: ColumnDef, rows: int) -> pa.Array:
    if column.default is None and not column.nullable:
        raise RowsError(f"column {column.name} is missing; it has no default and is not nullable")
    return pa.repeat(default_scalar(column), rows)


def _converted(array: pa.Array, column: ColumnDef) -> pa.Array:
    wanted = arrow_type(column.type)
    if array.type == wanted:
        return array
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    family = column.type.partition("(")[0].rstrip("0123456789")
    if not (_FAMILIES[family](array.type) or pa.types.is_null(array.type)):
        raise RowsError(f"column {column.name} is of type {wanted}, but the batch has {array.type}")
    if overflowed(array, wanted):
        raise RowsError(f"column {column.name} does not fit into {wanted}: a number is too large")
    try:
        return array.cast(wanted)
    except pa.ArrowException as error:
        detail = str(error).partition("\n")[0]
        raise RowsError(f"column {column.name} does not fit into {wanted}: {detail}") from error


def overflowed(array: pa.Array, wanted: pa.DataType) -> bool:
    """Whether a finite number would become infinite, which Arrow's casts allow."""
    if not (pa.types.is_float32(wanted) and pa.types.is_float64(array.type)):
        return False
    return bool(pc.any(pc.and_(pc.is_inf(array.cast(wanted)), pc.invert(pc.is_inf(array)))).as_py())


def _check_range(array: pa.Array, column: ColumnDef) -> None:
    bounds = _RANGES.get(column.type)
    if bounds is None or not len(array):
        return
    low, high = pc.min_max(array).values()
    lowest, highest = (pa.scalar(bound, array.type) for bound in bounds)
    if low.is_valid and (low.value < lowest.value or high.value > highest.value):
        raise RowsError(f"column {column.name} has values outside of {bounds[0]} to {bounds[1]}")
