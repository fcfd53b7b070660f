"""Batches are converted to a table's schema exactly, or rejected with the column and the reason."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from evenkeel.errors import RowsError, UnknownColumnError
from evenkeel.rows.conform import conform_keys, conform_rows
from evenkeel.rows.row_schema import ColumnDef, RowSchema, arrow_schema

SCHEMA = RowSchema(
    (
        ColumnDef("id", "int64", False),
        ColumnDef("name", "string"),
        ColumnDef("amount", "decimal(12,2)", True, "1.50"),
        ColumnDef("at", "timestamp"),
        ColumnDef("day", "date"),
        ColumnDef("raw", "bytes"),
        ColumnDef("ratio", "float32"),
        ColumnDef("on", "bool", False, True),
    ),
    ("id",),
    ("id",),
)


def conformed(**columns: Any) -> pa.RecordBatch:
    return conform_rows(pa.record_batch({"id": pa.array([1], pa.int64())} | columns), SCHEMA)


def test_numbers_that_would_become_infinite() -> None:
    """A finite number that would become infinite is rejected; infinity is accepted."""
    with pytest.raises(RowsError, match="column ratio does not fit into float: a number is too large"):
        conformed(ratio=pa.array([1e300], pa.float64()))
    assert conformed(ratio=pa.array([float("inf")], pa.float64())).column("ratio").to_pylist() == [float("inf")]


def test_missing_columns() -> None:
    """Defaults and nulls are filled in, in the table's order and types."""
    batch = conformed()
    assert batch.schema == arrow_schema(SCHEMA)
    assert batch.to_pylist()[0] == {
        "id": 1,
        "name": None,
        "amount": Decimal("1.50"),
        "at": None,
        "day": None,
        "raw": None,
        "ratio": None,
        "on": True,
    }


EAST = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("column", "array", "value"),
    [
        ("id", pa.array([5], pa.int8()), 5),
        ("id", pa.array([5], pa.uint32()), 5),
        ("name", pa.array(["x"], pa.large_string()), "x"),
        ("name", pa.array(["x"], pa.string_view()), "x"),
        ("name", pa.array(["x"]).dictionary_encode(), "x"),
        ("name", pa.nulls(1), None),
        ("raw", pa.array([b"ab"], pa.binary(2)), b"ab"),
        ("raw", pa.array([b"x"], pa.large_binary()), b"x"),
        ("amount", pa.array([Decimal("2.5")], pa.decimal128(5, 1)), Decimal("2.50")),
        ("day", pa.array([date(2026, 1, 2)], pa.date64()), date(2026, 1, 2)),
        ("ratio", pa.array([0.5], pa.float16()), 0.5),
        (
            "at",
            pa.array([datetime(2026, 1, 1, 2, tzinfo=EAST)], pa.timestamp("ms", "+02:00")),
            datetime(2026, 1, 1, tzinfo=UTC),
        ),
    ],
)
def test_compatible_types(column: str, array: pa.Array, value: object) -> None:
    """Other layouts of the same values are converted."""
    assert conformed(**{column: array}).column(column).to_pylist() == [value]


@pytest.mark.parametrize(
    ("column", "array", "message"),
    [
        ("id", pa.array(["1"]), "column id is of type int64, but the batch has string"),
        ("id", pa.array([1.0]), "column id is of type int64, but the batch has double"),
        ("id", pa.array([1 << 63], pa.uint64()), "column id does not fit into int64"),
        ("id", pa.array([None], pa.int64()), "column id has 1 nulls, but is not nullable"),
        ("on", pa.array([None], pa.bool_()), "column on has 1 nulls"),
        ("name", pa.array([1]), "column name is of type string"),
        ("name", pa.array([b"x"]), "column name is of type string"),
        ("amount", pa.array([Decimal("0.125")]), "column amount does not fit"),
        ("amount", pa.array([Decimal("10000000000.00")]), "column amount does not fit"),
        ("amount", pa.array([1.5]), "column amount is of type decimal128"),
        ("at", pa.array([datetime(2026, 1, 1)], pa.timestamp("us")), "column at is of type"),
        ("at", pa.array([1], pa.timestamp("ns", "UTC")), "column at does not fit"),
        ("at", pa.array([1 << 60], pa.timestamp("us", "UTC")), "column at has values outside of 0001-01-01"),
        ("day", pa.array([2**31 - 1], pa.int32()).cast(pa.date32()), "column day has values outside of 0001-01-01"),
        ("ratio", pa.array([1]), "column ratio is of type float"),
    ],
)
def test_incompatible_values(column: str, array: pa.Array, message: str) -> None:
    """Values that would lose information or are not allowed are rejected with the column's name."""
    with pytest.raises(RowsError, match=message):
        conformed(**{column: array})


def test_names() -> None:
    """Errors name unknown, repeated and missing columns."""
    with pytest.raises(UnknownColumnError, match="no column nmae; there are: id, name"):
        conformed(nmae=pa.array(["x"]))
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["id", "id"])
    with pytest.raises(RowsError, match="column id occurs twice"):
        conform_rows(twice, SCHEMA)
    with pytest.raises(RowsError, match="column id is missing"):
        conform_rows(pa.record_batch({"name": ["x"]}), SCHEMA)


def test_keys() -> None:
    """Keys are in the order of the primary key, without other columns."""
    assert conform_keys(pa.record_batch({"id": pa.array([3], pa.int16())}), SCHEMA).to_pydict() == {"id": [3]}
    with pytest.raises(RowsError, match="column name is not part of the primary key"):
        conform_keys(pa.record_batch({"id": [1], "name": ["x"]}), SCHEMA)
    with pytest.raises(RowsError, match="no primary key"):
        conform_keys(pa.record_batch({"id": [1]}), RowSchema(SCHEMA.columns))


@pytest.mark.parametrize("offsets", [(0, 99, 1), (0, 0, 1)], ids=["offsets", "text"])
def test_invalid_arrow_data(offsets: tuple[int, ...]) -> None:
    """A batch with invalid offsets or invalid UTF-8 is rejected."""
    buffers = [None, pa.py_buffer(struct.pack("<3i", *offsets)), pa.py_buffer(b"\xff")]
    broken = pa.Array.from_buffers(pa.string(), 2, buffers)
    with pytest.raises(RowsError, match="not valid Arrow data"):
        conform_rows(pa.record_batch({"id": [1, 2], "name": broken}), SCHEMA)
