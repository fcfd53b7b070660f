"""The Flight server, as its clients see it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

from evenkeel.errors import (
    BusyError,
    DiskFullError,
    FilterError,
    NotLeaderError,
    OutcomeUnknownError,
    RequestError,
    RetentionError,
    RowsError,
    TableDroppedError,
    TooLargeError,
    UnavailableError,
    UnknownColumnError,
    UnknownPinError,
    UnknownTableError,
    WrongPartitionError,
)
from evenkeel.protocol.records import Leader, StoreRecord, encode
from evenkeel.rows.partitioning import partitions_of
from evenkeel.wire import socket_messages as m
from evenkeel.wire.flight import LookupRequest
from evenkeel_store.engine.snapshot_throttle import SnapshotThrottle
from evenkeel_store.serving.flight_server import FlightServer
from evenkeel_store.serving.scans import ScanResult
from tests.store.file_damage import flip_blocks
from tests.store.serving import KEYS, ORDERS, Client, Store, table_record
from tests.wire.support import wait_until

ANNA = {"id": 1, "customer": "anna", "amount": Decimal("10.00")}
BERT = {"id": 2, "customer": "bert", "amount": Decimal("0.00")}
DAY = 86_400_000


@pytest.fixture
async def store(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    async with Store(tmp_path, keeps_time=getattr(request, "param", False)) as made:
        await made.table(table_record(ORDERS, changes={}))
        await made.maintenance.reconcile(made.state_machine.groups.replicas())
        yield made


@pytest.fixture
async def client(store: Store) -> AsyncIterator[Client]:
    made = Client(store.address)
    yield made
    await made.close()


async def test_rows_in_and_out(client: Client) -> None:
    """The next read returns what was put, with defaults; a delete removes it."""
    [first] = await client.put([{"id": 1, "customer": "anna", "amount": Decimal("10.00")}])
    [second] = await client.put([{"id": 2, "customer": "bert"}])
    assert (first.index, second.index, second.term, second.error) == (2, 3, 1, None)
    assert await client.rows() == [ANNA, BERT]
    await client.put([{"id": 1}], op="delete")
    assert await client.rows() == [BERT]


async def test_plain_client_reads_a_table(store: Store, client: Client) -> None:
    """A generic Arrow Flight client finds the table, its columns and its rows."""
    await client.put([{"id": 1, "customer": "anna"}])
    await client.rows()

    def read() -> Any:
        plain = flight.connect(store.address)
        [listed] = plain.list_flights()
        info = plain.get_flight_info(listed.descriptor)
        tables = [flight.connect(e.locations[0].uri).do_get(e.ticket).read_all() for e in info.endpoints]
        schema = plain.get_schema(listed.descriptor).schema
        actions = {action.type for action in plain.list_actions()}
        return info, pa.concat_tables(tables), schema, actions

    info, rows, schema, actions = await asyncio.to_thread(read)
    assert info.schema == schema == rows.schema
    assert (info.total_records, rows.to_pylist()[0]["customer"]) == (1, "anna")
    assert [location.uri.decode() for location in info.endpoints[0].locations] == [store.address]
    assert actions >= {"lookup", "pin", "status"}


async def test_batches_are_pipelined_and_answered_in_order(store: Store, client: Client) -> None:
    """Each batch of a stream becomes one entry with a result; the sequence counts up from the first."""
    batches = [pa.record_batch({"id": [number]}) for number in range(200)]
    results = await client.put(batches, writer="w", sequence=5)
    assert [result.index for result in results] == list(range(2, 202))
    assert [result.sequence for result in results] == list(range(5, 205))
    assert len(await client.rows()) == 200


async def test_token_is_written_once(store: Store, client: Client) -> None:
    """A batch sent again with its write token changes nothing, whatever happened in between."""
    await client.put([{"id": 1, "customer": "first"}], writer="w", sequence=1)
    await client.put([{"id": 1}], op="delete")
    await client.put([{"id": 1, "customer": "first"}], writer="w", sequence=1)
    assert await client.rows() == []


async def test_metadata_names_the_sequence(store: Store, client: Client) -> None:
    """A batch may carry its own sequence in its metadata."""

    def put() -> None:
        plain = flight.connect(store.address)
        command = msgspec.json.encode({"table": "orders", "writer": "w"})
        batch = pa.record_batch({"id": [1]})
        writer, reader = plain.do_put(flight.FlightDescriptor.for_command(command), batch.schema)
        writer.write_with_metadata(batch, b'{"sequence": 77}')
        assert msgspec.json.decode(reader.read().to_pybytes())["sequence"] == 77
        writer.close()

    await asyncio.to_thread(put)
    await store.settled()
    assert store.state_machine.groups.of_table()[0].tokens.result("w", 77) == ""


@pytest.mark.parametrize(
    ("condition", "refused"),
    [
        ({"kind": "absent"}, "exists: 1 of the keys are there"),
        ({"kind": "present"}, ""),
        ({"kind": "fence", "name": "owner", "number": 3}, ""),
    ],
)
async def test_conditional_put(client: Client, condition: dict[str, Any], refused: str) -> None:
    """A conditional batch is answered with its result when it is applied, also when it is sent again."""
    await client.put([{"id": 1, "customer": "old"}])
    for _ in range(2):
        [result] = await client.put([{"id": 1, "customer": "new"}], condition=condition, writer="w", sequence=1)
        assert result.refused == refused
    assert [row["customer"] for row in await client.rows()] == ["old" if refused else "new"]


@pytest.mark.parametrize(
    ("rows", "request_", "error", "said"),
    [
        ([{"id": "x"}], {}, RowsError, "column id is of type int64, but the batch has string"),
        ([{"id": 1, "nmae": "x"}], {}, UnknownColumnError, "no column nmae; there are: id, customer, amount"),
        ([{"customer": "x"}], {}, RowsError, "column id is missing"),
        (pa.record_batch({"id": pa.array([None], pa.int64())}), {}, RowsError, "column id has 1 nulls"),
        ([{"id": 1}], {"table": "odrers"}, UnknownTableError, "no table is called odrers"),
        ([{"id": 1}], {"table": "orders.0"}, TableDroppedError, "the requested table orders was dropped"),
        ([{"id": 1}], {"partition": 3}, UnknownTableError, "has no partition 3; it has the partitions 0 to 0"),
        ([{"id": 1}], {"op": "append"}, RowsError, "has a primary key; write rows with `upsert`"),
        ([{"id": 1, "customer": "x"}], {"op": "delete"}, RowsError, "customer is not part of the primary key"),
        ([{"id": 1}], {"condition": {"kind": "absent"}}, RequestError, "needs a writer"),
        ([{"id": 1}], {"oops": 1}, RequestError, "unknown field `oops`"),
        ([{"id": 1}], {"sequence": -1}, RequestError, ">= 0"),
        (pa.record_batch({"id": [1], "customer": ["x" * (33 << 20)]}), {}, TooLargeError, "at most 33554432 bytes"),
    ],
)
async def test_wrong_puts(
    client: Client, rows: Any, request_: dict[str, Any], error: type[Exception], said: str
) -> None:
    """An invalid put is refused with its reason and writes nothing; the connection stays usable."""
    with pytest.raises(error) as refused:
        await client.put(rows, **request_)
    assert said in str(refused.value)
    assert type(refused.value) is error
    await client.put([{"id": 2, "customer": "bert"}])
    assert await client.rows() == [BERT]


async def test_wrong_batch_among_good_ones(client: Client) -> None:
    """The batches before and after a refused one are written; each gets its own result, and the call fails."""
    good, bad = pa.record_batch({"id": [1]}), pa.record_batch({"id": pa.array([None], pa.int64())})
    with pytest.raises(RowsError, match="1 nulls"):
        await client.put([good, bad, pa.record_batch({"id": [3]})])
    assert [result.error.kind if result.error else "" for result in client.results] == ["", "rows", ""]
    assert [row["id"] for row in await client.rows()] == [1, 3]


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (m.Unknown(), OutcomeUnknownError),
        (m.Busy(), BusyError),
        (m.TooLarge(7), TooLargeError),
    ],
)
async def test_proposal_outcomes(
    store: Store, client: Client, outcome: m.ProposeOutcome, error: type[Exception]
) -> None:
    """Each outcome of a proposal has its own error."""
    store.sidecar.outcome = outcome
    with pytest.raises(error):
        await client.put([{"id": 1}])


async def test_wrong_leader_redirects(store: Store, client: Client) -> None:
    """A store that does not lead redirects to the leader, by its role or by the answer to the proposal."""
    store.routes.put(KEYS.store("main-1"), encode(StoreRecord(volume="w", flight="grpc://elsewhere:1")))
    group = store.sidecar.group("orders.1")
    store.sidecar.outcome = m.NotLeader("main-1")
    with pytest.raises(NotLeaderError, match="ask store main-1") as refused:
        await client.put([{"id": 1}])
    assert (refused.value.store, refused.value.address) == ("main-1", "grpc://elsewhere:1")
    store.sidecar.outcome = None
    group.leading, group.hint = False, "main-1"
    group.publish_role()
    await wait_until(lambda: not store.state_machine.groups.role(group.number).leader)
    proposed = store.sidecar.proposals
    with pytest.raises(NotLeaderError, match="store main-0 does not lead it: ask store main-1"):
        await client.put([{"id": 1}])
    assert store.sidecar.proposals == proposed
    assert await client.rows() == []


async def test_partition_elsewhere_redirects(store: Store, client: Client) -> None:
    """A request for a partition on another store is redirected to its leader, as far as it is known."""
    await store.table(table_record(ORDERS, partitions=4), key="parts.1", partitions=[0])
    store.routes.put(KEYS.store("main-2"), encode(StoreRecord(volume="w", flight="grpc://there:2")))
    store.routes.put(KEYS.leader("parts.1", 3), encode(Leader("main-2", 7)))
    with pytest.raises(NotLeaderError, match="partition 3 of table parts is not on store main-0") as refused:
        await client.get("parts", partition=3)
    assert refused.value.address == "grpc://there:2"
    with pytest.raises(NotLeaderError, match="its leader is unknown"):
        await client.get("parts", partition=2)
    with pytest.raises(RequestError, match="table parts has 4; name one"):
        await client.get("parts")
    info = await client.info(flight.FlightDescriptor.for_path("parts"))
    assert [[str(at.uri) for at in e.locations] for e in info.endpoints] == [
        [str(store.address.encode())],
        [],
        [],
        [str(b"grpc://there:2")],
    ]


async def test_rows_of_another_partition(store: Store, client: Client) -> None:
    """Rows that belong to another partition are refused."""
    await store.table(table_record(ORDERS, partitions=4), key="parts.1", partitions=[0])
    rows = pa.record_batch({"id": list(range(100))})
    known = store.routes.table("parts")
    assert known is not None
    mine = rows.filter(pa.array(partitions_of(rows, known.schema) == 0))
    await client.put(mine, table="parts")
    assert len(await client.rows("parts", partition=0)) == mine.num_rows > 10
    with pytest.raises(WrongPartitionError, match=r"rows do not belong to partition 0, the first with \{'id': "):
        await client.put(rows, table="parts")


_PUTS = """
import sys, pyarrow as pa
from pyarrow import flight

batch = pa.record_batch({"id": [1], "customer": ["x"]})
command = b'{"table": "orders", "writer": "w", "sequence": 1, "condition": {"kind": "absent"}}'
writer, _ = flight.connect(sys.argv[1]).do_put(flight.FlightDescriptor.for_command(command), batch.schema)
writer.write_batch(batch)
sys.stdin.read()
"""


async def test_client_killed_before_its_answer(store: Store, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed client's batches are written, and the lost answer does no harm."""
    contexts: list[Any] = []
    do_put = FlightServer.do_put

    def noted(self: FlightServer, context: Any, *more: Any) -> None:
        contexts.append(context)
        do_put(self, context, *more)

    monkeypatch.setattr(FlightServer, "do_put", noted)
    store.sidecar.applying = False
    before = store.sidecar.proposals
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", _PUTS, store.address, stdin=subprocess.PIPE)
    await wait_until(lambda: store.sidecar.proposals > before)
    child.kill()
    await child.wait()
    await wait_until(contexts[0].is_cancelled)
    store.sidecar.applying = True
    store.sidecar.group("orders.1").send()
    await wait_until(lambda: "put results" not in {thread.name for thread in threading.enumerate()})
    assert [row["customer"] for row in await client.rows()] == ["x"]


async def test_full_disk(store: Store, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk is full writes are refused before they are logged, and reads go on."""
    await client.put([{"id": 2, "customer": "bert"}])
    monkeypatch.setattr(store.state_machine.directory, "full", lambda: "disk full: 1 MiB are left")
    with pytest.raises(DiskFullError, match="1 MiB are left"):
        await client.put([{"id": 1}])
    assert await client.rows() == [BERT]
    assert store.sidecar.group("orders.1").last == 2
    assert (await client.act("status"))["full"] == "disk full: 1 MiB are left"
    monkeypatch.undo()
    await client.put([{"id": 1}])


# Columns


async def test_column_added_to_the_spec(store: Store, client: Client) -> None:
    """The leader logs a new column of the spec: at once when a client writes it, else at the next reconcile."""
    await client.put([{"id": 1}])
    wider = [*ORDERS, {"name": "note", "type": "string", "default": "none"}]
    store.routes.put(KEYS.table("orders.1"), table_record(wider, changes={}))
    await client.put([{"id": 2, "note": "own"}])
    assert {row["id"]: row["note"] for row in await client.rows()} == {1: "none", 2: "own"}
    widest = [*wider, {"name": "more", "type": "int8"}]
    store.routes.put(KEYS.table("orders.1"), table_record(widest, changes={}))
    await store.maintenance.reconcile(store.state_machine.groups.replicas())
    assert (await client.get()).schema.names == ["id", "customer", "amount", "note", "more"]


async def test_table_without_columns_yet(store: Store, client: Client) -> None:
    """A partition without logged columns is unavailable for reads."""
    await store.sidecar.group("new.1").open()
    with pytest.raises(UnavailableError, match="no columns yet"):
        await client.get("new")
    store.routes.put(KEYS.table("new.1"), table_record(ORDERS))
    await client.put([{"id": 1}], table="new")
    assert len(await client.rows("new")) == 1


# Reading


async def test_reads_throttle_snapshots(store: Store, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read counts as client activity, which slows the copying of snapshots."""
    noted: list[SnapshotThrottle] = []

    def note(throttle: SnapshotThrottle) -> None:
        noted.append(throttle)

    monkeypatch.setattr(SnapshotThrottle, "note_client", note)
    await client.rows()
    assert noted == [store.state_machine.throttle]


async def test_linearizable_reads_wait(store: Store, client: Client) -> None:
    """A read waits until everything committed before it is applied."""
    await client.put([{"id": 1}])
    store.sidecar.applying = False
    await client.put([{"id": 2}])
    reading = asyncio.create_task(client.rows(columns=["id"]))
    assert await client.rows(columns=["id"], at_least=2) == [{"id": 1}]
    assert not reading.done()
    store.sidecar.group("orders.1").send()
    assert await reading == [{"id": 1}, {"id": 2}]


async def test_bounded_reads_reuse_indexes(store: Store, client: Client) -> None:
    """A read with a maximum age requests an index only if none was confirmed within that age."""
    await client.put([{"id": 1}])
    await client.rows()
    before = store.sidecar.read_requests
    store.sidecar.applying = False
    await client.put([{"id": 2}])
    assert [row["id"] for row in await client.rows(max_age=60)] == [1]
    assert store.sidecar.read_requests == before
    store.sidecar.group("orders.1").send()
    assert [row["id"] for row in await client.rows(max_age=0)] == [1, 2]
    assert store.sidecar.read_requests == before + 1


async def test_no_leader(tmp_path: Path) -> None:
    """Without a leader a linearizable read times out, and a read with `at_least` is answered."""
    async with Store(tmp_path, timeout=0.1) as store:
        await store.table(table_record(ORDERS))
        client = Client(store.address)
        store.sidecar.readable = False
        with pytest.raises(UnavailableError, match="no leader confirmed the read within"):
            await client.rows()
        with pytest.raises(UnavailableError, match="index 99 was not applied within"):
            await client.rows(at_least=99)
        assert await client.rows(at_least=1) == []
        await client.close()


async def test_pins(store: Store, client: Client) -> None:
    """A pin shows the rows as they were, until it is removed or expires."""
    await client.put([{"id": 1, "customer": "anna"}])
    pin = await client.act("pin", table="orders", partition=0, name="job-7", seconds=60)
    assert pin == {"index": 3, "expires": store.now + 60_000, "created": True}
    await client.put([{"id": 1, "customer": "later"}, {"id": 2, "customer": "x"}])
    await store.state_machine.background.fold()
    assert [row["customer"] for row in await client.rows(pin="job-7")] == ["anna"]
    assert [row["customer"] for row in await client.rows()] == ["later", "x"]
    assert (await client.act("status"))["groups"][0]["pins"] == {"job-7": 3}
    await client.act("unpin", table="orders", partition=0, name="job-7")
    await store.settled()
    with pytest.raises(UnknownPinError, match="no pin is called job-7"):
        await client.rows(pin="job-7")


@pytest.mark.parametrize("store", [True], indirect=True, ids=["log time kept"])
async def test_pins_expire_by_log_time(store: Store, client: Client) -> None:
    """An expired pin is removed by an entry that the leader logs, whatever the wall clock shows."""
    await client.act("pin", table="orders", partition=0, name="p", seconds=5)
    store.clock.advance(4.999)
    store.now += 2 * DAY
    await store.maintenance.reconcile(store.state_machine.groups.replicas())
    assert await client.rows(pin="p") == []
    store.clock.advance(0.001)
    await store.maintenance.reconcile(store.state_machine.groups.replicas())
    with pytest.raises(UnknownPinError):
        await client.rows(pin="p", at_least=store.sidecar.group("orders.1").last)
    with pytest.raises(UnknownPinError, match="p has expired"):
        await client.act("pin", table="orders", partition=0, name="p", seconds=5)


async def test_lookup(client: Client) -> None:
    """A lookup returns the rows with the given keys and omits missing ones."""
    await client.put([{"id": number, "customer": f"c{number}"} for number in range(100)])
    keys = pa.table({"id": pa.array([3, 99, 100, 3], pa.int32())})
    found = await client.lookup(keys, LookupRequest(table="orders", columns=("customer", "id")))
    assert sorted(found.to_pylist(), key=str) == [{"customer": "c3", "id": 3}, {"customer": "c99", "id": 99}]
    assert (await client.lookup(keys.slice(0, 0), LookupRequest(table="orders"))).num_rows == 0
    with pytest.raises(RowsError, match="column id is of type int64"):
        await client.lookup(pa.table({"id": ["x"]}), LookupRequest(table="orders"))
    with pytest.raises(UnknownColumnError, match="no column x"):
        await client.lookup(keys, LookupRequest(table="orders", columns=("x",)))
    with pytest.raises(RequestError, match="not an Arrow stream"):
        await client.act("lookup", b"\x12\x00\x00\x00" + b'{"table":"orders"}' + b"junk")


async def test_filters_limits_and_aggregates(client: Client) -> None:
    """Filters, limits and aggregates are computed in the store."""
    await client.put([{"id": number, "customer": "ab"[number % 2]} for number in range(10)])
    found = await client.rows(
        filter=["<", "id", 7],
        group_by=["customer"],
        aggregates=[{"function": "count"}, {"function": "max", "column": "id"}],
    )
    assert found == [{"customer": "a", "count": 4, "max_id": 6}, {"customer": "b", "count": 3, "max_id": 5}]
    assert [row["id"] for row in await client.rows(ordered=True, limit=2, after=[4], columns=["id"])] == [5, 6]
    for wrong, error in (({"filter": ["~", "id", 1]}, FilterError), ({"columns": ["x"]}, UnknownColumnError)):
        with pytest.raises(error):
            await client.rows(**wrong)


async def test_changes(store: Store, client: Client) -> None:
    """Changes are read from an index on, with the index they reach; expired ones raise an error."""
    await client.put([{"id": 1}, {"id": 2}])
    await client.put([{"id": 1}], op="delete")

    def read(after: int) -> tuple[list[Any], int]:
        reader = flight.connect(store.address).do_get(
            flight.Ticket(msgspec.json.encode({"table": "orders", "changes_after": after, "columns": ["id"]}))
        )
        rows, stamp = [], 0
        for chunk in reader:
            rows += [tuple(row.values()) for row in chunk.data.to_pylist()]
            stamp = msgspec.json.decode(chunk.app_metadata.to_pybytes())["index"]
        return rows, stamp

    assert await asyncio.to_thread(read, 1) == ([(2, 0, "upsert", 1), (2, 1, "upsert", 2), (3, 0, "delete", 1)], 3)
    assert await asyncio.to_thread(read, 3) == ([], 3)
    store.now += 2 * DAY
    await client.put([{"id": 8}])
    await store.maintenance.reconcile(store.state_machine.groups.replicas())
    assert await asyncio.to_thread(read, 3) == ([(4, 0, "upsert", 8)], 4), "a wrong clock expires nothing"
    store.clock.advance(2 * DAY / 1000)
    await client.put([{"id": 9}])
    await store.maintenance.reconcile(store.state_machine.groups.replicas())
    with pytest.raises(RetentionError, match="the first available index is") as refused:
        await client.rows(changes_after=0)
    assert refused.value.first == 5


async def test_hash_and_status(store: Store, client: Client) -> None:
    """A hash is taken on demand and appears in the partition's status."""
    await client.put([{"id": 1}])
    taken = await client.act("hash", table="orders", partition=0)
    await store.settled()
    [status] = (await client.act("status", table="orders"))["groups"]
    assert status["hashes"] == {"3": taken["hash"]}
    assert taken["hash"].startswith("1:")
    assert (status["applied"], status["leader"], status["columns"], status["rows"], status["first_change"]) == (
        4,
        True,
        3,
        1,
        2,
    )


async def test_routes_are_on_every_store(store: Store, client: Client) -> None:
    """One store tells a client about all tables, partitions and stores."""
    found = await client.act("routes", table="orders")
    [table] = found["tables"]
    assert (table["name"], table["key"], table["partitions"]) == (
        "orders",
        "orders.1",
        [{"leader": "main-0", "replicas": ["main-0"]}],
    )
    assert [column[0] for column in table["schema"]["columns"]] == ["id", "customer", "amount"]
    assert found["stores"] == {"main-0": store.address}
    assert (await client.act("routes", table="none"))["tables"] == []


async def test_unknown_action(client: Client) -> None:
    """The error for an unknown action lists the known ones."""
    with pytest.raises(RequestError, match="no action is called dance; there are: lookup, pin"):
        await client.act("dance")


async def test_table_dropped_during_a_scan(store: Store, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan fails with `table_dropped` if its table is dropped, and redirects if its replica moves away."""
    monkeypatch.setattr("evenkeel_store.serving.scans.BATCH_ROWS", 1000)
    read, proceed = ScanResult.__next__, threading.Event()

    def read_later(result: ScanResult) -> pa.RecordBatch:
        # Socket buffers are so large that all rows could be sent already.
        taken[0] += 1
        assert taken[0] <= 2 or proceed.wait(30)
        return read(result)

    monkeypatch.setattr(ScanResult, "__next__", read_later)
    for dropped in (False, True):
        taken = [0]
        proceed.clear()
        await client.put([{"id": number, "customer": "x" * 1000} for number in range(20_000)])
        await store.state_machine.background.fold()
        reader = await asyncio.to_thread(
            lambda: flight.connect(store.address).do_get(flight.Ticket(b'{"table":"orders","partition":0}'))
        )
        await asyncio.to_thread(reader.read_chunk)
        group = store.sidecar.group("orders.1")
        if dropped:
            store.routes.remove(KEYS.table("orders.1"))
        else:
            store.routes.put(KEYS.leader("orders.1", 0), encode(Leader("main-1", 2)))
        await group.destroy()
        proceed.set()
        with pytest.raises(flight.FlightError) as ended:
            await asyncio.to_thread(reader.read_all)
        kind = msgspec.json.decode(ended.value.extra_info)["kind"]
        assert kind == ("table_dropped" if dropped else "not_leader")
        if not dropped:
            group.log.clear()
            await store.table(table_record(ORDERS))
    with pytest.raises(UnknownTableError):
        await client.rows()


async def damage(store: Store, file: Path) -> None:
    """Change bytes in every block of a database's data, as a bad disk would."""
    await store.state_machine.background.fold()
    await store.state_machine.queue.call(lambda engine: engine.database.checkpoint(always=True))
    await store.state_machine.queue.call(type(store.state_machine.engine).reopen)
    await asyncio.to_thread(flip_blocks, file)


async def test_damage_is_found_while_reading(store: Store, client: Client, tmp_path: Path) -> None:
    """A read finds a block with a wrong checksum, and the sidecar is notified."""
    await client.put([{"id": number, "customer": f"{number}" * 20} for number in range(5000)])
    await store.settled()
    await damage(store, tmp_path / "data" / "tables.duckdb")
    with pytest.raises(UnavailableError, match="cannot be read on this store"):
        await client.rows()
    await store.state_machine.queue.call(lambda engine: None)
    with pytest.raises(NotLeaderError, match="damaged"):
        await client.rows()
    opened = await store.sidecar.group("orders.1").open()  # which sends the log again and so repairs the group
    assert (opened.applied, opened.state) == (0, "damaged")


async def test_damage_is_found_without_reads(store: Store, client: Client, tmp_path: Path) -> None:
    """After a start every partition is read once in the background, which finds damage."""
    await client.put([{"id": number, "customer": f"{number}" * 20} for number in range(5000)])
    await store.settled()
    await damage(store, tmp_path / "data" / "tables.duckdb")
    [group] = store.state_machine.groups.of_table()
    await wait_until(lambda: bool(group.metadata.damage), store.clock)
    assert "checksum" in group.metadata.damage


async def test_internal_error(store: Store, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in the store fails that request alone, without a traceback for the client."""

    def fail(*arguments: Any, **options: Any) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(store.service, "find", fail)
    with pytest.raises(Exception, match="internal error in the store"):
        await client.rows()
    monkeypatch.undo()
    assert await client.rows() == []
