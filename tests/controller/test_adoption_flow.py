"""A different etcd is refused and reported, and adopted when the user asks for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from evenkeel.controller.controller import Controller
from evenkeel.controller.dropped_table_reconciler import UNDELETE_ANNOTATION
from evenkeel.errors import FencedError
from evenkeel.local.local_resources import ClusterResources, LocalResources
from evenkeel.metastore.memory_metastore import MemoryMetastore
from evenkeel.metastore.metastore_api import Delete, Put, Txn
from evenkeel.metastore.mvcc import Mvcc
from evenkeel.model.conditions import Condition
from evenkeel.model.resource_loading import load_yaml
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table
from evenkeel.protocol.keys import Keys
from evenkeel_raft.agent.agent_status import AgentState
from evenkeel_raft.shared.raft_groups import Partition
from tests.controller.support import store_cluster, table
from tests.controller.test_with_agents import Whole
from tests.protocol.support import KEYS
from tests.raft_agent.flaky import FlakyMetastore


class Replaceable(Whole):
    """Stores and a controller on a replaceable etcd; resources are stored elsewhere, as on Kubernetes."""

    def __init__(self, stores: int) -> None:
        super().__init__(stores)
        self.resources = LocalResources(MemoryMetastore(clock=self.clock))
        self.way = FlakyMetastore(self.metastore)
        self.controller = self._make_controller()
        self.network.dropped = lambda name: self.mvcc.get(KEYS.tombstone(name)) is not None

    def _make_controller(self) -> Controller:
        return Controller(
            self.way,
            keys=Keys(namespace="shop", store_cluster="main"),
            resources=ClusterResources(self.resources, "main"),
            holder="tests",
            clock=self.clock,
            wall_clock=self.clock.now,
        )

    async def run(self) -> None:
        """Run a controller, and a new one whenever it is fenced."""
        while True:
            with contextlib.suppress(FencedError):
                await self.controller.run()
            self.controller = self._make_controller()

    async def replace(self, mvcc: Mvcc, *, cluster_id: int) -> None:
        """Connect everything to another etcd."""
        before, self.mvcc = self.metastore, mvcc
        self.metastore = MemoryMetastore(clock=self.clock, mvcc=mvcc, cluster_id=cluster_id)
        for way in (self.way, *(store.way for store in self.stores.values())):
            way.become(self.metastore)
        await before.txn(Txn(success=(Delete(KEYS.root, prefix=True),)))  # what ends the watches of the old one

    async def adopt(self, request: str) -> None:
        await self.change(StoreCluster, "main", adoptMetastore=request)

    async def condition(self, kind: str) -> Condition:
        status = (await self.resources.need(StoreCluster, "main")).status
        assert status is not None
        return next(found for found in status.conditions if found.type == kind)

    def disks(self) -> dict[str, dict[Partition, tuple[str, int]]]:
        """Return every replica on every disk."""
        return {
            name: {at: replica.id for at, replica in store.disk.replicas.items()} for name, store in self.stores.items()
        }


@asynccontextmanager
async def replaceable(stores: int, text: str) -> AsyncIterator[Replaceable]:
    async with Replaceable(stores) as entered:
        assert isinstance(entered, Replaceable)
        for one in load_yaml(f"{store_cluster(stores)}---\n{text}"):
            await entered.resources.apply(one)
        running = asyncio.ensure_future(entered.run())
        await entered.started()
        await entered.balanced()
        await entered.pass_time(40)
        yield entered
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def moved(cluster: Replaceable) -> None:
    """Make several plans, so that replicas have ids of different plans and groups have tokens."""
    for replicas in (2, 3):
        await cluster.change(Table, "orders", replicas=replicas)
        await cluster.pass_time(3)
        await cluster.balanced()
    for _ in range(300):  # what others write to the same etcd
        await cluster.metastore.txn(Txn(success=(Put("/others", b""),)))
    await cluster.pass_time(40)


async def refused(cluster: Replaceable, words: str) -> None:
    """Check that nothing is changed, and that the status has the reason and the remedy."""
    before = cluster.disks()
    await cluster.pass_time(90)
    assert cluster.disks() == before
    found = await cluster.condition("MetastoreMismatch")
    assert (found.status, found.reason) == ("True", "MetastoreMismatch")
    assert words in found.message
    assert "spec.adoptMetastore" in found.message
    assert (await cluster.condition("Degraded")).reason == "MetastoreMismatch"
    assert {store.agent.status().state for store in cluster.stores.values()} == {AgentState.MISMATCH}


async def adopted(cluster: Replaceable, request: str) -> None:
    """Check that the same replicas exist as before, the status reports the adoption, and replicas can move."""
    before = cluster.disks()
    await cluster.adopt(request)
    await cluster.pass_time(20)
    await cluster.balanced()
    found = await cluster.condition("MetastoreMismatch")
    assert (found.status, found.reason) == ("False", "MetastoreAdopted")
    assert cluster.disks() == before
    status = (await cluster.resources.need(StoreCluster, "main")).status
    assert status is not None
    assert status.metastore is not None
    assert status.metastore.adopted == request
    await moved(cluster)
    assert set((await cluster.held()).values()) == {6}


async def test_an_empty_etcd_is_adopted() -> None:
    """Tables are restored from the stores, with every replica where it was."""
    async with replaceable(3, table(partitions=6)) as cluster:
        await moved(cluster)
        await cluster.replace(Mvcc(), cluster_id=0xBEEF)
        await refused(cluster, "etcd cluster beef answers instead of 1")
        assert [kv.key for kv in cluster.mvcc.range("").kvs] == [], "nobody writes to a stranger"
        await adopted(cluster, "beef")


async def test_an_emptied_etcd_of_the_same_id_is_adopted_twice() -> None:
    """The revision shows that it was emptied; the second adoption needs another request."""
    async with replaceable(3, table(partitions=6)) as cluster:
        await moved(cluster)
        for request in ("1@0", "1@1"):
            await cluster.replace(Mvcc(), cluster_id=1)
            await refused(cluster, "was emptied or restored from a backup")
            await adopted(cluster, request)


async def test_an_emptied_etcd_that_others_use_is_noticed() -> None:
    """Other users of etcd have raised its revision above the recorded one."""
    async with replaceable(3, table(partitions=6)) as cluster:
        emptied = Mvcc()
        while emptied.revision < cluster.mvcc.revision + 10:
            emptied.txn(Txn(success=(Put("/others", b""),)))
        await cluster.replace(emptied, cluster_id=1)
        await refused(cluster, "has no keys of this StoreCluster")
        assert (await cluster.status()).plan > 0
        await adopted(cluster, "1@0")


async def emptied_in_place(cluster: Replaceable) -> str:
    """Delete all keys of the StoreCluster, as `etcdctl del --prefix` does; return the request that the status names."""
    await cluster.metastore.txn(Txn(success=(Delete(KEYS.root, prefix=True),)))
    await refused(cluster, "has no keys of this StoreCluster")
    return (await cluster.condition("MetastoreMismatch")).message.rpartition("adoptMetastore to ")[2].strip('"')


async def test_an_etcd_whose_keys_were_deleted_is_adopted() -> None:
    """Id and revision are unchanged, so stores follow as soon as a table is back, and leaders publish replicas."""
    async with replaceable(3, table(partitions=6) + "---\n" + table("others", partitions=2, replicas=1)) as cluster:
        await moved(cluster)
        request = await emptied_in_place(cluster)
        before = cluster.disks()
        await cluster.adopt(request)
        await cluster.pass_time(20)
        await cluster.balanced()
        assert (await cluster.conditions("others"))["Ready"][0] == "True"
        assert cluster.disks() == before
        assert {store.disk.mark.adopted for store in cluster.stores.values() if store.disk.mark} == {request}


async def test_a_backup_of_an_etcd_that_was_emptied_in_place_is_refused() -> None:
    """Stores that followed the etcd before they saw the request know that they have carried it out."""
    async with replaceable(3, table(partitions=6)) as cluster:
        await adopted(cluster, await emptied_in_place(cluster))
        backup = cluster.mvcc.clone()
        await moved(cluster)
        await cluster.replace(backup, cluster_id=1)
        await refused(cluster, "was emptied or restored from a backup")


async def test_an_adoption_that_was_not_needed() -> None:
    """The etcd in use is adopted: keys are removed, and its stores publish them again."""
    async with replaceable(3, table(partitions=6)) as cluster:
        await moved(cluster)
        await adopted(cluster, f"1@{cluster.mvcc.revision}")


async def test_an_etcd_from_a_backup_is_adopted() -> None:
    """Its outdated assignments are ignored: no replica is lost, started or deleted."""
    async with replaceable(4, table(partitions=6, replicas=2)) as cluster:
        backup = cluster.mvcc.clone()
        await cluster.change(Table, "orders", replicas=3)
        await cluster.pass_time(3)
        await cluster.balanced()
        await cluster.pass_time(40)
        await cluster.replace(backup, cluster_id=0xBEEF)
        await refused(cluster, "etcd cluster beef answers")
        before = cluster.disks()
        await cluster.adopt("beef@1")
        await cluster.pass_time(20)
        await cluster.balanced()
        assert cluster.disks() == before
        await cluster.change(Table, "orders", replicas=4)
        await cluster.pass_time(3)
        await cluster.balanced()
        assert set((await cluster.held()).values()) == {6}


async def test_a_recent_backup_is_refused_at_any_revision() -> None:
    """Its revision is above the recorded one, and later above every revision that was seen."""
    async with replaceable(4, table(partitions=6, replicas=2)) as cluster:
        for _ in range(3000):
            await cluster.metastore.txn(Txn(success=(Put("/others", b""),)))
        await cluster.pass_time(60)
        backup = cluster.mvcc.clone()
        await cluster.change(Table, "orders", replicas=3)
        await cluster.pass_time(3)
        await cluster.balanced()
        await cluster.pass_time(40)
        status = (await cluster.resources.need(StoreCluster, "main")).status
        assert status is not None
        assert status.metastore is not None
        assert status.metastore.revision <= backup.revision
        await cluster.replace(backup, cluster_id=1)
        await refused(cluster, "was emptied or restored from a backup")
        for _ in range(100):
            await cluster.metastore.txn(Txn(success=(Put("/others", b""),)))
        await cluster.pass_time(60)
        assert (await cluster.condition("MetastoreMismatch")).reason == "MetastoreMismatch"
        before = cluster.disks()
        await cluster.adopt("1@0")
        await cluster.pass_time(20)
        await cluster.balanced()
        assert cluster.disks() == before
        assert (await cluster.condition("MetastoreMismatch")).reason == "MetastoreAdopted"


async def test_a_backup_of_an_adopted_etcd_is_refused() -> None:
    """The backup has the adoption's key too, but no user asked for the backup; another request is carried out."""
    async with replaceable(4, table(partitions=6, replicas=2)) as cluster:
        await cluster.replace(Mvcc(), cluster_id=1)
        await cluster.pass_time(10)
        await cluster.adopt("1@0")
        await cluster.pass_time(20)
        await cluster.balanced()
        await cluster.pass_time(40)
        backup = cluster.mvcc.clone()
        await cluster.change(Table, "orders", replicas=3)
        await moved(cluster)
        await cluster.replace(backup, cluster_id=1)
        await refused(cluster, "was emptied or restored from a backup")
        before = cluster.disks()
        await cluster.adopt("1@1")
        await cluster.pass_time(20)
        await cluster.balanced()
        assert cluster.disks() == before


async def test_a_request_for_another_etcd_changes_nothing() -> None:
    """A request for another etcd changes nothing, with the right etcd and with a wrong one."""
    async with replaceable(3, table(partitions=6)) as cluster:
        await cluster.adopt("beef")
        await cluster.pass_time(10)
        words = "is beef, but etcd cluster 1 answers; nothing was adopted"
        assert words in (await cluster.condition("MetastoreMismatch")).message
        ready, stalled = await cluster.condition("Ready"), await cluster.condition("Stalled")
        assert (ready.status, ready.reason, stalled.status) == ("False", "SpecInvalid", "True")
        assert words in ready.message
        await cluster.replace(Mvcc(), cluster_id=0xF00)
        await refused(cluster, "etcd cluster f00 answers")


async def test_the_right_etcd_comes_back() -> None:
    """After wrong endpoints are corrected, everything continues."""
    async with replaceable(3, table(partitions=6)) as cluster:
        right = cluster.mvcc.clone()
        await cluster.replace(Mvcc(), cluster_id=0xBEEF)
        await refused(cluster, "etcd cluster beef answers")
        await cluster.replace(right, cluster_id=1)
        await cluster.pass_time(20)
        assert (await cluster.condition("MetastoreMismatch")).status == "False"
        await moved(cluster)


async def test_a_table_is_deleted_while_etcd_is_lost() -> None:
    """A table that is being deleted is adopted first, so that stores learn what to delete; nothing is left."""
    async with replaceable(3, table(partitions=6, more=", undeleteFor: 0s")) as cluster:
        await cluster.replace(Mvcc(), cluster_id=0xBEEF)
        await cluster.pass_time(10)
        await cluster.resources.delete(Table, "orders")
        await cluster.pass_time(10)
        assert set((await cluster.held()).values()) == {6}
        await cluster.adopt("beef")
        await cluster.pass_time(60)
        assert set((await cluster.held()).values()) == {0}
        assert await cluster.resources.get(Table, "orders") is None


@pytest.mark.parametrize("backup", [False, True], ids=["empty", "of before it was restored"])
async def test_a_restored_table_is_adopted(backup: bool) -> None:
    """Its data has another Table's key, which only the lost etcd had; no other table is affected."""
    async with replaceable(3, table(partitions=6)) as cluster:
        [key] = {partition.table for disk in cluster.disks().values() for partition in disk}
        await cluster.resources.delete(Table, "orders")
        await cluster.pass_time(10)
        other = cluster.mvcc.clone() if backup else Mvcc()
        asked = {"annotations": {UNDELETE_ANNOTATION: key}}
        await cluster.resources.change(StoreCluster, "main", lambda document: document["metadata"].update(asked))
        await cluster.pass_time(20)
        assert (await cluster.status()).plan > 0
        await moved(cluster)
        await cluster.replace(other, cluster_id=0xBEEF)
        await refused(cluster, "etcd cluster beef answers")
        await adopted(cluster, "beef")
        assert {partition.table for disk in cluster.disks().values() for partition in disk} == {key}


async def annotated(cluster: Replaceable, **annotations: str) -> None:
    """Replace the annotations of the StoreCluster."""
    asked = {"annotations": {f"evenkeel.dev/{name}": value for name, value in annotations.items()}}
    await cluster.resources.change(StoreCluster, "main", lambda document: document["metadata"].update(asked))


async def dropped_tables(cluster: Replaceable) -> list[str]:
    """Return the deleted tables in the status."""
    status = (await cluster.resources.need(StoreCluster, "main")).status
    assert status is not None
    return [f"{one.table}.{one.uid}" for one in status.dropped]


def on_disk(cluster: Replaceable, key: str) -> dict[str, dict[Partition, tuple[str, int]]]:
    """Return every replica of a table."""
    disks = cluster.disks().items()
    return {store: {at: held for at, held in disk.items() if at.table == key} for store, disk in disks}


@pytest.mark.parametrize("state", ["empty", "before its deletion", "before its replicas moved"])
async def test_a_deleted_table_is_adopted(state: str) -> None:
    """A deleted table's data is retained and moves off draining stores; undeleted, it is served from its replicas."""
    text = table(partitions=3, more=", deletionPolicy: Retain") + "---\n" + table("others", partitions=2)
    async with replaceable(6, text) as cluster:
        [key] = {at.table for disk in cluster.disks().values() for at in disk if at.table.startswith("orders")}
        other = cluster.mvcc.clone()
        await cluster.resources.delete(Table, "orders")
        await cluster.pass_time(10)
        other = {"empty": Mvcc(), "before its deletion": other}.get(state, cluster.mvcc.clone())
        await annotated(cluster, drain="main-0,main-1,main-2")
        await cluster.pass_time(200)
        await annotated(cluster)
        await cluster.pass_time(20)
        before = on_disk(cluster, key)
        await cluster.replace(other, cluster_id=0xBEEF)
        await refused(cluster, "etcd cluster beef answers")
        assert await dropped_tables(cluster) == [key]
        await cluster.adopt("beef")
        for _ in range(30):
            await cluster.pass_time(1)
            assert await dropped_tables(cluster) == [key]
        assert on_disk(cluster, key) == before
        await annotated(cluster, drain="main-5")
        await cluster.pass_time(200)
        assert not on_disk(cluster, key)["main-5"]
        await annotated(cluster, undelete=key)
        await cluster.pass_time(5)
        await cluster.balanced()
        assert (await cluster.conditions())["Degraded"] == ("False", "AsExpected")
        assert await dropped_tables(cluster) == []
        restored = await cluster.resources.need(Table, "orders")
        assert (restored.spec.deletion_policy, str(restored.spec.undelete_for)) == ("Retain", "24h")


@pytest.mark.parametrize("backup", [False, True], ids=["empty", "backup"])
async def test_a_deleted_table_is_purged_from_an_adopted_etcd(backup: bool) -> None:
    """A deleted table can be purged, even if the status has no spec or stores have no data of it."""
    async with replaceable(3, table(partitions=3) + "---\n" + table("others", partitions=2)) as cluster:
        [key] = {at.table for disk in cluster.disks().values() for at in disk if at.table.startswith("orders")}
        await cluster.resources.delete(Table, "orders")
        await cluster.pass_time(10)
        other = cluster.mvcc.clone() if backup else Mvcc()
        if backup:
            await annotated(cluster, purge=key)
            await cluster.pass_time(60)
            assert set((await cluster.held()).values()) == {2}
        await cluster.replace(other, cluster_id=0xBEEF)
        await cluster.pass_time(10)
        cluster_now = await cluster.resources.need(StoreCluster, "main")
        assert cluster_now.status is not None
        cut = tuple(one.model_copy(update={"spec": None}) for one in cluster_now.status.dropped)
        await cluster.resources.set_status(cluster_now, cluster_now.status.model_copy(update={"dropped": cut}))
        await cluster.adopt("beef")
        await cluster.pass_time(40)
        assert await dropped_tables(cluster) == [key]
        await annotated(cluster, purge=key)
        await cluster.pass_time(60)
        assert set((await cluster.held()).values()) == {2}
        assert await dropped_tables(cluster) == []
        assert [kv.key for kv in cluster.mvcc.range(KEYS.root).kvs if key in kv.key] == []


async def test_tables_that_only_a_backup_has_are_retained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data without a Table is retained until it is purged; a Table that is only unreadable stays and is served."""
    gone, unreadable = table("gone", partitions=2, more=", undeleteFor: 0s"), table("unreadable", partitions=2)
    async with replaceable(3, "---\n".join((table(partitions=3), gone, unreadable))) as cluster:
        backup = cluster.mvcc.clone()
        [key] = {at.table for disk in cluster.disks().values() for at in disk if at.table.startswith("gone")}
        await cluster.resources.delete(Table, "gone")
        await cluster.pass_time(40)
        assert set((await cluster.held()).values()) == {5}
        readable = ClusterResources.tables

        async def tables(resources: ClusterResources) -> list[Table]:
            return [found for found in await readable(resources) if found.metadata.name != "unreadable"]

        monkeypatch.setattr(ClusterResources, "tables", tables)
        await cluster.replace(backup, cluster_id=0xBEEF)
        await cluster.pass_time(10)
        await cluster.adopt("beef")
        await cluster.pass_time(40)
        await cluster.balanced()
        assert await dropped_tables(cluster) == [key]
        assert set((await cluster.held()).values()) == {5}
        await annotated(cluster, purge=key)
        await cluster.pass_time(60)
        assert await dropped_tables(cluster) == []


async def test_a_store_that_was_away_adopts_when_it_returns() -> None:
    """A returning store's replicas are kept, and it gets replicas of a table that is new since then."""
    async with replaceable(3, table(partitions=6)) as cluster:
        await cluster["main-2"].kill()
        await cluster.replace(Mvcc(), cluster_id=0xBEEF)
        await cluster.pass_time(10)
        await cluster.adopt("beef")
        await cluster.pass_time(20)
        for one in load_yaml(table("later", partitions=2)):
            await cluster.resources.apply(one)
        await cluster.pass_time(5)
        cluster["main-2"].start()
        await cluster.pass_time(30)
        await cluster.balanced()
        assert (await cluster.conditions("later"))["Ready"][0] == "True"
        assert set((await cluster.held()).values()) == {8}
