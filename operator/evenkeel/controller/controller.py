"""The loop that keeps the tables of one StoreCluster at what their users want.

    stores     which are lost, which are to be replaced, which are being emptied
    tables     each that something was heard of: created, planned, rebalanced, or dropped; then its leaders
    statuses   from what the metastore says after that

Level-based: an event says which table to look at, never what happened to it, and now and then all are looked at. What
goes wrong with one table is in its status and holds up no other. Every write is fenced by the epoch, so that a
controller that was replaced while it slept changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final

from evenkeel.controller.resources import Resources
from evenkeel.driver import drive, read_at_one_revision
from evenkeel.errors import (
    InvalidInputError,
    MalformedRecordError,
    PlanningError,
    RebalancerError,
    UnreachableError,
)
from evenkeel.metastore.api import KeyValue, Metastore, Txn
from evenkeel.metastore.clock import Clock, SystemClock
from evenkeel.metastore.epoch import Epoch, acquire_epoch
from evenkeel.model.conditions import Reason, timestamp
from evenkeel.model.partitionassignment import PartitionAssignment, PartitionAssignmentSpec
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table
from evenkeel.model.views import SLICE, slice_name
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import StoreLoad, encode
from evenkeel.reconcile.cluster_status import cluster_status
from evenkeel.reconcile.leaders import order_leaders
from evenkeel.reconcile.snapshot import TableSnapshot, read_table
from evenkeel.reconcile.status import Trouble, partition_statuses, read_loads, slice_status, table_status
from evenkeel.reconcile.stores import (
    StoreWish,
    judge_stores,
    leaving,
    next_judgement,
    read_stores,
    store_wish,
)
from evenkeel.reconcile.table import drop_table, reconcile_table
from evenkeel.reconcile.wish import table_key, wish_of

__all__ = ["Controller"]

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 30.0
PAUSE_SECONDS: Final = 0.2
"""Between two rounds, so that a burst of events is one look."""
AWAY_SECONDS: Final = 10.0
"""Who did not get to look for so long does not count stores as lost for that time."""


class Controller:
    """Runs until it is cancelled, or until another one has taken the epoch."""

    def __init__(
        self,
        metastore: Metastore,
        *,
        keys: Keys,
        resources: Resources,
        holder: str,
        clock: Clock | None = None,
        today: Callable[[], float] = time.time,
    ) -> None:
        """`today` tells seconds since 1970, which is what keys and statuses show; `clock` everything else."""
        self._metastore = metastore
        self._keys = keys
        self._resources = resources
        self._holder = holder
        self._clock = clock or SystemClock()
        self._today = today
        self._epoch: Epoch | None = None
        self._heard: set[str] = set()
        self._hear_all = True
        self._news = asyncio.Event()
        self._looked_at = float("-inf")
        self._wish = StoreWish()
        self.problem = ""
        """Why nothing can be done at the moment, if so."""

    async def run(self) -> None:
        """Look, and look again whenever something was heard; FencedError when another controller is in charge."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen_to_resources())
            tasks.create_task(self._listen_to_metastore())
            while True:
                await self._wait()
                try:
                    await self._round()
                    self.problem = ""
                except UnreachableError as error:
                    self.problem = str(error)
                    log.warning("nothing is changed for now: %s", error)
                    self.hear()

    def hear(self, table: str | None = None) -> None:
        """Look at a table soon, by its key; or at everything."""
        if table is None:
            self._hear_all = True
        else:
            self._heard.add(table)
        self._news.set()

    # Listening

    async def _listen_to_resources(self) -> None:
        async for _ in self._resources.changes():
            self.hear()

    async def _listen_to_metastore(self) -> None:
        root = self._keys.root
        while True:
            with contextlib.suppress(UnreachableError):
                snapshot = await self._metastore.range(root)
                async for batch in self._metastore.watch(root, after=snapshot):
                    for event in batch.events:
                        self._hear_key(event.key)
            await self._clock.sleep(1.0)

    def _hear_key(self, key: str) -> None:
        kind, _, rest = key.removeprefix(self._keys.root).partition("/")
        if kind in ("stores", "stores.state", "epoch"):
            self.hear()
        elif kind != "load" and rest:
            self.hear(rest.partition("/")[0])

    async def _wait(self) -> None:
        """Until something was heard, or it is time to look anyway."""
        due = SWEEP_SECONDS
        if self._judge_at is not None:
            due = max(PAUSE_SECONDS, min(due, self._judge_at - self._today()))
        timer = self._clock.call_at(self._clock.now() + due, self.hear)
        await self._news.wait()
        timer.cancel()
        await self._clock.sleep(PAUSE_SECONDS)
        self._news.clear()

    _judge_at: float | None = None

    # One round

    async def _round(self) -> None:
        if self._epoch is None:
            self._epoch = await acquire_epoch(self._metastore, self._keys.epoch, self._holder)
        cluster = await self._resources.store_cluster()
        tables = {table_key(table): table for table in await self._resources.tables()}
        heard, self._heard = self._heard, set()
        everything, self._hear_all = self._hear_all, False
        if everything:
            await self._judge(cluster, tables.values())
        loads = await self._loads()
        for key, table in tables.items():
            if everything or key in heard:
                await self._look_at(key, table, loads)
        if cluster is not None and everything:
            await self._describe_cluster(cluster, tables, loads)

    async def _judge(self, cluster: StoreCluster | None, tables: Iterable[Table]) -> None:
        assert self._epoch is not None
        now, self._looked_at, before = self._today(), self._clock.now(), self._looked_at
        anew = self._looked_at - before > SWEEP_SECONDS + AWAY_SECONDS
        found = await self._metastore.range(self._keys.all_stores())
        kvs = {kv.key: kv for kv in found.kvs}
        self._wish = await self._store_wish(cluster, kvs, tables)
        for txn in judge_stores(kvs, self._wish, keys=self._keys, now=now, anew=anew, epoch=self._epoch.compare):
            await self._metastore.txn(txn)
        self._judge_at = next_judgement(kvs, self._wish, keys=self._keys)

    async def _store_wish(
        self, cluster: StoreCluster | None, kvs: dict[str, KeyValue], tables: Iterable[Table]
    ) -> StoreWish:
        lost_after = min((table.spec.movement.lost_after.seconds for table in tables), default=600.0)
        registered, states = read_stores(kvs, self._keys)
        known = registered.keys() | states.keys()
        going = leaving(cluster, known) if cluster is not None else frozenset()
        holders = await self._holders(going) if going else frozenset()
        return store_wish(cluster, known, holders=holders, lost_after=lost_after)

    async def _holders(self, names: frozenset[str]) -> frozenset[str]:
        """Those of the stores that some partition still names."""
        found = await self._metastore.range(self._keys.assignments())
        return frozenset(name for name in names if any(encode(name) in kv.value for kv in found.kvs))

    async def _loads(self) -> dict[str, StoreLoad]:
        found = await self._metastore.range(self._keys.load(""))
        return read_loads({kv.key: kv.value for kv in found.kvs}, self._keys)

    async def _look_at(self, key: str, table: Table, loads: dict[str, StoreLoad]) -> None:
        assert self._epoch is not None
        if table.metadata.deletion_timestamp:
            await self._drop(key, table)
            return
        trouble = await self._reconcile(key, table)
        snapshot = await self._snapshot(key)
        if not table.spec.paused and trouble is None:
            await self._commit_all(order_leaders(snapshot, now=self._today(), epoch=self._epoch.compare))
        await self._describe(table, snapshot, loads, trouble)

    async def _reconcile(self, key: str, table: Table) -> Trouble | None:
        """Go as far as is possible now; what stands in the way is told, and the last good state stays in force."""
        assert self._epoch is not None
        if table.spec.paused:
            return None
        try:
            wish = wish_of(table, await self._resources.assignments(table.metadata.name))
            requests = reconcile_table(wish, keys=self._keys, table=key, epoch=self._epoch.compare)
            await drive(requests, metastore=self._metastore, epoch=self._epoch)
        except PlanningError as error:
            return Trouble(Reason.NO_FEASIBLE_PLACEMENT, str(error))
        except RebalancerError as error:
            return Trouble(Reason.REBALANCER_FAILED, str(error))
        except (InvalidInputError, MalformedRecordError) as error:
            return Trouble(Reason.SPEC_INVALID, str(error))
        return None

    async def _drop(self, key: str, table: Table) -> None:
        assert self._epoch is not None
        requests = drop_table(keys=self._keys, table=key, epoch=self._epoch.compare)
        if await drive(requests, metastore=self._metastore, epoch=self._epoch):
            await self._resources.gone(table)
            log.info("table %s is dropped", key)

    async def _snapshot(self, key: str) -> TableSnapshot:
        found = await read_at_one_revision(self._metastore, read_table(self._keys, key).prefixes)
        return TableSnapshot(self._keys, key, found)

    async def _commit_all(self, txns: Iterable[Txn]) -> None:
        for txn in txns:
            await self._metastore.txn(txn)

    # Statuses

    async def _describe(
        self, table: Table, snapshot: TableSnapshot, loads: dict[str, StoreLoad], trouble: Trouble | None
    ) -> None:
        now = timestamp(datetime.fromtimestamp(self._today(), UTC))
        partitions = partition_statuses(snapshot, loads)
        status = table_status(table, snapshot, partitions, loads=loads, trouble=trouble, now=now)
        if status != table.status:
            await self._resources.set_status(table, status)
        existing = {
            assignment.metadata.name: assignment
            for assignment in await self._resources.assignments(table.metadata.name)
        }
        for first in range(0, len(partitions), SLICE):
            name = slice_name(table.metadata.name, first)
            if name not in existing:
                await self._resources.ensure(_empty_slice(table, first))
                self.hear(snapshot.table)
                continue
            before = existing[name]
            after = slice_status(partitions, first, before=before.status, generation=before.metadata.generation)
            if after != before.status:
                await self._resources.set_status(before, after)

    async def _describe_cluster(
        self, cluster: StoreCluster, tables: dict[str, Table], loads: dict[str, StoreLoad]
    ) -> None:
        found = await self._metastore.range(self._keys.all_stores())
        now = timestamp(datetime.fromtimestamp(self._today(), UTC))
        status = cluster_status(
            cluster, {kv.key: kv for kv in found.kvs}, loads, keys=self._keys, tables=len(tables), now=now
        )
        if status != cluster.status:
            await self._resources.set_status(cluster, status)


def _empty_slice(table: Table, first: int) -> PartitionAssignment:
    name = slice_name(table.metadata.name, first)
    return PartitionAssignment(
        metadata=table.metadata.model_copy(update={"name": name, "uid": "", "generation": 0, "annotations": {}}),
        spec=PartitionAssignmentSpec(table=table.metadata.name, from_=first),
    )
