"""Accelerated reads: columns and conditions of a scan reach the stores, and affect no other scan."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrameReader, SparkSession

from evenkeel.client import Client, TableClient, col
from evenkeel.wire.flight import ReadRequest
from evenkeel_spark import accelerate, columnar_reads
from tests.spark.stores import PARTITIONS, Stores

NOT_ACCELERATED = pytest.mark.parametrize("spark", ["rows"], indirect=True)
ACCELERATED = pytest.mark.parametrize("spark", ["columns"], indirect=True)
COLUMNS: list[dict[str, Any]] = [
    {"name": "id", "type": "int64", "nullable": False},
    {"name": "small", "type": "int8"},
    {"name": "name", "type": "string"},
    {"name": "price", "type": "decimal(10,2)"},
    {"name": "ratio", "type": "float64"},
    {"name": "day", "type": "date"},
    {"name": "open", "type": "bool"},
]

CONDITIONS = [
    "small = -1",
    "small <> -1",
    "not (small = -1)",
    "small <=> null",
    "small is null or id = 8",
    "small > 0 and small < 2 or id in (1, 2, 3, 200)",
    "id not in (1, 2, 3)",
    "id in (1, null)",
    "id = 1 or ratio > 2",
    "not (id = 1 or ratio > 2)",
    "ratio > 5",
    "ratio = double('nan')",
    "name like 'ä1%'",
    "name >= 'ä'",
    "name = 'Ä2\\'\"\\\\'",
    "name = concat('Ä2', char(0))",
    "price > 5.05",
    "day = date'2024-01-03'",
    "open",
    "not open",
    "id > 9223372036854775806",
    "id = 1.5",
    "id < 5 and id > 10",
]


def _row(number: int) -> dict[str, Any]:
    if number % 7 == 0:
        return {"id": number} | dict.fromkeys(("small", "name", "price", "ratio", "day", "open"))
    return {
        "id": number,
        "small": number % 5 - 2,
        "name": f"{'Ää'[number % 2]}{number % 11}'\"\\",
        "price": Decimal(10 * number).scaleb(-2),
        "ratio": float("nan") if number % 3 == 0 else number / 3,
        "day": date(2024, 1, 1 + number % 20),
        "open": number % 2 == 0,
    }


@pytest.fixture(scope="module")
def table(stores: Stores) -> Iterator[TableClient]:
    with Client(stores.endpoints.split(",")) as client:
        made = client.table(stores.table("kinds", COLUMNS))
        made.upsert([_row(number) for number in range(100)])
        yield made


def conditions(asked: list[ReadRequest]) -> set[str]:
    """Return the conditions of tasks; the driver, which only validates a condition, uses no pin."""
    return {str(request.filter) for request in asked if request.pin}


@ACCELERATED
def test_a_scan_reads_only_its_columns_and_rows(
    source: DataFrameReader, table: TableClient, asked: list[ReadRequest]
) -> None:
    """Stores evaluate Spark's `where` and `select`, and Spark evaluates the condition again."""
    frame = source.load("kinds").where("id >= 90 and name is not null").select("name")
    assert frame.count() == len([number for number in range(90, 100) if number % 7])
    assert conditions(asked) == {"['and', ['>=', 'id', 90]]"}
    assert {request.columns for request in asked if request.pin} == {("id", "name")}


@ACCELERATED
def test_conditions_of_a_scan_affect_no_other(
    source: DataFrameReader, table: TableClient, asked: list[ReadRequest]
) -> None:
    """Each scan of a DataFrame has its own conditions, in any order of planning and running."""
    frame = source.load("kinds")
    few, many = frame.where("id < 3"), frame.where("id >= 50")
    few.explain()
    assert frame.count() == 100
    assert conditions(asked) == {"None"}
    many.explain()
    asked.clear()
    assert few.union(many).union(frame).count() == 3 + 50 + 100
    assert conditions(asked) == {"['and', ['<', 'id', 3]]", "['and', ['>=', 'id', 50]]", "None"}
    asked.clear()
    assert sorted(row.id for row in few.collect()) == [0, 1, 2]
    assert conditions(asked) == {"['and', ['<', 'id', 3]]"}
    assert few.join(many, "id").count() == 0
    assert frame.count() == 100


@ACCELERATED
def test_the_option_filter_also_applies(source: DataFrameReader, table: TableClient, asked: list[ReadRequest]) -> None:
    """Rows match the conditions of the option and of the query; the option's name is case-insensitive."""
    frame = source.option("FILTER", (col("id") < 10).json()).load("kinds")
    assert sorted(row.id for row in frame.where("id > 7").collect()) == [8, 9]
    assert conditions(asked) == {"['and', ['>', 'id', 7], ['<', 'id', 10]]"}


@ACCELERATED
def test_counting_reads_one_column(source: DataFrameReader, table: TableClient, asked: list[ReadRequest]) -> None:
    """A query that needs no column reads the first one."""
    assert source.load("kinds").count() == 100
    read = [request for request in asked if request.pin]
    assert {request.columns for request in read} == {("id",)}
    assert len(read) == PARTITIONS


@ACCELERATED
def test_conditions_match_the_same_rows_as_in_spark(
    spark: SparkSession, source: DataFrameReader, table: TableClient
) -> None:
    """A condition matches the same rows with and without pushdown to the stores."""
    frame = source.load("kinds")
    plain = spark.createDataFrame([_row(number) for number in range(100)], frame.schema)
    expected = plain.selectExpr(
        "id", *(f"({condition}) as c{place}" for place, condition in enumerate(CONDITIONS))
    ).collect()
    for place, condition in enumerate(CONDITIONS):
        found = sorted(row.id for row in frame.where(condition).collect())
        assert found == sorted(row.id for row in expected if row[f"c{place}"]), condition


@ACCELERATED
def test_values_of_columnar_reads(spark: SparkSession, source: DataFrameReader, table: TableClient) -> None:
    """Columnar reads return nulls, decimals and text unchanged."""
    frame = source.load("kinds")
    assert "ColumnarToRow" in frame._jdf.queryExecution().toString()
    shown = {str(row.asDict()) for row in frame.collect()}
    assert shown == {str(_row(number)) for number in range(100)}


@NOT_ACCELERATED
def test_another_spark_is_read_by_rows(
    spark: SparkSession, source: DataFrameReader, table: TableClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Spark lacks an internal class, `accelerate` warns and changes nothing."""
    monkeypatch.setattr(columnar_reads, "_RUNNER", "org.apache.spark.NotThere")
    with pytest.warns(UserWarning, match="tables are read row by row"):
        assert not accelerate(spark)
    frame = source.load("kinds").where("id < 3")
    assert "ColumnarToRow" not in frame._jdf.queryExecution().toString()
    assert frame.count() == 3


def test_spark_connect_is_read_by_rows() -> None:
    """Spark Connect has no access to the JVM."""
    with pytest.warns(UserWarning, match="tables are read row by row"):
        assert not accelerate(object())
