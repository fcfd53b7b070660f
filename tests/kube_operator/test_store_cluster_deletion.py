"""The end of StoreClusters, before an API server that is a dictionary: what is kept, and what holds it up."""

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


async def parting(*, status: Object | None = None) -> Scene:
    """A StoreCluster of three stores that is being deleted, with their claims, before the operator looks at it."""
    scene = Scene()
    await scene.reconcile()
    scene.see()
    for number in range(3):
        scene.claim(number)
    scene.kube.add(NAMESPACE, "shop", "")
    scene.kube.objects[STORE_CLUSTER, *KEY]["status"] = status or {}
    scene.change(metadata=DELETED)
    return scene


def take_set(scene: Scene) -> None:
    """Delete the StatefulSet as somebody else does, or as its pods are gone."""
    scene.kube.objects.pop((STATEFUL_SET, *KEY), None)
    if (seen := scene.cache.get(STATEFUL_SET, *KEY)) is not None:
        scene.cache.remove(STATEFUL_SET, seen)


def delete_table(scene: Scene, **spec: Any) -> None:
    """A Table that is being deleted."""
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
    """Look often enough for everything to go, as pods of a StatefulSet that is deleted do."""
    for _ in range(3):
        if (STORE_CLUSTER, *KEY) in scene.kube.objects:
            await scene.reconcile()
        if (STATEFUL_SET, *KEY) not in scene.kube.objects:
            take_set(scene)


# Data that is kept


@pytest.mark.parametrize("until", ["2026-01-02T00:00:00Z", None])
async def test_what_the_status_says_is_kept(until: str | None) -> None:
    """Another etcd, which knows nothing, lets nothing go: neither a Retain nor what is kept for a while."""
    dropped = {"table": "orders", "uid": "u", "deletedAt": "2026-01-01T00:00:00Z"}
    followed = {"clusterId": "dead", "revision": 100000}
    status: Object = {"dropped": [{**dropped, **({"keptUntil": until} if until else {})}], "metastore": followed}
    scene = await parting(status=status)
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
    """Its deletion says for what, until when, and what there is to do; the end of the namespace does not wait."""
    scene = await parting()
    await record(scene, msgspec.structs.replace(RECORD, dropped=Dropped(since=0.0, until=until)))
    await settle(scene)
    reason, message = degraded(scene)
    assert reason == "TablesRemain"
    assert f"orders.uid-orders until {words}" in message
    assert "evenkeel purge" in message
    assert len(scene.claims) == 3
    take_set(scene)
    await scene.reconcile()
    assert (STATEFUL_SET, *KEY) in scene.kube.objects, "stores are needed to restore what is kept"
    scene.kube.objects[NAMESPACE, "", "shop"]["metadata"] |= DELETED
    await settle(scene)
    assert scene.claims == {}


async def test_kept_data_of_a_paused_store_cluster() -> None:
    """It has to be resumed first: nothing is removed before."""
    scene = await parting()
    await record(scene, msgspec.structs.replace(RECORD, dropped=Dropped(since=0.0)))
    scene.change(paused=True)
    await settle(scene)
    reason, message = degraded(scene)
    assert reason == "Paused"
    assert "resume it; data of deleted tables is kept" in message


async def test_children_that_the_garbage_collector_deletes_are_not_made_again() -> None:
    """With foreground deletion it deletes them however often they are made; the claims stay all the same."""
    scene = await parting()
    await record(scene, msgspec.structs.replace(RECORD, dropped=Dropped(since=0.0)))
    scene.change(metadata={"finalizers": [FINALIZER, "foregroundDeletion"]})
    take_set(scene)
    await settle(scene)
    assert (STATEFUL_SET, *KEY) not in scene.kube.objects
    assert len(scene.claims) == 3


# Tables whose stores are gone


@pytest.mark.parametrize("spec", [{"deletionPolicy": "Retain", "undeleteFor": "0s"}, {}, {"undeleteFor": "10m"}])
async def test_a_table_is_not_let_go_before_its_data_is_noted_as_kept(spec: Object) -> None:
    """Though no store is left to drop it: keeping its data takes etcd alone."""
    scene = await parting()
    delete_table(scene, **spec)
    await record(scene)
    take_set(scene)
    await settle(scene)
    assert (TABLE, "shop", "orders") in scene.kube.objects
    assert len(scene.claims) == 3


@pytest.mark.parametrize("how", ["nothing to keep", "no data", "released", "the namespace ends"])
async def test_a_table_is_let_go_without_stores(how: str) -> None:
    """Where its user keeps nothing, where it never had data, and where nobody is to be waited for."""
    scene = await parting()
    delete_table(scene, **({"undeleteFor": "0s"} if how == "nothing to keep" else {"deletionPolicy": "Retain"}))
    if how != "no data":
        await record(scene)
        scene.controllers.follows = False
    if how == "released":
        scene.change(metadata=RELEASED)
    if how == "the namespace ends":
        scene.kube.objects[NAMESPACE, "", "shop"]["metadata"] |= DELETED
    take_set(scene)
    await settle(scene)
    assert (TABLE, "shop", "orders") not in scene.kube.objects
    assert (STORE_CLUSTER, *KEY) not in scene.kube.objects


async def test_a_table_waits_for_the_etcd_that_was_followed() -> None:
    """Another one has no record of it, which says nothing of its data."""
    scene = await parting()
    delete_table(scene)
    take_set(scene)
    scene.controllers.follows = False
    await settle(scene)
    assert (TABLE, "shop", "orders") in scene.kube.objects
    scene.controllers.follows = True
    await settle(scene)
    assert (TABLE, "shop", "orders") not in scene.kube.objects


async def test_keys_in_another_etcd_stay() -> None:
    """They may be those of a StoreCluster of the same name in another Kubernetes."""
    scene = await parting(status={"metastore": {"clusterId": "dead", "revision": 1}})
    await record(scene)
    scene.reconciler._deletion._unreachable_since[KEY] = datetime(2000, 1, 1, tzinfo=UTC)
    await settle(scene)
    assert (STORE_CLUSTER, *KEY) not in scene.kube.objects
    assert await scene.metastore.get(KEYS.table("orders.uid-orders")) is not None
