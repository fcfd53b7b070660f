"""Deleted tables with retained data are not served, and stay until they are restored, purged or expire."""

from __future__ import annotations

import pytest

from evenkeel.controller.dropped_table_reconciler import PURGE_ANNOTATION, UNDELETE_ANNOTATION
from evenkeel.errors import InvalidInputError
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table
from evenkeel.protocol.records import Stable, TableRecord, decode
from evenkeel.routing.routing_table import RoutingTable
from evenkeel.versions import SUPPORTED
from tests.controller.support import KEYS, Scene, conditions_of, store_cluster, table

DAY = 24 * 3600.0
WELL = ("True", "AsExpected")


@pytest.fixture
async def scene() -> object:
    """Four stores of this release, and one table."""
    scene = Scene(4)
    await scene.apply(store_cluster(4))
    for number in range(4):
        await scene.come(f"main-{number}", versions=SUPPORTED)
    scene.start()
    await scene.rest()
    yield scene
    await scene.stop()
    await scene.metastore.close()


async def record(scene: Scene, key: str) -> TableRecord | None:
    kv = await scene.metastore.get(KEYS.table(key))
    return None if kv is None else decode(TableRecord, kv.value, key=kv.key)


async def assignments(scene: Scene, key: str) -> list[tuple[str, ...]]:
    found = await scene.kvs(KEYS.partition_prefixes(key).stable)
    return [tuple(peer.store for peer in decode(Stable, kv.value, key=kv.key).peers) for kv in found]


async def dropped(scene: Scene, more: str = "") -> str:
    """Create a table, delete it, and return its key."""
    await scene.make_table(table(more=more))
    key = await scene.key()
    await scene.resources.delete(Table, "orders")
    await scene.pass_time(1)
    return key


async def ask(scene: Scene, annotation: str, value: str) -> None:
    await scene.annotate(StoreCluster, "main", **{annotation.rpartition("/")[2]: value})
    await scene.pass_time(1)


def served(scene_kvs: object) -> list[str]:
    routes = RoutingTable(KEYS)
    for kv in scene_kvs:  # type: ignore[attr-defined]
        routes.put(kv.key, kv.value)
    return [known.key for known in routes.tables()]


async def test_the_data_of_a_deleted_table_is_kept(scene: Scene) -> None:
    """The Table is removed at once, its keys stay, it is not served, and the status lists it."""
    await scene.make_table()
    key = await scene.key()
    held = await assignments(scene, key)
    await scene.report_sizes("main-0", key, dict.fromkeys(range(8), 1000) | {1: 2000})
    await scene.resources.delete(Table, "orders")
    await scene.pass_time(5)
    assert await scene.resources.get(Table, "orders") is None
    assert await assignments(scene, key) == held
    assert await scene.kvs(KEYS.tombstone("")) == ()
    assert served(await scene.kvs(KEYS.table(""))) == []
    status = (await scene.cluster()).status
    assert status is not None
    [listed] = status.dropped
    assert (f"{listed.table}.{listed.uid}", listed.bytes) == (key, 9000)
    assert listed.kept_until is not None
    assert listed.kept_until > listed.deleted_at
    await scene.report_sizes("main-0", key, {0: 1000})
    await scene.pass_time(40, step=1)
    status = (await scene.cluster()).status
    assert status is not None
    assert [listed.bytes for listed in status.dropped] == [None]


async def test_a_deleted_table_can_block_a_drain(scene: Scene) -> None:
    """The StoreCluster reports a deleted table that blocks a drain like any other; purging it unblocks the drain."""
    await scene.make_table(table(replicas=4))
    key = await scene.key()
    await scene.resources.delete(Table, "orders")
    await scene.pass_time(5)
    await scene.apply(store_cluster(3))
    await scene.pass_time(5)
    status = (await scene.cluster()).status
    assert status is not None
    assert conditions_of(status)["Ready"] == ("False", "NoFeasiblePlacement")
    assert [drain.reason[:46] for drain in status.drains] == ["table orders: replicas 4 need 4 stores but onl"]
    await scene.annotate(StoreCluster, "main", purge=key)
    await scene.pass_time(5)
    await scene.confirm_drops(*(f"main-{number}" for number in range(4)))
    await scene.pass_time(10)
    assert conditions_of((await scene.cluster()).status)["Ready"] == ("True", "AsExpected")


async def test_data_is_removed_when_the_retention_ends(scene: Scene) -> None:
    """Data is removed exactly when the retention ends, also by a later controller: the time is in the metastore."""
    key = await dropped(scene, ", undeleteFor: 2h")
    await scene.pass_time(5400, step=60)
    await scene.stop()
    scene.controller = scene.make_controller("second")
    scene.start()
    await scene.pass_time(1700, step=60)
    assert await record(scene, key) is not None
    await scene.pass_time(2000, step=60)
    assert await record(scene, key) is None
    assert await assignments(scene, key) == []
    await scene.confirm_drops("main-0", "main-1", "main-2", "main-3")
    await scene.pass_time(10)
    assert [kv.key for kv in await scene.kvs(KEYS.root) if "orders" in kv.key] == []
    status = (await scene.cluster()).status
    assert status is not None
    assert status.dropped == ()


async def test_a_controller_with_a_wrong_clock_removes_nothing(scene: Scene) -> None:
    """A controller whose clock is two days ahead waits until it is corrected; then the full retention counts."""
    key = await dropped(scene)
    await scene.stop()
    scene.wall_ahead = 2 * DAY
    scene.controller = scene.make_controller("second")
    scene.start()
    await scene.pass_time(1800, step=60)
    scene.wall_ahead = 0.0
    await scene.pass_time(DAY - 3600, step=600)
    assert await record(scene, key) is not None
    await scene.pass_time(2 * 3600, step=600)
    assert await record(scene, key) is None


async def test_nothing_is_removed_while_paused(scene: Scene) -> None:
    """While the StoreCluster is paused no data is removed, even without retention; the Table is removed."""
    await scene.make_table(table(more=", undeleteFor: 0s"))
    key = await scene.key()
    await scene.annotate(StoreCluster, "main", paused="true")
    await scene.resources.delete(Table, "orders")
    await scene.pass_time(120, step=5)
    assert await scene.resources.get(Table, "orders") is None
    assert await record(scene, key) is not None
    await ask(scene, PURGE_ANNOTATION, key)
    assert await record(scene, key) is not None
    await scene.annotate(StoreCluster, "main", paused="false")
    await scene.pass_time(1)
    assert await record(scene, key) is None


async def test_a_retained_table_stays_until_it_is_purged(scene: Scene) -> None:
    """Data is retained until it is purged; its StoreCluster cannot be deleted before."""
    key = await dropped(scene, ", deletionPolicy: Retain")
    scene.clock.advance(1000 * DAY)
    await scene.pass_time(60, step=5)
    assert await record(scene, key) is not None
    with pytest.raises(InvalidInputError, match=f"{key}.*purge them first"):
        await scene.resources.delete(StoreCluster, "main")
    await ask(scene, PURGE_ANNOTATION, key)
    assert await record(scene, key) is None
    await scene.confirm_drops("main-0", "main-1", "main-2", "main-3")
    await scene.pass_time(10)
    assert (await scene.cluster()).metadata.annotations.get(PURGE_ANNOTATION) is None
    await scene.resources.delete(StoreCluster, "main")


async def test_a_store_cluster_stays_for_as_long_as_data_is_kept(scene: Scene) -> None:
    """Deleting table and StoreCluster together does not bypass `undeleteFor`."""
    key = await dropped(scene)
    with pytest.raises(InvalidInputError, match=f"{key}.*purge them first"):
        await scene.resources.delete(StoreCluster, "main")
    await scene.pass_time(DAY + 3600, step=600)
    await scene.resources.delete(StoreCluster, "main")


@pytest.mark.parametrize("how", ["by the StoreCluster's annotation", "by a Table that names the uid"])
async def test_a_table_is_restored(scene: Scene, how: str) -> None:
    """A table is restored with its data under another uid, and can be deleted and restored again."""
    await scene.make_table(table(more=", undeleteFor: 2h"))
    first = key = await scene.key()
    held = await assignments(scene, key)
    for _ in range(2):
        await scene.resources.delete(Table, "orders")
        await scene.pass_time(1)
        if how == "by the StoreCluster's annotation":
            await ask(scene, UNDELETE_ANNOTATION, key)
            assert (await scene.cluster()).metadata.annotations.get(UNDELETE_ANNOTATION) is None
        else:
            uid = key.partition(".")[2]
            labels = f", annotations: {{evenkeel.dev/restore: '{uid}'}}"
            await scene.apply(table(labels=labels, more=", undeleteFor: 2h"))
        await scene.pass_time(10)
        assert (await scene.conditions())["Ready"] == WELL
        restored = await scene.table()
        assert str(restored.spec.undelete_for) == "2h"
        assert f"orders.{restored.metadata.uid}" != first
        assert served(await scene.kvs(KEYS.table(""))) == [first]
        assert await assignments(scene, first) == held
    await scene.change(replicas=4)
    await scene.pass_time(5)
    assert len(await scene.kvs(KEYS.partition_prefixes(first).pending)) == 8, "its plans are about the data it has"
    await scene.change(undeleteFor="0s")
    await scene.resources.delete(Table, "orders")
    await scene.pass_time(1)
    await scene.confirm_drops("main-0", "main-1", "main-2", "main-3")
    await scene.pass_time(1)
    assert [kv.key for kv in await scene.kvs(KEYS.root) if "orders" in kv.key] == []


async def test_a_table_of_the_same_name_is_another(scene: Scene) -> None:
    """A new Table of the same name has its own data; the deleted one stays and is not restored into it."""
    key = await dropped(scene)
    await scene.make_table()
    other = await scene.key()
    assert other != key
    assert served(await scene.kvs(KEYS.table(""))) == [other]
    await ask(scene, UNDELETE_ANNOTATION, key)
    assert await record(scene, key) is not None
    assert (await scene.cluster()).metadata.annotations.get(UNDELETE_ANNOTATION) is None
    assert (await scene.conditions())["Ready"] == WELL


@pytest.mark.parametrize("uid", ["nobody", "expired", "of another name"])
async def test_data_that_is_not_retained_is_not_restored(scene: Scene, uid: str) -> None:
    """The status reports the problem, and no empty table is created."""
    key = await dropped(scene, ", undeleteFor: 1m")
    if uid == "expired":
        await scene.pass_time(70, step=5)
    named = "others" if uid == "of another name" else "orders"
    meant = "nobody" if uid == "nobody" else key.partition(".")[2]
    await scene.apply(table(named, labels=f", annotations: {{evenkeel.dev/restore: '{meant}'}}"))
    await scene.pass_time(5)
    status = (await scene.table(named)).status
    assert status is not None
    assert "no empty table is created" in str(status.conditions)
    assert served(await scene.kvs(KEYS.table(""))) == []


async def test_another_number_of_partitions_is_refused(scene: Scene) -> None:
    """A restored Table has to match the data; until it does, the data is retained."""
    key = await dropped(scene)
    labels = f", annotations: {{evenkeel.dev/restore: '{key.partition('.')[2]}'}}"
    await scene.apply(table(partitions=4, labels=labels))
    await scene.pass_time(5)
    status = (await scene.table()).status
    assert status is not None
    assert "partitions: got 4; allowed: 8" in str(status.conditions)
    found = await record(scene, key)
    assert found is not None
    assert found.dropped is not None


async def test_replicas_of_a_kept_table_leave_a_store_that_is_emptied(scene: Scene) -> None:
    """Retained replicas leave a draining store; nothing else moves."""
    key = await dropped(scene, ", rebalancer: {mode: FullAuto}")
    before = await assignments(scene, key)
    await scene.pass_time(60, step=5)
    assert await scene.kvs(KEYS.partition_prefixes(key).pending) == ()
    await scene.annotate(StoreCluster, "main", drain="main-1")
    await scene.pass_time(10)
    pending = await scene.kvs(KEYS.partition_prefixes(key).pending)
    assert len(pending) == sum("main-1" in stores for stores in before)
    assert all(b"main-1" not in kv.value for kv in pending)


async def test_kept_tables_that_move_together_keep_to_the_cap(scene: Scene) -> None:
    """Without the draining store there is room for one of two tables: the other stays where it is."""
    names = ("one", "two")
    for name in names:
        await scene.make_table(table(name), name)
    found = [await scene.key(name) for name in names]
    await scene.resources.change(StoreCluster, "main", lambda doc: doc["spec"].update({"maxReplicasPerStore": 15}))
    for name in names:
        await scene.resources.delete(Table, name)
    await scene.pass_time(1)
    await scene.annotate(StoreCluster, "main", drain="main-1")
    await scene.pass_time(10)
    moving = [bool(await scene.kvs(KEYS.partition_prefixes(key).pending)) for key in found]
    assert sorted(moving) == [False, True]


async def test_replicas_of_a_kept_table_leave_a_lost_store(scene: Scene) -> None:
    """Retained replicas on a lost store are replaced after `lostAfter`, like those of any table."""
    key = await dropped(scene, ", movement: {lostAfter: 1m}")
    await scene.go("main-1")
    await scene.pass_time(40, step=1)
    assert await scene.kvs(KEYS.partition_prefixes(key).pending) == ()
    await scene.pass_time(60, step=1)
    assert len(await scene.kvs(KEYS.partition_prefixes(key).pending)) > 0


async def test_stores_of_the_previous_release(scene: Scene) -> None:
    """Stores of the previous release would serve a deleted table, so the deletion waits for their upgrade."""
    await scene.make_table()
    key = await scene.key()
    await scene.delete(KEYS.version)
    await scene.come("main-3", versions=None)
    await scene.resources.delete(Table, "orders")
    await scene.pass_time(10)
    found = await record(scene, key)
    assert found is not None
    assert found.dropped is None
    status = (await scene.table()).status
    assert status is not None
    assert "waits until all stores run this release" in str(status.conditions)
    await scene.come("main-3", versions=SUPPORTED)
    await scene.pass_time(20)
    assert await scene.resources.get(Table, "orders") is None
    found = await record(scene, key)
    assert found is not None
    assert found.dropped is not None
