"""Accelerated reads: columns and conditions of one scan reach the stores, and no other scan."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrameReader, SparkSession

from evenkeel.client import Client, TableClient, col
from evenkeel.wire.flight import ReadRequest
from evenkeel_spark import accelerate, columnar
from tests.spark.stores import PARTITIONS, Stores

ROWS_ALONE = pytest.mark.parametrize("spark", ["rows"], indirect=True)
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

JUDGED = [
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
    """What tasks asked for, and not the driver, which only sees whether a condition makes sense."""
    return {str(request.filter) for request in asked if request.pin}


@ACCELERATED
def test_a_scan_asks_for_its_columns_and_rows(
    source: DataFrameReader, table: TableClient, asked: list[ReadRequest]
) -> None:
    """Spark's own `where` and `select` are judged by stores, and by Spark once more."""
    frame = source.load("kinds").where("id >= 90 and name is not null").select("name")
    assert frame.count() == len([number for number in range(90, 100) if number % 7])
    assert conditions(asked) == {"['and', ['>=', 'id', 90]]"}
    assert {request.columns for request in asked if request.pin} == {("id", "name")}


@ACCELERATED
def test_conditions_of_one_scan_reach_no_other(
    source: DataFrameReader, table: TableClient, asked: list[ReadRequest]
) -> None:
    """In whatever order scans of a frame are planned and run: each has its own, and the frame none."""
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
def test_the_option_holds_too(source: DataFrameReader, table: TableClient, asked: list[ReadRequest]) -> None:
    """Rows fulfil the option's condition and the query's, whatever the case of the option's name."""
    frame = source.option("FILTER", (col("id") < 10).json()).load("kinds")
    assert sorted(row.id for row in frame.where("id > 7").collect()) == [8, 9]
    assert conditions(asked) == {"['and', ['>', 'id', 7], ['<', 'id', 10]]"}


@ACCELERATED
def test_rows_are_counted_by_one_column(source: DataFrameReader, table: TableClient, asked: list[ReadRequest]) -> None:
    """A query that wants none gets the first."""
    assert source.load("kinds").count() == 100
    read = [request for request in asked if request.pin]
    assert {request.columns for request in read} == {("id",)}
    assert len(read) == PARTITIONS


@ACCELERATED
def test_conditions_mean_what_spark_says(spark: SparkSession, source: DataFrameReader, table: TableClient) -> None:
    """With and without stores that judge them: the same rows."""
    frame = source.load("kinds")
    plain = spark.createDataFrame([_row(number) for number in range(100)], frame.schema)
    judged = plain.selectExpr("id", *(f"({condition}) as c{place}" for place, condition in enumerate(JUDGED))).collect()
    for place, condition in enumerate(JUDGED):
        found = sorted(row.id for row in frame.where(condition).collect())
        assert found == sorted(row.id for row in judged if row[f"c{place}"]), condition


@ACCELERATED
def test_every_value_comes_by_columns(spark: SparkSession, source: DataFrameReader, table: TableClient) -> None:
    """Nulls, decimals and text are what they are."""
    frame = source.load("kinds")
    assert "ColumnarToRow" in frame._jdf.queryExecution().toString()
    shown = {str(row.asDict()) for row in frame.collect()}
    assert shown == {str(_row(number)) for number in range(100)}


@ROWS_ALONE
def test_another_spark_is_read_by_rows(
    spark: SparkSession, source: DataFrameReader, table: TableClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Spark that lacks what the shim leans on is left as it is, and a warning says so."""
    monkeypatch.setattr(columnar, "_RUNNER", "org.apache.spark.NotThere")
    with pytest.warns(UserWarning, match="tables are read row by row"):
        assert not accelerate(spark)
    frame = source.load("kinds").where("id < 3")
    assert "ColumnarToRow" not in frame._jdf.queryExecution().toString()
    assert frame.count() == 3


def test_spark_connect_is_read_by_rows() -> None:
    """There is no Java to talk to."""
    with pytest.warns(UserWarning, match="tables are read row by row"):
        assert not accelerate(object())
