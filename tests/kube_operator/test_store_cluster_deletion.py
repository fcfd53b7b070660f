"""Deletion of StoreClusters, with an API server in memory: what is kept, and what the deletion waits for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from evenkeel.kube.object_kinds import NAMESPACE, STATEFUL_SET, STORE_CLUSTER, TABLE, Object
from evenkeel.metastore.metastore_api import Put, Txn
from evenkeel.protocol.records import Dropped, TableRecord, TableState, encode
from evenkeel_operator.kube.resource_reader import FINALIZER
from tests.kube_operator.test_store_cluster_reconciler import KEY, KEYS, Scene

DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
RELEASED = {"annotations": {"evenkeel.dev/release": "true"}}
RECORD = TableRecord(partitions=1, replicas=3, consensus_size=3, state=TableState.READY)


async def deleted_cluster(*, status: Object | None = None) -> Scene:
    """A StoreCluster of three stores with claims that is being deleted, before a reconciliation."""
    scene = Scene()
    await scene.reconcile()
    scene.see()
    for number in range(3):
        scene.claim(number)
    scene.kube.add(NAMESPACE, "shop", "")
    scene.kube.objects[STORE_CLUSTER, *KEY]["status"] = status or {}
    scene.change(metadata=DELETED)
    return scene


def remove_set(scene: Scene) -> None:
    """Remove the StatefulSet, as another client does, or when its pods are gone."""
    scene.kube.objects.pop((STATEFUL_SET, *KEY), None)
    if (seen := scene.cache.get(STATEFUL_SET, *KEY)) is not None:
        scene.cache.remove(STATEFUL_SET, seen)


def delete_table(scene: Scene, **spec: Any) -> None:
    """Add a Table that is being deleted."""
    columns = [{"name": "id", "type": "int64", "nullable": False}]
    known = {"storeCluster": "main", "partitions": 1, "schema": {"columns": columns, "primaryKey": ["id"]}, **spec}
    made = scene.kube.add(TABLE, "orders", spec=known)
    made["metadata"] |= {"finalizers": [FINALIZER], **DELETED}
    scene.cache.put(TABLE, scene.kube._keep((TABLE, "shop", "orders"), made))


async def record(scene: Scene, record: TableRecord = RECORD) -> None:
    await scene.metastore.txn(Txn(success=(Put(KEYS.table("orders.uid-orders"), encode(record)),)))


def degraded(scene: Scene) -> tuple[str, str]:
    conditions = scene.statuses.of(scene.cache.get(STORE_CLUSTER, *KEY) or {})["conditions"]
    [found] = [entry for entry in conditions if entry["type"] == "Degraded"]
    return found["reason"], found["message"]


async def settle(scene: Scene) -> None:
    """Reconcile until everything is gone, and remove the StatefulSet once it is deleted."""
    for _ in range(3):
        if (STORE_CLUSTER, *KEY) in scene.kube.objects:
            await scene.reconcile()
        if (STATEFUL_SET, *KEY) not in scene.kube.objects:
            remove_set(scene)


# Data that is kept


@pytest.mark.parametrize("until", ["2026-01-02T00:00:00Z", None])
async def test_data_that_the_status_lists_is_kept(until: str | None) -> None:
    """Another etcd without records releases nothing, neither Retain nor undeleteFor."""
    dropped = {"table": "orders", "uid": "u", "deletedAt": "2026-01-01T00:00:00Z"}
    followed = {"clusterId": "dead", "revision": 100000}
    status: Object = {"dropped": [{**dropped, **({"keptUntil": until} if until else {})}], "metastore": followed}
    scene = await deleted_cluster(status=status)
    scene.controllers.follows = False
    await settle(scene)
    assert len(scene.claims) == 3
    assert (STATEFUL_SET, *KEY) in scene.kube.objects
    reason, message = degraded(scene)
    assert reason == "TablesRemain"
    assert f"orders.u until {until or 'it is purged'}" in message
    assert "the etcd that was followed does not confirm it" in message
    scene.change(metadata=RELEASED)
    scene.reconciler._deletion._unreachable_since[KEY] = datetime(2000, 1, 1, tzinfo=UTC)
    await settle(scene)
    assert scene.claims == {}


@pytest.mark.parametrize(("until", "words"), [(None, "it is purged"), (1767312000.0, "2026-01-02T00:00:00Z")])
async def test_a_store_cluster_waits_for_kept_data(until: float | None, words: str) -> None:
    """The status names the data, until when it is kept and what to do; a deleted namespace does not wait."""
    scene = await deleted_cluster()
    await record(scene, msgspec.structs.replace(RECORD, dropped=Dropped(since=0.0, until=until)))
    await settle(scene)
    reason, message = degraded(scene)
    assert reason == "TablesRemain"
    assert f"orders.uid-orders until {words}" in message
    assert "evenkeel purge" in message
    assert len(scene.claims) == 3
    remove_set(scene)
    await scene.reconcile()
    assert (STATEFUL_SET, *KEY) in scene.kube.objects, "stores are needed to restore kept data"
    scene.kube.objects[NAMESPACE, "", "shop"]["metadata"] |= DELETED
    await settle(scene)
    assert scene.claims == {}


async def test_kept_data_of_a_paused_store_cluster() -> None:
    """Nothing is removed before it is resumed."""
    scene = await deleted_cluster()
    await record(scene, msgspec.structs.replace(RECORD, dropped=Dropped(since=0.0)))
    scene.change(paused=True)
    await settle(scene)
    reason, message = degraded(scene)
    assert reason == "Paused"
    assert "resume it; data of deleted tables is kept" in message


async def test_objects_that_the_garbage_collector_deletes_are_not_recreated() -> None:
    """Foreground deletion would delete them again; the claims stay."""
    scene = await deleted_cluster()
    await record(scene, msgspec.structs.replace(RECORD, dropped=Dropped(since=0.0)))
    scene.change(metadata={"finalizers": [FINALIZER, "foregroundDeletion"]})
    remove_set(scene)
    await settle(scene)
    assert (STATEFUL_SET, *KEY) not in scene.kube.objects
    assert len(scene.claims) == 3


# Tables without stores


@pytest.mark.parametrize("spec", [{"deletionPolicy": "Retain", "undeleteFor": "0s"}, {}, {"undeleteFor": "10m"}])
async def test_a_table_waits_until_its_data_is_recorded_as_kept(spec: Object) -> None:
    """Without stores to drop it, recording takes only etcd."""
    scene = await deleted_cluster()
    delete_table(scene, **spec)
    await record(scene)
    remove_set(scene)
    await settle(scene)
    assert (TABLE, "shop", "orders") in scene.kube.objects
    assert len(scene.claims) == 3


@pytest.mark.parametrize("how", ["nothing to keep", "no data", "released", "the namespace ends"])
async def test_a_table_is_finalized_without_stores(how: str) -> None:
    """If nothing is to be kept, it never had data, or the deletion does not wait."""
    scene = await deleted_cluster()
    delete_table(scene, **({"undeleteFor": "0s"} if how == "nothing to keep" else {"deletionPolicy": "Retain"}))
    if how != "no data":
        await record(scene)
        scene.controllers.follows = False
    if how == "released":
        scene.change(metadata=RELEASED)
    if how == "the namespace ends":
        scene.kube.objects[NAMESPACE, "", "shop"]["metadata"] |= DELETED
    remove_set(scene)
    await settle(scene)
    assert (TABLE, "shop", "orders") not in scene.kube.objects
    assert (STORE_CLUSTER, *KEY) not in scene.kube.objects


async def test_a_table_waits_for_the_etcd_that_was_followed() -> None:
    """Another etcd has no record of the table, which proves nothing."""
    scene = await deleted_cluster()
    delete_table(scene)
    remove_set(scene)
    scene.controllers.follows = False
    await settle(scene)
    assert (TABLE, "shop", "orders") in scene.kube.objects
    scene.controllers.follows = True
    await settle(scene)
    assert (TABLE, "shop", "orders") not in scene.kube.objects


async def test_keys_in_another_etcd_stay() -> None:
    """They may belong to a StoreCluster of the same name in another Kubernetes cluster."""
    scene = await deleted_cluster(status={"metastore": {"clusterId": "dead", "revision": 1}})
    await record(scene)
    scene.reconciler._deletion._unreachable_since[KEY] = datetime(2000, 1, 1, tzinfo=UTC)
    await settle(scene)
    assert (STORE_CLUSTER, *KEY) not in scene.kube.objects
    assert await scene.metastore.get(KEYS.table("orders.uid-orders")) is not None
