"""The client finds the right store for every row, and writes it once."""

from __future__ import annotations

import asyncio
import threading
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from evenkeel.client import Client, col
from evenkeel.client.aio import AsyncClient, AsyncTableClient
from evenkeel.client.filters import Filter
from evenkeel.client.streams import RowStream
from evenkeel.errors import (
    InvalidInputError,
    RequestError,
    RowsError,
    UnavailableError,
    UnknownColumnError,
    UnknownPinError,
    UnknownTableError,
)
from evenkeel.protocol.records import Leader, Peer, Stable, StoreRecord, encode
from evenkeel.rows.conform import conform_rows
from evenkeel.rows.partitions import partitions_of
from evenkeel_store.entries import Compare, Hash, Upsert, decode_entry, encode_entry
from tests.store.serving import KEYS, Store


def rows(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"id": number, "customer": f"c{number % 3}", **more} for number in range(count)]


async def test_rows_go_to_their_partitions_and_come_back(orders: AsyncTableClient) -> None:
    """What is written through one store is spread over all, with defaults, and read back as one table."""
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
    """All of these say the same."""
    await orders.upsert(made(pa.table({"id": [1, 2], "customer": ["anna", "bert"]})))
    found = await orders.scan(["id", "customer"])
    assert sorted(found.to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "customer": "anna"},
        {"id": 2, "customer": "bert"},
    ]


async def test_what_a_dict_leaves_out_has_its_default(orders: AsyncTableClient) -> None:
    """Also where another dict of the same call names the column."""
    await orders.upsert([{"id": 1}, {"id": 2, "amount": Decimal("7.00")}])
    found = {row["id"]: row["amount"] for row in (await orders.scan()).to_pylist()}
    assert found == {1: Decimal("0.00"), 2: Decimal("7.00")}


async def test_filters_limits_and_counts(orders: AsyncTableClient) -> None:
    """Conditions are judged by the stores."""
    await orders.upsert(rows(30, amount=Decimal("2.50")))
    assert await orders.count(col("customer") == "c1") == 10
    assert await orders.count((col("id") < 10) & ~col("id").isin([1, 2])) == 8
    assert await orders.count(col("amount") > Decimal("2.00")) == 30
    assert (await orders.scan(["id"], col("id") >= 5, limit=7)).num_rows == 7


async def test_lookups_and_deletes(orders: AsyncTableClient) -> None:
    """Keys may be plain values; what is not there is left out."""
    await orders.upsert(rows(10))
    assert sorted((await orders.get([3, 4, 99], ["id"])).column("id").to_pylist()) == [3, 4]
    await orders.delete([3])
    assert (await orders.get([3])).num_rows == 0
    assert await orders.count() == 9


async def test_the_last_row_of_a_key_wins(orders: AsyncTableClient) -> None:
    """Within one call, in whatever batches it travels."""
    batches = pa.Table.from_batches(
        [pa.RecordBatch.from_pydict({"id": [1], "customer": [f"v{number}"]}) for number in range(5)]
    )
    await orders.upsert(batches)
    assert (await orders.get([1])).column("customer").to_pylist() == ["v4"]


async def test_pinned_reads(orders: AsyncTableClient) -> None:
    """What is written after the pin is not there."""
    await orders.upsert(rows(10))
    async with orders.pinned() as pins:
        await orders.upsert(rows(20, customer="late"))
        found = await orders.scan(pins=pins)
    assert found.num_rows == 10
    assert "late" not in found.column("customer").to_pylist()


async def test_changes_go_on_from_where_they_were_read(orders: AsyncTableClient) -> None:
    """Each change comes once."""
    await orders.upsert(rows(5))
    first = await orders.changes()
    assert first.rows.num_rows == 5
    await orders.delete([0])
    second = await orders.changes(first.position)
    assert second.rows.num_rows == 1
    assert (await orders.changes(second.position)).rows.num_rows == 0


async def test_sql(client: AsyncClient, orders: AsyncTableClient) -> None:
    """Tables are known by name; nonsense is refused."""
    await orders.upsert(rows(9))
    found = await client.sql("select customer, count(*) as n from orders group by customer order by customer")
    assert found.to_pylist() == [{"customer": f"c{number}", "n": 3} for number in range(3)]
    with pytest.raises(RequestError, match="not a query"):
        await client.sql("selec")


async def test_a_leader_that_moved_is_found(orders: AsyncTableClient, stores: list[Store]) -> None:
    """A store that no longer leads says who does, and the client goes there by itself."""
    await orders.upsert(rows(10))
    here, there = stores
    group = here.sidecar.group("orders.1", 0)
    other = there.sidecar.group("orders.1", 0)
    group.leading, group.hint = False, there.name
    group.tell()
    await other.open()
    await there.house.look(there.machine.open_groups())
    for store in stores:
        store.routes.put(KEYS.leader("orders.1", 0), encode(Leader(there.name, 2)))
    written = await orders.upsert(rows(10))
    assert 0 in written.indexes


async def test_unknown_outcomes_are_written_once(orders: AsyncTableClient, stores: list[Store]) -> None:
    """A batch whose answer was lost is sent again under its token: the row's changes tell of one write."""
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
        ([{"id": "one"}], RowsError, "column id is of type int64, and a row has another value: .*'one'"),
        ([{"id": 1}, {"id": 2, "customer": 7}], RowsError, "column customer is of type string"),
        (7, RowsError, "type int"),
        (["row"], RowsError, "a row is a str"),
    ],
)
async def test_bad_rows_are_refused_before_they_leave(
    orders: AsyncTableClient, given: Any, error: type[Exception], words: str
) -> None:
    """With the column and the reason, and nothing is written."""
    with pytest.raises(error, match=words):
        await orders.upsert(given)
    assert await orders.count() == 0


async def test_unknown_tables_and_stores(client: AsyncClient) -> None:
    """The error names what was asked for."""
    with pytest.raises(UnknownTableError, match="nothing"):
        await client.table("nothing").count()
    async with AsyncClient(["grpc://127.0.0.1:1"], deadline=0.2) as lost:
        with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1"):
            await lost.table("orders").count()


@pytest.mark.parametrize("endpoints", [[], "grpc://127.0.0.1:1", ["127.0.0.1:1"]])
def test_endpoints_that_are_none(endpoints: Any) -> None:
    """What an endpoint looks like is said at once."""
    with pytest.raises(InvalidInputError, match="endpoints"):
        Client(endpoints)


def test_conditions_are_no_truth_values() -> None:
    """`and` between conditions would silently drop one of them."""
    with pytest.raises(TypeError, match="combine conditions"):
        bool(Filter(["=", "a", 1]))


async def test_many_writers_at_once(orders: AsyncTableClient) -> None:
    """Calls from many tasks share the connections, and all of them arrive."""
    await asyncio.gather(*(orders.upsert([{"id": number, "customer": "x"}]) for number in range(60)))
    assert await orders.count() == 60


async def test_batches_under_tokens_of_one_s_own(orders: AsyncTableClient, stores: list[Store]) -> None:
    """Whoever sends a token again writes nothing, from another client too; a lost answer is no exception."""

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
    """One partition's rows come as they are read, at a pin where one is named; what is wrong shows at once."""
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


def test_store_that_falls_silent_is_given_up() -> None:
    """A reader that waits in vain hangs up by itself."""

    class Silent(flight.FlightServerBase):  # type: ignore[misc]
        def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
            def batches() -> Any:
                yield pa.RecordBatch.from_pydict({"id": [1]})
                over.wait()

            return flight.GeneratorStream(pa.schema({"id": pa.int64()}), batches())

    over = threading.Event()
    with Silent("grpc://127.0.0.1:0") as server, flight.connect(f"grpc://127.0.0.1:{server.port}") as connection:
        stream = RowStream(connection.do_get(flight.Ticket(b"")), patience=0.2)
        try:
            with pytest.raises(UnavailableError, match="said nothing for"):
                list(stream)
        finally:
            over.set()


async def test_replicas_are_compared(stores: list[Store], orders: AsyncTableClient) -> None:
    """By partition: who has other rows than the leader, and who did not answer."""
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
