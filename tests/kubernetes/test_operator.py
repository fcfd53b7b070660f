"""The operator on a real API server and a real etcd; pods are objects, and the stores in them are modelled.

What takes more than a few seconds is for `make test-process`.
"""

from __future__ import annotations

import base64

import pytest

from evenkeel.kube.object_kinds import (
    EVENT,
    PERSISTENT_VOLUME_CLAIM,
    POD_DISRUPTION_BUDGET,
    REBALANCE_PLAN,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    STORE_CLUSTER,
    TABLE,
    Object,
)
from tests.kubernetes.world import World, make_table, partitions_of, store_cluster, table, uids


async def replicas_of(world: World, name: str = "orders") -> int:
    found = await world.get(TABLE, name)
    return int((found or {}).get("status", {}).get("replicas", 0))


async def stores_of(world: World, name: str = "orders-0") -> set[str]:
    """Return the stores that hold some partition of a slice."""
    return {peer["store"] for partition in await partitions_of(world, name) for peer in partition["stable"]}


async def test_a_table_is_created(world: World) -> None:
    """A StoreCluster gets its pods and a Table its partitions; all objects have a status."""
    world.start()
    await make_table(world)

    cluster = await world.get(STORE_CLUSTER, "main")
    assert cluster is not None
    assert (cluster["status"]["stores"], cluster["status"]["readyStores"], cluster["status"]["tables"]) == (3, 3, 1)
    assert cluster["status"]["zonesFrom"] == "None"
    made = await world.get(TABLE, "orders")
    assert made is not None
    assert (made["status"]["partitions"], made["status"]["replicas"], made["status"]["leaderless"]) == (4, 3, 0)
    assert made["status"]["observedGeneration"] == made["metadata"]["generation"]
    assert await stores_of(world) == {"main-0", "main-1", "main-2"}
    [plan] = (await world.kube.list(REBALANCE_PLAN, world.namespace)).items
    assert plan["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    for kind in (SERVICE, POD_DISRUPTION_BUDGET, STATEFUL_SET):
        child = await world.get(kind, "main")
        assert child is not None
        assert child["metadata"]["ownerReferences"][0]["uid"] == cluster["metadata"]["uid"]


@pytest.mark.processes
async def test_nothing_is_sent_at_rest(world: World) -> None:
    """Without changes the operator sends no requests, except for the Lease and sweeps."""
    operator = world.start()
    await make_table(world)
    requests = operator.health.requests

    def counted() -> int:
        return sum(count for (verb, kind, _), count in requests.items() if kind != "leases" and verb != "GET")

    await world.quiet(counted, for_seconds=5)


@pytest.mark.processes
async def test_events_are_recorded(world: World) -> None:
    """`kubectl describe` shows when a table became Ready."""
    world.start()
    await make_table(world)

    async def recorded() -> bool:
        events = (await world.kube.list(EVENT, world.namespace)).items
        return any(e["involvedObject"]["name"] == "orders" and e["reason"] == "Ready" for e in events)

    await world.until("an Event reports that the table is Ready", recorded)


async def test_kubectl_scale_of_a_table(world: World) -> None:
    """`kubectl scale table` adds replicas, and the status reports them."""
    world.start()
    await make_table(world, stores=5)
    await world.run("scale", "table/orders", "--replicas=5")

    async def five() -> bool:
        return await replicas_of(world) == 5

    await world.until("five copies", five)
    await world.condition(TABLE, "orders", "Balanced")

    async def everywhere() -> bool:
        return len(await stores_of(world)) == 5

    await world.until("the slice names five stores", everywhere)


@pytest.mark.processes
async def test_a_surplus_store_is_drained_first(world: World) -> None:
    """A StoreCluster that is scaled down keeps its last pod until it holds nothing; then its volume goes too."""
    world.start()
    await make_table(world, stores=4)

    assert "main-3" in await stores_of(world)
    world.pods.network.held.add("main-0")  # so that nothing can move there for now
    await world.run("scale", "storecluster/main", "--replicas=3")

    async def draining() -> bool:
        found = await world.get(STORE_CLUSTER, "main")
        return bool((found or {}).get("status", {}).get("drains"))

    await world.until("the drain is reported", draining)
    assert (await world.get(STATEFUL_SET, "main") or {})["spec"]["replicas"] == 4
    world.pods.network.held.clear()

    async def smaller() -> bool:
        return bool((await world.get(STATEFUL_SET, "main") or {})["spec"]["replicas"] == 3)

    await world.until("the StatefulSet is smaller", smaller)
    assert not await world.is_named("main-3")
    await world.condition(TABLE, "orders", "Balanced")

    async def three_claims() -> bool:
        return await world.pods.claims() == ["data-main-0", "data-main-1", "data-main-2"]

    await world.until("the operator deletes the claim of the store that left", three_claims)


@pytest.mark.processes
async def test_scaling_up_in_the_middle_of_scaling_down(world: World) -> None:
    """A draining store stays when it is desired again, and gets its share back."""
    world.start()
    await make_table(world, stores=4)
    world.pods.network.held.update({"main-0", "main-1", "main-2"})
    await world.run("scale", "storecluster/main", "--replicas=3")

    async def draining() -> bool:
        return any("main-3" in key for key in await world.keys() if key.startswith("stores.state/")) and bool(
            (await world.get(STORE_CLUSTER, "main") or {}).get("status", {}).get("drains")
        )

    await world.until("the drain has begun", draining)
    await world.run("scale", "storecluster/main", "--replicas=5")
    world.pods.network.held.clear()

    async def spread() -> bool:
        return {"main-3", "main-4"} <= await stores_of(world)

    await world.until("all five hold something", spread)
    await world.condition(TABLE, "orders", "Balanced")
    assert "main-3" not in world.pods.stopped


async def test_a_deleted_table_leaves_nothing(world: World) -> None:
    """A Table without retention stays until its stores have dropped it; then it has no keys."""
    world.start()
    await make_table(world, undeleteFor="0s")
    await world.run("delete", "table/orders", "--timeout=60s")
    assert [key for key in await world.keys() if "orders" in key] == []


@pytest.mark.processes
async def test_a_deleted_store_cluster_leaves_nothing(world: World) -> None:
    """A StoreCluster reports that it waits for its tables; then pods, volumes, keys and client Secrets go."""
    other = f"{world.namespace}-clients"
    await world.run("create", "namespace", other)
    world.start()
    await world.apply(store_cluster(clientNamespaces=[other]), table(undeleteFor="0s"))
    await world.condition(TABLE, "orders", "Balanced")
    secret = await world.kube.get(SECRET, "main-client", other)
    assert secret is not None
    assert base64.b64decode(secret["data"]["endpoints"]).decode().startswith("grpc://main-0.main.")

    await world.run("delete", "storecluster/main", "--wait=false")
    found = await world.condition(STORE_CLUSTER, "main", "Degraded", reason="TablesRemain")
    assert "orders" in str(found["status"]["conditions"])
    assert len(await world.pods.claims()) == 3
    await world.run("delete", "table/orders", "--timeout=60s")

    async def gone() -> bool:
        return await world.get(STORE_CLUSTER, "main") is None

    await world.until("the StoreCluster is gone", gone)
    assert await world.keys() == []
    assert await world.pods.claims() == []
    assert await world.get(STATEFUL_SET, "main") is None
    assert await world.kube.get(SECRET, "main-client", other) is None


@pytest.mark.processes
async def test_tables_do_not_block_a_namespace(world: World) -> None:
    """If the pods are deleted first, as with a namespace, tables and StoreCluster go without them."""
    world.start()
    await make_table(world, undeleteFor="0s")
    world.pods.held.update({"main-0", "main-1", "main-2"})
    for name in ("main-0", "main-1", "main-2"):
        await world.pods.kill(name)
    await world.run("delete", "table/orders", "storecluster/main", "--wait=false")
    await world.run("delete", "statefulset/main", "--wait=false")

    async def gone() -> bool:
        return await world.get(STORE_CLUSTER, "main") is None and await world.get(TABLE, "orders") is None

    await world.until("both are gone", gone)
    assert await world.keys() == []


async def test_a_table_waits_for_its_store_cluster(world: World) -> None:
    """A Table reports a missing StoreCluster, and is created once that exists."""
    world.start()
    await world.apply(table())
    await world.condition(TABLE, "orders", "Degraded", reason="StoreClusterMissing")
    await world.condition(TABLE, "orders", "Ready", status="False")
    await world.apply(store_cluster())
    await world.condition(TABLE, "orders", "Ready")
    await world.condition(TABLE, "orders", "Degraded", status="False")


@pytest.mark.processes
async def test_a_paused_store_cluster_is_left_alone(world: World) -> None:
    """While the annotation is set, pods and plans do not change."""
    world.start()
    await make_table(world, stores=3)
    await world.run("annotate", "storecluster/main", "evenkeel.dev/paused=true")
    await world.condition(STORE_CLUSTER, "main", "Progressing", status="False", reason="Paused")
    await world.run("scale", "storecluster/main", "--replicas=4")
    await world.run("scale", "table/orders", "--replicas=1")
    await world.condition(STORE_CLUSTER, "main", "Progressing", status="False", reason="Paused")
    assert (await world.get(STATEFUL_SET, "main") or {})["spec"]["replicas"] == 3
    assert await replicas_of(world) == 3
    await world.run("annotate", "storecluster/main", "evenkeel.dev/paused-")

    async def carried_out() -> bool:
        stateful_set = await world.get(STATEFUL_SET, "main") or {}
        return bool(stateful_set["spec"]["replicas"] == 4) and await replicas_of(world) == 1

    await world.until("the changes during the pause are carried out", carried_out)


@pytest.mark.processes
async def test_volumes_grow(world: World) -> None:
    """A larger size is requested for every volume, though a StatefulSet's template is immutable."""
    world.start()
    await world.apply(store_cluster())
    await world.condition(STORE_CLUSTER, "main", "Ready")
    await world.run("patch", "storecluster/main", "--type=merge", '--patch={"spec":{"storage":{"size":"2Gi"}}}')

    async def refused_or_grown() -> bool:
        # Unbound volumes cannot grow; the status has the API server's error.
        claims = (await world.kube.list(PERSISTENT_VOLUME_CLAIM, world.namespace)).items
        sizes = {claim["spec"]["resources"]["requests"]["storage"] for claim in claims}
        found = await world.get(STORE_CLUSTER, "main") or {}
        conditions = str(found.get("status", {}).get("conditions", ()))
        return (
            sizes == {"2Gi"} or "only dynamically provisioned pvc can be resized" in conditions or "bound" in conditions
        )

    await world.until("volumes grow, or the status reports why not", refused_or_grown)


@pytest.mark.processes
async def test_zones_come_from_nodes(world: World) -> None:
    """Replicas are spread over the zones of the pods' nodes, and the status names the source of zones."""
    zones = {f"{world.namespace}-{i}": f"zone-{i % 3}" for i in range(6)}
    for node, zone in zones.items():
        labels = {"topology.kubernetes.io/zone": zone}
        await world.kube.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": labels}})
    world.pods.nodes = tuple(zones)
    world.start(nodes=True)
    await make_table(world, stores=6, partitions=8, replicas=3)
    cluster = await world.get(STORE_CLUSTER, "main") or {}
    assert cluster["status"]["zonesFrom"] == "Nodes"

    async def spread() -> bool:
        held = [[peer["store"] for peer in partition["stable"]] for partition in await partitions_of(world)]
        return all({int(store.rpartition("-")[2]) % 3 for store in stores} == {0, 1, 2} for stores in held)

    await world.until("every partition is in all zones", spread)


@pytest.mark.processes
async def test_a_store_on_a_cordoned_node_leads_nothing(world: World) -> None:
    """Its replicas stay; after an uncordon, leaderships return to their preferred stores."""
    nodes = [f"{world.namespace}-{number}" for number in range(3)]
    for node in nodes:
        await world.kube.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    world.pods.nodes = tuple(nodes)
    world.start(nodes=True)
    await make_table(world, partitions=6)

    async def leads(store: str) -> bool:
        return any(partition.get("leader") == store for partition in await partitions_of(world))

    async def nothing() -> bool:
        return not await leads("main-1")

    async def something() -> bool:
        return await leads("main-1")

    async def no_orders() -> bool:
        return [key for key in await world.keys() if key.startswith("drains/")] == []

    await world.until("main-1 leads something", something)
    await world.run("cordon", nodes[1])
    await world.until("main-1 leads nothing", nothing)
    assert await stores_of(world) == {"main-0", "main-1", "main-2"}
    await world.run("uncordon", nodes[1])
    await world.until("main-1 leads something again", something, within=120)
    await world.until("no order is left", no_orders)


@pytest.mark.processes
async def test_pods_are_replaced_one_by_one(world: World) -> None:
    """A new template replaces pods one at a time, unready ones first."""
    world.start()
    await make_table(world, movement={"lostAfter": "10m"})
    before = await uids(world)
    await world.pods.kill("main-0")
    await world.condition(STORE_CLUSTER, "main", "Ready", status="False")
    await world.run("patch", "storecluster/main", "--type=merge", '--patch={"spec":{"healing":"Manual"}}')
    await world.condition(STORE_CLUSTER, "main", "Progressing", reason="Reconciling")

    async def replaced() -> set[str]:
        now = await uids(world)
        return {name for name, uid in before.items() if now.get(name) != uid}

    async def first() -> bool:
        return await replaced() == {"main-0"}

    await world.until("the unready pod is replaced first", first)
    await world.quiet(lambda: world.pods.made, for_seconds=6)
    assert await replaced() == {"main-0"}
    world.pods.held.clear()

    async def all_of_them() -> bool:
        return await replaced() == {"main-0", "main-1", "main-2"}

    await world.until("all are replaced", all_of_them, within=120)
    await world.condition(STORE_CLUSTER, "main", "Ready")
    await world.condition(STORE_CLUSTER, "main", "Progressing", status="False")
    assert world.pods.fewest_ready == 2


@pytest.mark.processes
async def test_a_wiped_volume_gets_a_new_replica(world: World) -> None:
    """A pod that returns with an empty volume holds its partitions again, as new replicas."""
    world.start()
    await make_table(world, partitions=2)
    before = [replica(partition, "main-1") for partition in await partitions_of(world)]
    await world.pods.kill("main-1")
    world.pods.wipe("main-1")
    world.pods.held.clear()

    async def another() -> bool:
        after = [replica(partition, "main-1") for partition in await partitions_of(world)]
        return all(old < new for old, new in zip(before, after, strict=True))

    await world.until("main-1 has new replicas", another)
    await world.condition(TABLE, "orders", "Balanced")


def replica(partition: Object, store: str) -> int:
    return max((peer["replica"] for peer in partition["stable"] if peer["store"] == store), default=0)


@pytest.mark.processes
async def test_a_lost_store_is_replaced(world: World) -> None:
    """Replicas of a store that is down for longer than `lostAfter` are recreated elsewhere."""
    world.start()
    await make_table(world, stores=4, movement={"lostAfter": "3s"})
    await world.pods.kill("main-1")

    async def replaced() -> bool:
        return "main-1" not in await stores_of(world) and await replicas_of(world) == 3

    await world.until("main-1 holds nothing any more", replaced)
    found = await world.condition(STORE_CLUSTER, "main", "Degraded", reason="StoresLost")
    assert found["status"]["lost"] == ["main-1"]


@pytest.mark.processes
async def test_an_unavailable_empty_store_blocks_no_drain(world: World) -> None:
    """Once its replicas are elsewhere it does not use up the budget; when it is back, it counts again."""
    world.start()
    await make_table(world, stores=4, movement={"lostAfter": "1s"})

    async def may_be_away(count: int) -> None:
        async def so() -> bool:
            return bool((await world.get(POD_DISRUPTION_BUDGET, "main") or {})["spec"]["maxUnavailable"] == count)

        await world.until(f"{count} pods may be away", so, within=120)

    await may_be_away(1)
    await world.pods.kill("main-1")
    await may_be_away(2)
    assert not await world.is_named("main-1")
    world.pods.held.clear()
    await may_be_away(1)


@pytest.mark.processes
async def test_a_successor_continues(world: World) -> None:
    """The other operator completes the plan of one that was killed during a rebalance."""
    first = world.start("one")
    await make_table(world, stores=5, partitions=8)
    second = world.start("two")
    world.pods.network.held.update({"main-3", "main-4"})
    await world.run("scale", "table/orders", "--replicas=5")

    async def moving() -> bool:
        return bool((await world.get(TABLE, "orders") or {})["status"]["moving"])

    await world.until("something moves", moving)
    plan = (await world.get(TABLE, "orders") or {})["status"]["planHash"]
    assert (first.health.leading, second.health.leading) == (True, False)
    await world.stop("one")
    world.pods.network.held.clear()

    async def five() -> bool:
        return await replicas_of(world) == 5

    await world.until("five copies", five)
    assert second.health.leading
    assert (await world.get(TABLE, "orders") or {})["status"]["planHash"] == plan


@pytest.mark.processes
async def test_a_changed_stateful_set_is_reverted(world: World) -> None:
    """A change by another client is reverted."""
    world.start()
    await world.apply(store_cluster())
    await world.condition(STORE_CLUSTER, "main", "Ready")
    await world.run("scale", "statefulset/main", "--replicas=1")

    async def back() -> bool:
        return bool((await world.get(STATEFUL_SET, "main") or {})["spec"]["replicas"] == 3)

    await world.until("three replicas again", back)
