"""A table on three stores as clients use it: Arrow Flight in front, raft and DuckDB behind, with synced disks.

A write counts when all three replicas have applied it: it is durable and readable, and folded into the rows later. The
references are etcd (three members, small puts, with the concurrency that suits it) and a DuckDB that upserts the same
batches without replication. Scans are linearizable reads from the leader; the reference is DuckDB returning the same
rows in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import aetcd
import msgspec
import pyarrow as pa
from pyarrow import flight

from bench._raft_sides import etcd_leader, etcd_name
from bench._store_rows import KEYS, SCHEMA, batches_of, open_plain, upsert_plain
from bench._turns import in_turn, median_row
from bench.report import Row
from evenkeel.client import Client
from evenkeel.driver import drive
from evenkeel.errors import StoreError
from evenkeel.model.views import Choice, TableView
from evenkeel.protocol.records import TableRecord
from evenkeel.reconcile.desired_table import DesiredTable
from evenkeel.reconcile.table_steps import reconcile_table
from tests.process.process_cluster import KEYS as KEY_SPACE
from tests.process.process_cluster import TABLE as TABLE_KEY
from tests.store.cluster import TableCluster, TableStore

__all__ = ["TABLE", "BenchCluster", "bench_cluster", "cluster_rows"]

AMOUNTS: Final = {256: 51_200, 4_096: 409_600, 65_536: 655_360}
ETCD_AT_ONCE: Final = 64
ETCD_SECONDS: Final = 2.0
POLL_SECONDS: Final = 0.005
TABLE: Final = "orders"


def cluster_rows() -> Iterator[Row]:
    """Yield rows for writes by batch size, then for a scan."""
    for size, amount in AMOUNTS.items():
        yield from asyncio.run(_writes(size, amount))
    yield asyncio.run(_scan())


class BenchCluster(TableCluster):
    """Stores with the benchmark's table."""

    def spec(self, replicas: int) -> bytes:
        columns = [{"name": c.name, "type": c.type, "nullable": c.nullable} for c in SCHEMA.columns]
        schema = {"columns": columns, "primaryKey": ["id"]}
        return msgspec.json.encode(
            {"storeCluster": "main", "partitions": self.partitions, "replicas": replicas, "schema": schema}
        )

    async def place(self, places: Sequence[Sequence[str]]) -> None:
        """Move each partition to these stores; the first one leads."""
        partitions, replicas = self.partitions, len(places[0])
        raw = msgspec.Raw(self.spec(replicas))
        desired = DesiredTable(
            record=TableRecord(partitions=partitions, replicas=replicas, consensus_size=1, spec=raw),
            view=TableView(name=TABLE, partitions=partitions, replicas=replicas, consensus_size=1),
            mode="Customized",
            choices={number: Choice(stores=tuple(stores), leader=stores[0]) for number, stores in enumerate(places)},
        )
        requests = reconcile_table(desired, keys=KEY_SPACE, table=TABLE_KEY, epoch=self.epoch.compare)
        await drive(requests, metastore=self.metastore, epoch=self.epoch)

    def connect(self) -> Client:
        """Return a client of all stores."""
        return Client([store.address for store in self.stores.values() if isinstance(store, TableStore)])

    async def serving(self) -> bool:
        """Whether all stores serve clients and know the table, and every partition has a leader."""
        leading = 0
        for store in self.stores:
            client = self.client(store)
            try:
                groups = (await client.act("status", table=TABLE))["groups"]
            except (StoreError, flight.FlightError, pa.ArrowException):
                return False
            finally:
                await client.close()
            leading += sum(group["leader"] for group in groups)
        return leading == self.partitions and await asyncio.to_thread(self._is_routed)

    def _is_routed(self) -> bool:
        """Whether every store can route clients to the table."""
        for store in self.stores.values():
            assert isinstance(store, TableStore)
            with Client([store.address]) as client:
                if TABLE not in client.tables():
                    return False
        return True

    async def until_applied(self, indexes: dict[int, int]) -> None:
        """Wait until every replica has applied these indexes of its partitions."""
        await self._until_all(lambda group: group["applied"] >= indexes.get(group["partition"], 0))

    async def until_folded(self) -> None:
        """Wait until no store has background work left."""
        await self._until_all(lambda group: not group["unfolded"])

    async def _until_all(self, holds: Callable[[dict[str, int]], bool]) -> None:
        """Wait until the condition holds for every replica."""
        for store in self.stores:
            client = self.client(store)
            try:
                while not all(map(holds, (await client.act("status", table=TABLE))["groups"])):  # noqa: ASYNC110
                    await asyncio.sleep(POLL_SECONDS)
            finally:
                await client.close()


@contextlib.asynccontextmanager
async def bench_cluster(
    *, stores: int = 3, partitions: int = 1, replicas: int = 3, flags: tuple[str, ...] = ()
) -> AsyncIterator[BenchCluster]:
    """Start stores with the table, ready for clients."""
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as directory:
        async with BenchCluster(Path(directory), stores=stores, partitions=partitions, flags=flags) as made:
            await made.reconcile(replicas)
            await made.until_settled(within=120)
            await made.until(made.serving)
            yield made


async def _writes(size: int, amount: int) -> list[Row]:
    batches = batches_of(size, max(3, amount // size))
    rows = size * len(batches)
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as directory, open_plain(Path(directory)) as plain:
        async with bench_cluster() as cluster, etcd_leader() as etcd:
            with cluster.connect() as client:
                table, numbers = client.table(TABLE), itertools.count(1)

                async def ours() -> float:
                    stamped = [(next(numbers), batch) for batch in batches]
                    began = time.perf_counter()
                    index = await asyncio.to_thread(table.put, 0, stamped, op="upsert", writer="bench")
                    await cluster.until_applied({0: index})
                    return rows / (time.perf_counter() - began)

                async def unreplicated() -> float:
                    return rows / await asyncio.to_thread(upsert_plain, plain, batches)

                found = await in_turn(ours, lambda: _etcd_puts(etcd), unreplicated, windows=3)
    what = f"{size:,}-row batches applied on three replicas, vs"
    return [
        median_row("store", f"{what} {etcd_name()} puts; target >= 20", "rows/s", [(f[0], f[1]) for f in found]),
        median_row("store", f"{what} one plain DuckDB; target >= 0.3", "rows/s", [(f[0], f[2]) for f in found]),
    ]


async def _etcd_puts(etcd: aetcd.Client) -> float:
    """Return puts of small values per second."""
    began, done = time.perf_counter(), 0

    async def work(worker: int) -> None:
        nonlocal done
        while time.perf_counter() - began < ETCD_SECONDS:
            await etcd.put(b"key-%d" % worker, bytes(40))
            done += 1

    await asyncio.gather(*(work(number) for number in range(ETCD_AT_ONCE)))
    return done / (time.perf_counter() - began)


async def _scan() -> Row:
    whole = batches_of(KEYS, 1)
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as directory, open_plain(Path(directory)) as plain:
        upsert_plain(plain, whole)
        async with bench_cluster() as cluster:
            with cluster.connect() as client:
                table = client.table(TABLE)
                written = await asyncio.to_thread(table.upsert, pa.Table.from_batches(whole))
                await cluster.until_applied(written.indexes)

                async def ours() -> float:
                    return await asyncio.to_thread(_megabytes_a_second, table.scan)

                async def locally() -> float:
                    return await asyncio.to_thread(
                        _megabytes_a_second, lambda: plain.sql("SELECT * FROM t").to_arrow_table()
                    )

                found = await in_turn(ours, locally, windows=7)
    case = f"scan of {KEYS:,} rows by a client, vs DuckDB in-process; target >= 0.5"
    return median_row("store", case, "MB/s", [(f[0], f[1]) for f in found])


def _megabytes_a_second(read: Callable[[], pa.Table]) -> float:
    began = time.perf_counter()
    table = read()
    assert table.num_rows == KEYS
    return float(table.nbytes / 1e6 / (time.perf_counter() - began))
