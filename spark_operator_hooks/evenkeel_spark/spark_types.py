"""Converts the schema of a table to Spark's types, and checks schemas of users.

Every column type has an exact counterpart in Spark. A timestamp column is Spark's TIMESTAMP; TIMESTAMP_NTZ, which has
no time zone, cannot be written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from evenkeel.errors import InvalidInputError, UnknownColumnError
from evenkeel.rows.conform import conform_rows
from evenkeel.rows.row_schema import ColumnDef, RowSchema, arrow_type

__all__ = ["batch_schema", "check_readable", "check_writable", "spark_schema"]

_SIMPLE: Final[dict[str, t.DataType]] = {
    "bool": t.BooleanType(),
    "int8": t.ByteType(),
    "int16": t.ShortType(),
    "int32": t.IntegerType(),
    "int64": t.LongType(),
    "float32": t.FloatType(),
    "float64": t.DoubleType(),
    "string": t.StringType(),
    "bytes": t.BinaryType(),
    "date": t.DateType(),
    "timestamp": t.TimestampType(),
}


def _spark_type(name: str) -> t.DataType:
    if name in _SIMPLE:
        return _SIMPLE[name]
    decimal = arrow_type(name)
    return t.DecimalType(decimal.precision, decimal.scale)


def spark_schema(schema: RowSchema, columns: Sequence[str] | None) -> t.StructType:
    """Return the columns of a table, or the given ones in the given order."""
    names = schema.names if columns is None else columns
    return t.StructType([_field(_known(schema, name)) for name in names])


def _field(column: ColumnDef) -> t.StructField:
    return t.StructField(column.name, _spark_type(column.type), column.nullable)


def _known(schema: RowSchema, name: str) -> ColumnDef:
    column = schema.column(name)
    if column is None:
        raise UnknownColumnError(f"the table has no column {name}; there are: {', '.join(schema.names)}")
    return column


def check_readable(wanted: t.StructType, schema: RowSchema) -> None:
    """Check that a user's schema has only columns of the table, with their types."""
    for field in wanted.fields:
        own = _spark_type(_known(schema, field.name).type)
        if field.dataType != own:
            raise InvalidInputError(
                f"schema: column {field.name} is {own.simpleString().upper()}, not "
                f"{field.dataType.simpleString().upper()}; read it as it is, and cast it"
            )


def check_writable(given: t.StructType, schema: RowSchema) -> None:
    """Check that the columns of a DataFrame fit a table; each task checks the values."""
    conform_rows(pa.RecordBatch.from_pylist([], schema=batch_schema(given)), schema)


def batch_schema(schema: t.StructType) -> pa.Schema:
    """Return the schema of Spark's Arrow batches of these columns."""
    return to_arrow_schema(schema, timezone="UTC")
