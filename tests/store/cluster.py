"""Clusters of processes (etcd, sidecars and table stores), and a client that follows redirects."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import flight

from evenkeel.driver import drive
from evenkeel.errors import NotLeaderError, StoreError
from evenkeel.model.table import TableSpec
from evenkeel.model.views import TableView
from evenkeel.protocol.records import Retarget, TableRecord
from evenkeel.reconcile.desired_table import DesiredTable
from evenkeel.reconcile.table_steps import Outcome, reconcile_table
from evenkeel.rows.partitioning import partitions_of
from evenkeel.rows.row_schema import RowSchema, schema_of_table
from tests.process.process_cluster import KEYS, LOOPBACK, TABLE, ProcessCluster, StoreProcesses
from tests.store.serving import ORDERS, Client

__all__ = ["TableCluster", "TableStore"]


class TableStore(StoreProcesses):
    """A sidecar and a table store."""

    machine_flags: tuple[str, ...] = ()

    async def start_state_machine(self) -> None:
        self.state_machine = await self._launch(
            "state_machine",
            "evenkeel_store.process.main",
            *("--store", self.name, "--store-cluster", "main", "--etcd-endpoints", ",".join(self.endpoints)),
            *("--socket", str(self.socket), "--data", str(self.directory / "tables")),
            *("--listen", f"{LOOPBACK}:{self.front}", "--http", f"{LOOPBACK}:0", *self.machine_flags),
        )

    @property
    def address(self) -> str:
        return f"grpc://{LOOPBACK}:{self.front}"


class TableCluster(ProcessCluster):
    """A cluster with one table, `orders`."""

    def __init__(self, directory: Path, *, machine_flags: tuple[str, ...] = (), **options: Any) -> None:
        """`machine_flags` are the flags of every table store."""
        super().__init__(directory, **options)
        self.machine_flags = machine_flags
        self.python = sys.executable
        """The interpreter of stores that are added."""

    def log(self) -> str:
        """Return the last log lines of all processes."""
        return "\n".join(store.log() for store in self.stores.values())

    async def add(self, name: str, *, flags: tuple[str, ...] = ()) -> StoreProcesses:
        store = TableStore(name, self.directory / name, (self.etcd.endpoint,), ())
        store.flags = ("--flight", store.address, *self.flags, *flags)
        store.machine_flags = self.machine_flags
        store.python = self.python
        self.stores[name] = store
        await store.start()
        return store

    def spec(self, replicas: int) -> bytes:
        schema = {"columns": ORDERS, "primaryKey": ["id"]}
        spec = {"storeCluster": "main", "partitions": self.partitions, "replicas": replicas, "schema": schema}
        return msgspec.json.encode(spec)

    @property
    def schema(self) -> RowSchema:
        return schema_of_table(TableSpec.model_validate_json(self.spec(1)))

    async def reconcile(
        self, replicas: int, *, voters: int | None = None, retarget: Retarget = Retarget.ADJUST
    ) -> Outcome:
        size = voters or (replicas if replicas % 2 else replicas - 1)
        raw = msgspec.Raw(self.spec(replicas))
        desired = DesiredTable(
            record=TableRecord(
                partitions=self.partitions, replicas=replicas, consensus_size=size, retarget=retarget, spec=raw
            ),
            view=TableView(name="orders", partitions=self.partitions, replicas=replicas, consensus_size=size),
        )
        requests = reconcile_table(desired, keys=KEYS, table=TABLE, epoch=self.epoch.compare)
        return await drive(requests, metastore=self.metastore, epoch=self.epoch)

    # Client operations

    def client(self, store: str) -> Client:
        found = self.stores[store]
        assert isinstance(found, TableStore)
        return Client(found.address)

    async def likely_leader(self, partition: int) -> str:
        """Return the leader, or any store, which will redirect."""
        return await self.leader(partition) or next(iter(self.stores))

    async def insist(self, partition: int, ask: Any) -> Any:
        """Call the leader until it answers, following redirects."""
        store = await self.likely_leader(partition)
        async with asyncio.timeout(60):
            while True:
                client = self.client(store)
                try:
                    return await ask(client)
                except NotLeaderError as error:
                    store = error.store if error.store in self.stores else await self.likely_leader(partition)
                except (StoreError, flight.FlightError, pa.ArrowException):
                    store = await self.likely_leader(partition)
                finally:
                    await client.close()
                await asyncio.sleep(0.05)

    async def write(self, rows: pa.RecordBatch, *, writer: str, sequence: int) -> None:
        """Write rows to their partitions, retrying with the same write token until all are acknowledged."""
        places = partitions_of(rows, self.schema)
        for partition in range(self.partitions):
            part = rows.filter(pa.array(places == partition))
            if part.num_rows:
                request = {"partition": partition, "writer": writer, "sequence": sequence}
                await self.insist(partition, lambda client, part=part, request=request: client.put(part, **request))

    async def hashes(self, partition: int) -> dict[str, str]:
        """Return the hash of each replica at one index."""
        taken = await self.insist(partition, lambda client: client.act("hash", table="orders", partition=partition))
        found: dict[str, str] = {}
        view = (await self.snapshot()).partition(partition)
        assert view.stable is not None
        async with asyncio.timeout(60):
            for store in sorted(peer.store for peer in view.stable.peers):
                while store not in found:
                    await self._poll_hash(store, partition, taken["index"], found)
        return found

    async def _poll_hash(self, store: str, partition: int, index: int, found: dict[str, str]) -> None:
        client = self.client(store)
        try:
            groups = (await client.act("status", table="orders"))["groups"]
            [mine] = [group for group in groups if group["partition"] == partition]
            if str(index) in mine.get("hashes", {}):
                found[store] = mine["hashes"][str(index)]
        except (StoreError, flight.FlightError, ValueError):
            pass
        finally:
            await client.close()
        await asyncio.sleep(0.05)
