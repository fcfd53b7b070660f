"""The JSON notation of values, and schemas of tables."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from math import isnan

import pyarrow as pa
import pytest

from evenkeel.model.table import TableSpec
from evenkeel.rows.row_schema import ColumnDef, Default, RowSchema, arrow_schema, key_schema, schema_of_table
from evenkeel.rows.row_values import default_scalar, from_json, to_json


@pytest.mark.parametrize(
    ("type_name", "written", "value"),
    [
        ("bool", True, True),
        ("int8", -128, -128),
        ("int64", 1 << 62, 1 << 62),
        ("float32", 0.5, 0.5),
        ("float64", 3, 3.0),
        ("float64", "inf", float("inf")),
        ("string", "é", "é"),
        ("bytes", "00ff", b"\x00\xff"),
        ("date", "2026-01-31", date(2026, 1, 31)),
        ("timestamp", "2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("decimal(5,2)", "1.5", Decimal("1.50")),
        ("decimal(5,2)", 7, Decimal("7.00")),
        ("string", None, None),
    ],
)
def test_values(type_name: str, written: Default, value: object) -> None:
    """`from_json` reads the notation, and reverses `to_json`."""
    assert from_json(type_name, written) == value
    assert from_json(type_name, to_json(value)) == value


@pytest.mark.parametrize(
    ("type_name", "written"),
    [
        ("bool", 1),
        ("int8", 128),
        ("int64", True),
        ("int64", "1"),
        ("float64", "1.0"),
        ("string", 1),
        ("bytes", "0g"),
        ("date", "31.1.2026"),
        ("timestamp", "2026-01-31T12:00:00"),
        ("decimal(5,2)", 0.5),
        ("decimal(5,2)", "1000.00"),
        ("decimal(5,2)", "nan"),
    ],
)
def test_invalid_values(type_name: str, written: Default) -> None:
    """A value that is invalid for a type is rejected with the type's name."""
    with pytest.raises(ValueError, match=f"for a column of type {type_name.partition('(')[0]}"):
        from_json(type_name, written)


def test_nan() -> None:
    """NaN, which JSON does not have, is written as text."""
    assert isnan(from_json("float64", to_json(float("nan"))))


def test_schema_of_a_table() -> None:
    """The schema of a Table's spec has its columns, keys and number of partitions, with defaults applied."""
    spec = TableSpec.model_validate_json(
        json.dumps(
            {
                "storeCluster": "main",
                "partitions": 4,
                "schema": {
                    "columns": [
                        {"name": "id", "type": "int64", "nullable": False},
                        {"name": "amount", "type": "decimal(12,2)", "default": "0.00"},
                    ],
                    "primaryKey": ["id"],
                },
            }
        )
    )
    schema = schema_of_table(spec)
    assert schema == RowSchema(
        (ColumnDef("id", "int64", False), ColumnDef("amount", "decimal(12,2)", True, "0.00")), ("id",), ("id",), 4
    )
    assert default_scalar(schema.columns[1]).as_py() == Decimal("0.00")
    assert arrow_schema(schema).names == ["id", "amount"]
    assert arrow_schema(schema, version=1).names == ["id"]
    assert key_schema(schema) == pa.schema([pa.field("id", pa.int64(), False)])


def test_versions() -> None:
    """A schema extends exactly those schemas whose columns are its first columns."""
    first, second, third = ColumnDef("a", "int8"), ColumnDef("b", "int8"), ColumnDef("b", "int16")
    short, long = RowSchema((first,)), RowSchema((first, second))
    assert long.version == 2
    assert long.extends(short)
    assert long.extends(long)
    assert not short.extends(long)
    assert not RowSchema((first, third)).extends(long)
    assert not RowSchema((first, second), ("a",)).extends(short)
