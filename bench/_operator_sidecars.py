"""Models the sidecars of a thousand stores in one process: `python -m bench._operator_sidecars ETCD SPACE STORES`.

They register, lead, obey orders to hand over, and switch to pending as soon as they see it. Nothing is copied, so the
remaining time is the operator's. They report as often as stores under load. One watch stands for a thousand, because
etcd itself is not measured.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.metastore.etcd_settings import EtcdSettings
from evenkeel.metastore.leases import keep_alive
from evenkeel.metastore.metastore_api import Compare, Delete, Event, Put, Txn
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.leader_transactions import switch_txn
from evenkeel.protocol.partition_view import PartitionView, read_partition
from evenkeel.protocol.records import (
    Leader,
    LeaderOrder,
    LoadSlice,
    StoreLoad,
    StoreRecord,
    TableRecord,
    TableState,
    decode,
    encode,
    voters,
)

__all__ = ["STORE_CLUSTER"]

STORE_CLUSTER: Final = "main"
REPORT_SECONDS: Final = 5.0
_LEASE_SECONDS: Final = 60.0
_BYTES: Final = 100_000_000
_RATE: Final = 20_000
"""Bytes written to a partition per second; with 10,000 partitions 200 MB/s in total. `_BYTES` is its initial size."""
_IN_FLIGHT: Final = 32
_BATCH: Final = 100
Partition = tuple[str, int]
T = TypeVar("T")


class Sidecars:
    """All modelled sidecars."""

    def __init__(self, metastore: EtcdMetastore, keys: Keys, stores: int) -> None:
        self._metastore = metastore
        self._keys = keys
        self._stores = [f"{STORE_CLUSTER}-{number}" for number in range(stores)]
        self._kvs: dict[str, Event] = {}
        self._leaders: dict[Partition, Leader] = {}
        self._slots = asyncio.Semaphore(_IN_FLIGHT)
        self._busy: dict[Partition, asyncio.Task[None]] = {}
        self._again: set[Partition] = set()

    async def run(self) -> None:
        """Run until the process ends."""
        lease = await self._metastore.lease(_LEASE_SECONDS)
        snapshot = await self._metastore.range(self._keys.root)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(keep_alive(lease))
            for some in _batches(self._stores):
                puts = [
                    Put(self._keys.store(name), encode(StoreRecord(volume=f"v-{name}", node=f"node-{name}")), lease.id)
                    for name in some
                ]
                await self._metastore.txn(Txn(success=tuple(puts)))
            print("ready", flush=True)
            tasks.create_task(self._report())
            async for batch in self._metastore.watch(self._keys.root, after=snapshot):
                for event in batch.events:
                    self._observe(event)

    # Observing

    def _observe(self, event: Event) -> None:
        kind, _, rest = event.key.removeprefix(self._keys.root).partition("/")
        table, slash, number = rest.partition("/")
        if event.kv is None:
            self._kvs.pop(event.key, None)
        else:
            self._kvs[event.key] = event
        if kind == "tables" and event.kv is not None:
            record = decode(TableRecord, event.kv.value, key=event.key)
            if record.state is TableState.READY:
                for partition in range(record.partitions):
                    self._enqueue((table, partition))
        elif slash and number.isdecimal() and kind.startswith(("partition.assignments", "leader.target")):
            self._enqueue((table, int(number)))

    def _enqueue(self, partition: Partition) -> None:
        if partition in self._busy:
            self._again.add(partition)
            return
        task = self._busy[partition] = asyncio.create_task(self._step(partition))
        task.add_done_callback(lambda _: self._rest(partition))

    def _rest(self, partition: Partition) -> None:
        del self._busy[partition]
        if partition in self._again:
            self._again.discard(partition)
            self._enqueue(partition)

    def _view(self, partition: Partition) -> PartitionView:
        own = self._keys.partition(*partition)
        found = {key: kv for key in own.all() if key in self._kvs and (kv := self._kvs[key].kv) is not None}
        return read_partition(own, found)

    # Acting

    async def _step(self, partition: Partition) -> None:
        """Take the next action of a partition's leader;

        with an outdated view it is rejected, and the watch triggers a retry.
        """
        view, keys = self._view(partition), self._keys
        if view.stable is None or keys.table(partition[0]) not in self._kvs:
            return
        async with self._slots:
            if view.pending is not None:
                table = Compare(keys.table(partition[0]), "version", ">", 0)
                own, token = keys.partition(*partition), view.pending_mod
                await self._metastore.txn(switch_txn(view, view.pending.head, keys=own, token=token, table=table))
                return
            order = self._kvs.get(keys.leader_target(*partition))
            names = [peer.store for peer in voters(view.stable.peers)]
            before = self._leaders.get(partition)
            if order is not None and order.kv is not None:
                wanted = decode(LeaderOrder, order.kv.value, key=order.key).store
                await self._lead(partition, wanted if wanted in names else names[0], Delete(order.key))
            elif before is None or before.store not in names:
                await self._lead(partition, names[0])

    async def _lead(self, partition: Partition, store: str, *more: Delete) -> None:
        before = self._leaders.get(partition)
        leader = self._leaders[partition] = Leader(store=store, term=1 + (before.term if before is not None else 0))
        await self._metastore.txn(Txn(success=(Put(self._keys.leader(*partition), encode(leader)), *more)))

    async def _report(self) -> None:
        """Write every store's report, spread over the report interval, with growing sizes."""
        turn = 0
        while True:
            turn += 1
            held = _BYTES + turn * round(REPORT_SECONDS * _RATE)
            leading: dict[str, dict[str, list[tuple[int, int]]]] = {}
            for (table, number), leader in list(self._leaders.items()):
                key = self._keys.load_slice(leader.store, table, number)
                leading.setdefault(leader.store, {}).setdefault(key, []).append((number, held))
            some = list(_batches(self._stores))
            for names in some:
                for puts in _batches([put for name in names for put in self._report_of(name, leading.get(name, {}))]):
                    await self._metastore.txn(Txn(success=tuple(puts)))
                await asyncio.sleep(REPORT_SECONDS / len(some))

    def _report_of(self, store: str, slices: dict[str, list[tuple[int, int]]]) -> Iterator[Put]:
        """Yield the keys of one store's report."""
        led = sum(map(len, slices.values()))
        header = StoreLoad(replicas=3 * led, leading=led, log_bytes=led, bytes_per_second=0)
        yield Put(self._keys.load(store), encode(header))
        for key, sizes in slices.items():
            yield Put(key, encode(LoadSlice(tuple(sizes))))


def _batches(all_of_them: list[T]) -> Iterable[list[T]]:
    return (all_of_them[at : at + _BATCH] for at in range(0, len(all_of_them), _BATCH))


async def main(etcd: str, namespace: str, stores: int) -> None:
    """Run all sidecars of a StoreCluster."""
    async with EtcdMetastore(EtcdSettings(endpoints=(etcd,))) as metastore:
        await Sidecars(metastore, Keys(namespace=namespace, store_cluster=STORE_CLUSTER), stores).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
