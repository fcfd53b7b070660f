"""A controller on an in-memory metastore in virtual time; `arrive` plays the sidecars."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from evenkeel.controller.controller import Controller
from evenkeel.errors import NoSpaceError
from evenkeel.local.local_resources import ROOT, ClusterResources, LocalResources
from evenkeel.metastore.memory_metastore import MemoryLease, MemoryMetastore
from evenkeel.metastore.metastore_api import Compare, Delete, Get, KeyValue, Op, Put, Txn, TxnResult
from evenkeel.model.partitionassignment import PartitionAssignment
from evenkeel.model.rebalanceplan import RebalancePlan
from evenkeel.model.resource_loading import load_yaml
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.leader_transactions import switch_txn
from evenkeel.protocol.partition_view import PartitionView, read_partition
from evenkeel.protocol.records import Leader, LeaderOrder, LoadSlice, StoreLoad, StoreRecord, decode, encode, voters
from evenkeel.protocol.table_lifecycle import confirm_drop
from evenkeel.reconcile.desired_table import table_key
from evenkeel.runtime.clock import VirtualClock
from evenkeel.versions import SUPPORTED, VersionRange

KEYS = Keys(namespace="default", store_cluster="main")
BEGIN = 1_700_000_000.0
"""Seconds since 1970 at the clock's zero."""


class CountingMetastore(MemoryMetastore):
    """Counts writes by kind of key or resource."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self.writes: Counter[str] = Counter()
        self.why_full = ""
        """Why every write is refused for lack of space; empty if none is."""

    async def full(self) -> str:
        return self.why_full

    async def txn(self, txn: Txn) -> TxnResult:
        # Resources are in the same metastore here; on Kubernetes statuses are not in etcd.
        if self.why_full and any(isinstance(op, Put) and op.key.startswith(KEYS.root) for op in txn.success):
            raise NoSpaceError(self.why_full)
        result = await super().txn(txn)
        if result.succeeded:
            self.writes.update(_kind(op) for op in txn.success if not isinstance(op, Get))
        return result


def _kind(op: Op) -> str:
    root = ROOT if op.key.startswith(ROOT) else KEYS.root
    return op.key.removeprefix(root).partition("/")[0]


class Scene:
    """A StoreCluster `main`, its stores' registrations, and the controller."""

    def __init__(self, stores: int = 4, *, versions: VersionRange | None = SUPPORTED) -> None:
        """`versions` is what the first stores announce; None announces nothing, like the first release."""
        self.clock = VirtualClock()
        self.wall_ahead = 0.0
        """The error of the controller's wall clock, in seconds."""
        self.metastore = CountingMetastore(self.clock)
        self.resources = LocalResources(self.metastore)
        self.controller = self.make_controller("first")
        self.task: asyncio.Task[None] | None = None
        self._stores = stores
        self._versions = versions
        self._leases: dict[str, MemoryLease] = {}

    def make_controller(self, holder: str) -> Controller:
        return Controller(
            self.metastore,
            keys=KEYS,
            resources=ClusterResources(self.resources, "main"),
            holder=holder,
            clock=self.clock,
            wall_clock=self.wall_clock,
        )

    def wall_clock(self) -> float:
        return BEGIN + self.clock.now() + self.wall_ahead

    async def __aenter__(self) -> Self:
        await self.apply(store_cluster(self._stores))
        for number in range(self._stores):
            await self.come(f"main-{number}", versions=self._versions)
        self.start()
        await self.rest()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        await self.metastore.close()

    def start(self) -> None:
        self.task = asyncio.ensure_future(self.controller.run())

    async def stop(self) -> None:
        """Stop the controller; raise its error if it failed."""
        task, self.task = self.task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    # Time

    async def rest(self) -> None:
        """Run everything that can run now, including rebalancers in their threads."""
        calm = 0
        while calm < 30:
            await asyncio.sleep(0)
            assert self.task is not None
            if self.task.done():
                return
            calm = calm + 1 if self.controller.idle else 0

    async def pass_time(self, seconds: float, *, step: float = 0.1) -> None:
        """Advance time in steps."""
        for _ in range(round(seconds / step)):
            self.clock.advance(step)
            await self.rest()

    # Users

    async def apply(self, *texts: str) -> None:
        for text in texts:
            for resource in load_yaml(text):
                await self.resources.apply(resource)

    async def change(self, name: str = "orders", **spec: Any) -> None:
        """Change fields of a table's spec."""
        await self.resources.change(Table, name, lambda document: document["spec"].update(spec))

    async def annotate(self, kind: Any, name: str, **annotations: str) -> None:
        """Set Evenkeel's annotations, by the last part of their names."""
        named = {f"evenkeel.dev/{word}": value for word, value in annotations.items()}
        await self.resources.change(
            kind, name, lambda document: document["metadata"].setdefault("annotations", {}).update(named)
        )

    # Stores

    async def come(self, name: str, *, volume: str = "", versions: VersionRange | None = SUPPORTED) -> None:
        lease = await self.metastore.lease(3600 * 24)
        self._leases[name] = lease
        record = StoreRecord(volume=volume or f"v-{name}", versions=versions)
        await self.put(KEYS.store(name), encode(record), lease=lease.id)

    async def go(self, name: str) -> None:
        await self._leases.pop(name).revoke()

    async def report(self, store: str, **load: Any) -> None:
        value = {"replicas": 1, "leading": 1, "log_bytes": 0, "bytes_per_second": 0, **load}
        await self.put(KEYS.load(store), encode(StoreLoad(**value)))

    async def report_sizes(self, store: str, table: str, sizes: Mapping[int, int]) -> None:
        """Report the sizes of a store's replicas, all of one slice."""
        value = encode(LoadSlice(tuple(sizes.items())))
        await self.put(KEYS.load_slice(store, table, next(iter(sizes))), value)

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> None:
        await self.metastore.txn(Txn(success=(Put(key, value, lease),)))

    async def delete(self, key: str) -> None:
        await self.metastore.txn(Txn(success=(Delete(key),)))

    # Sidecars

    async def view(self, partition: int, name: str = "orders") -> PartitionView:
        keys = KEYS.partition(await self.key(name), partition)
        found = {key: kv for key in keys.all() if (kv := await self.metastore.get(key)) is not None}
        return read_partition(keys, found)

    async def arrive(self, name: str = "orders", *, only: int | None = None, leaders: bool = True) -> int:
        """Finish up to so many changes, and elect missing leaders; return how many changes were finished."""
        key, table, finished = await self.key(name), await self.table(name), 0
        for partition in range(table.spec.partitions):
            view = await self.view(partition, name)
            while view.pending is not None and (only is None or finished < only):
                keys = KEYS.partition(key, partition)
                record = Compare(KEYS.table(key), "version", ">", 0)
                txn = switch_txn(view, view.pending.head, keys=keys, token=view.pending_mod, table=record)
                assert (await self.metastore.txn(txn)).succeeded
                view = await self.view(partition, name)
                finished += view.pending is None
            if leaders and view.stable is not None and await self.metastore.get(KEYS.leader(key, partition)) is None:
                await self.lead(partition, voters(view.stable.peers)[0].store, name)
        return finished

    async def lead(self, partition: int, store: str, name: str = "orders") -> None:
        await self.put(KEYS.leader(await self.key(name), partition), encode(Leader(store=store, term=2)))

    async def obey(self, name: str = "orders") -> int:
        """Carry out leader orders; return how many there were."""
        prefix = f"{KEYS.leader_targets()}{await self.key(name)}/"
        orders = await self.kvs(prefix)
        for kv in orders:
            order = decode(LeaderOrder, kv.value, key=kv.key)
            await self.lead(int(kv.key.removeprefix(prefix)), order.store, name)
            await self.delete(kv.key)
        return len(orders)

    async def make_table(self, text: str = "", name: str = "orders") -> None:
        """Create a table and wait until it has leaders and is idle."""
        await self.apply(text or table(name))
        await self.pass_time(1)
        await self.arrive(name)
        await self.pass_time(1)
        while await self.obey(name):
            await self.pass_time(1)
        await self.pass_time(3)

    async def confirm_drops(self, *stores: str) -> None:
        """Confirm for all stores that nothing of dropped tables is left on them."""
        for store in stores:
            for kv in (await self.metastore.range(KEYS.tombstone(""))).kvs:
                txn = confirm_drop(kv, store=store, volume=f"v-{store}")
                assert txn is None or (await self.metastore.txn(txn)).succeeded

    # Looking

    async def key(self, name: str = "orders") -> str:
        return table_key(await self.table(name))

    async def table(self, name: str = "orders") -> Table:
        return await self.resources.need(Table, name)

    async def cluster(self) -> StoreCluster:
        return await self.resources.need(StoreCluster, "main")

    async def plan(self, name: str) -> RebalancePlan:
        return await self.resources.need(RebalancePlan, name)

    async def plan_names(self) -> list[str]:
        return [plan.metadata.name for plan in await self.resources.all_of(RebalancePlan)]

    async def slice(self, name: str = "orders-0") -> PartitionAssignment:
        return await self.resources.need(PartitionAssignment, name)

    async def conditions(self, name: str = "orders") -> dict[str, tuple[str, str]]:
        return conditions_of((await self.table(name)).status)

    async def message(self, kind: str, name: str = "orders") -> str:
        status = (await self.table(name)).status
        assert status is not None
        return next(entry.message for entry in status.conditions if entry.type == kind)

    async def kvs(self, prefix: str) -> tuple[KeyValue, ...]:
        return (await self.metastore.range(prefix)).kvs


def conditions_of(status: Any) -> dict[str, tuple[str, str]]:
    """Return a status's conditions by type, as status and reason, without those derived from others."""
    conditions = () if status is None else status.conditions
    derived = ("Reconciling", "Stalled")
    return {entry.type: (entry.status, entry.reason) for entry in conditions if entry.type not in derived}


def store_cluster(stores: int, more: str = "") -> str:
    return (
        "apiVersion: evenkeel.dev/v1alpha1\nkind: StoreCluster\nmetadata: {name: main}\n"
        f"spec: {{stores: {stores}, storage: {{size: 1Gi}}{more}}}\n"
    )


def table(name: str = "orders", *, partitions: int = 8, replicas: int = 3, more: str = "", labels: str = "") -> str:
    return (
        f"apiVersion: evenkeel.dev/v1alpha1\nkind: Table\nmetadata: {{name: {name}{labels}}}\n"
        f"spec: {{storeCluster: main, partitions: {partitions}, replicas: {replicas}, schema: {{columns: "
        f"[{{name: id, type: int64, nullable: false}}, {{name: x, type: string}}], primaryKey: [id]}}{more}}}\n"
    )
