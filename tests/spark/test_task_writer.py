"""Spark writes tables: each row once, also with retries and speculative tasks."""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from evenkeel.client import Client, TableClient
from evenkeel.errors import RowsError
from evenkeel.rows.conform import conform_rows
from evenkeel.rows.partitioning import partitions_of
from evenkeel.rows.row_schema import ColumnDef, RowSchema
from evenkeel_spark import EvenkeelDataSource
from evenkeel_spark.source_options import read_options
from evenkeel_spark.task_writer import Job, Writer, parts_of, write
from tests.spark.stores import PARTITIONS, Stores
from tests.store.serving import ORDERS

NUMBERS = itertools.count()
EVENTS: list[dict[str, Any]] = [{"name": "kind", "type": "string"}, {"name": "number", "type": "int64"}]


@pytest.fixture(scope="module")
def client(stores: Stores) -> Iterator[Client]:
    with Client(stores.endpoints.split(",")) as made:
        yield made


@pytest.fixture
def orders(stores: Stores, client: Client) -> TableClient:
    """An empty table that retains its changes."""
    return client.table(stores.table(f"orders-{next(NUMBERS)}", ORDERS, changes={}))


@pytest.fixture
def events(stores: Stores, client: Client) -> TableClient:
    """An empty table without a primary key."""
    return client.table(stores.table(f"events-{next(NUMBERS)}", EVENTS, primary_key=[], partitions=1))


def save(frame: DataFrame, table: TableClient, stores: Stores, *, source: str = "evenkeel", **options: str) -> None:
    options = {"endpoints": stores.endpoints} | options
    frame.write.format(source).options(**options).mode("append").save(table.name)


def changes(table: TableClient) -> int:
    return int(table.changes().rows.num_rows)


def test_rows_are_upserted(spark: SparkSession, orders: TableClient, stores: Stores) -> None:
    """A row replaces the row with its key; missing columns have their defaults."""
    save(spark.range(100).selectExpr("id", "'first' as customer"), orders, stores)
    save(spark.range(50, 150).selectExpr("id", "'second' as customer"), orders, stores)
    found = {row["id"]: (row["customer"], row["amount"]) for row in orders.scan().to_pylist()}
    assert found == {number: ("second" if number >= 50 else "first", Decimal("0.00")) for number in range(150)}
    assert changes(orders) == 200


def test_rows_are_appended(spark: SparkSession, events: TableClient, stores: Stores) -> None:
    """A table without a primary key keeps every row, also equal ones."""
    save(spark.range(30).selectExpr("'x' as kind", "id % 3 as number"), events, stores)
    assert sorted(events.scan().column("number").to_pylist()) == sorted([0, 1, 2] * 10)


def test_last_row_of_a_key_wins(spark: SparkSession, orders: TableClient, stores: Stores) -> None:
    """The last row of a key in a task wins."""
    made = spark.range(3000).coalesce(1).selectExpr("id % 10 as id", "concat('v', id) as customer")
    save(made, orders, stores)
    assert {row["id"]: row["customer"] for row in orders.scan().to_pylist()} == {
        number: f"v{2990 + number}" for number in range(10)
    }


@pytest.mark.parametrize("dies", ["after all", "between partitions"])
def test_retried_task_writes_nothing_twice(spark: SparkSession, orders: TableClient, stores: Stores, dies: str) -> None:
    """A retry of a task that died after writing writes nothing, although its rows are in another order."""

    class DyingWriter(Writer):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
            context = TaskContext.get()
            assert context is not None
            rows = pa.Table.from_batches(list(iterator))
            if context.attemptNumber() > 0:
                rows = rows.take(list(reversed(range(rows.num_rows))))
                return super().write(iter(rows.to_batches(max_chunksize=7)))
            if dies == "between partitions":
                TableClient.put = dying(TableClient.put)  # type: ignore[method-assign]
            super().write(iter(rows.to_batches()))
            os._exit(1)

    class Dying(EvenkeelDataSource):
        @classmethod
        def name(cls) -> str:
            return "dying"

        def writer(self, schema: StructType, overwrite: bool) -> Writer:
            return DyingWriter(self._given)

    def dying(put: Any) -> Any:
        def wrapped(self: TableClient, partition: int, *more: Any, **options: Any) -> Any:
            put(self, partition, *more, **options)
            if partition == 1:
                os._exit(1)

        return wrapped

    spark.dataSource.register(Dying)
    save(spark.range(1000).repartition(2).selectExpr("id", "'x' as customer"), orders, stores, source="dying")
    assert orders.count() == 1000
    assert changes(orders) == 1000


def batch(ids: list[int], **more: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": ids, "customer": [more.get("customer", "x")] * len(ids)})


def job(stores: Stores, table: TableClient) -> Job:
    return Job(read_options({"table": table.name, "endpoints": stores.endpoints}), "job")


def test_speculative_copies_write_once(orders: TableClient, stores: Stores) -> None:
    """Concurrent attempts with different orders of rows write each row once."""
    ids = list(range(500))
    attempts = []
    for seed in range(3):
        shuffled = random.Random(seed).sample(ids, len(ids))
        pieces = [batch(shuffled[start : start + 90]) for start in range(0, 500, 90)]
        attempts.append(threading.Thread(target=write, args=(job(stores, orders), 7, pieces)))
    for attempt in attempts:
        attempt.start()
    for attempt in attempts:
        attempt.join()
    assert orders.count() == changes(orders) == 500


def test_attempt_with_other_rows_loses_none(orders: TableClient, stores: Stores) -> None:
    """If the rows of a retry differ, all of them are written."""
    write(job(stores, orders), 0, [batch(list(range(100)), customer="first")])
    write(job(stores, orders), 0, [batch(list(range(50, 150)), customer="second")])
    found = {row["id"]: row["customer"] for row in orders.scan().to_pylist()}
    assert found == {number: "second" if number >= 50 else "first" for number in range(150)}


def test_tasks_and_jobs_are_separate(events: TableClient, stores: Stores) -> None:
    """The same rows from another task or job are written again."""
    rows = pa.RecordBatch.from_pydict({"kind": ["x"], "number": [1]})
    one = job(stores, events)
    for written_job, task in [(one, 0), (one, 0), (one, 1), (Job(one.options, "other"), 0)]:
        write(written_job, task, [rows])
    assert events.count() == 3


WIDE = RowSchema((ColumnDef("id", "int64", False), ColumnDef("text", "string")), ("id",), ("id",), PARTITIONS)


def test_parts_do_not_depend_on_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rows make the same tokens and batches in any order, and every row is in its partition."""
    monkeypatch.setattr("evenkeel_spark.task_writer._BATCH_BYTES", 2000)
    rows = conform_rows(
        pa.RecordBatch.from_pydict({"id": list(range(1000)), "text": ["x" * (n % 50) for n in range(1000)]}), WIDE
    )
    order = random.Random(5).sample(range(1000), 1000)
    made, again = list(parts_of(rows, WIDE)), list(parts_of(rows.take(order), WIDE))
    assert [part[:2] for part in made] == [part[:2] for part in again]
    assert [part.partition for part in made] == list(range(PARTITIONS))
    for part, other in zip(made, again, strict=True):
        assert len(part.batches) > 1
        assert [b.sort_by("id") for b in part.batches] == [b.sort_by("id") for b in other.batches]
        assert {int(p) for b in part.batches for p in partitions_of(b, WIDE)} == {part.partition}
    assert sum(b.num_rows for part in made for b in part.batches) == 1000


def test_large_values_make_more_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch exceeds the limit, also if a few rows have most of the bytes."""
    monkeypatch.setattr("evenkeel_spark.task_writer._MAX_BATCH_BYTES", 100_000)
    texts = ["x" * 30_000 if number < 20 else "" for number in range(200)]
    rows = conform_rows(pa.RecordBatch.from_pydict({"id": list(range(200)), "text": texts}), WIDE)
    for part in parts_of(rows, WIDE):
        assert max(b.nbytes for b in part.batches) <= 100_000


def test_rows_beyond_the_memory_limit_are_written_in_parts(
    orders: TableClient, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts are written in order, so the last row of a key wins, and a retry with the same order writes nothing."""
    monkeypatch.setattr("evenkeel_spark.task_writer._COLLECTED_BYTES", 1000)
    pieces = [batch(list(range(50)), customer=f"v{number}") for number in range(8)]
    for _ in range(2):
        assert write(job(stores, orders), 0, pieces) == 400
    assert set(orders.scan().column("customer").to_pylist()) == {"v7"}
    assert changes(orders) == 400


def test_nulls_in_keys(spark: SparkSession, orders: TableClient, stores: Stores) -> None:
    """A task with a null in a key writes nothing, and the error names the column."""
    made = spark.range(100).coalesce(1).selectExpr("if(id = 99, null, id) as id", "'x' as customer")
    with pytest.raises(PySparkException, match="column id has 1 nulls, but is not nullable"):
        save(made, orders, stores)
    assert orders.count() == 0


def test_value_out_of_range(orders: TableClient, stores: Stores) -> None:
    """A value that a column cannot hold is rejected with the column's name."""
    rows = pa.RecordBatch.from_pydict({"id": [1], "amount": pa.array([Decimal("12345678901.00")])})
    with pytest.raises(RowsError, match="column amount does not fit"):
        write(job(stores, orders), 0, [rows])


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["id", "'x' as custmer"], "the table has no column custmer; there are: id, customer, amount"),
        (["'x' as customer"], "column id is missing"),
        (["cast(id as string) as id"], "column id is of type int64, but the batch has string"),
    ],
)
def test_frames_with_wrong_columns(
    spark: SparkSession, orders: TableClient, stores: Stores, columns: list[str], words: str
) -> None:
    """A DataFrame with wrong columns is rejected before a task runs."""
    with pytest.raises(PySparkException, match=words):
        save(spark.range(10).selectExpr(*columns), orders, stores)


def test_overwriting_is_refused(spark: SparkSession, orders: TableClient, stores: Stores) -> None:
    """The error names the alternative; Spark itself rejects modes that depend on the existence of a table."""
    orders.upsert([{"id": 1}])
    writer = spark.range(3).write.format("evenkeel").option("endpoints", stores.endpoints)
    with pytest.raises(PySparkException, match=r'mode "overwrite": .* use .mode\("append"\)'):
        writer.mode("overwrite").save(orders.name)
    with pytest.raises(PySparkException, match=r"(?i)errorifexists"):
        writer.mode("error").save(orders.name)
    assert orders.count() == 1
