"""Several stores' agents in one process, on an in-memory metastore and modelled raft groups, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from evenkeel.metastore.memory_metastore import MemoryMetastore
from evenkeel.metastore.metastore_api import Compare, Get, KeyValue, Put, Txn, TxnResult
from evenkeel.metastore.mvcc import Mvcc
from evenkeel.protocol import table_lifecycle
from evenkeel.protocol.change_steps import assign_ids
from evenkeel.protocol.operator_decision import retarget
from evenkeel.protocol.partition_view import PartitionView, read_partition
from evenkeel.protocol.records import (
    Leader,
    Peer,
    Retarget,
    Stable,
    StoreRecord,
    TableRecord,
    decode,
    encode,
    shape,
)
from evenkeel.runtime.clock import VirtualClock
from evenkeel_raft.agent.agent import Agent
from evenkeel_raft.agent.agent_context import StoreIdentity
from evenkeel_raft.agent.agent_settings import AgentSettings
from evenkeel_raft.shared.raft_groups import Partition
from tests.protocol.support import KEYS, targets
from tests.raft_agent.flaky import FlakyMetastore
from tests.raft_agent.model import Disk, ModelGroups, Network

TABLE = "orders.1"
P0 = Partition(TABLE, 0)
STEP = 0.05
_TURNS = 12
"""Loop iterations between two time steps: enough for a transaction, its response and immediate reactions."""
NO_SWEEP = AgentSettings(sweep_seconds=1e6)
"""Disables the sweep, which would hide missing events."""
ANYTIME = Compare(KEYS.epoch, "version", ">", -1)
"""These tests have no second operator that needs fencing."""


class StoreProcess:
    """One store; its disk outlives its processes."""

    def __init__(self, cluster: Cluster, name: str, settings: AgentSettings) -> None:
        self._cluster = cluster
        self.name = name
        self.settings = settings
        self.disk = Disk(f"{name}-1")
        self.way = FlakyMetastore(cluster.metastore)
        self.task: asyncio.Task[None] | None = None
        self.start()

    def start(self) -> None:
        """Start a process on the disk as it is."""
        number = len(self._cluster.stores)
        self.groups = ModelGroups(self._cluster.network, self.name, self.disk)
        self.agent = Agent(
            self.way,
            keys=KEYS,
            groups=self.groups,
            me=StoreIdentity(
                self.name, StoreRecord(volume=self.disk.volume, address=f"10.0.0.{number}:7000"), pod=f"{self.name}-pod"
            ),
            clock=self._cluster.clock,
            rng=random.Random(number),
            settings=self.settings,
        )
        self.task = asyncio.ensure_future(self.agent.run())

    async def kill(self) -> None:
        """End the process without a graceful stop."""
        self.groups.kill()
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.task = None

    def wipe(self) -> None:
        """Lose the disk; the next process has a new volume."""
        number = int(self.disk.volume.rsplit("-", 1)[1])
        self.disk = Disk(f"{self.name}-{number + 1}")


class Cluster:
    """All stores; an async context manager that ends everything and fails if an agent has failed."""

    def __init__(self, names: str, *, settings: AgentSettings | None = None) -> None:
        self.clock = VirtualClock()
        self.mvcc = Mvcc()
        self.metastore = MemoryMetastore(clock=self.clock, mvcc=self.mvcc)
        self.network = Network()
        self.network.dropped = self.is_dropped
        self.stores: dict[str, StoreProcess] = {}
        self._settings = settings or NO_SWEEP
        self._plans: dict[str, int] = {}
        self._dropped: set[str] = set()
        for name in names.split():
            self.add(name)

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [store.task for store in self.stores.values() if store.task is not None]
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        await self.metastore.close()
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
                raise end

    def __getitem__(self, name: str) -> StoreProcess:
        return self.stores[name]

    def add(self, name: str, *, settings: AgentSettings | None = None) -> StoreProcess:
        self.stores[name] = StoreProcess(self, name, settings or self._settings)
        return self.stores[name]

    # Time

    async def turn(self) -> None:
        """Let all tasks run until they wait."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    async def pass_time(self, seconds: float) -> None:
        """Advance the time step by step."""
        for _ in range(round(seconds / STEP)):
            await self.turn()
            self._check_agents()
            self.clock.advance(STEP)
            self.network.tick()
        await self.turn()

    async def until(self, condition: Callable[[], bool], *, seconds: float = 60.0) -> None:
        """Advance the time until the condition holds."""
        for _ in range(round(seconds / STEP)):
            await self.turn()
            if condition():
                return
            await self.pass_time(STEP)
        raise AssertionError(f"the condition did not hold within {seconds:g} s of virtual time")

    def _check_agents(self) -> None:
        for store in self.stores.values():
            if store.task is not None and store.task.done():
                store.task.result()

    async def started(self) -> None:
        """Wait until all agents follow the metastore."""
        await self.until(lambda: {store.agent.status().state for store in self.stores.values()} == {"following"})

    # The operator

    async def put(self, key: str, record: object, *, lease: int = 0) -> None:
        await self.metastore.txn(Txn(success=(Put(key, encode(record), lease),)))

    async def touch(self, key: str) -> None:
        """Rewrite a key unchanged, so that only its revision changes."""
        kv = await self.metastore.get(key)
        assert kv is not None
        await self.metastore.txn(Txn(success=(Put(key, kv.value),)))

    async def create(
        self, *rows: str, table: str = TABLE, mode: Retarget = Retarget.ADJUST, ready: bool = True
    ) -> None:
        """Create a table whose partitions have these initial targets."""
        sizes = [len(row.split()) for row in rows]
        record = TableRecord(partitions=len(rows), replicas=max(sizes), consensus_size=max(sizes), retarget=mode)
        self._plans[table] = 1
        await self._must(table_lifecycle.announce(record, keys=KEYS, table=table, epoch=ANYTIME))
        for number, row in enumerate(rows):
            keys = KEYS.partition(table, number)
            await self.put(keys.stable, Stable(assign_ids(targets(row), keep=(), plan=1), genesis=True))
            await self.put(keys.trigger, 1)
        if ready:
            await self.make_ready(table)

    async def make_ready(self, table: str = TABLE) -> None:
        kv = await self._table(table)
        await self._must(table_lifecycle.make_ready(kv, keys=KEYS, table=table, epoch=ANYTIME))

    async def retarget(
        self, row: str, *, partition: Partition = P0, gone: Callable[[Peer], bool] = lambda _: False
    ) -> None:
        """Write a new plan's target for the partition."""
        plan = self._plans[partition.table] = self._plans[partition.table] + 1
        keys = KEYS.partition(*partition)
        while True:
            view = self.view(partition)
            decision = retarget(view, targets(row), keys=keys, plan=plan, mode=self._mode(partition.table), gone=gone)
            result = await self.metastore.txn(Txn(view.compares(keys), decision.ops))
            if result.succeeded:
                return

    async def drop(self, table: str = TABLE) -> None:
        volumes = [(store.name, store.disk.volume) for store in self.stores.values()]
        kv = await self._table(table)
        await self._must(table_lifecycle.mark_dropping(kv, keys=KEYS, table=table, epoch=ANYTIME))
        self._dropped.add(table)
        kv = await self._table(table)
        await self._must(table_lifecycle.drop(kv, volumes, keys=KEYS, table=table, epoch=ANYTIME))

    async def remove_tombstone(self, table: str = TABLE) -> bool:
        """Remove the tombstone, if everybody has confirmed."""
        tombstone = await self.metastore.get(KEYS.tombstone(table))
        if tombstone is None:
            return True
        txn = table_lifecycle.remove_tombstone(tombstone, gone=lambda *_: False, epoch=ANYTIME)
        return txn is not None and (await self.metastore.txn(txn)).succeeded

    def is_dropped(self, table: str) -> bool:
        return table in self._dropped

    async def _must(self, txn: Txn) -> TxnResult:
        result = await self.metastore.txn(txn)
        assert result.succeeded
        return result

    async def _table(self, table: str) -> KeyValue:
        kv = await self.metastore.get(KEYS.table(table))
        assert kv is not None
        return kv

    def _mode(self, table: str) -> Retarget:
        kv = self.now(KEYS.table(table))
        assert kv is not None
        return decode(TableRecord, kv.value, key=kv.key).retarget

    # State

    def now(self, key: str) -> KeyValue | None:
        """Return a key's current value."""
        return self.mvcc.get(key)

    def view(self, partition: Partition = P0) -> PartitionView:
        keys = KEYS.partition(*partition)
        return read_partition(keys, {key: kv for key in keys.all() if (kv := self.now(key)) is not None})

    def leader(self, partition: Partition = P0) -> str:
        """Return the store of the leading replica; empty if none leads."""
        leader = self.network.leader(partition)
        return "" if leader is None else leader.id[0]

    def reported(self, partition: Partition = P0) -> Leader | None:
        kv = self.now(KEYS.leader(*partition))
        return None if kv is None else decode(Leader, kv.value, key=kv.key)

    def holders(self, partition: Partition = P0) -> set[str]:
        """Return the stores with a replica on their disk."""
        return {store.name for store in self.stores.values() if partition in store.disk.replicas}

    def settled(self, row: str, partition: Partition = P0) -> bool:
        """Whether keys, raft and disks all match the target, and nothing is left over."""
        view, wanted = self.view(partition), shape(targets(row))
        leader = self.network.leader(partition)
        applied = None if leader is None else leader.applied()
        return (
            view.stable is not None
            and shape(view.stable.peers) == wanted
            and (view.pending_mod, view.planned_mod, view.lock_mod) == (0, 0, 0)
            and applied is not None
            and shape(applied.peers) == wanted
            and not applied.staged
            and not applied.joint
            and self.holders(partition) == {store for store, _, _ in wanted}
        )


def _kind(key: str) -> str:
    return key.removeprefix(KEYS.root).partition("/")[0].removeprefix("partition.assignments.")


def writes(kind: str) -> Callable[[Txn], bool]:
    """Whether a transaction writes or deletes a key of this kind, such as `stable` or `pending.lock`."""
    return lambda txn: any(not isinstance(op, Get) and _kind(op.key) == kind for op in txn.success)


def puts(kind: str) -> Callable[[Txn], bool]:
    """Whether a transaction puts a key of this kind."""
    return lambda txn: any(isinstance(op, Put) and _kind(op.key) == kind for op in txn.success)
