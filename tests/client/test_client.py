"""The client with two stores: it finds the right store for every row, and writes each row once."""

from __future__ import annotations

import asyncio
import inspect
import threading
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from evenkeel.client import Client, TableClient, col
from evenkeel.client.aio import AsyncClient, AsyncTableClient
from evenkeel.client.filters import Filter
from evenkeel.client.row_streams import RowStream
from evenkeel.errors import (
    FilterError,
    InvalidInputError,
    RequestError,
    RowsError,
    TableDroppedError,
    TooLargeError,
    UnavailableError,
    UnknownColumnError,
    UnknownPinError,
    UnknownTableError,
)
from evenkeel.protocol.records import Leader, Peer, Stable, StoreRecord, encode
from evenkeel.rows.conform import conform_rows
from evenkeel.rows.partitioning import partitions_of
from evenkeel_store.engine.log_entries import Compare, Hash, Upsert, decode_entry, encode_entry
from tests.store.serving import KEYS, ORDERS, Store, table_record
from tests.wire.support import wait_until


def rows(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"id": number, "customer": f"c{number % 3}", **more} for number in range(count)]


def nested(depth: int) -> list[Any]:
    condition: list[Any] = ["=", "id", 1]
    for _ in range(depth):
        condition = ["not", condition]
    return condition


async def test_rows_go_to_their_partitions_and_come_back(orders: AsyncTableClient) -> None:
    """Rows are spread over all partitions, with defaults, and read back as one table."""
    written = await orders.upsert(rows(100))
    assert written.rows == 100
    assert sorted(written.indexes) == [0, 1, 2, 3]
    found = await orders.scan()
    assert sorted(found.column("id").to_pylist()) == list(range(100))
    assert set(found.column("amount").to_pylist()) == {Decimal("0.00")}
    assert await orders.count() == 100


@pytest.mark.parametrize(
    "made",
    [
        lambda table: table,
        lambda table: table.to_batches()[0],
        lambda table: table.to_reader(),
        lambda table: table.to_pylist(),
    ],
    ids=["table", "batch", "reader", "dicts"],
)
async def test_rows_may_be_arrow_or_dicts(orders: AsyncTableClient, made: Any) -> None:
    """All input types write the same rows."""
    await orders.upsert(made(pa.table({"id": [1, 2], "customer": ["anna", "bert"]})))
    found = await orders.scan(["id", "customer"])
    assert sorted(found.to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "customer": "anna"},
        {"id": 2, "customer": "bert"},
    ]


async def test_missing_dict_keys_have_defaults(orders: AsyncTableClient) -> None:
    """A column that a dict does not name has its default, also if another dict of the call names it."""
    await orders.upsert([{"id": 1}, {"id": 2, "amount": Decimal("7.00")}])
    found = {row["id"]: row["amount"] for row in (await orders.scan()).to_pylist()}
    assert found == {1: Decimal("0.00"), 2: Decimal("7.00")}


async def test_filters_limits_and_counts(orders: AsyncTableClient) -> None:
    """Stores evaluate conditions and limits."""
    await orders.upsert(rows(30, amount=Decimal("2.50")))
    assert await orders.count(col("customer") == "c1") == 10
    assert await orders.count((col("id") < 10) & ~col("id").isin([1, 2])) == 8
    assert await orders.count(col("amount") > Decimal("2.00")) == 30
    assert (await orders.scan(["id"], col("id") >= 5, limit=7)).num_rows == 7


async def test_lookups_and_deletes(orders: AsyncTableClient) -> None:
    """Keys may be plain values; missing keys are ignored."""
    await orders.upsert(rows(10))
    assert sorted((await orders.get([3, 4, 99], ["id"])).column("id").to_pylist()) == [3, 4]
    await orders.delete([3])
    assert (await orders.get([3])).num_rows == 0
    assert await orders.count() == 9


async def test_the_last_row_of_a_key_wins(orders: AsyncTableClient) -> None:
    """The last row of a key in one call wins, also across batches."""
    batches = pa.Table.from_batches(
        [pa.RecordBatch.from_pydict({"id": [1], "customer": [f"v{number}"]}) for number in range(5)]
    )
    await orders.upsert(batches)
    assert (await orders.get([1])).column("customer").to_pylist() == ["v4"]


async def test_pinned_reads(orders: AsyncTableClient) -> None:
    """A read at a pin does not see later writes."""
    await orders.upsert(rows(10))
    async with orders.pinned() as pins:
        await orders.upsert(rows(20, customer="late"))
        found = await orders.scan(pins=pins)
    assert found.num_rows == 10
    assert "late" not in found.column("customer").to_pylist()


async def test_a_pin_is_deleted_when_pinned_is_cancelled(
    orders: AsyncTableClient, stores: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that sets the pin goes on after the cancellation, so its pin must be deleted."""
    await orders.upsert(rows(10))
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()
    pin = TableClient.pin

    def slow_pin(table: TableClient, name: str, **options: Any) -> Any:
        begun.set()
        go_on.wait(10)
        try:
            return pin(table, name, **options)
        finally:
            done.set()

    def held() -> list[str]:
        groups = [group for store in stores for group in store.state_machine.engine.groups.values()]
        return [name for group in groups for name in group.metadata.pins]

    async def read() -> None:
        async with orders.pinned():
            pytest.fail("it was cancelled")

    monkeypatch.setattr(TableClient, "pin", slow_pin)
    reading = asyncio.create_task(read())
    await asyncio.to_thread(begun.wait)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    go_on.set()
    await asyncio.to_thread(done.wait)
    await wait_until(lambda: not held())


async def test_changes_continue_from_a_position(orders: AsyncTableClient) -> None:
    """Each change is returned once."""
    await orders.upsert(rows(5))
    first = await orders.changes()
    assert first.rows.num_rows == 5
    await orders.delete([0])
    second = await orders.changes(first.position)
    assert second.rows.num_rows == 1
    assert (await orders.changes(second.position)).rows.num_rows == 0


async def test_sql(client: AsyncClient, orders: AsyncTableClient) -> None:
    """SQL reads tables by name; invalid SQL is rejected."""
    await orders.upsert(rows(9))
    found = await client.sql("select customer, count(*) as n from orders group by customer order by customer")
    assert found.to_pylist() == [{"customer": f"c{number}", "n": 3} for number in range(3)]
    with pytest.raises(RequestError, match="not a query"):
        await client.sql("selec")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("select count(*) as n from orders a join orders b using (id)", [{"n": 9}]),
        ("select count(*) as n from orders natural join orders b", [{"n": 9}]),
        ('select count(*) as n from main."ORDERS"', [{"n": 9}]),
        ("with o as (select * from orders) select max(id) as n from o", [{"n": 8}]),
        ("with orders as (select 7 as id) select id as n from orders", [{"n": 7}]),
        ("select (select count(*) from orders) as n", [{"n": 9}]),
        ("select 1 as n", [{"n": 1}]),
        ("show tables", [{"name": "orders"}]),
        ("select table_name as n from information_schema.tables", [{"n": "orders"}]),
        ("select count(*) as n from orders, information_schema.tables", [{"n": 9}]),
    ],
)
async def test_sql_finds_its_tables(
    client: AsyncClient, orders: AsyncTableClient, query: str, found: list[dict[str, int]]
) -> None:
    """Tables are found wherever a query names them."""
    await orders.upsert(rows(9))
    assert (await client.sql(query)).to_pylist() == found


@pytest.mark.parametrize(
    ("query", "error", "words"),
    [
        ("select * from nothing", UnknownTableError, "nothing does not exist! There are: orders"),
        ("select nothing from orders", RequestError, "nothing"),
        ("insert into orders values (1)", RequestError, "got INSERT; allowed: one SELECT"),
        ("create table t as select 1", RequestError, "got CREATE"),
        ("select 1; select 2", RequestError, "got SELECT and SELECT"),
        ("", RequestError, "got nothing"),
        (None, RequestError, "got None; allowed: one SELECT, as text"),
        ("select * from connection", UnknownTableError, "connection does not exist"),
    ],
)
async def test_invalid_sql(
    client: AsyncClient, orders: AsyncTableClient, query: str, error: type[Exception], words: str
) -> None:
    """The error describes the problem."""
    with pytest.raises(error, match=words):
        await client.sql(query)


def test_sql_of_a_client_that_is_closed() -> None:
    """A closed client runs no SQL, even if it needs no store."""
    client = Client(["grpc://127.0.0.1:1"])
    client.close()
    with pytest.raises(UnavailableError, match="the client is closed"):
        client.sql("select 1")


async def test_a_table_that_is_recreated(orders: AsyncTableClient, stores: list[Store]) -> None:
    """A table client continues with the new table of the same name, and its number of partitions."""
    await orders.upsert(rows(10))
    for store in stores:
        store.routes.remove(KEYS.table("orders.1"))
        await asyncio.gather(*(group.destroy() for group in store.sidecar.groups.values()))
        store.sidecar.groups.clear()
    with pytest.raises(TableDroppedError, match="table orders was dropped"):
        await orders.count()
    for number, store in enumerate(stores):
        record = table_record(ORDERS, partitions=8, changes={})
        await store.table(record, key="orders.2", partitions=range(4 * number, 4 * number + 4))
        for partition in range(8):
            leader = stores[partition // 4]
            store.routes.put(KEYS.leader("orders.2", partition), encode(Leader(leader.name, 1)))
    async with AsyncClient([stores[1].address]) as other:
        await other.table("orders").upsert(rows(100))
    assert await orders.count() == 100
    await orders.upsert(rows(200))
    assert (await orders.get([150, 151])).num_rows == 2
    assert await orders.partitions() == 8


async def test_added_columns(orders: AsyncTableClient, stores: list[Store]) -> None:
    """`schema` has columns that were added after the client cached the table."""
    await orders.count()
    more = [*ORDERS, {"name": "note", "type": "string"}]
    for store in stores:
        store.routes.put(KEYS.table("orders.1"), table_record(more, partitions=4, changes={}))
    assert (await orders.schema()).names == ["id", "customer", "amount", "note"]


async def test_a_new_table_that_not_all_stores_know(stores: list[Store]) -> None:
    """The client finds a store that knows a new table."""
    await stores[1].table(table_record(ORDERS), key="young.1")
    stores[0].routes.put(KEYS.leader("young.1", 0), encode(Leader(stores[1].name, 1)))
    async with AsyncClient([stores[0].address, stores[1].address]) as client:
        assert await client.table("young").count() == 0
        with pytest.raises(UnknownTableError, match="no table is called nothing; there are: orders"):
            await client.table("nothing").count()


async def test_rows_of_very_different_sizes(orders: AsyncTableClient) -> None:
    """Batches fit log entries, also if a few rows have most of the bytes."""
    large = [{"id": number, "customer": "x" * (1 << 20)} for number in range(200)]
    await orders.upsert([*large, *({"id": number} for number in range(200, 5000))])
    assert await orders.count() == 5000


async def test_a_row_larger_than_a_log_entry(orders: AsyncTableClient) -> None:
    """The error names the row, and nothing is written."""
    with pytest.raises(TooLargeError, match=r"a row with the key {'id': 7} has \d+ bytes; at most 33488896") as refused:
        await orders.upsert([*rows(5), {"id": 7, "customer": "x" * (33 << 20)}])
    assert refused.value.limit == 33488896
    assert await orders.count() == 0


async def test_many_keys_at_once(orders: AsyncTableClient) -> None:
    """More keys than one lookup takes are split."""
    await orders.upsert(pa.table({"id": range(1000)}))
    assert (await orders.get(pa.table({"id": range(450_000)}), ["id"])).num_rows == 1000


@pytest.mark.parametrize("kind", [(Client, AsyncClient), (TableClient, AsyncTableClient)])
def test_asyncio_has_the_same_methods(kind: tuple[type, type]) -> None:
    """Both APIs have the same methods and parameters."""
    sync, aio = kind
    assert _public(sync) == _public(aio)
    for name in _public(sync):
        method = getattr(sync, name)
        if callable(method):
            assert (
                str(inspect.signature(method)).partition(" ->")[0]
                == str(inspect.signature(getattr(aio, name))).partition(" ->")[0]
            ), name


def _public(kind: type) -> list[str]:
    return sorted(name for name in vars(kind) if not name.startswith("_"))


async def test_the_rest_of_asyncio_s_methods(orders: AsyncTableClient, client: AsyncClient) -> None:
    """Streams, pins and columns work as without asyncio."""
    await orders.wait_until_readable()
    await orders.upsert(rows(100))
    assert (await orders.schema()).names == ["id", "customer", "amount"]
    assert (await orders.row_schema()).primary_key == ("id",)
    assert await client.tables() == ["orders"]
    pins = await orders.pin("p", seconds=60)
    assert sorted(pins) == [0, 1, 2, 3]
    found = 0
    for partition in range(await orders.partitions()):
        async with orders.stream(partition, ["id"], col("id") < 50, pin="p") as stream:
            assert (stream.schema.names, stream.index > 0) == (["id"], True)
            async for batch in stream:
                found += batch.num_rows
    assert found == 50
    await orders.unpin("p")
    assert await orders.count() == 100, "by then it is applied, too"
    with pytest.raises(UnknownPinError):
        async with orders.stream(0, pin="p"):
            pass


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda t: t.count(col("id") == object()),
            FilterError,
            "column id: no column type holds a value of type object",
        ),
        (lambda t: t.count(col("id") > datetime(2026, 1, 1)), FilterError, "no time zone"),
        (lambda t: t.count(col("id")), FilterError, r"allowed: one like col\('id'\) == 1: .*Column"),
        (lambda t: t.count(nested(5000)), FilterError, "not a condition.*recursion"),
        (lambda t: t.stream(9), UnknownTableError, "has no partition 9; it has partitions 0 to 3"),
        (lambda t: t.put(-1, [], op="upsert", writer="w") or t.stream(-1), UnknownTableError, "has no partition -1"),
        (lambda t: t.scan("id"), RequestError, r"columns: got 'id'; allowed: a list of names, like \['id'\]"),
        (lambda t: t.get(1), RowsError, "keys may not be of type int; .* lists of keys or dicts"),
        (lambda t: t.get([], ["nothing"]), UnknownColumnError, "no column nothing"),
        (lambda t: t.changes({9: 1}), RequestError, "from_: got partition 9; allowed: 0 to 3, of table orders"),
        (lambda t: t.changes({"0": 1}), RequestError, "from_: got partition '0'; allowed: 0 to 3"),
        (lambda t: t.changes({0: None}), RequestError, "from_: got None for partition 0; allowed: an index"),
        (lambda t: t.changes([]), RequestError, r"from_: got \[\]; allowed: a dict by partition"),
        (lambda t: t.scan(at_least={"0": 1}), RequestError, "at_least: got partition '0'"),
        (lambda t: t.scan(pins={"0": "p"}), RequestError, "pins: got partition '0'"),
        (lambda t: t.scan(pins={0: ""}), RequestError, "pins: got '' for partition 0; allowed: the name of a pin"),
        (lambda t: t.scan(pins={0: "p"}), RequestError, "pins: got none for partition 1; allowed: one for each"),
        (lambda t: t.stream("0"), UnknownTableError, "has no partition '0'; it has partitions 0 to 3"),
        (lambda t: t.changes({0: 1 << 40}), RequestError, "the newest index is"),
    ],
    ids=range(19),
)
async def test_invalid_arguments(stores: list[Store], call: Any, error: type[Exception], words: str) -> None:
    """The error names the argument, and the client remains usable."""

    def run() -> None:
        with Client([stores[0].address]) as client:
            with pytest.raises(error, match=words):
                call(client.table("orders"))
            assert client.table("orders").count() == 0

    await asyncio.to_thread(run)


async def test_values_of_numpy_and_arrow_in_conditions(orders: AsyncTableClient) -> None:
    """NumPy and Arrow scalars can be used in conditions."""
    await orders.upsert(rows(10))
    assert await orders.count(col("id") < np.int64(3)) == 3
    assert await orders.count(col("customer") == pa.scalar("c1")) == 3


async def test_a_leader_that_moved_is_found(orders: AsyncTableClient, stores: list[Store]) -> None:
    """A store that no longer leads names the leader, and the client sends the request there."""
    await orders.upsert(rows(10))
    here, there = stores
    group = here.sidecar.group("orders.1", 0)
    other = there.sidecar.group("orders.1", 0)
    group.leading, group.hint = False, there.name
    group.publish_role()
    await other.open()
    await there.maintenance.reconcile(there.state_machine.groups.replicas())
    for store in stores:
        store.routes.put(KEYS.leader("orders.1", 0), encode(Leader(there.name, 2)))
    written = await orders.upsert(rows(10))
    assert 0 in written.indexes


async def test_a_leader_key_that_is_withdrawn(orders: AsyncTableClient, stores: list[Store]) -> None:
    """Without a leader key the client asks the replicas, one of which leads or knows the leader."""
    peers = tuple(Peer(store.name, "v", 1) for store in reversed(stores))
    for store in stores:
        for partition in range(4):
            store.routes.put(KEYS.partition("orders.1", partition).stable, encode(Stable(peers)))
            store.routes.remove(KEYS.leader("orders.1", partition))
    written = await orders.upsert(rows(100))
    assert sorted(written.indexes) == [0, 1, 2, 3]
    assert await orders.count() == 100


async def test_no_leader_until_the_deadline(stores: list[Store]) -> None:
    """Without a leader and a known replica, the error names the partition and what to check."""
    for store in stores:
        store.routes.remove(KEYS.leader("orders.1", 0))
        store.routes.remove(KEYS.partition("orders.1", 0).stable)
    async with AsyncClient([stores[0].address], deadline=0.5) as client:
        with pytest.raises(
            UnavailableError, match=r"partition 0 of table orders has no leader.* conditions of the Table"
        ):
            await client.table("orders").scan()


async def test_unknown_outcomes_are_written_once(orders: AsyncTableClient, stores: list[Store]) -> None:
    """A batch whose answer was lost is sent again with its token, and written once."""
    for store in stores:
        store.sidecar.lost = 1
    await orders.upsert(rows(40))
    assert (await orders.changes()).rows.num_rows == 40


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ([{"id": 1, "custmer": "x"}], UnknownColumnError, "custmer"),
        ([{"id": None}], RowsError, "id has 1 nulls"),
        ([{"customer": "x"}], RowsError, "id is missing"),
        ([{"id": 1 << 70}], RowsError, "column id is of type int64"),
        ([{"id": "one"}], RowsError, "column id is of type int64, but a row has another value: .*'one'"),
        ([{"id": 1}, {"id": 2, "customer": 7}], RowsError, "column customer is of type string"),
        (7, RowsError, "type int"),
        (["row"], RowsError, "a row is a str"),
    ],
)
async def test_invalid_rows_are_not_sent(
    orders: AsyncTableClient, given: Any, error: type[Exception], words: str
) -> None:
    """Invalid rows are rejected with the column and the reason, and nothing is written."""
    with pytest.raises(error, match=words):
        await orders.upsert(given)
    assert await orders.count() == 0


async def test_unknown_tables_and_stores(client: AsyncClient) -> None:
    """The error names the unknown table or the unreachable store."""
    with pytest.raises(UnknownTableError, match="nothing"):
        await client.table("nothing").count()
    async with AsyncClient(["grpc://127.0.0.1:1"], deadline=0.2) as lost:
        with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1"):
            await lost.table("orders").count()


@pytest.mark.parametrize("token", ["secret\n", "sëcret", b"secret"])
def test_invalid_tokens(token: Any) -> None:
    """A token that is not a valid header is rejected at once, and the error does not show it."""
    with pytest.raises(InvalidInputError, match=r"token: got one .*without a line break") as caught:
        Client(["grpc://127.0.0.1:1"], token=token)
    assert "cret" not in str(caught.value)


def test_certificates_by_name(tmp_path: Path) -> None:
    """A path may be a string; the error names a missing file."""
    (tmp_path / "ca.pem").write_text("")
    Client(["grpc://127.0.0.1:1"], ca=str(tmp_path / "ca.pem")).close()
    with pytest.raises(InvalidInputError, match=r"certificate file .*none.pem: No such file"):
        Client(["grpc://127.0.0.1:1"], ca=str(tmp_path / "none.pem"))


@pytest.mark.parametrize("endpoints", [[], "grpc://127.0.0.1:1", ["127.0.0.1:1"], None, iter(())])
def test_invalid_endpoints(endpoints: Any) -> None:
    """Invalid endpoints are rejected at once."""
    with pytest.raises(InvalidInputError, match="endpoints"):
        Client(endpoints)


def test_conditions_have_no_truth_value() -> None:
    """`and` between conditions would silently drop one of them, so `bool` raises."""
    with pytest.raises(TypeError, match="combine conditions"):
        bool(Filter(["=", "a", 1]))


async def test_endpoints_from_an_iterator(stores: list[Store]) -> None:
    """Endpoints may be an iterator."""
    async with AsyncClient(iter([stores[0].address])) as client:
        assert await client.tables() == ["orders"]


async def test_streams_of_a_client_that_is_closed(stores: list[Store]) -> None:
    """A stream of a closed client raises `UnavailableError`."""
    client = AsyncClient([stores[0].address])
    async with client.table("orders").stream(0) as rows:
        await client.close()
        with pytest.raises(UnavailableError, match="the client is closed"):
            await anext(rows)


async def test_many_writers_at_once(orders: AsyncTableClient) -> None:
    """Calls from many tasks share the connections, and all rows are written."""
    await asyncio.gather(*(orders.upsert([{"id": number, "customer": "x"}]) for number in range(60)))
    assert await orders.count() == 60


async def test_batches_with_tokens_of_the_caller(orders: AsyncTableClient, stores: list[Store]) -> None:
    """A repeated token writes nothing, also from another client and after a lost answer."""

    def write() -> int:
        with Client([stores[0].address]) as client:
            table = client.table("orders")
            batch = conform_rows(pa.RecordBatch.from_pydict({"id": list(range(40))}), table.row_schema)
            own = batch.filter(pa.array(partitions_of(batch, table.row_schema) == 0))
            table.put(0, [(1, own), (2, own)], op="upsert", writer="job-1")
            return int(own.num_rows)

    stores[0].sidecar.lost = 1
    written = await asyncio.to_thread(write)
    assert await asyncio.to_thread(write) == written > 0
    assert (await orders.changes()).rows.num_rows == 2 * written


async def test_streams(orders: AsyncTableClient, stores: list[Store]) -> None:
    """A stream has the rows of one partition, optionally at a pin; invalid requests fail at once."""
    await orders.upsert(rows(100))
    client = Client([stores[0].address])
    table = client.table("orders")

    def read(**options: Any) -> int:
        with table.stream(0, ["id"], **options) as stream:
            assert stream.schema.names == ["id"]
            assert stream.index > 0
            return sum(batch.num_rows for batch in stream)

    before = await asyncio.to_thread(read)
    assert 0 < before < 100
    pins = await asyncio.to_thread(lambda: table.pin("p", seconds=60))
    assert all(pin.created for pin in pins.values())
    await orders.upsert([{"id": number} for number in range(100, 200)])
    assert await asyncio.to_thread(lambda: read(pin="p")) == before
    assert await asyncio.to_thread(read) > before
    assert await asyncio.to_thread(lambda: read(filter=col("customer").starts_with("nobody"))) == 0
    with pytest.raises(UnknownPinError):
        await asyncio.to_thread(lambda: read(pin="never was"))
    with pytest.raises(UnknownColumnError, match="nothing"):
        await asyncio.to_thread(lambda: table.stream(0, ["nothing"]))
    await asyncio.to_thread(client.close)


def test_a_stalled_stream_times_out() -> None:
    """A stream ends with an error when the store sends nothing before the timeout."""

    class Silent(flight.FlightServerBase):  # type: ignore[misc]
        def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
            def batches() -> Any:
                yield pa.RecordBatch.from_pydict({"id": [1]})
                over.wait()

            return flight.GeneratorStream(pa.schema({"id": pa.int64()}), batches())

    over = threading.Event()
    with Silent("grpc://127.0.0.1:0") as server, flight.connect(f"grpc://127.0.0.1:{server.port}") as connection:
        stream = RowStream(connection.do_get(flight.Ticket(b"")), timeout=0.2)
        try:
            with pytest.raises(UnavailableError, match="sent nothing for"):
                list(stream)
        finally:
            over.set()


async def test_replicas_are_compared(stores: list[Store], orders: AsyncTableClient) -> None:
    """`verify` lists the stores that differ from the leader, and those that did not answer."""
    await orders.upsert(rows(100))
    same = await orders.verify()
    assert [(one.differing, one.silent) for one in same] == [([], [])] * 4
    assert sum(one.rows for one in same) == 100
    other = stores[1].sidecar.group("orders.1", 0)
    for entry in stores[0].sidecar.group("orders.1", 0).log:
        kind = decode_entry(entry.data)[0]
        other.add(encode_entry(Hash()) if isinstance(kind, Upsert | Compare) else entry.data)
    other.add(encode_entry(Hash()))
    await other.open()
    replicas = Stable((Peer("main-0", "v", 3), Peer("main-1", "v", 3), Peer("main-9", "v", 3)))
    for store in stores:
        store.routes.put(KEYS.partition("orders.1", 0).stable, encode(replicas))
        store.routes.put(KEYS.store("main-9"), encode(StoreRecord(volume="v", flight="grpc://127.0.0.1:1")))
    async with AsyncClient([stores[0].address], deadline=2.0) as client:
        [first, *others] = await client.table("orders").verify()
    assert (first.differing, first.silent) == (["main-1"], ["main-9"])
    assert [(one.differing, one.silent) for one in others] == [([], [])] * 3
