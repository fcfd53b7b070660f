"""Volumes on a real API server: claims survive whatever happens to the StatefulSet."""

from __future__ import annotations

from typing import Any

import pytest

from evenkeel.kube.object_kinds import PERSISTENT_VOLUME_CLAIM, POD, STATEFUL_SET, STORE_CLUSTER, TABLE, Object
from evenkeel.metastore.metastore_api import Delete, Txn
from tests.kubernetes.test_operator import stores_of
from tests.kubernetes.test_plugin import plugged
from tests.kubernetes.world import World, make_table, store_cluster

CLAIMS = ["data-main-0", "data-main-1", "data-main-2"]


async def uids(world: World) -> dict[str, str]:
    """Return the uids of the claims, by name."""
    found = (await world.kube.list(PERSISTENT_VOLUME_CLAIM, world.namespace)).items
    return {claim["metadata"]["name"]: claim["metadata"]["uid"] for claim in found}


async def volumes(world: World) -> set[str]:
    """Return the volumes that partitions are on, according to the metastore."""
    stable = [key for key in await world.keys() if key.startswith("partition.assignments.stable/")]
    assert stable
    return {disk.volume for disk in world.pods._disks.values()}


async def no_pods(world: World) -> bool:
    return (await world.kube.list(POD, world.namespace)).items == []


@pytest.mark.parametrize("how", ["scale --replicas=0 statefulset/main", "delete statefulset/main"])
async def test_a_stateful_set_changed_by_hand_loses_nothing(world: World, how: str) -> None:
    """The pods return with their volumes, even if the operator was down until all pods were gone."""
    world.start()
    await make_table(world)
    before, disks = await uids(world), await volumes(world)
    await world.stop()
    made = world.pods.made
    await world.run(*how.split())
    await world.until("all pods are gone", lambda: no_pods(world))
    world.start()

    async def back() -> bool:
        found = await world.get(STATEFUL_SET, "main")
        return found is not None and found["spec"]["replicas"] == 3 and world.pods.made == made + 3

    await world.until("three pods are made again", back)
    await world.condition(STORE_CLUSTER, "main", "Ready")
    await world.condition(TABLE, "orders", "Ready")
    assert await uids(world) == before
    assert await volumes(world) == disks
    assert await stores_of(world) == {"main-0", "main-1", "main-2"}


@pytest.mark.processes
async def test_scaled_by_hand_in_the_middle_of_a_drain(world: World) -> None:
    """A draining store that still holds replicas returns too, though it is surplus."""
    world.start()
    await make_table(world, stores=4)
    world.pods.network.held.add("main-0")  # so that nothing can move there for now
    await world.run("scale", "storecluster/main", "--replicas=3")

    async def draining() -> bool:
        return bool((await world.get(STORE_CLUSTER, "main") or {}).get("status", {}).get("drains"))

    await world.until("the drain is reported", draining)
    before, made = await uids(world), world.pods.made
    await world.stop()
    await world.run("scale", "statefulset/main", "--replicas=0")
    await world.until("all pods are gone", lambda: no_pods(world))
    world.start()

    async def back() -> bool:
        found = await world.get(STATEFUL_SET, "main") or {}
        return bool(found["spec"]["replicas"] == 4 and world.pods.made >= made + 4)

    await world.until("all four pods are made again", back)
    assert await uids(world) == before
    world.pods.network.held.clear()

    async def left() -> bool:
        return await world.pods.claims() == CLAIMS and not await world.is_named("main-3")

    await world.until("the store is emptied, and then its claim is deleted", left, within=120)


@pytest.mark.processes
async def test_no_claim_is_deleted_while_paused(world: World) -> None:
    """Neither that of an emptied store, nor those of a StoreCluster that is being deleted."""
    world.start()
    await make_table(world, stores=4, undeleteFor="0s")
    world.pods.network.held.add("main-0")
    await world.run("scale", "storecluster/main", "--replicas=3")

    async def draining() -> bool:
        return bool((await world.get(STORE_CLUSTER, "main") or {}).get("status", {}).get("drains"))

    await world.until("the drain is reported", draining)
    await world.run("annotate", "storecluster/main", "evenkeel.dev/paused=true")
    await world.condition(STORE_CLUSTER, "main", "Progressing", status="False", reason="Paused")
    world.pods.network.held.clear()

    async def emptied() -> bool:
        return not await world.is_named("main-3")

    await world.run("delete", "table/orders", "--wait=false")
    await world.until("nothing is on main-3", emptied)
    await world.run("delete", "storecluster/main", "--wait=false")
    await world.condition(STORE_CLUSTER, "main", "Degraded", reason="Paused")
    assert len(await world.pods.claims()) == 4
    assert (await world.get(STATEFUL_SET, "main") or {})["spec"]["replicas"] == 4
    await world.run("annotate", "storecluster/main", "evenkeel.dev/paused-")

    async def gone() -> bool:
        return await world.get(STORE_CLUSTER, "main") is None and await world.pods.claims() == []

    await world.until("all is gone", gone)


@pytest.mark.processes
async def test_an_adoption_in_the_middle_of_a_drain_removes_no_pod(world: World) -> None:
    """An adopted etcd has no replicas of draining stores until the leaders have published them."""
    world.start()
    await make_table(world, stores=4, replicas=1)
    world.pods.network.held |= {"main-0", "main-1", "main-2"}  # so that nothing can move there for now
    await world.run("scale", "storecluster/main", "--replicas=3")

    async def draining() -> bool:
        return bool((await world.get(STORE_CLUSTER, "main") or {}).get("status", {}).get("drains"))

    await world.until("the drain is reported", draining)
    before, made = await uids(world), world.pods.made
    await world.metastore.txn(Txn(success=(Delete(f"/evenkeel/{world.namespace}/main/", prefix=True),)))
    found = await world.condition(STORE_CLUSTER, "main", "MetastoreMismatch")
    [mismatch] = [one for one in found["status"]["conditions"] if one["type"] == "MetastoreMismatch"]
    request = mismatch["message"].rpartition("adoptMetastore to ")[2]
    await world.run("patch", "storecluster/main", "--type=merge", f'--patch={{"spec":{{"adoptMetastore":{request}}}}}')
    await world.condition(STORE_CLUSTER, "main", "MetastoreMismatch", status="False")
    await world.until("the drain goes on", draining)
    assert (await world.get(STATEFUL_SET, "main") or {})["spec"]["replicas"] == 4
    assert {disk.volume for disk in world.pods._disks.values() if disk.replicas} >= {world.pods._disks["main-3"].volume}
    world.pods.network.held.clear()

    async def left() -> bool:
        return bool((await world.get(STATEFUL_SET, "main") or {})["spec"]["replicas"] == 3)

    await world.until("main-3 leaves when it is empty", left)
    assert not world.pods._disks["main-3"].replicas
    assert world.pods.made == made, "no pod was removed and made again"
    assert await uids(world) | before == before
    await world.condition(TABLE, "orders", "Balanced")
    await world.condition(TABLE, "orders", "Ready")


async def test_a_claim_of_another_owner_is_not_used(world: World) -> None:
    """A store does not get a claim of another owner, which stays when the StoreCluster is deleted."""
    claim: Object = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data-main-1"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    await world.apply(claim)
    before = await uids(world)
    world.start()
    await world.apply(store_cluster())
    found = await world.condition(STORE_CLUSTER, "main", "Degraded", reason="ForeignObject")
    assert f"PersistentVolumeClaim {world.namespace}/data-main-1 exists already" in str(found["status"]["conditions"])
    assert await world.get(STATEFUL_SET, "main") is None
    await world.run("delete", "storecluster/main", "--timeout=60s")
    assert await uids(world) == before


async def test_a_deleted_table_is_undeleted(world: World) -> None:
    """Its data stays after the Table is gone; the plugin lists, restores and purges it."""
    world.start()
    await make_table(world)
    before = await stores_of(world)
    await world.run("delete", "table/orders", "--timeout=60s")

    async def listed() -> bool:
        return '"orders"' in await plugged(world, "dropped", "-o", "json")

    await world.until("the deleted table is listed", listed)
    assert len([key for key in await world.keys() if key.startswith("partition.assignments.stable/orders.")]) == 4
    assert "undeleted" in await plugged(world, "undelete", "orders")
    await world.condition(TABLE, "orders", "Ready")
    assert await stores_of(world) == before
    await world.run("delete", "table/orders", "--timeout=60s")
    await world.until("it is listed again", listed)
    assert "purged" in await plugged(world, "purge", "table/orders")
    assert [key for key in await world.keys() if "orders" in key] == []
    assert "evenkeel.dev/purge" not in str((await world.get(STORE_CLUSTER, "main") or {})["metadata"])


async def test_a_store_cluster_waits_for_retained_tables(world: World) -> None:
    """It waits until they are purged; the deletion of its namespace does not wait."""
    world.start()
    await make_table(world, deletionPolicy="Retain")
    await world.run("delete", "table/orders", "--timeout=60s")
    await world.run("delete", "storecluster/main", "--wait=false")
    found = await world.condition(STORE_CLUSTER, "main", "Degraded", reason="TablesRemain")
    assert "until it is purged" in str(found["status"]["conditions"])
    assert await world.pods.claims() == CLAIMS
    await world.run("delete", "namespace", world.namespace, "--wait=false")
    await world.until("the StoreCluster is gone", lambda: no_cluster(world))
    assert await world.keys() == []


async def no_cluster(world: World) -> bool:
    return await world.get(STORE_CLUSTER, "main") is None


async def reports_kept_data(world: World) -> bool:
    status = (await world.get(STORE_CLUSTER, "main") or {}).get("status", {})
    return bool(status.get("dropped")) and "kubectl evenkeel undelete" in str(status.get("conditions"))


@pytest.mark.processes
@pytest.mark.parametrize("away", [False, True], ids=["operator there", "operator away"])
@pytest.mark.parametrize("spec", [{"deletionPolicy": "Retain"}, {"undeleteFor": "1h"}], ids=["Retain", "Delete"])
async def test_kept_data_survives_a_stateful_set_that_goes_first(
    world: World, away: bool, spec: dict[str, Any]
) -> None:
    """All objects are deleted at once; the stores come back, and the table is undeleted."""
    world.start()
    await make_table(world, **spec)
    before = await uids(world)
    if away:
        await world.stop()
    await world.run("delete", "storecluster/main", "--wait=false")
    await world.run("delete", "statefulset/main", "--wait=false")
    await world.run("delete", "table/orders", "--wait=false")
    if away:
        await world.until("all pods are gone", lambda: no_pods(world))
        world.start()
    await world.until("the StoreCluster reports kept data", lambda: reports_kept_data(world))
    assert await uids(world) == before
    assert "undeleted" in await plugged(world, "undelete", "orders")
    await world.condition(TABLE, "orders", "Ready")
    await world.run("delete", "table/orders", "--timeout=60s")
    await world.until("the StoreCluster reports kept data", lambda: reports_kept_data(world))
    assert "purged" in await plugged(world, "purge", "table/orders")
    await world.until("the StoreCluster is gone", lambda: no_cluster(world))
    assert await world.pods.claims() == []
    assert await world.keys() == []


@pytest.mark.processes
async def test_kept_data_survives_foreground_deletion(world: World) -> None:
    """The garbage collector deletes the StatefulSet first; the claims stay until the data is purged."""
    world.start()
    await make_table(world)
    await world.stop()
    await world.run("delete", "table/orders", "--wait=false", "--cascade=foreground")
    await world.run("delete", "storecluster/main", "--wait=false", "--cascade=foreground")
    await world.run("delete", "statefulset/main")
    await world.until("all pods are gone", lambda: no_pods(world))
    world.start()
    await world.condition(STORE_CLUSTER, "main", "Degraded", reason="TablesRemain")
    assert await world.pods.claims() == CLAIMS
    assert await world.get(STATEFUL_SET, "main") is None
    await world.run("patch", "table/orders", "--type=merge", '--patch={"metadata":{"finalizers":null}}')
    [key] = [key.removeprefix("tables/") for key in await world.keys() if key.startswith("tables/")]
    await world.run("annotate", "storecluster/main", f"evenkeel.dev/purge={key}")

    async def gone() -> bool:
        return await world.pods.claims() == []

    await world.until("the claims are deleted", gone)
