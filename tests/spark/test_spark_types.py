"""Every type, with its extreme values, survives a round trip through Spark."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql import types as t

from evenkeel.client import Client
from evenkeel.errors import InvalidInputError, RowsError, UnknownColumnError
from evenkeel.rows.row_schema import ColumnDef, RowSchema, arrow_schema
from evenkeel_spark.spark_types import batch_schema, check_readable, check_writable, spark_schema
from tests.spark.stores import Stores

KINDS: dict[str, list[Any]] = {
    "bool": [True, False],
    "int8": [-128, 127],
    "int16": [-(2**15), 2**15 - 1],
    "int32": [-(2**31), 2**31 - 1],
    "int64": [-(2**63), 2**63 - 1],
    "float32": [float("-inf"), 1.5],
    "float64": [5e-324, -1.7976931348623157e308],
    "string": ["", "naïve 🛟\n\0"],
    "bytes": [b"", bytes(range(256))],
    "date": [date(1, 1, 1), date(9999, 12, 31)],
    "timestamp": [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)],
    "decimal(38,10)": [Decimal("-9999999999999999999999999999.9999999999"), Decimal("0.0000000001")],
    "decimal(5,0)": [Decimal(-99999), Decimal(7)],
}
COLUMNS: list[dict[str, Any]] = [{"name": "id", "type": "int32", "nullable": False}] + [
    {"name": f"c{number}", "type": kind} for number, kind in enumerate(KINDS)
]
SCHEMA = RowSchema(tuple(ColumnDef(**column) for column in COLUMNS), ("id",), ("id",))
ROWS = pa.Table.from_pylist(
    [
        {"id": place, **{f"c{number}": values[place] for number, values in enumerate(KINDS.values())}}
        for place in range(2)
    ]
    + [{"id": 2}],
    schema=arrow_schema(SCHEMA),
)


def sorted_rows(table: pa.Table) -> pa.Table:
    return table.sort_by("id").combine_chunks()


def test_round_trip(spark: SparkSession, source: DataFrameReader, stores: Stores) -> None:
    """Values that a client wrote are the same after Spark copied them to another table."""
    here, there = stores.table("here", COLUMNS), stores.table("there", COLUMNS)
    with Client(stores.endpoints.split(",")) as client:
        client.table(here).upsert(ROWS)
        frame = source.load(here)
        assert frame.schema == spark_schema(SCHEMA, None)
        frame.write.format("evenkeel").option("endpoints", stores.endpoints).mode("append").save(there)
        assert sorted_rows(client.table(there).scan()).equals(sorted_rows(ROWS))


def test_timestamps_and_dates(spark: SparkSession, source: DataFrameReader, stores: Stores) -> None:
    """Timestamps and dates do not depend on the session's time zone."""
    columns: list[dict[str, Any]] = [
        {"name": "id", "type": "int32", "nullable": False},
        {"name": "at", "type": "timestamp"},
        {"name": "day", "type": "date"},
    ]
    name = stores.table("instants", columns)
    made = spark.sql("select 1 as id, timestamp'2026-07-01 00:30:00' as at, date'2026-07-01' as day")
    made.write.format("evenkeel").option("endpoints", stores.endpoints).mode("append").save(name)
    with Client(stores.endpoints.split(",")) as client:
        [row] = client.table(name).scan().to_pylist()
    # The session is in New York.
    assert row == {"id": 1, "at": datetime(2026, 7, 1, 4, 30, tzinfo=UTC), "day": date(2026, 7, 1)}
    assert source.load(name).selectExpr("cast(at as string)", "cast(day as string)").collect() == [
        ("2026-07-01 00:30:00", "2026-07-01")
    ]


def test_batches_have_the_schema_that_spark_expects() -> None:
    """Spark requires the exact schema of Arrow batches."""
    assert batch_schema(spark_schema(SCHEMA, None)).equals(arrow_schema(SCHEMA))
    assert batch_schema(spark_schema(SCHEMA, ["c3", "id"])).names == ["c3", "id"]


def test_schema_of_a_user() -> None:
    """A user's schema may omit columns, but not add or convert any."""
    check_readable(t.StructType([t.StructField("c7", t.StringType())]), SCHEMA)
    with pytest.raises(UnknownColumnError, match="no column c99; there are: id, c0"):
        check_readable(t.StructType([t.StructField("c99", t.StringType())]), SCHEMA)
    with pytest.raises(InvalidInputError, match="column id is INT, not BIGINT; read it as it is, and cast it"):
        check_readable(t.StructType([t.StructField("id", t.LongType())]), SCHEMA)


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"id": t.IntegerType(), "c99": t.LongType()}, UnknownColumnError, "no column c99"),
        ({"c7": t.StringType()}, RowsError, "column id is missing"),
        ({"id": t.StringType()}, RowsError, "column id is of type int32, but the batch has string"),
        ({"id": t.IntegerType(), "c10": t.TimestampNTZType()}, RowsError, "column c10 is of type timestamp"),
        ({"id": t.IntegerType(), "c7": t.ArrayType(t.StringType())}, RowsError, "column c7"),
    ],
)
def test_wrong_columns(fields: dict[str, t.DataType], error: type[Exception], words: str) -> None:
    """A DataFrame with wrong columns is rejected before a task runs, with the column's name."""
    given = t.StructType([t.StructField(name, kind) for name, kind in fields.items()])
    with pytest.raises(error, match=words):
        check_writable(given, SCHEMA)


def test_smaller_types_are_accepted() -> None:
    """Types whose values fit may be written; each task checks the values."""
    check_writable(t.StructType([t.StructField("id", t.ByteType()), t.StructField("c4", t.IntegerType())]), SCHEMA)
