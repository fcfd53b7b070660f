"""Spark reads tables: a task to each partition, all at one moment."""

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
from evenkeel_spark.moments import Moment, open_at
from evenkeel_spark.options import read_options
from evenkeel_spark.reading import Reader, Scan, Split
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


def test_garbage_is_not_looked_for_among_modules(
    stores: Stores, orders: TableClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's Python has a collection after each task: from the first batch on it passes over what is loaded."""
    done: list[str] = []
    monkeypatch.setattr(gc, "collect", partial(done.append, "collect"))
    monkeypatch.setattr(gc, "freeze", partial(done.append, "freeze"))
    options = read_options({"table": "orders", "endpoints": stores.endpoints})
    reader = Reader(Scan(options, ("id",), None, "garbage"), StructType().add("id", "long", False))
    assert sum(batch.num_rows for number in range(PARTITIONS) for batch in reader.read(Split(number))) == 100
    assert done == ["collect", "freeze"]


def test_columns_reach_the_store(source: DataFrameReader, orders: TableClient, asked: list[ReadRequest]) -> None:
    """By option or by schema, in any order: nothing else is read."""
    frame = source.option("columns", "customer,id").load("orders")
    assert frame.columns == ["customer", "id"]
    assert frame.filter("id = 4").collect() == [("c1", 4)]
    assert source.schema("customer string").load("orders").distinct().count() == 3
    assert {request.columns for request in asked} == {("customer", "id"), ("customer",)}


def test_conditions_reach_the_store(source: DataFrameReader, orders: TableClient, asked: list[ReadRequest]) -> None:
    """Stores send only the rows that fulfil the option's condition."""
    condition = (col("customer") == "c1") & (col("id") < 50)
    frame = source.option("filter", condition.json()).load("orders")
    assert frame.count() == 17
    assert {str(request.filter) for request in asked} == {str(condition.tree)}


def test_conditions_of_one_frame_are_told_apart(
    spark: SparkSession, source: DataFrameReader, orders: TableClient
) -> None:
    """Also where Spark hands conditions to Python sources, and keeps what it planned for one for all the others."""
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


def test_used_again_a_frame_shows_what_is_new(
    source: DataFrameReader, stores: Stores, client: Client, asked: list[ReadRequest]
) -> None:
    """Each query has a moment of its own, though Spark plans a DataFrame only once."""
    table = client.table(stores.table("growing", ORDERS))
    frame = source.load("growing")
    counts = []
    for number in range(3):
        table.upsert([{"id": number}])
        counts.append(frame.count())
    assert counts == [1, 2, 3]
    assert len({request.pin for request in asked}) == 3
    assert frame.rdd.count() == 3, "outside of queries too"


@contextmanager
def versions_of(table: TableClient) -> Iterator[None]:
    """Write ever new versions of all rows meanwhile."""
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


def test_one_moment_while_writes_go_on(source: DataFrameReader, stores: Stores, client: Client) -> None:
    """Two reads of a table in one query see the same version of every row."""
    table = client.table(stores.table("changing", ORDERS))
    table.upsert([{"id": number, "customer": "v0"} for number in range(200)])
    one = source.option("columns", "id,customer").load("changing")
    other = source.option("columns", "customer,id").load("changing").withColumnRenamed("customer", "again")
    with versions_of(table):
        rows = one.join(other, "id").collect()
    assert len(rows) == 200
    assert [row for row in rows if row.customer != row.again] == []
    assert {row.customer for row in rows} != {"v0"}, "nothing was written meanwhile"


def test_query_that_outlives_its_pins(source: DataFrameReader, orders: TableClient, stores: Stores) -> None:
    """It ends with an error that says what to do, and never goes on with other rows."""
    rows = source.option("pinSeconds", "100").load("orders").toLocalIterator()
    next(rows)
    stores.pass_time(101)
    with pytest.raises(Py4JJavaError, match="were kept for 100 s, and that is over: run it again, with a higher"):
        list(rows)


def test_task_that_dies_while_it_pins_is_helped(orders: TableClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """If nobody finishes what the first task began, another one does: with the moment that there is already."""
    monkeypatch.setattr("evenkeel_spark.moments._OTHERS_PATIENCE", 0.2)
    moment = Moment("spark-dying", 100)
    begun = orders.pin(moment.name, seconds=100, partitions=[0])[0].index
    orders.upsert([{"id": number} for number in range(1000, 1100)])
    indexes = {}
    for partition in (3, 0, 1, 2):
        with open_at(orders, partition, moment, partial(orders.stream, partition)) as stream:
            indexes[partition] = stream.index
    assert indexes[0] == begun
    pins = orders.pin(moment.name, seconds=100)
    assert {partition: pin.index for partition, pin in pins.items()} == indexes
    assert not any(pin.created for pin in pins.values())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": "nothing"}, "no table is called nothing"),
        ({"columns": "id,nothing"}, "the table has no column nothing; there are: id, customer, amount"),
        ({"filter": '["=", "nothing", 1]'}, "the table has no column nothing"),
        ({"filter": '["=", "id", "one"]'}, "column id: 'one' is not an integer in range"),
        ({"filter": '["like", "id", 1]'}, "no operator is called like"),
        ({"tabel": "orders"}, "option tabel: there is none of that name"),
        ({"endpoints": "grpc://127.0.0.1:1", "deadline": "0.2"}, "no store answers: grpc://127.0.0.1:1"),
        ({"ca": "/nowhere.crt"}, "/nowhere.crt: No such file"),
    ],
)
def test_what_cannot_be_read(source: DataFrameReader, orders: TableClient, options: dict[str, str], words: str) -> None:
    """It is refused before a task runs, with what is wrong in the message."""
    with pytest.raises(PySparkException) as refused:
        source.options(**({"table": "orders"} | options)).load().count()
    assert words in str(refused.value)


def test_type_that_is_another(source: DataFrameReader, orders: TableClient) -> None:
    """A schema that a user wrote converts nothing."""
    with pytest.raises(PySparkException, match="column id is BIGINT, not STRING"):
        source.schema("id string").load("orders").count()


def test_table_dropped_in_mid_scan(spark: SparkSession, source: DataFrameReader, stores: Stores) -> None:
    """The query fails and says so; the session goes on."""
    stores.table("fleeting", ORDERS)
    rows = source.load("fleeting").toLocalIterator()
    stores.drop("fleeting")
    with pytest.raises(Py4JJavaError, match=r"no table is called fleeting|was dropped"):
        list(rows)
    assert spark.range(3).count() == 3
