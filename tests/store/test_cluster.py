"""Stores on real sidecars: each acknowledged row is on every replica once, whatever is killed."""

from __future__ import annotations

import asyncio
import random
import resource
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from evenkeel.client import Client
from evenkeel.errors import NotLeaderError
from evenkeel.metastore.metastore_api import Put, Txn
from evenkeel.protocol.records import ClusterVersion, LeaderOrder, LoadSlice, StoreLoad, decode, encode
from evenkeel.reconcile.store_reports import Reports
from tests.process.process_cluster import KEYS, TABLE, StoreProcesses, end
from tests.store.cluster import TableCluster, TableStore

pytestmark = pytest.mark.processes


@pytest.fixture
async def new_cluster(new_directory: Callable[[], Path]) -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as stack:

        async def make(**options: Any) -> TableCluster:
            return await stack.enter_async_context(TableCluster(new_directory(), **options))

        yield make


def batch(writer: int, sequence: int) -> pa.RecordBatch:
    ids = [writer * 100_000 + sequence * 10 + place for place in range(10)]
    return pa.record_batch({"id": ids, "customer": [f"{writer}/{sequence}"] * 10})


async def all_rows(cluster: TableCluster) -> list[int]:
    found: list[int] = []
    for partition in range(cluster.partitions):
        ask = lambda client, partition=partition: client.get(partition=partition, columns=["id"])  # noqa: E731
        found += (await cluster.insist(partition, ask)).column("id").to_pylist()
    return sorted(found)


async def test_store_dies_while_writes_go_on(new_cluster: Callable[..., Any]) -> None:
    """After a store was killed, every acknowledged row exists once and all replicas have the same hash."""
    cluster: TableCluster = await new_cluster(partitions=2)
    await cluster.reconcile(3)
    await cluster.until_settled()
    killed = asyncio.Event()

    async def write(writer: int) -> None:
        for sequence in range(30):
            await cluster.write(batch(writer, sequence), writer=f"w{writer}", sequence=sequence)
            if sequence == 10:
                killed.set()

    writing = asyncio.gather(*(write(writer) for writer in range(3)))
    await killed.wait()
    victim = cluster.stores[await cluster.likely_leader(0)]
    await victim.end()
    await victim.start()
    await writing
    assert await all_rows(cluster) == sorted(
        row for writer in range(3) for sequence in range(30) for row in batch(writer, sequence).column("id").to_pylist()
    )
    for partition in range(2):
        hashes = await cluster.hashes(partition)
        assert len(hashes) == 3
        assert len(set(hashes.values())) == 1


async def test_new_replicas_answer_at_earlier_pins(new_cluster: Callable[..., Any]) -> None:
    """Replicas restored from a snapshot answer at a pin and at the newest index; other stores redirect."""
    cluster: TableCluster = await new_cluster(partitions=1)
    await cluster.reconcile(1)
    await cluster.until_settled()
    await cluster.write(batch(0, 0), writer="w", sequence=1)
    pin = await cluster.insist(
        0, lambda client: client.act("pin", table="orders", partition=0, name="job", seconds=600)
    )
    await cluster.insist(0, lambda client: client.put([{"id": 3}, {"id": 4}], op="delete"))
    await cluster.write(batch(1, 1), writer="w", sequence=2)
    leader = await cluster.likely_leader(0)
    client = cluster.client(next(name for name in cluster.stores if name != leader))
    with pytest.raises(NotLeaderError) as redirected:
        await client.rows(partition=0)
    assert redirected.value.store == leader
    await client.close()

    async def folded() -> bool:
        status = await cluster.insist(0, lambda client: client.act("status", table="orders"))
        return all(group["unfolded"] == 0 for group in status["groups"])

    # By then the pinned rows are in `old_n`, and the snapshot must include them.
    await cluster.until(folded)
    await cluster.reconcile(3)
    await cluster.until_settled()
    for name in cluster.stores:
        client = cluster.client(name)
        pinned = await client.rows(partition=0, columns=["id"], pin="job", at_least=pin["index"])
        assert [row["id"] for row in pinned] == list(range(10))
        newest = sorted(row["id"] for row in await client.rows(partition=0, columns=["id"]))
        assert newest == [0, 1, 2, *range(5, 10), *range(100_010, 100_020)]
        await client.close()
    assert len(set((await cluster.hashes(0)).values())) == 1


async def test_recovery_from_a_full_disk(new_cluster: Callable[..., Any]) -> None:
    """A store with a full disk serves reads; once there is room, it applies what was committed meanwhile."""
    cluster: TableCluster = await new_cluster(stores=1, partitions=1)
    await cluster.reconcile(1)
    await cluster.until_settled()
    await cluster.write(batch(0, 0), writer="w", sequence=1)
    before = await all_rows(cluster)
    [store] = cluster.stores.values()
    assert store.state_machine is not None
    wal = store.directory / "tables" / "tables.duckdb.wal"
    room = wal.stat().st_size + 500
    resource.prlimit(store.state_machine.pid, resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    large = pa.record_batch({"id": list(range(5000, 6000)), "customer": [f"{n}" * 20 for n in range(1000)]})
    await cluster.insist(0, lambda client: client.put(large, writer="w", sequence=2))
    client = cluster.client(store.name)
    stale = await client.get(partition=0, at_least=1, columns=["id"])
    assert sorted(stale.column("id").to_pylist()) == before
    await client.close()
    resource.prlimit(store.state_machine.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert await all_rows(cluster) == [*before, *range(5000, 6000)]


async def test_damaged_write_ahead_log_is_repaired(new_cluster: Callable[..., Any]) -> None:
    """A store whose write-ahead log seems to end early reports it, and soon has all rows again."""
    cluster: TableCluster = await new_cluster(partitions=1)
    await cluster.reconcile(3)
    await cluster.until_settled()
    for sequence in range(5):
        await cluster.write(batch(0, sequence), writer="w", sequence=sequence + 1)
    await cluster.hashes(0)
    victim = cluster.stores[await cluster.likely_leader(0)]
    assert victim.state_machine is not None
    await end(victim.state_machine, signal.SIGKILL)
    wal = victim.directory / "tables" / "tables.duckdb.wal"
    data = bytearray(wal.read_bytes())
    data[0] ^= 0xFF
    wal.write_bytes(data)
    await victim.start_state_machine()
    hashes = await cluster.hashes(0)
    assert len(hashes) == 3
    assert len(set(hashes.values())) == 1
    assert "transactions are lost and will be applied again" in victim.log()


@pytest.mark.parametrize("both", [False, True], ids=["the store", "the store and its sidecar"])
async def test_only_voter_restores_its_database_from_the_learner(new_cluster: Callable[..., Any], both: bool) -> None:
    """Of a voter and a learner, the voter loses its database after log compaction; the learner restores it."""
    cluster: TableCluster = await new_cluster(stores=2, partitions=1, flags=("--keep-log-bytes", "2000"))
    await cluster.reconcile(2)
    await cluster.until_settled()
    for sequence in range(30):
        await cluster.write(batch(0, sequence), writer="w", sequence=sequence + 1)
    await cluster.hashes(0)
    view = (await cluster.snapshot()).partition(0)
    assert view.stable is not None
    assert [peer.role.value for peer in view.stable.peers] == ["voter", "learner"]
    victim = cluster.stores[await cluster.likely_leader(0)]

    async def compacted() -> bool:
        return "evenkeel_raft_compactions_total 0" not in (await asyncio.to_thread(victim.read, "/metrics")).decode()

    await cluster.until(compacted)
    assert victim.state_machine is not None
    await (victim.end() if both else end(victim.state_machine, signal.SIGKILL))
    lost = list((victim.directory / "tables").glob("tables.duckdb*"))
    assert lost
    for path in lost:
        path.unlink()
    await (victim.start() if both else victim.start_state_machine())
    await cluster.write(batch(1, 0), writer="w", sequence=31)
    written = [batch(0, sequence) for sequence in range(30)] + [batch(1, 0)]
    assert await all_rows(cluster) == sorted(row for rows in written for row in rows.column("id").to_pylist())
    assert await cluster.likely_leader(0) == victim.name
    hashes = await cluster.hashes(0)
    assert len(hashes) == 2
    assert len(set(hashes.values())) == 1
    assert b"evenkeel_raft_snapshots_restored_total 1" in await asyncio.to_thread(victim.read, "/metrics")


async def _with_a_wrong_row(cluster: TableCluster, *, leads: bool) -> StoreProcesses:
    """Write ten rows to three stores, then change one row on the leader or on a follower."""
    await cluster.reconcile(3)
    await cluster.until_settled()
    await cluster.write(batch(0, 0), writer="w0", sequence=1)
    await cluster.hashes(0)
    leader = await cluster.likely_leader(0)
    victim = cluster.stores[leader if leads else min(set(cluster.stores) - {leader})]
    assert victim.state_machine is not None
    await end(victim.state_machine, signal.SIGTERM)
    _damage_a_row(victim.directory / "tables" / "tables.duckdb")
    await victim.start_state_machine()
    if leads:
        await _lead_again(cluster, victim.name)
    return victim


@pytest.mark.parametrize("leads", [False, True], ids=["a follower", "the leader"])
async def test_heal_rebuilds_a_replica_with_a_wrong_row(new_cluster: Callable[..., Any], leads: bool) -> None:
    """`heal` finds the replica with other rows, which is then restored from the others."""
    cluster: TableCluster = await new_cluster(partitions=1)
    victim = await _with_a_wrong_row(cluster, leads=leads)
    addresses = [store.address for store in cluster.stores.values() if isinstance(store, TableStore)]
    with Client(addresses, deadline=30.0) as client:
        table = await asyncio.to_thread(client.table, "orders")
        [found] = await asyncio.to_thread(table.heal)
        assert found.wrong == [victim.name]

        async def same() -> bool:
            [now] = await asyncio.to_thread(table.verify)
            return not now.differing and not now.silent

        await cluster.until(same)
        assert (await asyncio.to_thread(table.count)) == 10


@pytest.mark.parametrize("leads", [False, True], ids=["a follower", "the leader"])
async def test_replica_with_a_wrong_row_is_rebuilt_automatically(new_cluster: Callable[..., Any], leads: bool) -> None:
    """During writes a wrong replica is found, reported and restored; no acknowledged row is lost."""
    cluster: TableCluster = await new_cluster(partitions=1, machine_flags=("--compare-seconds", "1"))
    await _with_a_wrong_row(cluster, leads=leads)
    done = asyncio.Event()

    async def write() -> int:
        sequence = 0
        while not done.is_set():
            sequence += 1
            await cluster.write(batch(1, sequence), writer="w1", sequence=sequence)
            await asyncio.sleep(0.05)
        return sequence

    writing = asyncio.create_task(write())
    reported: set[str] = set()

    async def healed() -> bool:
        for name in cluster.stores:
            kv = await cluster.metastore.get(KEYS.load(name))
            reported.update(() if kv is None else decode(StoreLoad, kv.value, key=kv.key).problems.values())
        return "rebuilding the replica on" in cluster.log() and len(set((await cluster.hashes(0)).values())) == 1

    await cluster.until(healed, within=120)
    done.set()
    written = await writing
    expected = [row for sequence in range(1, written + 1) for row in batch(1, sequence).column("id").to_pylist()]
    assert await all_rows(cluster) == sorted([*batch(0, 0).column("id").to_pylist(), *expected])
    assert any("the state is in doubt: at index" in problem for problem in reported), reported
    rows = await cluster.insist(0, lambda client: client.get(partition=0, filter=["=", "id", 3]))
    assert rows.column("customer").to_pylist() == ["0/0"]


def _damage_a_row(database: Path) -> None:
    """Change a row in the database, with a valid checksum."""
    with duckdb.connect(str(database)) as connection:
        tables = [name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()]
        for name in tables:
            if name.startswith(("rows_", "log_")):
                connection.execute(f"UPDATE {name} SET c1 = 'wrong' WHERE c0 = 3")


async def _lead_again(cluster: TableCluster, store: str) -> None:
    """Make a store lead, with an order in the metastore."""

    async def led() -> bool:
        order = LeaderOrder(store, time.time() + 60)
        await cluster.metastore.txn(Txn(success=(Put(KEYS.leader_target(TABLE, 0), encode(order)),)))
        await asyncio.sleep(0.5)
        return await cluster.leader(0) == store

    await cluster.until(led)


async def test_stores_report_how_much_data_they_have(new_cluster: Callable[..., Any]) -> None:
    """Each store reports the size of a partition's rows to the metastore, whatever its log retains."""
    cluster: TableCluster = await new_cluster(partitions=1)
    await cluster.reconcile(3)
    await cluster.until_settled()
    for sequence in range(3):
        numbers = range(sequence * 2_000, sequence * 2_000 + 2_000)
        texts = [random.Random(number).randbytes(500).hex() for number in numbers]
        await cluster.write(pa.record_batch({"id": numbers, "customer": texts}), writer="w", sequence=sequence)
    await cluster.metastore.txn(Txn(success=(Put(KEYS.version, encode(ClusterVersion(2))),)))
    expected, reported = 3 * 2_000 * 500, {}

    async def all_have() -> bool:
        for name in cluster.stores:
            kv = await cluster.metastore.get(KEYS.load_slice(name, TABLE, 0))
            reported[name] = dict(decode(LoadSlice, kv.value, key=kv.key).sizes)[0] if kv is not None else 0
        return all(0.8 < size / expected < 1.3 for size in reported.values())

    await cluster.until(all_have)
    kvs = (await cluster.metastore.range(KEYS.load(""))).kvs
    assert Reports(KEYS, kvs).sizes(TABLE) == {0: max(reported.values())}
