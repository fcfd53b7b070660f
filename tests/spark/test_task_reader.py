"""Spark reads tables: one task for each partition, all at the same pin."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql.types import StructType

from evenkeel.client import Client, TableClient, col
from evenkeel.wire.flight import ReadRequest
from evenkeel_spark.query_pins import QueryPin, open_at_pin
from evenkeel_spark.source_options import read_options
from evenkeel_spark.task_reader import Reader, Scan, Split
from tests.spark.stores import PARTITIONS, Stores
from tests.store.serving import ORDERS


@pytest.fixture(scope="module")
def client(stores: Stores) -> Iterator[Client]:
    with Client(stores.endpoints.split(",")) as made:
        yield made


@pytest.fixture(scope="module")
def orders(stores: Stores, client: Client) -> TableClient:
    """A hundred orders."""
    table = client.table(stores.table("orders", ORDERS))
    table.upsert([{"id": number, "customer": f"c{number % 3}"} for number in range(100)])
    return table


def test_one_task_for_each_partition(source: DataFrameReader, orders: TableClient, asked: list[ReadRequest]) -> None:
    """Every partition is read once, by its own task, at the same pin."""
    frame = source.load("orders")
    assert frame.rdd.getNumPartitions() == PARTITIONS
    assert sorted(row.id for row in frame.collect()) == list(range(100))
    read = [request for request in asked if request.pin]
    assert {request.partition for request in read} == set(range(PARTITIONS))
    assert len({request.pin for request in read}) == 1


def test_loaded_objects_are_excluded_from_garbage_collection(
    stores: Stores, orders: TableClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch freezes all loaded objects, once per process."""
    done: list[str] = []
    monkeypatch.setattr(gc, "collect", partial(done.append, "collect"))
    monkeypatch.setattr(gc, "freeze", partial(done.append, "freeze"))
    options = read_options({"table": "orders", "endpoints": stores.endpoints})
    reader = Reader(Scan(options, ("id",), None, "garbage"), StructType().add("id", "long", False))
    assert sum(batch.num_rows for number in range(PARTITIONS) for batch in reader.read(Split(number))) == 100
    assert done == ["collect", "freeze"]


def test_columns_reach_the_store(source: DataFrameReader, orders: TableClient, asked: list[ReadRequest]) -> None:
    """Only the columns of the option or the schema are read, in any order."""
    frame = source.option("columns", "customer,id").load("orders")
    assert frame.columns == ["customer", "id"]
    assert frame.filter("id = 4").collect() == [("c1", 4)]
    assert source.schema("customer string").load("orders").distinct().count() == 3
    assert {request.columns for request in asked} == {("customer", "id"), ("customer",)}


def test_conditions_reach_the_store(source: DataFrameReader, orders: TableClient, asked: list[ReadRequest]) -> None:
    """Stores send only the rows that match the option's condition."""
    condition = (col("customer") == "c1") & (col("id") < 50)
    frame = source.option("filter", condition.json()).load("orders")
    assert frame.count() == 17
    assert {str(request.filter) for request in asked} == {str(condition.tree)}


def test_conditions_of_queries_are_separate(spark: SparkSession, source: DataFrameReader, orders: TableClient) -> None:
    """Queries do not affect each other, also if Spark's own pushdown reuses the plan of another query."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = source.load("orders")
        assert frame.where("id = 1").count() == 1
        assert frame.count() == 100
        few, many = frame.where("id < 3"), frame.where("customer = 'c1' and id >= 50")
        many.explain()
        assert sorted(row.id for row in few.collect()) == [0, 1, 2]
        assert few.union(many).count() == 3 + many.count() == 3 + 16
        assert few.join(frame.where("id > 1"), "id").count() == 1
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_reused_frame_shows_new_rows(
    source: DataFrameReader, stores: Stores, client: Client, asked: list[ReadRequest]
) -> None:
    """Each query has its own pins, although Spark plans a DataFrame only once."""
    table = client.table(stores.table("growing", ORDERS))
    frame = source.load("growing")
    counts = []
    for number in range(3):
        table.upsert([{"id": number}])
        counts.append(frame.count())
    assert counts == [1, 2, 3]
    assert len({request.pin for request in asked}) == 3
    assert frame.rdd.count() == 3, "also without a query"


@contextmanager
def versions_of(table: TableClient) -> Iterator[None]:
    """Keep writing new versions of all rows."""
    over = threading.Event()

    def write() -> None:
        version = 0
        while not over.is_set():
            version += 1
            table.upsert([{"id": number, "customer": f"v{version}"} for number in range(200)])

    writing = threading.Thread(target=write)
    writing.start()
    try:
        yield
    finally:
        over.set()
        writing.join()


def test_consistent_reads_during_writes(source: DataFrameReader, stores: Stores, client: Client) -> None:
    """Two reads of a table in one query see the same version of every row."""
    table = client.table(stores.table("changing", ORDERS))
    table.upsert([{"id": number, "customer": "v0"} for number in range(200)])
    one = source.option("columns", "id,customer").load("changing")
    other = source.option("columns", "customer,id").load("changing").withColumnRenamed("customer", "again")
    with versions_of(table):
        rows = one.join(other, "id").collect()
    assert len(rows) == 200
    assert [row for row in rows if row.customer != row.again] == []
    assert {row.customer for row in rows} != {"v0"}, "nothing was written during the query"


def test_query_that_outlives_its_pins(source: DataFrameReader, orders: TableClient, stores: Stores) -> None:
    """A query whose pins expired fails with a remedy, and never returns other rows."""
    stores.pass_time(0)  # leaders begin to keep log time
    rows = source.option("pinSeconds", "100").load("orders").toLocalIterator()
    next(rows)
    stores.pass_time(101)
    with pytest.raises(
        Py4JJavaError, match="pin of this query expired after 100 s; run the query again, with a higher"
    ):
        list(rows)


def test_another_task_completes_the_pins(orders: TableClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the first task dies before it has pinned all partitions, another task pins the rest."""
    monkeypatch.setattr("evenkeel_spark.query_pins._PIN_TIMEOUT", 0.2)
    query_pin = QueryPin("spark-dying", 100)
    begun = orders.pin(query_pin.name, seconds=100, partitions=[0])[0].index
    orders.upsert([{"id": number} for number in range(1000, 1100)])
    indexes = {}
    for partition in (3, 0, 1, 2):
        with open_at_pin(orders, partition, query_pin, partial(orders.stream, partition)) as stream:
            indexes[partition] = stream.index
    assert indexes[0] == begun
    pins = orders.pin(query_pin.name, seconds=100)
    assert {partition: pin.index for partition, pin in pins.items()} == indexes
    assert not any(pin.created for pin in pins.values())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": "nothing"}, "no table is called nothing"),
        ({"columns": "id,nothing"}, "the table has no column nothing; there are: id, customer, amount"),
        ({"filter": '["=", "nothing", 1]'}, "the table has no column nothing"),
        ({"filter": '["=", "id", "one"]'}, "column id: 'one' is not an integer in range"),
        ({"filter": '["like", "id", 1]'}, "unknown filter operator like"),
        ({"tabel": "orders"}, "option tabel: unknown"),
        ({"endpoints": "grpc://127.0.0.1:1", "deadline": "0.2"}, "no store answers: grpc://127.0.0.1:1"),
        ({"ca": "/nowhere.crt"}, "/nowhere.crt: No such file"),
    ],
)
def test_invalid_reads(source: DataFrameReader, orders: TableClient, options: dict[str, str], words: str) -> None:
    """An invalid read fails before a task runs, with the problem in the message."""
    with pytest.raises(PySparkException) as refused:
        source.options(**({"table": "orders"} | options)).load().count()
    assert words in str(refused.value)


def test_schema_with_another_type(source: DataFrameReader, orders: TableClient) -> None:
    """A user's schema does not convert types."""
    with pytest.raises(PySparkException, match="column id is BIGINT, not STRING"):
        source.schema("id string").load("orders").count()


def test_table_dropped_in_mid_scan(spark: SparkSession, source: DataFrameReader, stores: Stores) -> None:
    """The query fails with the reason, and the session remains usable."""
    stores.table("fleeting", ORDERS)
    rows = source.load("fleeting").toLocalIterator()
    stores.drop("fleeting")
    with pytest.raises(Py4JJavaError, match=r"no table is called fleeting|was dropped"):
        list(rows)
    assert spark.range(3).count() == 3
