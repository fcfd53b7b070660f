"""Tables on real nodes, while pods, nodes, operators and etcd fail: no acknowledged row is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from e2e.cluster.kubectl import holds
from e2e.cluster.provider import Cluster
from e2e.release import Release, values
from e2e.shop import Found, Shop


@pytest.fixture
def busy(shop: Shop) -> Shop:
    """Create a table of three replicas on three stores, and a client that writes."""
    shop.open()
    shop.start_client()
    return shop


def verify(shop: Shop) -> Found:
    """Check that everything is ready again, writes continue, and no row is lost."""
    shop.settle()
    shop.wait_for_writes()
    return shop.check()


def away_from(cluster: Cluster, *nodes: str) -> str:
    """Return a node that is none of these."""
    return next(node for node in cluster.kubectl.workers() if node not in nodes)


def test_a_store_more_and_a_store_less(shop: Shop) -> None:
    """A fourth store gets its share of the only replicas, and leaves with its volume once it is empty.

    Moves are held back first: the pod must stay longer than its grace period, and when it is desired again in between.
    """
    shop.open(replicas=1)
    shop.start_client()
    shop.scale("storecluster/main", 4)
    shop.kubectl.wait("the fourth store holds something", lambda: "main-3" in shop.holders(), within=120)
    shop.settle()
    shop.pause()
    shop.scale("storecluster/main", 3)
    shop.kubectl.wait("the operator has seen that", lambda: shop.seen("storecluster/main"))
    shop.wait_for_writes()
    assert "main-3" in shop.holders()
    assert "deletionTimestamp" not in shop.pods()["main-3"]["metadata"]
    fourth = shop.uids()["main-3"]
    shop.scale("storecluster/main", 4)
    shop.resume()
    shop.settle()
    assert shop.uids()["main-3"] == fourth
    shop.scale("storecluster/main", 3)
    shop.kubectl.wait("the fourth pod is gone", lambda: set(shop.pods()) == {"main-0", "main-1", "main-2"}, within=180)
    verify(shop)
    shop.wait_for_holders("main-0", "main-1", "main-2")
    shop.kubectl.wait("its volume is gone", lambda: "data-main-3" not in shop.run("get", "pvc"), within=30)


def test_a_deleted_pod_comes_back(busy: Shop) -> None:
    """A deleted pod is replaced by one with the same volume, and no write fails."""
    before = {"main-1": busy.uids()["main-1"]}
    busy.run("delete", "pod/main-1")
    busy.wait_for_others(before)
    found = verify(busy)
    assert found.failed == 0, found.errors


def test_pods_that_come_back_with_empty_volumes(cluster: Cluster, busy: Shop) -> None:
    """Stores that lose their volumes one after the other get new replicas with new ids."""
    cluster.add_volumes(1, owner=65532)
    volumes = busy.volumes()
    for store in sorted(volumes):
        _take_volume(busy, store)
        verify(busy)
    assert not set(busy.volumes().values()) & set(volumes.values())


def _take_volume(shop: Shop, store: str) -> None:
    """Delete pod and claim, and wait until all replicas of the store are new."""
    pod, replicas = {store: shop.uids()[store]}, shop.replicas(store)
    shop.run("delete", f"pvc/data-{store}", "--wait=false")
    shop.run("delete", f"pod/{store}")
    shop.wait_for_others(pod)

    def renewed() -> bool:
        now = shop.replicas(store)
        return len(now) == len(replicas) and not now & replicas

    shop.kubectl.wait(f"all replicas of {store} are others", renewed, within=120)


def test_a_drained_node(cluster: Cluster, shop: Shop) -> None:
    """A cordon moves leaderships away; `kubectl drain` evicts the store within its budget; no write fails."""
    shop.open()
    node = shop.node_of("main-0")
    shop.start_client(node=away_from(cluster, node))
    shop.kubectl.wait("main-0 leads something", lambda: "main-0" in shop.leaders(), within=60)
    cluster.cordon_node(node)
    try:
        shop.kubectl.wait("main-0 leads nothing", lambda: "main-0" not in shop.leaders(), within=60)
        assert "main-0" in shop.holders()
        cluster.drain_node(node)
        shop.wait_for_writes()
    finally:
        cluster.uncordon_node(node)
    found = verify(shop)
    assert found.failed == 0, found.errors
    shop.kubectl.wait("main-0 leads something again", lambda: "main-0" in shop.leaders(), within=90)


def test_a_drained_node_with_two_stores(cluster: Cluster, shop: Shop) -> None:
    """The first evicted store cannot return, because of its volume; the second follows once the first is empty."""
    shop.open(stores=4, movement={"lostAfter": "10s"})
    nodes = {pod: shop.node_of(pod) for pod in shop.pods()}
    node = next(node for node in nodes.values() if list(nodes.values()).count(node) == 2)
    shop.start_client(node=away_from(cluster, node))
    cluster.drain_node(node)
    try:
        gone = {pod for pod, where in nodes.items() if where == node}
        assert not [pod for pod, found in shop.pods().items() if pod in gone and holds(found, "Ready")]
        shop.wait_for_writes()
        shop.check()
    finally:
        cluster.uncordon_node(node)
    found = verify(shop)
    assert found.failed == 0, found.errors


def test_partitions_that_a_user_pins(shop: Shop) -> None:
    """Replicas and leaders follow a PartitionAssignment, and its changes."""
    shop.pin({0: ("main-2", "main-0"), 1: ("main-1", "main-2")})
    shop.open(partitions=2, replicas=2, rebalancer={"mode": "Customized"})
    shop.start_client()
    shop.wait_for_pins({0: ("main-2", "main-0"), 1: ("main-1", "main-2")})
    shop.pin({0: ("main-1", "main-0"), 1: ("main-1", "main-2")})
    shop.wait_for_pins({0: ("main-1", "main-0"), 1: ("main-1", "main-2")})
    found = verify(shop)
    assert found.failed == 0, found.errors


def test_a_killed_node(cluster: Cluster, shop: Shop) -> None:
    """A node is killed: writes continue, its replicas are recreated elsewhere, and it rejoins."""
    shop.open(stores=4, movement={"lostAfter": "10s"})
    nodes = {pod: shop.node_of(pod) for pod in shop.pods()}
    alone = [pod for pod, node in nodes.items() if list(nodes.values()).count(node) == 1]
    victim = alone[0]
    shop.start_client(node=away_from(cluster, nodes[victim]))
    cluster.kill_node(nodes[victim])
    try:
        shop.wait_for_writes(within=120)
        shop.kubectl.wait("its replicas are elsewhere", lambda: victim not in shop.holders(), within=180)
        shop.check()
    finally:
        cluster.start_node(nodes[victim])
    verify(shop)


def test_an_operator_killed_in_the_middle(evenkeel: Release, shop: Shop) -> None:
    """The other replica of the operator continues the rebalance of a killed one."""
    shop.open(replicas=1, partitions=32, movement={"maxConcurrent": 2})
    shop.start_client()
    leader = evenkeel.leader()
    shop.scale("table/orders", 3)
    shop.kubectl.wait("some partitions have moved, and others not", lambda: 0 < shop.moving() < 32)
    evenkeel.kubectl(
        "delete", f"pod/{leader}", f"--namespace={evenkeel.namespace}", "--grace-period=0", "--force", "--wait=false"
    )
    verify(shop)
    assert evenkeel.leader() != leader


def test_an_etcd_member_lost(evenkeel: Release, busy: Shop) -> None:
    """With one of three etcd members down a table can still be scaled."""
    where = f"--namespace={evenkeel.namespace}"
    with _one_member_less(evenkeel, where):
        busy.scale("table/orders", 1)
        busy.settle()
        busy.wait_for_writes()
    busy.scale("table/orders", 3)
    verify(busy)


def test_an_etcd_member_lost_with_its_data(cluster: Cluster, evenkeel: Release, busy: Shop) -> None:
    """A member that lost its volume is replaced and votes: with another member down a table can be scaled."""
    cluster.add_volumes(1, owner=65532)
    where, member = f"--namespace={evenkeel.namespace}", f"{evenkeel.name}-etcd-0"
    volume = _volume_of(evenkeel, member)
    evenkeel.kubectl("delete", f"pvc/data-{member}", "--wait=false", where)
    evenkeel.kubectl("delete", f"pod/{member}", where)
    evenkeel.kubectl.wait(f"{member} has another volume", lambda: _volume_of(evenkeel, member) not in ("", volume))
    evenkeel.kubectl("rollout", "status", f"statefulset/{evenkeel.name}-etcd", where, "--timeout=90s", within=100)
    assert "has lost its data" in evenkeel.kubectl("logs", member, "--container=prepare", where)
    verify(busy)
    with _one_member_less(evenkeel, where):
        busy.scale("table/orders", 1)
        busy.settle()
    busy.scale("table/orders", 3)
    found = verify(busy)
    assert found.failed == 0, found.errors


def _volume_of(evenkeel: Release, member: str) -> str:
    """Return the volume of an etcd member."""
    claims = evenkeel.kubectl.items("pvc", f"--namespace={evenkeel.namespace}")
    bound = {claim["metadata"]["name"]: claim["spec"].get("volumeName", "") for claim in claims}
    return str(bound.get(f"data-{member}", ""))


@contextlib.contextmanager
def _one_member_less(evenkeel: Release, where: str) -> Iterator[None]:
    """Keep the last etcd member down, by scaling the StatefulSet; its volume stays."""
    evenkeel.kubectl("scale", f"statefulset/{evenkeel.name}-etcd", "--replicas=2", where)
    evenkeel.kubectl("wait", "--for=delete", f"pod/{evenkeel.name}-etcd-2", where, "--timeout=60s", within=70)
    try:
        yield
    finally:
        evenkeel.kubectl("scale", f"statefulset/{evenkeel.name}-etcd", "--replicas=3", where)
        evenkeel.kubectl("rollout", "status", f"statefulset/{evenkeel.name}-etcd", where, "--timeout=90s", within=100)


def test_a_rolling_update(evenkeel: Release, busy: Shop) -> None:
    """A changed setting replaces the store pods one at a time, each when the previous one has caught up."""
    before = busy.uids()
    usual = values()
    evenkeel.install({**usual, "stores": {**usual["stores"], "logLevel": "warning"}})
    try:
        busy.wait_for_others(before, one_by_one=True, within=240)
        found = verify(busy)
        assert found.failed == 0, found.errors
    finally:
        evenkeel.install(usual)
        busy.settle()


def test_an_update_while_a_store_is_away(cluster: Cluster, evenkeel: Release, shop: Shop) -> None:
    """While a store is down no other pod is replaced, because two of three replicas would be gone."""
    shop.open()
    node, before, usual = shop.node_of("main-0"), shop.uids(), values()
    shop.start_client(node=away_from(cluster, node))
    cluster.cordon_node(node)
    try:
        shop.run("delete", "pod/main-0")
        evenkeel.install({**usual, "stores": {**usual["stores"], "logLevel": "warning"}})
        shop.kubectl.wait("the update is reported", lambda: "Reconciling" in shop.reasons("storecluster/main"))
        shop.wait_for_writes(500)
        assert {**shop.uids(), "main-0": ""} == {**before, "main-0": ""}
        cluster.uncordon_node(node)
        shop.wait_for_others(before, within=240)
        found = verify(shop)
        assert found.failed == 0, found.errors
    finally:
        cluster.uncordon_node(node)
        evenkeel.install(usual)
        shop.settle()


def test_a_partitioned_node(cluster: Cluster, shop: Shop) -> None:
    """A disconnected node loses its leaderships; reconnected, its store rejoins."""
    shop.open()
    node = shop.node_of("main-2")
    shop.start_client(node=away_from(cluster, node))
    cluster.partition_node(node)
    try:
        shop.wait_for_writes(within=120)
        shop.check()
    finally:
        cluster.heal_node(node)
    verify(shop)


def test_no_such_storage_class(shop: Shop) -> None:
    """Without a provisioner the status has the scheduler's message, and deletion leaves nothing behind."""
    storage = {"size": "1Gi", "className": "unheard-of"}
    shop.apply(
        {
            "apiVersion": "evenkeel.dev/v1alpha1",
            "kind": "StoreCluster",
            "metadata": {"name": "main"},
            "spec": {"stores": 3, "storage": storage},
        }
    )

    def unbound() -> bool:
        found = shop.status("storecluster/main").get("conditions", ())
        return any(each["type"] == "Degraded" and each["reason"] == "VolumeUnbound" for each in found)

    shop.kubectl.wait("the status says that volumes are not bound", unbound, within=60)
    shop.close()
    shop.kubectl.wait("nothing is left", lambda: not shop.left(), within=60)
